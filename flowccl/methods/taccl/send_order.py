"""Sends in a fixed order on every link: who may travel with whom, and how early everything goes."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.methods.taccl.logical import Ints
from flowccl.methods.taccl.ordering import Sends
from flowccl.schedule.schedule import Schedule

MOST_JOINTS = 2000


@dataclass(frozen=True, eq=False)
class Layout:
    """Neighbours on links: (`earlier`, `later`) with the hops of both; `joint` lists pairs that may travel together.

    Joint j is pair (`joint[j, 0]`, `joint[j, 1]`): same arc, next to each other on all of its links, with a setup.
    """

    sends: Sends
    start_ps: Ints
    earlier: Ints
    later: Ints
    earlier_off_ps: Ints
    later_off_ps: Ints
    joint: Ints

    @classmethod
    def of(cls, sends: Sends, schedule: Schedule) -> "Layout":
        """The order of a schedule of these sends."""
        _, owner, link, begin, end = sends.times
        order = np.lexsort((schedule.start_ps[owner] + begin, link))
        same = link[order[1:]] == link[order[:-1]]
        x, y = order[:-1][same], order[1:][same]
        hops = np.bincount(owner, minlength=len(sends))
        held = np.zeros(len(sends), dtype=np.int64)
        np.maximum.at(held, owner, end - begin)
        pair = owner[x] * len(sends) + owner[y]
        found, times = np.unique(pair, return_counts=True)
        a, b = found // len(sends), found % len(sends)
        alike = (sends.arc[a] == sends.arc[b]) & (times == hops[a])
        overhead = np.zeros(len(sends), dtype=np.int64)
        np.maximum.at(overhead, owner, sends.logical.topology.link_overhead_ps[link])
        one_hold = np.ones(len(sends), dtype=np.bool_)  # not behind a store-and-forward switch
        one_hold[owner[end - begin != held[owner]]] = False
        joints = np.flatnonzero(alike & (overhead[a] > 0) & one_hold[a])
        joints = joints[np.argsort(-overhead[a[joints]], kind="stable")[:MOST_JOINTS]]
        joints = joints[np.argsort(schedule.start_ps[b[joints]], kind="stable")]
        joint = np.stack((a[joints], b[joints]), axis=1)
        offsets = end[x] - held[owner[x]], begin[y]
        return cls(sends, schedule.start_ps, owner[x], owner[y], *offsets, joint)

    @cached_property
    def arc_of_joint(self) -> Ints:
        """The arc of each joint."""
        return self.sends.arc[self.joint[:, 0]]

    @cached_property
    def until_hold_ps(self) -> Ints:
        """From the end of a send's longest hold to its arrival."""
        takes, owner, _, begin, end = self.sends.times
        held = np.zeros(len(self.sends), dtype=np.int64)
        np.maximum.at(held, owner, end - begin)
        return takes - held

    def messages(self, joined: NDArray[np.bool_]) -> Ints:
        """The first send of each one's message."""
        leader = np.arange(len(self.sends), dtype=np.int64)
        for a, b in self.joint[joined].tolist():  # in order of time, so that chains grow from their first
            leader[b] = leader[a]
        return leader

    def held_ps(self, leader: Ints) -> Ints:
        """For how long each send's message holds its links."""
        size = np.zeros(len(self.sends), dtype=np.int64)
        np.add.at(size, leader, self.sends.demand.chunk_bytes[self.sends.chunk])
        takes = self.sends.logical.times(size[leader], self.sends.arc)[0]
        return takes - self.until_hold_ps

    def starts(self, joined: NDArray[np.bool_]) -> tuple[Ints, int]:
        """The earliest starts with these joints, and the finish; one beyond all bounds where sends wait in a circle."""
        from flowccl.schedule.generation.generation_kernels import earliest_starts

        sends, leader = self.sends, self.messages(joined)
        held = self.held_ps(leader)
        before = leader[np.concatenate((sends.before, self.earlier))]
        after = leader[np.concatenate((sends.after, self.later))]
        lag = np.concatenate(
            (
                held[sends.before] + self.until_hold_ps[sends.before],
                self.earlier_off_ps + held[self.earlier] - self.later_off_ps,
            )
        )
        other = before != after
        before, after, lag = before[other], after[other], lag[other]
        by_after = np.argsort(after, kind="stable")
        ptr = np.searchsorted(after[by_after], np.arange(len(sends) + 1)).astype(np.int64)
        order = np.argsort(self.start_ps, kind="stable").astype(np.int64)
        bound = np.full(len(sends), 2 * int((self.start_ps + sends.times[0]).max(initial=0)), dtype=np.int64)
        start = earliest_starts(order, ptr, before[by_after], lag[by_after], bound, np.zeros_like(bound))[leader]
        return start, int((start + held + self.until_hold_ps).max(initial=0))

    def schedule(self, joined: NDArray[np.bool_]) -> Schedule:
        """The schedule with these joints."""
        leader = self.messages(joined)
        alone = np.bincount(leader, minlength=len(leader))[leader] == 1
        return self.sends.schedule(self.starts(joined)[0], np.where(alone, -1, leader).astype(np.int32))
