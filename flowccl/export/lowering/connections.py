"""Channels between threadblocks of two GPUs, and the threadblock that waits for each message.

A threadblock has at most 16 channels of a type. A message between two groups of the same number always has a channel:
no group exchanges messages with more than 16 GPUs. Other pairs of groups get one while there is room.
"""

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field

from flowccl.errors import InputError
from flowccl.runtimes.limits import CHANNELS_PER_BLOCK

Ends = tuple[int, int, int, int]
"""The ends of a channel: (GPU, threadblock, GPU, threadblock), the lower GPU first."""


@dataclass(slots=True)
class Channels:
    """All channels of one type, in the order in which they were opened; `used` are the directions that carry data."""

    kind: str
    number: dict[Ends, int] = field(default_factory=dict)
    ends: list[Ends] = field(default_factory=list)
    used: set[tuple[int, int]] = field(default_factory=set)

    def open(self, src: int, block: int, dst: int, other: int) -> int:
        """Return the channel between two threadblocks."""
        key = (src, block, dst, other) if src < dst else (dst, other, src, block)
        found = self.number.get(key)
        if found is None:
            found = self.number[key] = len(self.ends)
            self.ends.append(key)
        return found

    def send(self, src: int, block: int, dst: int, other: int) -> int:
        """Return the channel over which a threadblock sends data to another."""
        found = self.open(src, block, dst, other)
        self.used.add((found, src))
        return found


@dataclass(slots=True)
class Waiters:
    """Chooses the group that waits for each message inside a host."""

    usual: dict[tuple[int, int], set[int]]
    busy: dict[tuple[int, int], list[tuple[int, int]]]
    pairs: dict[tuple[int, int], set[tuple[int, int]]] = field(default_factory=lambda: defaultdict(set))

    def choose(self, src: int, issuer: int, dst: int, wanted: list[int]) -> int:
        """Return the first of the `wanted` groups to which a channel fits, else the group with the issuer's number."""
        for group in wanted:
            if group == issuer:
                break
            here, there = (src, issuer), (dst, group)
            known = (dst, group) in self.pairs[here]
            if known or (self._space(here) and self._space(there)):
                self.pairs[here].add(there)
                self.pairs[there].add(here)
                return group
        return issuer

    def _space(self, end: tuple[int, int]) -> bool:
        return len(self.pairs[end]) + len(self.usual.get(end, ())) < CHANNELS_PER_BLOCK

    def is_free(self, rank: int, group: int, time: int) -> bool:
        """Whether a group does nothing just before a time."""
        jobs = self.busy.get((rank, group), [])
        before = bisect_left(jobs, (time, -1)) - 1
        return before < 0 or jobs[before][1] <= time


def usual_peers(pairs: set[tuple[int, int, int]]) -> dict[tuple[int, int], set[int]]:
    """Return the GPUs with which each (GPU, group) exchanges messages, given (sender, group, receiver)."""
    usual: dict[tuple[int, int], set[int]] = defaultdict(set)
    for src, group, dst in pairs:
        usual[src, group].add(dst)
        usual[dst, group].add(src)
    for (rank, group), peers in usual.items():
        if len(peers) > CHANNELS_PER_BLOCK:
            raise InputError(
                f"group {group} of gpu {rank} exchanges messages with {len(peers)} GPUs, but a threadblock of MSCCL++ "
                f"has channels to at most {CHANNELS_PER_BLOCK}"
            )
    return usual
