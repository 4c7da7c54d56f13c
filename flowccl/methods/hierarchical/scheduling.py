"""From a plan (transfers and what each waits for) to a schedule: list scheduling, the longest tail first."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER, pointers
from flowccl.demand.demand import Demand
from flowccl.methods.hierarchical.rounds import Crossings
from flowccl.schedule.generation.list_scheduling import in_order, jobs_of, keeps, waiting_for_both
from flowccl.schedule.schedule import Schedule
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology
from flowccl.topology.trunks import lane_counts

I64 = NDArray[np.int64]
_WINDOWS = (2, 4)  # chunks of a rail at a time: one is reduced while another is spread, and others are between groups
_EARLIER = 10  # the tail of the last piece counts as shorter by this part of the time of the busiest link
_PARTS = 4  # of the chunks of an allreduce in rounds: the more, the less is idle at the start and the end
_LATE = 3  # chunks of a block by which results are spread after contributions, in the order of ports
_ALIKE_TAILS = 4  # transfers between groups, by whose time tails may differ and count as equal
_PASSES = 3  # orders of ports, each by the starts that the one before led to
_NEXT = 3  # times what an order took must be left for the next one, which may take longer, and is verified
_ALIKE_TIMES = 1.001  # ratio of times on a link up to which they count as the longest of them
_MOST_IN_ALL_ORDERS = 50_000  # transfers; larger plans are tried in the orders that are best for most of them


@dataclass(frozen=True, eq=False)
class TransferPlan:
    """Transfers, each a chunk on a route, listed after those that they wait for.

    Entry k says that transfer `after[k]` needs the data of `before[k]`. Transfers with the same `job`, which is the
    first one of them, start together: those with `turn` 1 when those with `turn` 0 have left the first link, and so on.
    Of jobs with equal tails, those of an earlier `round` go first, in a round those with a lower `shift`: then the GPUs
    of a group send to different ones at the same time. `rail` is the set of gateways that exchange the chunk, -1: none.
    `partner`, if given, is the transfer that each one is exchanged for, or the transfer itself; see `list_scheduling`.
    Numbers of `before` and `after` beyond the transfers are those of `joins`: a join waits like a transfer, takes no
    time, and others wait for it.
    """

    routes: Routes
    chunk: I64
    route: I64
    reduce: NDArray[np.bool_]
    before: I64
    after: I64
    job: I64
    turn: I64
    round: I64
    shift: I64
    rail: I64
    partner: I64 | None = None
    joins: int = 0

    @property
    def together(self) -> "TransferPlan":
        """The plan in which the two transfers of an exchange start at the same time."""
        return self if self.partner is None else replace(self, job=np.minimum(self.job, self.partner), partner=None)

    def repeated(self, times: int, pieces: int) -> "TransferPlan":
        """The plan several times, each for chunks whose numbers are higher by `pieces`."""
        count, rounds = len(self.chunk), int(self.round.max(initial=0)) + 1
        copies = np.repeat(np.arange(times), count)
        waits = np.repeat(np.arange(times), len(self.before))
        before, after = (
            np.where(tiled < count, tiled + waits * count, tiled + (times - 1) * count + waits * self.joins)
            for tiled in (np.tile(self.before, times), np.tile(self.after, times))
        )
        return replace(
            self,
            chunk=np.tile(self.chunk, times) + copies * pieces,
            route=np.tile(self.route, times),
            reduce=np.tile(self.reduce, times),
            before=before,
            after=after,
            job=np.tile(self.job, times) + copies * count,
            turn=np.tile(self.turn, times),
            round=np.tile(self.round, times) + copies * rounds,
            shift=np.tile(self.shift, times),
            rail=np.tile(self.rail, times),
            joins=self.joins * times,
        )


class PlanScheduler:
    """The transfers of a plan on a machine, prepared for list scheduling with several priorities."""

    def __init__(self, topology: Topology, demand: Demand, plan: TransferPlan, method: str) -> None:
        from flowccl.schedule.generation.generation_kernels import longest_tails

        count = len(plan.chunk)
        zero = np.zeros(count, dtype=np.int64)
        links = plan.routes.only(plan.route)
        draft = Schedule.from_links(topology, demand, plan.chunk.astype(np.int32), links, zero, plan.reduce, method)
        first = np.full(count, NEVER)
        np.minimum.at(first, draft.timing.hop_transfer, draft.timing.hop_to_ps)
        self.offset = plan.turn * first  # from the start of a job to that of the transfer
        self.schedule = replace(draft, start_ps=self.offset)
        number, self.joins = self._number_jobs(plan), plan.joins
        self.round, self.shift = plan.round[self.jobs], plan.shift[self.jobs]
        self.rail, self.chunk = plan.rail[self.jobs], plan.chunk[self.jobs]
        self.piece = self.chunk % demand.pieces
        timing, size = self.schedule.timing, len(self.jobs)
        arrival, sent = np.zeros((2, count + plan.joins), dtype=np.int64)
        np.maximum.at(arrival, timing.end_transfer, timing.end_arrival_ps)
        sent[:count] = NEVER
        np.minimum.at(sent, timing.root_transfer, timing.root_from_ps)
        takes = np.zeros(size, dtype=np.int64)
        np.maximum.at(takes, self.job, arrival[:count])
        waits = number[plan.before], number[plan.after], arrival[plan.before] - sent[plan.after]
        none = np.zeros(0, dtype=np.int64)
        self.mutual = (none, none, none)
        """Constraints (before, after, lag) between the two transfers of an exchange, see `list_scheduling`."""
        if plan.partner is not None:  # then every job is one transfer
            waits = waiting_for_both(waits, plan.partner, takes)
            own = np.flatnonzero(plan.partner != np.arange(count))
            self.mutual = (plan.partner[own], own, 1 - takes[own])
        order = np.argsort(waits[0], kind="stable")
        before, self.after, self.lag = (column[order] for column in waits)
        self.ptr = np.searchsorted(before, np.arange(size + 1)).astype(np.int64)
        self.tail_ps = longest_tails(np.arange(size)[::-1].copy(), self.ptr, self.after, self.lag, takes)
        """The time from the start of each job to the end of its last successor."""
        hops = np.argsort(self.job[timing.hop_transfer], kind="stable")
        self.hop_ptr = np.searchsorted(self.job[timing.hop_transfer][hops], np.arange(size + 1)).astype(np.int64)
        self.hop_link, self.hop_from = timing.hop_link[hops], timing.hop_from_ps[hops]
        self.hop_to = self.hop_from + _equal_times(timing.hop_to_ps[hops] - self.hop_from)
        self.takes = takes
        hops_of_jobs = (self.hop_ptr, self.hop_link, self.hop_from, self.hop_to)
        self.transfers = jobs_of((self.ptr, self.after, self.lag), hops_of_jobs, pointers(lane_counts(topology)))

    def _number_jobs(self, plan: TransferPlan) -> I64:
        """Number all jobs and joins, each after those that it waits for; return the numbers of transfers and joins.

        `jobs` has the first transfer of each job, and of a join the first one that waits for it.
        """
        count = len(plan.chunk)
        rows, job = np.unique(plan.job, return_inverse=True)
        first = np.full(plan.joins, count)
        at_join = plan.before >= count
        np.minimum.at(first, plan.before[at_join] - count, plan.after[at_join])
        order = np.argsort(np.append(2 * rows + 1, 2 * first), kind="stable")
        number = np.empty(len(order), dtype=np.int64)
        number[order] = np.arange(len(order))
        self.jobs, self.job = np.append(rows, first)[order], number[job]
        return np.asarray(np.append(self.job, number[len(rows) :]), dtype=np.int64)

    def best(
        self, label: NDArray[np.int64], has_time: Callable[[float], bool] = lambda seconds: True
    ) -> Schedule | None:
        """The best of several schedules, of as many as there is time for, and at least one.

        `label` is the group of every GPU. An exchange is also tried with few chunks of each rail at a time.
        """
        best, began = None, time.monotonic()
        for found in self._in_several_orders(label):
            if found is not None and (best is None or found.finish_ps < best.finish_ps):
                best = found
            began, took_s = time.monotonic(), time.monotonic() - began
            if best is not None and not has_time(_NEXT * took_s):
                break
        return best

    def _in_several_orders(self, label: NDArray[np.int64]) -> Iterator[Schedule | None]:
        """Schedules with the longest tails first, the first pieces or rounds of chunks, or what busy ports wait for.

        Last, the queue of a link counts where it joins groups: then the first chunks of a slow network card go first.
        """
        keys, paced = [self._early_pieces(), self._in_turns(self.piece), self._in_turns(self.round)], False
        for most in _WINDOWS if (self.rail >= 0).any() else ():
            for key in (-self.tail_ps, *keys):
                found = self._in_windows(label, most, key)
                paced = paced or found is not None
                yield found
        is_large = len(self.jobs) > _MOST_IN_ALL_ORDERS
        if paced and is_large:
            return
        between = self._between_groups(label, in_all_orders=not is_large)
        if is_large:  # what is best for most of them goes first, since there may be time for one
            yield next(between, None)
        yield self.longest_first()
        yield from between
        for key in () if is_large else (*keys, -self._queued_tails(label)):
            yield self._in_order_of(key, self.ptr, self.after, self.lag)

    def longest_first(self, noise: NDArray[np.float64] | None = None) -> Schedule | None:
        """The schedule with the longest tails first, each changed by a fraction; None if transfers wait in a circle."""
        key = -self.tail_ps if noise is None else np.rint(-self.tail_ps * (1 + noise)).astype(np.int64)
        return self._in_order_of(key, self.ptr, self.after, self.lag)

    def _in_turns(self, turn: I64, tail_ps: I64 | None = None) -> I64:
        """A key by which those with an early turn go first; of equal turns, the longest tail."""
        tail_ps = self.tail_ps if tail_ps is None else tail_ps
        return np.asarray(turn * (int(self.tail_ps.max(initial=0)) + 1) - tail_ps)

    def _rounded_tails(self, within_ps: int) -> I64:
        """The tails, where those that are up to `within_ps` longer than another one count as that.

        A chunk that takes one hop more inside a group then goes in its turn, not before all others: the cards of the
        other rails would wait.
        """
        tails, place = np.unique(self.tail_ps, return_inverse=True)
        least, begins = -within_ps - 1, list[int]()
        for tail in tails.tolist():
            least = tail if tail > least + within_ps else least
            begins.append(least)
        return np.array(begins, dtype=np.int64)[place.reshape(-1)]

    @property
    def _has_no_gangs(self) -> bool:
        """Whether no transfers start together."""
        return len(self.jobs) == len(self.schedule) + self.joins

    def _between_groups(self, label: NDArray[np.int64], in_all_orders: bool) -> Iterator[Schedule | None]:
        """Schedules with orders of the transfers between groups, see `rounds`; none where transfers start together.

        Without `in_all_orders`, one order leads to the next only while that is better.
        """
        from flowccl.methods.hierarchical.round_kernels import with_neighbours

        start, end = self._groups_of_ends(label)
        crossing = (start != end)[self.jobs] & (np.diff(self.hop_ptr) > 0)
        if not self._has_no_gangs or not crossing.any():
            return
        takes, pieces = self.hop_to - self.hop_from, self.schedule.demand.pieces
        crossings = Crossings.of(crossing, self.hop_ptr, self.hop_link, takes, self.transfers.lane_ptr)
        reduced, rows = np.diff(self.schedule.demand.source_ptr) > 1, crossings.transfer
        spread = (~self.schedule.reduce[self.jobs] & reduced[self.chunk])[rows]

        within_ps = _ALIKE_TAILS * int(np.median(crossings.takes_ps[0])) if spread.any() else 0
        tail_ps = self._rounded_tails(within_ps)

        def in_turns(turn: I64) -> Schedule | None:
            known = np.full(len(self.jobs), -1, dtype=np.int64)
            known[rows] = turn
            key = self._in_turns(with_neighbours(known, self.ptr, self.after), tail_ps)
            return self._in_order_of(key, self.ptr, self.after, self.lag)

        order = (self.piece[rows] + _LATE * spread) * (int(self.tail_ps.max()) + 1) - tail_ps[rows]
        yield (found := in_turns(order))
        for _ in range(_PASSES):
            before, found = found, in_turns(crossings.latest_starts(order))
            yield found
            if found is None or not (in_all_orders or before is None or found.finish_ps < before.finish_ps):
                break
            order = found.start_ps[self.jobs[rows]]
        if not in_all_orders:
            return
        rounds = crossings.rounds(self.piece[rows] * (min(_PARTS, pieces) if spread.any() else 1) // pieces + spread)
        if rounds is not None:
            yield in_turns(rounds)

    def _early_pieces(self) -> I64:
        """A key by which the longest tail goes first, and the last piece counts as a little shorter than the first."""
        busy = np.bincount(self.hop_link, self.hop_to - self.hop_from)
        last_ps = int(busy.max(initial=0)) // _EARLIER
        return np.asarray(self.piece * last_ps // (int(self.piece.max(initial=0)) + 1) - self.tail_ps)

    def _queued_tails(self, label: NDArray[np.int64]) -> I64:
        from flowccl.schedule.generation.queue_kernels import queued_tails

        links = (self.hop_ptr, self.hop_link, self.hop_from, self.hop_to, self._joins_groups(label))
        return queued_tails(self.ptr, self.after, self.lag, self.takes, *links)

    def _in_windows(self, label: NDArray[np.int64], most: int, key: I64) -> Schedule | None:
        """The schedule with at most `most` chunks of a rail at a time; None where that changes nothing.

        In each group, the first transfers of a chunk wait for the last ones of an earlier chunk to start. They use
        links in opposite directions, so that a group reduces one chunk while it spreads another one.
        """
        src = np.repeat(np.arange(len(self.jobs)), np.diff(self.ptr))
        is_last = np.diff(self.ptr) == 0
        is_first = np.ones(len(self.jobs), dtype=np.bool_)
        is_first[self.after] = False
        code, turns = self._place_in_rail(label)
        used = self.rail >= 0
        first, last = np.flatnonzero(used & is_first & ~is_last), np.flatnonzero(used & is_last & ~is_first)
        first, last = (some[np.argsort(code[some], kind="stable")] for some in (first, last))
        earlier = code[first] - most
        low, high = (np.searchsorted(code[last], earlier, side=side) for side in ("left", "right"))
        at = np.arange(len(first)) - np.searchsorted(code[first], code[first])  # which of its chunk and group
        paced = (turns[first] >= most) & (high > low)
        if not paced.any():
            return None
        before = last[(low + at % np.maximum(high - low, 1))[paced]]
        src, after = np.append(src, before), np.append(self.after, first[paced])
        lag = np.append(self.lag, np.zeros(len(before), dtype=np.int64))
        order = np.argsort(src, kind="stable")
        ptr = np.searchsorted(src[order], np.arange(len(self.jobs) + 1)).astype(np.int64)
        return self._in_order_of(key, ptr, after[order], lag[order])

    def _place_in_rail(self, label: NDArray[np.int64]) -> tuple[I64, I64]:
        """A number of each job by rail, group and the turn of its chunk on the rail; and that turn."""
        timing = self.schedule.timing
        end = np.zeros(len(self.schedule), dtype=np.int64)
        end[timing.end_transfer] = timing.end_node
        group = label[np.minimum(end[self.jobs], len(label) - 1)]
        chunks, first, place = np.unique(self.chunk, return_index=True, return_inverse=True)
        rail, order = self.rail[first], np.lexsort((first, self.rail[first]))
        turn = np.empty(len(chunks), dtype=np.int64)
        turn[order] = np.arange(len(chunks)) - np.searchsorted(rail[order], rail[order])
        turns, groups = turn[place], int(label.max()) + 1
        return (self.rail * groups + group) * len(chunks) + turns, turns

    def _joins_groups(self, label: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The links of transfers between GPUs of different groups."""
        timing = self.schedule.timing
        start, end = self._groups_of_ends(label)
        result = np.zeros(len(self.schedule.topology.links), dtype=np.bool_)
        result[timing.hop_link[(start != end)[timing.hop_transfer]]] = True
        return result

    def _groups_of_ends(self, label: NDArray[np.int64]) -> tuple[I64, I64]:
        """The group in which each transfer starts, and that in which it ends; -1: none."""
        timing = self.schedule.timing
        group = np.full(len(self.schedule.topology.nodes), -1)
        group[: len(label)] = label
        start, end = np.zeros((2, len(self.schedule)), dtype=np.int64)
        start[timing.root_transfer], end[timing.end_transfer] = group[timing.root_node], group[timing.end_node]
        return start, end

    def _in_order_of(self, key: I64, ptr: I64, after: I64, lag: I64) -> Schedule | None:
        """The schedule in which the transfer with the least key goes first.

        None if transfers wait for each other, or if a node would receive before it sends in an exchange.
        """
        waits = self.transfers._replace(ptr=ptr, after=after, lag=lag)
        start = in_order(np.lexsort((self.shift, self.round, key)), waits)
        if start is None or not keeps(self.mutual, start):
            return None
        return replace(self.schedule, start_ps=start[self.job] + self.offset)


def _equal_times(takes_ps: I64) -> I64:
    """The times that transfers occupy links, where those that differ by rounding are as long as the longest of them.

    Blocks may differ by a byte. Links would then become free one by one, and each would look in vain at all transfers
    whose other link is busy; with equal times, the links between groups become free together.
    """
    times, place = np.unique(takes_ps, return_inverse=True)
    longest = times.copy()
    for at in range(len(times) - 2, -1, -1):
        longest[at] = longest[at + 1] if longest[at + 1] <= _ALIKE_TIMES * times[at] else times[at]
    return np.asarray(longest[place.reshape(-1)])
