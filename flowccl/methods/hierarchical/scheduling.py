"""From a plan (transfers and what each waits for) to a schedule: list scheduling, the longest tail first."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.schedule.schedule import Schedule
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology
from flowccl.topology.trunks import peak_rates_GBps

I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TransferPlan:
    """Transfers, each a chunk on a route, listed after those that they wait for.

    Entry k says that transfer `after[k]` needs the data of `before[k]`. Transfers with the same `job`, which is the
    first one of them, start together: those with `turn` 1 when those with `turn` 0 have left the first link, and so on.
    Of jobs with equal tails, those of an earlier `round` go first, in a round those with a lower `shift`: then the GPUs
    of a group send to different ones at the same time.
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

    def repeated(self, times: int, pieces: int) -> "TransferPlan":
        """The plan several times, each for chunks whose numbers are higher by `pieces`."""
        count, rounds = len(self.chunk), int(self.round.max(initial=0)) + 1
        copies = np.repeat(np.arange(times), count)
        waits = np.repeat(np.arange(times), len(self.before)) * count
        return replace(
            self,
            chunk=np.tile(self.chunk, times) + copies * pieces,
            route=np.tile(self.route, times),
            reduce=np.tile(self.reduce, times),
            before=np.tile(self.before, times) + waits,
            after=np.tile(self.after, times) + waits,
            job=np.tile(self.job, times) + copies * count,
            turn=np.tile(self.turn, times),
            round=np.tile(self.round, times) + copies * rounds,
            shift=np.tile(self.shift, times),
        )


class PlanScheduler:
    """The transfers of a plan on a machine, prepared for list scheduling with several priorities."""

    def __init__(self, topology: Topology, demand: Demand, plan: TransferPlan, method: str) -> None:
        from flowccl.schedule.generation.generation_kernels import longest_tails

        count = len(plan.chunk)
        zero = np.zeros(count, dtype=np.int64)
        links = plan.routes.only(plan.route)
        draft = Schedule.from_links(topology, demand, plan.chunk.astype(np.int32), links, zero, plan.reduce, method)
        first = np.full(count, np.iinfo(np.int64).max)
        np.minimum.at(first, draft.timing.hop_transfer, draft.timing.hop_to_ps)
        self.offset = plan.turn * first  # from the start of a job to that of the transfer
        self.schedule = replace(draft, start_ps=self.offset)
        self.jobs, self.job = np.unique(plan.job, return_inverse=True)
        self.round, self.shift = plan.round[self.jobs], plan.shift[self.jobs]
        timing, size = self.schedule.timing, len(self.jobs)
        arrival = np.zeros(count, dtype=np.int64)
        np.maximum.at(arrival, timing.end_transfer, timing.end_arrival_ps)
        sent = np.full(count, np.iinfo(np.int64).max)
        np.minimum.at(sent, timing.root_transfer, timing.root_from_ps)
        takes = np.zeros(size, dtype=np.int64)
        np.maximum.at(takes, self.job, arrival)
        order = np.argsort(self.job[plan.before], kind="stable")
        before, after = plan.before[order], plan.after[order]
        self.ptr = np.searchsorted(self.job[before], np.arange(size + 1)).astype(np.int64)
        self.after, self.lag = self.job[after], arrival[before] - sent[after]
        self.tail_ps = longest_tails(np.arange(size)[::-1].copy(), self.ptr, self.after, self.lag, takes)
        """The time from the start of each job to the end of its last successor."""
        hops = np.argsort(self.job[timing.hop_transfer], kind="stable")
        self.hop_ptr = np.searchsorted(self.job[timing.hop_transfer][hops], np.arange(size + 1)).astype(np.int64)
        self.hop_link, self.hop_from = timing.hop_link[hops], timing.hop_from_ps[hops]
        self.hop_to = timing.hop_to_ps[hops]
        self.takes = takes
        self.lane_ptr = np.concatenate(([0], np.cumsum(lanes(topology)))).astype(np.int64)

    def best(self, label: NDArray[np.int64]) -> Schedule | None:
        """The better of two schedules with the longest tails first: with and without queues between groups.

        `label` is the group of every GPU. The queue of a link counts where it joins groups: then the first chunks of a
        slow network card go first.
        """
        from flowccl.methods.hierarchical.queue_kernels import queued_tails

        queued = queued_tails(
            self.ptr,
            self.after,
            self.lag,
            self.takes,
            self.hop_ptr,
            self.hop_link,
            self.hop_from,
            self.hop_to,
            self._joins_groups(label),
        )
        found = [self.in_order_of(-queued), self.in_order_of(-self.tail_ps)]
        return min((one for one in found if one is not None), key=lambda one: one.finish_ps, default=None)

    def _joins_groups(self, label: NDArray[np.int64]) -> NDArray[np.bool_]:
        """The links of transfers between GPUs of different groups."""
        timing, topology = self.schedule.timing, self.schedule.topology
        group = np.full(len(topology.nodes), -1)
        group[: len(label)] = label
        start, end = np.zeros((2, len(self.schedule)), dtype=np.int64)
        start[timing.root_transfer], end[timing.end_transfer] = group[timing.root_node], group[timing.end_node]
        result = np.zeros(len(topology.links), dtype=np.bool_)
        result[timing.hop_link[(start != end)[timing.hop_transfer]]] = True
        return result

    def in_order_of(self, key: I64) -> Schedule | None:
        """The schedule in which the transfer with the least key goes first; None if transfers wait for each other."""
        from flowccl.methods.hierarchical.queue_kernels import in_queues

        rank = np.empty(len(key), dtype=np.int64)
        rank[np.lexsort((self.shift, self.round, key))] = np.arange(len(key))
        done, start = in_queues(
            rank,
            self.ptr,
            self.after,
            self.lag,
            self.hop_ptr,
            self.hop_link,
            self.hop_from,
            self.hop_to,
            self.lane_ptr,
        )
        return replace(self.schedule, start_ps=start[self.job] + self.offset) if done else None


def lanes(topology: Topology) -> I64:
    """How many transfers each link can carry at once: trunks carry several."""
    peak = peak_rates_GBps(topology)
    usable = (peak > 0) & (topology.link_overhead_ps == 0) & (not topology.changes)
    count = np.where(usable, np.floor(topology.link_GBps / np.where(peak > 0, peak, 1.0) * (1 + 1e-9)), 1)
    return np.maximum(count, 1).astype(np.int64)
