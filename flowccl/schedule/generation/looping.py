"""Schedules with loops: how one is made, and about how long it takes before it is made."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER
from flowccl.demand.demand import Demand
from flowccl.errors import InputError
from flowccl.runtimes.execution import Execution
from flowccl.runtimes.posters import assign_tasks
from flowccl.runtimes.profiles import RuntimeProfile
from flowccl.schedule.clock import route_costs
from flowccl.schedule.generation.engine import Engine
from flowccl.schedule.generation.loop_estimate import estimated
from flowccl.schedule.generation.loops import part_of, tasks_of, with_loops
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.timing import spread
from flowccl.topology.topology import Topology

_LOOPED = 200_000  # transfers of a schedule with loops: larger ones take seconds
_LEAST_LOOPS = 8  # with fewer, the first part is on its way for too long
_PART_BYTES = 32_768  # of a chunk: a threadblock sends this in about the time of the overhead and the signal
_NEAR = 0.01  # of the completion time: fewer loops are taken where they are no later than that


@dataclass(frozen=True, slots=True)
class Policy:
    """How the engine chooses between messages.

    A message waits where it would get less than `least` of its rate. `longest_first`: of the messages that wait, that
    with the longest way to go is first, not that which is first in the schedule. `leaves_capacity`: no message takes
    what slower ones need on the links that they share. None takes more than `most` of a link that others use too, so
    that several share it at any time, which leaves smaller gaps.
    """

    least: float = 0.5
    longest_first: bool = False
    leaves_capacity: bool = False
    most: float = 1.0


LOOPED = Policy(least=0.25, most=0.5)  # with loops, messages of other parts share links at any time


@dataclass(frozen=True, slots=True)
class Looper:
    """Lets the threadblocks of a GPU, at most `sms`, repeat what they do in a schedule."""

    profile: RuntimeProfile
    topology: Topology
    sms: int

    def run(self, schedule: Schedule, loops: int, policy: Policy, before_ps: int | None = None) -> Schedule | None:
        """Return the schedule with loops; None where that is not possible, or not before a time."""
        base = self.part(schedule, loops, policy)
        draft = None if base is None else with_loops(base, schedule.demand)
        if draft is None:
            return None
        pace = np.repeat(_pace(schedule, policy.most), loops)
        engine = Engine(draft, draft.execution, pace_GBps=pace)
        give_up_ps = NEVER if before_ps is None else before_ps
        return engine.run(None, policy.least, give_up_ps, leaves_capacity=policy.leaves_capacity)

    def part(self, schedule: Schedule, loops: int, policy: Policy) -> Schedule | None:
        """Return what threadblocks do with one part of the data, where they repeat it; None where they cannot."""
        part = part_of(schedule.demand, loops) if self._may_repeat(schedule, loops) else None
        if part is None:
            return None
        base = replace(schedule, demand=part, message=schedule.message[:0])
        if not schedule.has_messages:
            base.cache["waits"] = Engine(schedule).waits
        execution = self._execution(base, loops)
        if execution is None:
            return None
        engine = Engine(base, execution, self.topology, None, _pace(schedule, policy.most), in_turn=False)
        key = -engine.tail_ps if policy.longest_first else None
        return engine.run(key, policy.least, leaves_capacity=policy.leaves_capacity)

    def expected(
        self, schedule: Schedule, fits: Callable[[int, int], bool] = lambda messages, loops: True
    ) -> tuple[float, int]:
        """Return about the completion time with a good number of loops, from the work alone, and that number.

        That is the least number with which the time is near that with the best one, of those for which there is time:
        `fits` says so for a number of messages and of loops. The time is infinite where loops are not possible.
        """
        loops, found = _LEAST_LOOPS, list[tuple[float, int]]()
        execution = self._execution(schedule, loops) if self._may_repeat(schedule, loops) else None
        if execution is None:
            return inf, loops
        work = estimated(schedule, execution)
        while self._may_repeat(schedule, loops) and fits(len(schedule), loops):
            found.append((work.ps(loops), loops))
            loops *= 2
        return next((row for row in found if row[0] <= (1 + _NEAR) * min(found)[0]), (inf, _LEAST_LOOPS))

    def _may_repeat(self, schedule: Schedule, loops: int) -> bool:
        """Whether threadblocks may repeat what they do, with parts that are aligned and large enough."""
        demand, shape = schedule.demand, schedule.shape
        several = (np.diff(shape.root_ptr) > 1) | (np.diff(shape.end_ptr) > 1)
        if len(schedule) * loops > _LOOPED or several.any() or demand.ready_ps is not None:
            return False
        if demand.collective == "alltoallv" or part_of(demand, loops) is None:
            return False
        return int(demand.chunk_bytes[0]) >= _PART_BYTES * loops

    def _execution(self, schedule: Schedule, loops: int) -> Execution | None:
        """Return the execution of a schedule with loops; None where there are too few threadblocks."""
        costs = route_costs(self.topology, schedule.shape, Execution(self.profile, self.sms))
        tasks = assign_tasks(tasks_of(schedule, costs.is_proxied[schedule.route]))
        posters = 1 + max(tasks.values(), default=-1)
        try:
            return Execution(self.profile, self.sms, 1, posters, loops=loops)
        except InputError:
            return None


def _pace(schedule: Schedule, most: float) -> NDArray[np.float64]:
    """The rate that each transfer may have: `most` of its slowest link, or its share where fewer transfers use that."""
    routes, GBps = schedule.routes, schedule.topology.link_GBps
    _, hop = spread(routes.ptr, schedule.route)
    uses = np.bincount(routes.link[hop], minlength=len(GBps))
    part = np.maximum(most, 1 / np.maximum(uses, 1)) * GBps
    return np.minimum.reduceat(part[routes.link], routes.ptr[:-1])[schedule.route]


def has_parts(demand: Demand) -> bool:
    """Whether chunks are large enough to be divided into parts by threadblocks that repeat their operations."""
    return int(demand.chunk_bytes.max(initial=0)) >= _LEAST_LOOPS * _PART_BYTES


def repeated(schedule: Schedule, profile: RuntimeProfile, sms: int, loops: int) -> Schedule | None:
    """Return a schedule as threadblocks carry it out that repeat their operations; None where they cannot."""
    return Looper(profile, schedule.topology, sms).run(schedule, loops, LOOPED)
