"""Sends in a fixed order on every link: which may share a message, and their earliest starts."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.papers.taccl.logical import Ints
from flowccl.papers.taccl.ordering import SendGraph
from flowccl.schedule.schedule import Schedule

MAX_MERGEABLE = 2000


@dataclass(frozen=True, eq=False)
class SendOrder:
    """Consecutive sends on links, (`earlier`, `later`) with the offsets of both; `mergeable` lists possible merges.

    Pair j is (`mergeable[j, 0]`, `mergeable[j, 1]`): same arc, consecutive on all of its links, with an overhead.
    """

    sends: SendGraph
    start_ps: Ints
    earlier: Ints
    later: Ints
    earlier_off_ps: Ints
    later_off_ps: Ints
    mergeable: Ints

    @classmethod
    def of(cls, sends: SendGraph, schedule: Schedule) -> "SendOrder":
        """The order of a schedule of these sends."""
        _, owner, link, begin, end = sends.times
        order = np.lexsort((schedule.start_ps[owner] + begin, link))
        same = link[order[1:]] == link[order[:-1]]
        x, y = order[:-1][same], order[1:][same]
        hops = np.bincount(owner, minlength=len(sends))
        busy = np.zeros(len(sends), dtype=np.int64)
        np.maximum.at(busy, owner, end - begin)
        pair = owner[x] * len(sends) + owner[y]
        found, times = np.unique(pair, return_counts=True)
        a, b = found // len(sends), found % len(sends)
        alike = (sends.arc[a] == sends.arc[b]) & (times == hops[a])
        overhead = np.zeros(len(sends), dtype=np.int64)
        np.maximum.at(overhead, owner, sends.logical.topology.link_overhead_ps[link])
        same_busy = np.ones(len(sends), dtype=np.bool_)  # all links are busy equally long: no store-and-forward switch
        same_busy[owner[end - begin != busy[owner]]] = False
        mergeable_pairs = np.flatnonzero(alike & (overhead[a] > 0) & same_busy[a])
        mergeable_pairs = mergeable_pairs[np.argsort(-overhead[a[mergeable_pairs]], kind="stable")[:MAX_MERGEABLE]]
        mergeable_pairs = mergeable_pairs[np.argsort(schedule.start_ps[b[mergeable_pairs]], kind="stable")]
        mergeable = np.stack((a[mergeable_pairs], b[mergeable_pairs]), axis=1)
        offsets = end[x] - busy[owner[x]], begin[y]
        return cls(sends, schedule.start_ps, owner[x], owner[y], *offsets, mergeable)

    @cached_property
    def mergeable_arc(self) -> Ints:
        """The arc of each mergeable pair."""
        return self.sends.arc[self.mergeable[:, 0]]

    @cached_property
    def after_busy_ps(self) -> Ints:
        """Time from the end of the longest busy interval of a send to its arrival."""
        takes, owner, _, begin, end = self.sends.times
        busy = np.zeros(len(self.sends), dtype=np.int64)
        np.maximum.at(busy, owner, end - begin)
        return takes - busy

    def messages(self, merged: NDArray[np.bool_]) -> Ints:
        """Return the first send of the message of each send."""
        leader = np.arange(len(self.sends), dtype=np.int64)
        for a, b in self.mergeable[merged].tolist():  # in order of time, so that chains grow from their first send
            leader[b] = leader[a]
        return leader

    def message_busy_ps(self, leader: Ints) -> Ints:
        """How long the message of each send occupies its links."""
        size = np.zeros(len(self.sends), dtype=np.int64)
        np.add.at(size, leader, self.sends.demand.chunk_bytes[self.sends.chunk])
        takes = self.sends.logical.times(size[leader], self.sends.arc)[0]
        return takes - self.after_busy_ps

    def starts(self, merged: NDArray[np.bool_]) -> tuple[Ints, int]:
        """Return the earliest starts with these merges, and the completion time; very late if sends wait in a cycle."""
        from flowccl.schedule.generation.generation_kernels import earliest_starts

        sends, leader = self.sends, self.messages(merged)
        busy = self.message_busy_ps(leader)
        before = leader[np.concatenate((sends.before, self.earlier))]
        after = leader[np.concatenate((sends.after, self.later))]
        lag = np.concatenate(
            (
                busy[sends.before] + self.after_busy_ps[sends.before],
                self.earlier_off_ps + busy[self.earlier] - self.later_off_ps,
            )
        )
        other = before != after
        before, after, lag = before[other], after[other], lag[other]
        by_after = np.argsort(after, kind="stable")
        ptr = np.searchsorted(after[by_after], np.arange(len(sends) + 1)).astype(np.int64)
        order = np.argsort(self.start_ps, kind="stable").astype(np.int64)
        bound = np.full(len(sends), 2 * int((self.start_ps + sends.times[0]).max(initial=0)), dtype=np.int64)
        start = earliest_starts(order, ptr, before[by_after], lag[by_after], bound, np.zeros_like(bound))[leader]
        return start, int((start + busy + self.after_busy_ps).max(initial=0))

    def schedule(self, merged: NDArray[np.bool_]) -> Schedule:
        """Return the schedule with these merges."""
        leader = self.messages(merged)
        alone = np.bincount(leader, minlength=len(leader))[leader] == 1
        return self.sends.schedule(self.starts(merged)[0], np.where(alone, -1, leader).astype(np.int32))
