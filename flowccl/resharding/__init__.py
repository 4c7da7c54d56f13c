"""Weights between layouts: plans that move the shards of one set of GPUs to those of another.

layout.py        meshes, placements and byte ranges of tensors, as on torch's DTensor
layout_files.py  layouts as JSON
shards.py        the intervals of a tensor's dimension that each part of a mesh has
cells.py         overlaps of source and target shards of one tensor
traffic.py       all bytes of two layouts, grouped by their sources and targets
pieces.py        groups divided into pieces; a demand with one source per chunk
routing.py       trees that balance the load of the links, from any replica
scheduling.py    start times: staggered rounds and list scheduling
bound.py         the lower bound, for any choice of sources
plan_search.py   the search for a plan
planning.py      `reshard`: layouts in, a verified plan with its bound out
staging.py       plans in bounded memory
reference.py     data of known values for runs
describe.py      plans in words
baselines.py     what is done without a plan
plan.py          the plan; plan_files.py: its file
steps.py         the messages of each step of a run, and the memory that they take
copying.py       bytes between tensors and messages
running.py       runs in one process, on numpy
"""
