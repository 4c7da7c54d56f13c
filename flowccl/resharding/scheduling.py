"""Start times for pieces on trees: list scheduling in several orders."""

from collections.abc import Iterator

import numpy as np

from flowccl.arrays import NEVER
from flowccl.resharding.pieces import Pieces
from flowccl.resharding.routing import PieceTrees
from flowccl.schedule.generation import serial
from flowccl.schedule.generation.job_shop import Jobs, jobs_on_trees
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology

METHOD = "reshard"
_NOISE = (0.0, 0.3)  # of the orders that are tried, in rounds


def schedules(
    topology: Topology, on_trees: PieceTrees, pieces: Pieces, random: np.random.Generator
) -> Iterator[Schedule | None]:
    """Yield schedules of the pieces on their trees, each step a fraction of a second where there are few pieces."""
    jobs = jobs_on_trees(topology, on_trees.demand, on_trees.trees)
    period = _busiest_link_ps(jobs) / pieces.rounds
    for noise in _NOISE:
        key = pieces.round_number[on_trees.piece][jobs.chunk] * period - jobs.tail
        key = key + noise * period * random.uniform(-1, 1, len(key))
        yield within_limits(jobs.in_order(key, NEVER), topology)


def _busiest_link_ps(jobs: Jobs) -> float:
    """The time for which the busiest link carries data."""
    carried = np.bincount(jobs.route, jobs.size_bytes, len(jobs.routes))
    hop = np.repeat(np.arange(len(jobs.routes)), np.diff(jobs.routes.ptr))
    link = jobs.routes.link
    return float(np.bincount(link, carried[hop] * 1000.0 / jobs.topology.link_GBps[link]).max())


def within_limits(schedule: Schedule | None, topology: Topology) -> Schedule | None:
    """The schedule under all constraints: the list scheduler ignores limits, buffers, changes and overheads."""
    if schedule is None or not (topology.has_extra_constraints or topology.has_overheads):
        return schedule
    return serial.within_limits(schedule)
