"""Actions: what the threadblocks of a GPU do for the messages of a schedule, before barriers are added.

Group k of a GPU has the threadblocks k * width to k * width + width - 1; those that post messages to the NIC follow. A
slot is the part of a chunk that one threadblock of a group carries. Places in chunks become places in slots here:
`buffer << BUFFER_BITS | index`.
"""

from dataclasses import dataclass, field

from flowccl.schedule.placement import BUFFER_BITS

MASK = (1 << BUFFER_BITS) - 1
_PACKETS = 3 << BUFFER_BITS
WAIT, WORK, PACK, SEND, POST, SIGNAL, FLUSH = range(7)
"""Wait for a message; work on what arrived; pack; send, also through a switch; post to the NIC; signal; flush."""
END = 1 << 61
"""The time of what comes last in a call."""

Range = tuple[int, int, int, tuple[int, ...]]
"""(source, target, number of slots, slots that are reduced with the source)."""


@dataclass(slots=True, eq=False)
class Action:
    """One action of a threadblock; `time` is its place in the order of the schedule.

    `ranges` are the slots that it moves; those of a wait are slots that arrive. `channels` are those that it waits for
    or signals. `acquires` are semaphores that it takes before, and `releases` those that it gives after it. `name` is
    the operation of the runtime. Where threadblocks repeat their operations, `once` says that this action is not among
    those: it comes after all of them.
    """

    kind: int
    rank: int
    block: int
    time: int
    name: str = ""
    ranges: list[Range] = field(default_factory=list)
    channels: tuple[int, ...] = ()
    peer: int = -1
    message: int = -1
    group: tuple[int, ...] = ()
    acquires: list[int] = field(default_factory=list)
    releases: list[int] = field(default_factory=list)
    tie: int = 0
    once: bool = False

    def slots_read(self) -> list[int]:
        """Return the slots of its GPU that it reads."""
        if self.kind in (WAIT, FLUSH):
            return []
        found: list[int] = []
        for source, _, count, added in self.ranges:
            for first in (source, *added):
                if first < _PACKETS:
                    found += range(first, first + count)
        return found

    def slots_written(self) -> list[int]:
        """Return the slots of its GPU that it writes."""
        if self.kind in (SIGNAL, FLUSH, POST) or (self.kind == SEND and not self.group):
            return []
        found: list[int] = []
        for _, target, count, _ in self.ranges:
            if target < _PACKETS:
                found += range(target, target + count)
        return found


def slot_of(place: int, width: int, part: int) -> int:
    """Return a slot of the chunk at a place."""
    return (place & ~MASK) | ((place & MASK) * width + part)


def part_ranges(
    sources: list[int], targets: list[int], added: list[tuple[int, ...]] | None, width: int, part: int
) -> list[Range]:
    """Return the ranges that threadblock `part` of a group carries of some chunks, from places to places.

    Each threadblock of the group carries as many slots as there are chunks, one after the other. `added` are the places
    that are reduced with each source; None: nothing is.
    """
    count, more = len(sources), added or [()] * len(sources)
    if count == 1:
        places = sources[0], targets[0], *more[0]
        source, target, *others = (slot_of(place, width, part) for place in places)
        return [(source, target, 1, tuple(others))]
    ranges: list[Range] = []
    for index in range(part * count, (part + 1) * count):
        k, sub = divmod(index, width)
        source, target, *others = (slot_of(place, width, sub) for place in (sources[k], targets[k], *more[k]))
        if ranges:
            first, to, size, before = ranges[-1]
            if source == first + size and target == to + size and others == [slot + size for slot in before]:
                ranges[-1] = first, to, size + 1, before
                continue
        ranges.append((source, target, 1, tuple(others)))
    return ranges
