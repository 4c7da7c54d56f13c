"""From steps to threadblocks: assign connections to threadblocks, and find the dependencies of steps."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from flowccl.export.lowering.buffers import BufferSlot
from flowccl.export.lowering.drafts import Draft, GpuSteps, LoweringStrategy, Splits, Step, Threadblock


def make_blocks(gpu: GpuSteps, strategy: LoweringStrategy, splits: Splits) -> None:
    """Make the threadblocks of one GPU, with the dependencies of their steps."""
    gpu.drafts.sort(key=lambda draft: (draft.at, draft.lane[3]))
    gpu.blocks = _groups(gpu, strategy, splits)
    writer = _last_writers(gpu) if strategy.share else {}
    if strategy.share:
        gpu.blocks = _shared(gpu.blocks, writer)
    where: dict[int, tuple[int, int]] = {}
    rows: list[list[tuple[Draft, Draft | None]]] = []
    for number, block in enumerate(gpu.blocks):
        block.drafts.sort(key=lambda draft: (draft.at, draft.lane[3]))
        rows.append(_fused(block.drafts, writer) if strategy.fuse else [(draft, None) for draft in block.drafts])
        for index, (draft, sent) in enumerate(rows[-1]):
            where[id(draft)] = number, index
            if sent is not None:
                where[id(sent)] = number, index
    waits = _waits(gpu.drafts, where)
    awaited = Counter(target for targets in waits.values() for target in targets)
    for number, block in enumerate(gpu.blocks):
        block.steps = [
            _step(draft, sent, waits.get((number, index), ()), awaited[number, index])
            for index, (draft, sent) in enumerate(rows[number])
        ]


def _step(draft: Draft, sent: Draft | None, waits: tuple[tuple[int, int], ...], awaited: int) -> Step:
    kind = draft.kind if sent is None else {"r": "rcs", "rrc": "rrcs"}[draft.kind]
    return Step(kind, draft.src, draft.dst, draft.count, waits, awaited)


def _groups(gpu: GpuSteps, strategy: LoweringStrategy, splits: Splits) -> list[Threadblock]:
    """Return one threadblock per connection, direction and channel; copies get one or more per instance, or for all."""
    groups: dict[tuple[str, int, int], Threadblock] = {}
    total = Counter(draft.lane[3] for draft in gpu.drafts if draft.lane[0] == "copy")
    copies: Counter[int] = Counter()
    for draft in gpu.drafts:
        direction, peer, _, instance = draft.lane
        channel = 0 if direction == "copy" and strategy.share else draft.channel
        key = (direction, peer, channel)
        if direction == "copy":
            part = copies[instance] * splits.get((gpu.rank, -1, 0, instance), 1) // total[instance]
            key = (direction, part, channel)
            copies[instance] += 1
        group = groups.get(key)
        if group is None:
            send, recv = (peer if direction == "send" else -1), (peer if direction == "recv" else -1)
            group = groups[key] = Threadblock(send, recv, channel, [])
        group.drafts.append(draft)
    return list(groups.values())


def _last_writers(gpu: GpuSteps) -> dict[int, Draft]:
    """Return, for every send of exactly the data that one step wrote, that step."""
    writer: dict[BufferSlot, Draft] = {}
    result = {}
    for draft in gpu.drafts:
        if draft.kind == "s":
            wrote = writer.get(draft.src)
            whole = all(writer.get(slot) is wrote for slot in draft.reads())
            if wrote is not None and whole and (wrote.dst, wrote.count) == (draft.src, draft.count):
                result[id(draft)] = wrote
        for slot in draft.writes():
            writer[slot] = draft
    return result


def _shared(groups: list[Threadblock], writer: dict[int, Draft]) -> list[Threadblock]:
    """Pair receives and sends of a channel in common threadblocks, those that forward the most chunks first."""
    receives = {id(draft): group for group in groups if group.recv >= 0 for draft in group.drafts}
    forwarded: Counter[tuple[int, int]] = Counter()
    number = {id(group): i for i, group in enumerate(groups)}
    for i, group in enumerate(groups):
        for draft in group.drafts:
            source = receives.get(id(writer.get(id(draft)))) if group.send >= 0 else None
            if source is not None and source.channel == group.channel:
                forwarded[number[id(source)], i] += 1
    free_in = [i for i, group in enumerate(groups) if group.recv >= 0]
    free_out = [i for i, group in enumerate(groups) if group.send >= 0]
    pairs = [pair for pair, _ in forwarded.most_common()]
    pairs += [(i, o) for i in free_in for o in free_out if groups[i].channel == groups[o].channel]
    partner: dict[int, int] = {}
    taken: set[int] = set()
    for i, o in pairs:
        if i not in partner and o not in taken:
            partner[i] = o
            taken.add(o)
    result = []
    for i, group in enumerate(groups):
        if i in taken:
            continue
        if i in partner:
            other = groups[partner[i]]
            result.append(Threadblock(other.send, group.recv, group.channel, group.drafts + other.drafts))
        else:
            result.append(group)
    return result


def _fused(drafts: list[Draft], writer: dict[int, Draft]) -> list[tuple[Draft, Draft | None]]:
    """Return (step, fused send or None) pairs; a receive is fused with the send of its data right after it."""
    rows: list[tuple[Draft, Draft | None]] = []
    for draft in drafts:
        last = rows[-1] if rows else None
        if (
            draft.kind == "s"
            and last is not None
            and last[1] is None
            and last[0].kind in ("r", "rrc")
            and writer.get(id(draft)) is last[0]
        ):
            rows[-1] = (last[0], draft)
        else:
            rows.append((draft, None))
    return rows


def _waits(
    drafts: list[Draft], where: dict[int, tuple[int, int]]
) -> dict[tuple[int, int], tuple[tuple[int, int], ...]]:
    """Return for every step (threadblock, index) the steps it must wait for, without those that other waits imply.

    A read comes after the last write; a write comes after the last write and all reads since.
    """
    wrote: dict[BufferSlot, tuple[int, int]] = {}
    read: dict[BufferSlot, list[tuple[int, int]]] = {}
    clock: dict[tuple[int, int], NDArray[np.int32]] = {}  # after a step: the last completed step of every threadblock
    start = np.full(1 + max((block for block, _ in where.values()), default=0), -1, dtype=np.int32)
    now: dict[int, NDArray[np.int32]] = {}
    waits: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}
    for draft in drafts:
        place = where[id(draft)]
        known = now.get(place[0], start).copy()
        reads, writes = draft.reads(), draft.writes()
        required = {wrote[slot] for slot in reads if slot in wrote}
        for slot in writes:
            required.update(read.get(slot, ()))
            if slot in wrote:
                required.add(wrote[slot])
        left = [p for p in required if p[0] != place[0] and known[p[0]] < p[1]]
        if len(left) > 1:
            left = [p for p in left if not any(clock[q][p[0]] >= p[1] for q in left if q != p)]
        if left:
            waits[place] = (*waits.get(place, ()), *sorted(left))
        for p in left:
            np.maximum(known, clock[p], out=known)
        known[place[0]] = place[1]
        now[place[0]] = clock[place] = known
        for slot in writes:
            wrote[slot], read[slot] = place, []
        for slot in reads:
            if wrote.get(slot) != place:
                read.setdefault(slot, []).append(place)
    return waits
