"""List scheduling of messages: methods bring routes and an order, the engine brings times.

The engine takes everything that a machine and a runtime can have: links and limits that are shared by rate, routes with
several starts or ends, release times, reduction order, threadblocks, proxies, and receivers that work.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER
from flowccl.runtimes.execution import Execution
from flowccl.runtimes.limits import (
    AGAIN_OPERATIONS,
    CHANNELS_PER_BLOCK,
    FURTHER_OPERATIONS,
    RECEIVE_OPERATIONS,
    USABLE_OPERATIONS,
)
from flowccl.schedule.generation.engine_inputs import Waits, messages_of, rates_leaving_capacity, waits_of
from flowccl.schedule.generation.engine_turns import no_turns, turns_of
from flowccl.schedule.generation.precedence import data_pairs
from flowccl.schedule.schedule import Schedule
from flowccl.topology.symmetry.regular_groups import RegularGroup
from flowccl.topology.topology import Topology
from flowccl.topology.trunks import lane_counts

if TYPE_CHECKING:
    from flowccl.schedule.generation.engine_state_kernels import MessageArrays, Turns

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
LEAST_RATES = (0.1, 0.5, 1.0)  # part of its rate below which a message waits
MOST_SHARED = 50_000  # transfers that share links by rate
_PACKED_AGAIN = 3  # times that messages are scheduled anew because another order has more to pack
_OPERATIONS = (RECEIVE_OPERATIONS, AGAIN_OPERATIONS, FURTHER_OPERATIONS)


@dataclass(frozen=True, eq=False)
class Engine:
    """The messages of a schedule, prepared for list scheduling in any order.

    The schedule is valid: it says which data each transfer waits for. `topology` is the machine on which its messages
    are timed, by default that of the schedule; it has the same links, but may have limits and costs that the schedule
    does not know. `message` joins transfers in other messages than the schedule does. No message is faster than
    `pace_GBps` of its first transfer, where that is above 0. Where threadblocks repeat their operations, each group
    does things in the order of the schedule, unless not `in_turn`: then the engine chooses groups as elsewhere. With a
    symmetry `group`, the schedule is that of GPU 0's data, and its images run at the same times. A threadblock has
    `usable_operations` for its messages.
    """

    schedule: Schedule
    execution: Execution | None = None
    topology: Topology | None = None
    message: NDArray[np.int32] | None = None
    pace_GBps: NDArray[np.float64] | None = None
    in_turn: bool = True
    group: RegularGroup | None = None
    usable_operations: int = USABLE_OPERATIONS

    def run(
        self,
        key: NDArray[Any] | None = None,
        least: float = 1.0,
        give_up_ps: int = NEVER,
        *,
        leaves_capacity: bool = False,
    ) -> Schedule | None:
        """Return the schedule with the times of the engine: of the messages that wait, the least key goes first.

        By default, messages keep the order of the schedule. A message waits where other messages leave it less than
        `least` of the rate that it could have. If the engine `leaves_capacity`, no message takes what slower ones need
        on the links that they share. None where the groups cannot send the messages, where reductions wait
        for each other, or where a message would start after `give_up_ps`.
        """
        from flowccl.schedule.generation.engine_kernels import run_engine
        from flowccl.schedule.generation.engine_state_kernels import Capacity
        from flowccl.schedule.generation.orbits import of_orbits

        topology, first = self._target.topology, self._first
        order = (self.schedule.start_ps if key is None else key)[first]
        rank = np.empty(len(first), dtype=np.int64)
        rank[np.lexsort((first, self.schedule.start_ps[first], order))] = np.arange(len(first))
        bandwidth = np.concatenate((topology.link_GBps, topology.limit_GBps))
        if self.execution is None:
            capacity = Capacity(bandwidth, 0, 1, 0, 0, 0, 0, 1, 0, len(topology.nodes))
        else:
            together, groups = self.execution.most_together, (self.execution.groups, self.execution.receivers)
            operations = (self.usable_operations, *_OPERATIONS)
            capacity = Capacity(bandwidth, *groups, *operations, together, CHANNELS_PER_BLOCK, len(topology.nodes))
        if self.group is not None:
            capacity = of_orbits(capacity, self.group)
        messages = self._messages._replace(rank=rank)
        if leaves_capacity:
            messages = messages._replace(rate_GBps=rates_leaving_capacity(messages, bandwidth))
        for _ in range(_PACKED_AGAIN):
            found = self._with_times(run_engine(messages, capacity, self._turns, float(least), int(give_up_ps)))
            if found is None or found.costs is None:
                return found
            needed_ps = found.costs.pack_ps[first]
            if not np.any(needed_ps > messages.pack_ps):
                return self._packed(found, messages.pack_ps - needed_ps)
            messages = messages._replace(pack_ps=np.maximum(needed_ps, messages.pack_ps))
        return None

    @property
    def _turns(self) -> "Turns":
        """The order of what each group does, as in the schedule, where threadblocks repeat their operations."""
        if self.execution is None or self.execution.loops == 1 or not self.in_turn:
            return no_turns()
        return turns_of(self.schedule, self.execution, self._messages, self._first, self._of)

    def _with_times(self, times: tuple[bool, I64, F64, I32, I32, I64]) -> Schedule | None:
        """The schedule with times that the engine found; None where it found none."""
        done, start, rate, issuer, receiver, work_from = times
        if not done:
            return None
        of = self._of
        found = replace(
            self._target,
            start_ps=start[of],
            issuer=issuer[of],
            receiver=receiver[of],
            work_from_ps=work_from[of],
            rate_GBps=np.where(rate < self._full_GBps, rate, 0.0)[of],
        )
        return found if _keeps_reductions(self.schedule, found) else None

    def _packed(self, found: Schedule, less_ps: I64) -> Schedule | None:
        """The schedule with what there is to pack in its own order, which may be less than what was expected.

        Messages with less to pack start later, so that they leave as planned. None where that changes what to pack.
        """
        assert found.costs is not None
        if not less_ps.any():
            return found
        idle = (less_ps > 0) & (found.costs.pack_ps[self._first] == 0)
        issuer = np.where(idle[self._of], -1, found.issuer).astype(np.int32)
        made = replace(found, start_ps=found.start_ps + less_ps[self._of], issuer=issuer)
        return made if made.costs is not None and np.array_equal(made.costs.pack_ps, found.costs.pack_ps) else None

    @cached_property
    def tail_ps(self) -> I64:
        """For every transfer, the time from its start to the end of its last successor, on free links.

        What is reduced into the same chunk of a GPU is worked on one after the other, in the order of the schedule.
        """
        from flowccl.schedule.generation.generation_kernels import longest_tails

        messages, takes = self._messages, self._takes_ps
        before = np.repeat(np.arange(len(self._first)), np.diff(messages.after_ptr))
        flow = np.where(messages.rigid, 0, np.ceil(messages.wire_bytes * 1000.0 / messages.rate_GBps))
        gone = messages.pack_ps + messages.overhead_ps + flow.astype(np.int64) + messages.work_ps
        lag = np.where(messages.from_end, gone[before], 0) + messages.after_ps
        first, then = self._reduced_in_turn
        before, after = np.append(before, first), np.append(messages.after, then)
        lag = np.append(lag, gone[first] - gone[then] + messages.work_ps[then])
        order = np.argsort(before, kind="stable")
        ptr = np.searchsorted(before[order], np.arange(len(self._first) + 1))
        tails: I64 = longest_tails(self._in_time[::-1].copy(), ptr, after[order], lag[order], takes)[self._of]
        return tails

    @property
    def _in_time(self) -> I64:
        """The messages in the order of the schedule."""
        return np.argsort(self.schedule.start_ps[self._first], kind="stable")

    @property
    def _reduced_in_turn(self) -> tuple[I64, I64]:
        """Pairs of messages that are reduced into the same chunk of a GPU, each with the next one in the schedule."""
        messages, turn = self._messages, np.empty(len(self._first), dtype=np.int64)
        turn[self._in_time] = np.arange(len(turn))
        row = np.repeat(np.arange(len(turn)), np.diff(messages.into_ptr))
        worked = messages.work_ps[row] > 0
        row, into = row[worked], messages.into[worked]
        order = np.lexsort((turn[row], into))
        same = np.diff(into[order]) == 0
        return row[order][:-1][same], row[order][1:][same]

    @cached_property
    def _target(self) -> Schedule:
        """The schedule on the machine on which it is timed; its own times do not count."""
        return replace(
            self.schedule,
            topology=self.topology or self.schedule.topology,
            message=self.schedule.message if self.message is None else self.message,
            execution=self.execution,
            issuer=np.zeros(0, dtype=np.int32),
            receiver=np.zeros(0, dtype=np.int32),
            work_from_ps=np.zeros(0, dtype=np.int64),
            rate_GBps=np.zeros(0),
        )

    @cached_property
    def _first(self) -> I64:
        """The first transfer of every message."""
        return np.flatnonzero(self._target.leader == np.arange(len(self.schedule)))

    @cached_property
    def _of(self) -> I64:
        """The message of every transfer."""
        return np.searchsorted(self._first, self._target.leader)

    @cached_property
    def _takes_ps(self) -> I64:
        """The time of every message from its start to its last arrival, on free links."""
        timing = self._target.timing
        takes = np.zeros(len(self.schedule), dtype=np.int64)
        np.maximum.at(takes, timing.end_transfer, timing.end_arrival_ps - self.schedule.start_ps[timing.end_transfer])
        return takes[self._first]

    @cached_property
    def _full_GBps(self) -> F64:
        """The highest rate of every message."""
        shape, costs = self._target.shape, self._target.costs
        slowest = np.full(len(shape.routes), np.inf)
        np.minimum.at(slowest, shape.segment_route, shape.segment_GBps)
        full = slowest[self._target.route[self._first]]
        return full if costs is None else np.minimum(full, costs.rate_GBps[self._first])

    @property
    def _planned_GBps(self) -> F64:
        """The highest rate that every message may have."""
        if self.pace_GBps is None:
            return self._full_GBps
        planned = self.pace_GBps[self._first]
        return np.where(planned > 0, np.minimum(planned, self._full_GBps), self._full_GBps)

    @cached_property
    def _messages(self) -> "MessageArrays":
        from flowccl.schedule.generation.orbits import in_orbits

        made = messages_of(self.schedule, self._target, self._first, self._of, self.waits, self._planned_GBps)
        return made if self.group is None else in_orbits(made, self.group)

    @property
    def waits(self) -> Waits:
        """Which messages come after which; kept with the schedule, unless messages are joined here."""
        count = len(self._first)
        if self.message is not None:
            return waits_of(self.schedule, self._of, count)
        if "waits" not in self.schedule.cache:
            self.schedule.cache["waits"] = waits_of(self.schedule, self._of, count)
        known: Waits = self.schedule.cache["waits"]
        return known


def at_shared_rates(schedule: Schedule, has_time: Callable[[float], bool]) -> Schedule:
    """Return the schedule, or an earlier one with its transfers where slower ones leave others a part of a link.

    The engine starts them in their order, and the longest tails first, while there is time for it.
    """
    if len(schedule) > MOST_SHARED or all(_fills_links(schedule)):
        return schedule
    engine, best = Engine(schedule), schedule
    for least in LEAST_RATES:
        for key in (schedule.start_ps, -engine.tail_ps):
            began_s = time.monotonic()
            found = engine.run(key, least, best.finish_ps)
            best = best if found is None or found.finish_ps >= best.finish_ps else replace(found, method=best.method)
            if not has_time(2 * (time.monotonic() - began_s)):
                return best
    return best


def _fills_links(schedule: Schedule) -> NDArray[np.bool_]:
    """Whether transfers on each route leave nothing of its links but what is enough for others like them."""
    topology, routes = schedule.topology, schedule.routes
    slowest = np.minimum.reduceat(topology.link_GBps[routes.link], routes.ptr[:-1])
    rate = np.repeat(slowest, np.diff(routes.ptr)) * lane_counts(topology)[routes.link]
    return np.logical_and.reduceat(topology.link_GBps[routes.link] <= rate * (1 + 1e-6), routes.ptr[:-1])


def in_same_order(schedule: Schedule, other: Schedule, least: float = 1.0) -> Schedule | None:
    """Return a schedule with the messages of another, valid one, in the same order, with the times of the engine.

    It has the same transfers, but chunks of other sizes or another machine with the same links. A message waits where
    others leave it less than `least` of its rate.
    """
    schedule.cache["waits"] = Engine(other, other.execution).waits
    schedule.cache["leaves first"] = leaves_first(other)
    return Engine(schedule, other.execution).run(other.start_ps, least)


def leaves_first(schedule: Schedule) -> list[tuple[I64, I64]]:
    """Pairs (root row, end row): the data leaves the node before other data arrives there."""
    return [(pairs.x, pairs.y) for pairs in data_pairs(schedule) if pairs.sooner == "root_from_ps"]


def _keeps_reductions(draft: Schedule, made: Schedule) -> bool:
    """Whether everything that leaves before data arrives at its node in one schedule does so in the other one."""
    if "leaves first" not in draft.cache:
        draft.cache["leaves first"] = leaves_first(draft)
    leaves, arrives = made.timing.root_from_ps, made.timing.end_arrival_ps
    return all(bool(np.all(leaves[x] < arrives[y])) for x, y in draft.cache["leaves first"])
