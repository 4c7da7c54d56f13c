"""What the compiled loops of trees read and write: tables of a machine, and the tree that is being grown."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I64, Bool

STAR, IN_CHAIN, MIXED = range(3)  # trees inside groups


class TreeTables(NamedTuple):
    """A machine, its levels and the shape of trees: what does not change while chunks are planned.

    Level l numbers its groups from `base[l]` on in `size`, and its pairs of groups from `pair_base[l]` on. The routes
    of pair p are `pair_route[pair_ptr[p]:pair_ptr[p + 1]]`. `own[l, gpu, group]` is the route along the rail of a GPU.
    Rows of `links` are filled up with a link that does not exist, whose load stays 0.
    """

    gpus: int
    inside: int
    labels: I64
    groups: I64
    base: I64
    size: I64
    pair_base: I64
    pair_ptr: I64
    pair_route: I64
    own: I64
    place: I64  # of each GPU in its innermost group
    src: I64
    end: I64
    links: I64
    busy_ps: F64
    overloaded: Bool
    per_byte_ps: F64
    first: I64  # the first route between two nodes, and how many there are
    alike: I64
    into: I64  # the links between switches that copy and GPUs
    out: I64
    before: I64  # the node before each node on the quickest path from each GPU
    fast_ptr: I64  # of each innermost group: its fastest routes, and where those of all speeds begin
    fast: I64


class Growing(NamedTuple):
    """The edges of the tree that is being grown, and what the loops write down in between."""

    edges: I64  # parent, first end, ends, first link, links
    ends: I64
    links: I64
    sequence: I64  # the edges, parents first
    pool: I64  # sets of GPUs
    stack: I64
    routes: I64  # that bring the chunk into groups
    fill: I64
    start: I64
    order: I64
    gateway: I64
    crossing: I64
    wanted: Bool
    reached: Bool
    hops: I64
    times: I64
    touched: I64
    known: F64
    cost: F64
    used: I64  # edges, ends, links, places in the pool, items on the stack, routes


def new_growing(nodes: int, gpus: int, levels: int, groups: int, links: int, routes: int, width: int) -> Growing:
    """Room for one tree."""
    edges = 8 * nodes + 64
    fill, start, order, gateway = np.zeros((4, groups), np.int64)
    wanted, reached = np.zeros((2, nodes), np.bool_)
    times, touched = np.zeros((2, links + 1), np.int64)
    return Growing(
        np.zeros((edges, 5), np.int64),
        np.zeros(2 * edges, np.int64),
        np.zeros(edges * (width + 2), np.int64),
        np.zeros(edges, np.int64),
        np.zeros((levels + 3) * (gpus + 1), np.int64),
        np.zeros((2 * (levels + 1) * (groups + 1), 5), np.int64),
        np.zeros(edges, np.int64),
        fill,
        start,
        order,
        gateway,
        np.zeros((groups, 2), np.int64),
        wanted,
        reached,
        np.zeros(nodes, np.int64),
        times,
        touched,
        np.zeros(nodes),
        np.zeros(routes),
        np.zeros(6, np.int64),
    )
