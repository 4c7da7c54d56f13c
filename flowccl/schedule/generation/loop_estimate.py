"""About how long threadblocks take that repeat their operations, from the work alone, before anything is scheduled.

The parts follow each other at the pace of whatever is the busiest: a link, the proxy of a NIC, the longest job of a
threadblock, or all threadblocks of a GPU together. The first part goes through all stages before that; the chunks of a
block are at different stages at a time.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flowccl.runtimes.execution import Execution
from flowccl.schedule.clock import MessageTimes
from flowccl.schedule.generation.loops import busiest_link_ps, reduced_at_once
from flowccl.schedule.generation.precedence import stages_of
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.timing import spread

F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LoopEstimate:
    """What is busy for how long, as (time with all data, time for each part beside that), in picoseconds.

    `busy` are all links, proxies and jobs, and the mean of the threadblocks of each GPU. `stages` are the longest times
    of each stage.
    """

    busy: tuple[F64, F64]
    stages: tuple[F64, F64]

    def ps(self, loops: int) -> float:
        """Return about the completion time with a number of loops."""
        pace = float((self.busy[0] + loops * self.busy[1]).max(initial=0.0))
        return pace + float((self.stages[0] / loops + self.stages[1]).sum())


def estimated(schedule: Schedule, execution: Execution) -> LoopEstimate:
    """Return what a schedule keeps busy where each transfer is a message, as often as there are parts."""
    alone = replace(
        schedule,
        execution=execution,
        message=schedule.message[:0],
        issuer=schedule.issuer[:0],
        receiver=schedule.receiver[:0],
        work_from_ps=schedule.work_from_ps[:0],
        rate_GBps=schedule.rate_GBps[:0],
    )
    costs, shape, route, nodes = alone.costs, alone.shape, alone.route, len(alone.topology.nodes)
    assert costs is not None
    stage, target = stages_of(schedule), shape.end_node[shape.end_ptr[:-1]][route]
    source = shape.root_node[shape.root_ptr[:-1]][route]
    slowest = np.full(len(shape.routes), np.inf)
    np.minimum.at(slowest, shape.segment_route, shape.segment_GBps)
    flow = costs.wire_bytes * 1000.0 / np.minimum(costs.rate_GBps, slowest[route])
    issues, proxied = np.flatnonzero(~costs.is_proxied), np.flatnonzero(costs.is_proxied)
    works, spent = _operations(alone, costs, execution.most_together, stage, target)
    node = np.append(source[issues], target[works])
    whole, each = np.append(flow[issues], spent), np.append(costs.overhead_ps[issues], np.zeros(len(works)))
    of, hop = spread(shape.routes.ptr, route)
    links, count = len(alone.topology.links), 2 * int(stage.max(initial=0)) + 2
    takes = costs.wire_bytes[of] * shape.hop_weight[hop] * 1000.0 / alone.topology.link_GBps[shape.routes.link[hop]]
    load = np.bincount(stage[of] * links + shape.routes.link[hop], takes, count // 2 * links).reshape(-1, links)
    posted = np.bincount(source[proxied], costs.overhead_ps[proxied], nodes)
    gpus = [np.bincount(node, time, nodes) / execution.groups for time in (whole, each)]
    job = np.append(2 * stage[issues], 2 * stage[works] + 1)
    longest, overhead = np.zeros((2, count))
    np.maximum.at(longest, job, whole)
    np.maximum.at(overhead, job, each)
    longest[::2] = np.maximum(longest[::2], load.max(axis=1, initial=0.0) / schedule.demand.pieces)
    return LoopEstimate(
        (
            np.concatenate(([busiest_link_ps(alone)], np.zeros(nodes), whole, gpus[0])),
            np.concatenate(([0.0], posted, each, gpus[1])),
        ),
        (longest, overhead),
    )


def _operations(schedule: Schedule, costs: MessageTimes, most: int, stage: I64, target: I32) -> tuple[I64, F64]:
    """The first transfer of each operation on what arrives, and its time; reductions of a stage are one operation."""
    worked = np.flatnonzero(costs.work_ps > 0)
    first = reduced_at_once(schedule, costs, most, (stage, schedule.chunk, target))[worked]
    works, of = np.unique(first, return_inverse=True)
    further = np.bincount(of.reshape(-1), np.where(first == worked, 0, costs.further_ps[worked]), len(works))
    return works, np.asarray(costs.work_ps[works] + further, dtype=np.float64)
