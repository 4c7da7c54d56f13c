"""Start times for pieces on trees: staggered rounds, and list scheduling in several orders."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER
from flowccl.methods.trees.along import link_work_ps
from flowccl.methods.trees.pacing import in_balanced_order
from flowccl.methods.trees.stagger import plan_stagger
from flowccl.resharding.pieces import Pieces
from flowccl.resharding.routing import PieceTrees
from flowccl.schedule.generation import serial
from flowccl.schedule.generation.job_shop import jobs_of
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology

I64 = NDArray[np.int64]
METHOD = "reshard"
_NOISE = (0.0, 0.3)  # of the orders that are tried, in rounds


def schedules(
    topology: Topology, on_trees: PieceTrees, pieces: Pieces, random: np.random.Generator
) -> Iterator[Schedule | None]:
    """Yield schedules of the pieces on their trees, each step a fraction of a second where there are few pieces."""
    jobs = jobs_of(topology, on_trees.demand, on_trees.trees)
    round_number = pieces.round_number[on_trees.piece]
    if pieces.rounds > 1 and not (topology.has_extra_constraints or topology.has_overheads):
        yield plan_stagger(jobs, templates(on_trees, pieces), round_number).schedule()
    work = link_work_ps(jobs)
    period = float(work.max()) / pieces.rounds
    for noise in _NOISE:
        key = round_number[jobs.chunk] * period - jobs.tail
        key = key + noise * period * random.uniform(-1, 1, len(key))
        yield within_limits(jobs.in_order(key, NEVER), topology)
        yield within_limits(in_balanced_order(jobs, key, work, NEVER), topology)


def within_limits(schedule: Schedule | None, topology: Topology) -> Schedule | None:
    """The schedule under all constraints: the list schedulers ignore limits, buffers, changes and overheads."""
    if schedule is None or not (topology.has_extra_constraints or topology.has_overheads):
        return schedule
    return serial.within_limits(schedule)


def templates(on_trees: PieceTrees, pieces: Pieces) -> I64:
    """For each chunk, the chunk of round 0 on the same tree: that of the template piece with the same source."""
    source = on_trees.demand.source.astype(np.int64)
    gpus = on_trees.demand.num_gpus
    key = on_trees.piece * gpus + source  # sorted, since chunks are in order of (piece, source)
    return np.searchsorted(key, pieces.template[on_trees.piece] * gpus + source)
