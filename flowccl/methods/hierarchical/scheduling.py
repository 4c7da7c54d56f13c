"""From a plan (transfers and what each waits for) to a schedule: list scheduling, the longest tail first."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER, pointers
from flowccl.demand.demand import Demand
from flowccl.methods.hierarchical.rounds import Crossings
from flowccl.schedule.generation.exchanges import Exchanges
from flowccl.schedule.generation.list_scheduling import in_order, jobs_of
from flowccl.schedule.generation.precedence import Triples
from flowccl.schedule.schedule import Schedule
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology
from flowccl.topology.trunks import lane_counts

if TYPE_CHECKING:
    from flowccl.schedule.generation.queue_kernels import QueuedJobs

I64 = NDArray[np.int64]
_WINDOWS = (2, 4)  # chunks of a rail at a time: one is reduced while another is spread, and others are between groups
_FAR = 1.2  # ratio of times from which further orders with as many chunks at a time are not tried
_EARLIER = 10  # the tail of the last piece counts as shorter by this part of the time of the busiest link
_PARTS = 4  # of the chunks of an allreduce in rounds: the more, the less is idle at the start and the end
_LATE = 3  # chunks of a block by which results are spread after contributions, in the order of ports
_ALIKE_TAILS = 4  # transfers between groups, by whose time tails may differ and count as equal
_REPAIRS = 4  # schedules of an order, each with what was late in an exchange before
_PASSES = 3  # orders of ports, each by the starts that the one before led to
_NEXT = 3  # times what an order took must be left for the next one, which may take longer, and is verified
_ALIKE_TIMES = 1.001  # ratio of times on a link up to which they count as the longest of them
_MOST_IN_ALL_ORDERS = 50_000  # transfers; larger plans are tried in the orders that are best for most of them


@dataclass(frozen=True, eq=False)
class TransferPlan:
    """Transfers, each a chunk on a route, listed after those that they wait for.

    Entry k says that transfer `after[k]` needs the data of `before[k]`. Of transfers with equal tails, those of an
    earlier `round` go first, in a round those with a lower `shift`: then the GPUs of a group send to different ones at
    the same time. `rail` is the set of gateways that exchange the chunk, -1: none. Transfers with the same `exchange`,
    which is the first one of them, send between the same GPUs, each of which must send before it receives; -1: none.
    Numbers of `before` and `after` beyond the transfers are those of `joins`: a join waits like a transfer, takes no
    time, and others wait for it.
    """

    routes: Routes
    chunk: I64
    route: I64
    reduce: NDArray[np.bool_]
    before: I64
    after: I64
    round: I64
    shift: I64
    rail: I64
    exchange: I64
    joins: int = 0

    def repeated(self, times: int, pieces: int) -> "TransferPlan":
        """The plan several times, each for chunks whose numbers are higher by `pieces`."""
        count, rounds = len(self.chunk), int(self.round.max(initial=0)) + 1
        copies = np.repeat(np.arange(times), count)
        waits = np.repeat(np.arange(times), len(self.before))
        before, after = (
            np.where(tiled < count, tiled + waits * count, tiled + (times - 1) * count + waits * self.joins)
            for tiled in (np.tile(self.before, times), np.tile(self.after, times))
        )
        exchange = np.tile(self.exchange, times)
        return replace(
            self,
            chunk=np.tile(self.chunk, times) + copies * pieces,
            route=np.tile(self.route, times),
            reduce=np.tile(self.reduce, times),
            before=before,
            after=after,
            round=np.tile(self.round, times) + copies * rounds,
            shift=np.tile(self.shift, times),
            rail=np.tile(self.rail, times),
            exchange=np.where(exchange < 0, -1, exchange + copies * count),
            joins=self.joins * times,
        )


class PlanScheduler:
    """The transfers of a plan on a machine, prepared for list scheduling with several priorities."""

    def __init__(self, topology: Topology, demand: Demand, plan: TransferPlan, method: str) -> None:
        from flowccl.schedule.generation.generation_kernels import longest_tails

        count = len(plan.chunk)
        links, zero = plan.routes.only(plan.route), np.zeros(count, dtype=np.int64)
        self.schedule = Schedule.from_links(
            topology, demand, plan.chunk.astype(np.int32), links, zero, plan.reduce, method
        )
        timing = self.schedule.timing
        takes, sent = np.zeros(count, dtype=np.int64), np.full(count + plan.joins, 0)
        np.maximum.at(takes, timing.end_transfer, timing.end_arrival_ps)
        sent[:count] = NEVER
        np.minimum.at(sent, timing.root_transfer, timing.root_from_ps)
        arrival = np.append(takes, np.zeros(plan.joins, dtype=np.int64))
        waits = plan.before, plan.after, arrival[plan.before] - sent[plan.after]
        self.exchanges = Exchanges.of(self.schedule, plan.exchange)
        before, after, lag = self.exchanges.waiting_for_all(waits, takes, plan.joins)
        number = self._number(plan, before, after)
        before, after = number[before], number[after]
        order, size = np.argsort(before, kind="stable"), len(self.transfer)
        self.after, self.lag = after[order], lag[order]
        self.ptr = np.searchsorted(before[order], np.arange(size + 1)).astype(np.int64)
        self.takes = np.zeros(size, dtype=np.int64)
        self.takes[self.number] = takes
        self.tail_ps = longest_tails(np.arange(size)[::-1].copy(), self.ptr, self.after, self.lag, self.takes)
        """The time from the start of each transfer to the end of its last successor."""
        hops = np.argsort(self.number[timing.hop_transfer], kind="stable")
        self.hop_ptr = np.searchsorted(self.number[timing.hop_transfer][hops], np.arange(size + 1)).astype(np.int64)
        self.hop_link, self.hop_from = timing.hop_link[hops], timing.hop_from_ps[hops]
        self.hop_to = self.hop_from + _equal_times(timing.hop_to_ps[hops] - self.hop_from)
        hops_of_jobs = (self.hop_ptr, self.hop_link, self.hop_from, self.hop_to)
        self.jobs = jobs_of((self.ptr, self.after, self.lag), hops_of_jobs, pointers(lane_counts(topology)))

    def _number(self, plan: TransferPlan, before: I64, after: I64) -> I64:
        """Number all transfers and joins, each after those that it waits for; return the numbers.

        `transfer` has the transfer of each number, and of a join the first one that waits for it.
        """
        count = len(plan.chunk)
        joins = int(max(before.max(initial=-1), after.max(initial=-1))) + 1
        first = np.append(np.arange(count), np.full(max(joins - count, 0), count))
        first[:count] = np.where(plan.exchange < 0, first[:count], plan.exchange)
        at_join = before >= count
        np.minimum.at(first, before[at_join], first[after[at_join]])
        first[:count] = np.arange(count)
        is_join = np.arange(len(first)) >= count
        order = np.lexsort((~is_join, first))
        number = np.empty(len(order), dtype=np.int64)
        number[order] = np.arange(len(order))
        self.transfer, self.number = first[order], number[:count]
        self.round, self.shift = plan.round[self.transfer], plan.shift[self.transfer]
        self.rail, self.chunk = plan.rail[self.transfer], plan.chunk[self.transfer]
        self.piece = self.chunk % self.schedule.demand.pieces
        return number

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
        is_large = len(self.transfer) > _MOST_IN_ALL_ORDERS
        first = None if is_large else self.longest_first()
        yield first
        for most in _WINDOWS if (self.rail >= 0).any() else ():
            for key in (-self.tail_ps, *keys):
                found = self._in_windows(label, most, key)
                paced = paced or found is not None
                yield found
                if first is not None and (found is None or found.finish_ps > _FAR * first.finish_ps):
                    break
        if paced and is_large:
            return
        between = self._between_groups(label, in_all_orders=not is_large)
        if is_large:  # what is best for most of them goes first, since there may be time for one
            yield next(between, None)
            yield self.longest_first()
        yield from between
        for key in () if is_large else (*keys, -self._queued_tails(label)):
            yield self._in_order_of(key)

    def longest_first(self, noise: NDArray[np.float64] | None = None) -> Schedule | None:
        """The schedule with the longest tails first, each changed by a fraction; None if transfers wait in a circle."""
        key = -self.tail_ps if noise is None else np.rint(-self.tail_ps * (1 + noise)).astype(np.int64)
        return self._in_order_of(key)

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

    def _between_groups(self, label: NDArray[np.int64], in_all_orders: bool) -> Iterator[Schedule | None]:
        """Schedules with orders of the transfers between groups, see `rounds`.

        Without `in_all_orders`, one order leads to the next only while that is better.
        """
        from flowccl.methods.hierarchical.round_kernels import with_neighbours

        start, end = self._groups_of_ends(label)
        crossing = (start != end)[self.transfer] & (np.diff(self.hop_ptr) > 0)
        if not crossing.any():
            return
        takes, pieces = self.hop_to - self.hop_from, self.schedule.demand.pieces
        crossings = Crossings.of(crossing, self.hop_ptr, self.hop_link, takes, self.jobs.lane_ptr)
        reduced, rows = np.diff(self.schedule.demand.source_ptr) > 1, crossings.transfer
        spread = (~self.schedule.reduce[self.transfer] & reduced[self.chunk])[rows]

        within_ps = _ALIKE_TAILS * int(np.median(crossings.takes_ps[0])) if spread.any() else 0
        tail_ps = self._rounded_tails(within_ps)

        def in_turns(turn: I64) -> Schedule | None:
            known = np.full(len(self.transfer), -1, dtype=np.int64)
            known[rows] = turn
            key = self._in_turns(with_neighbours(known, self.ptr, self.after), tail_ps)
            return self._in_order_of(key)

        order = (self.piece[rows] + _LATE * spread) * (int(self.tail_ps.max()) + 1) - tail_ps[rows]
        yield (found := in_turns(order))
        for _ in range(_PASSES):
            before, found = found, in_turns(crossings.latest_starts(order))
            yield found
            if found is None or not (in_all_orders or before is None or found.finish_ps < before.finish_ps):
                break
            order = found.start_ps[self.transfer[rows]]
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
        is_last = np.diff(self.ptr) == 0
        is_first = np.ones(len(self.transfer), dtype=np.bool_)
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
        more = before, first[paced], np.zeros(len(before), dtype=np.int64)
        return self._in_order_of(key, _with_waits(self.jobs, more))

    def _place_in_rail(self, label: NDArray[np.int64]) -> tuple[I64, I64]:
        """A number of each job by rail, group and the turn of its chunk on the rail; and that turn."""
        timing = self.schedule.timing
        end = np.zeros(len(self.schedule), dtype=np.int64)
        end[timing.end_transfer] = timing.end_node
        group = label[np.minimum(end[self.transfer], len(label) - 1)]
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

    def _in_order_of(self, key: I64, jobs: "QueuedJobs | None" = None) -> Schedule | None:
        """The schedule in which the transfer with the least key goes first.

        None if transfers wait for each other, or if a node would receive before it sends in an exchange.
        """
        order, jobs = np.lexsort((self.shift, self.round, key)), jobs or self.jobs
        for _ in range(_REPAIRS):
            start = in_order(order, jobs)
            if start is None:
                return None
            before, after, lag = self.exchanges.late(start[self.number], self.takes[self.number])
            if not len(before):
                return replace(self.schedule, start_ps=start[self.number])
            jobs = _with_waits(jobs, (self.number[before], self.number[after], lag))
        return None


def _with_waits(jobs: "QueuedJobs", waits: Triples) -> "QueuedJobs":
    """The transfers with more constraints (before, after, lag)."""
    before = np.append(np.repeat(np.arange(len(jobs.ptr) - 1), np.diff(jobs.ptr)), waits[0])
    order = np.argsort(before, kind="stable")
    after, lag = np.append(jobs.after, waits[1])[order], np.append(jobs.lag, waits[2])[order]
    return jobs._replace(ptr=np.searchsorted(before[order], np.arange(len(jobs.ptr))), after=after, lag=lag)


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
