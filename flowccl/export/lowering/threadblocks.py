"""From steps to threadblocks: assign connections to threadblocks and channels, and find the dependencies of steps."""

from collections import Counter, defaultdict
from dataclasses import dataclass

from flowccl.export.lowering.buffers import BufferSlot
from flowccl.export.lowering.drafts import Draft, GpuDrafts, Lane

MOST_PEERS = 32  # sending threadblocks of one channel; more peers use further channels


@dataclass(frozen=True, slots=True)
class LoweringStrategy:
    """How steps become threadblocks.

    `merge` adjacent chunks; `lane`: the most steps of a connection on one channel (0: no limit); `share` threadblocks
    between receives and sends; `fuse` a receive and the send after it into one instruction; `ahead`: use enough
    channels for senders to run ahead of receivers as in the schedule.
    """

    merge: bool = False
    lane: int = 0
    share: bool = False
    fuse: bool = False
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction on `count` chunks from `src` to `dst`.

    `waits` are (threadblock, step) of the same GPU; `awaited` is the number of steps that wait for this one. The `dst`
    of a send and the `src` of a plain receive are on the peer. A fused step forwards the chunks that it stores.
    """

    kind: str
    src: BufferSlot
    dst: BufferSlot
    count: int
    waits: tuple[tuple[int, int], ...]
    awaited: int


@dataclass(frozen=True, slots=True)
class Threadblock:
    """A threadblock with at most one peer to send to and one to receive from, on one channel; -1 means none."""

    send: int
    recv: int
    channel: int
    steps: tuple[Step, ...]


@dataclass(slots=True, eq=False)
class _Group:
    """A threadblock under construction."""

    send: int
    recv: int
    channel: int
    drafts: list[Draft]


def assign_channels(
    gpu_drafts: list[GpuDrafts], strategy: LoweringStrategy, needed: dict[tuple[int, int, int], int], *, one_sided: bool
) -> None:
    """Assign a channel to every step: the same at both ends; the busiest connections are spread evenly over several.

    `needed` is the number of channels of each (src, dst, route) with which senders do not wait for receivers; a
    one-sided runtime needs one.
    """
    sends = [draft for gpu in gpu_drafts for draft in gpu.drafts if draft.kind == "s"]
    parts: dict[tuple[int, Lane], int] = {}
    for (rank, lane), count in Counter((draft.rank, draft.lane) for draft in sends).items():
        ahead = needed[rank, lane[1], lane[2]] if strategy.ahead and not one_sided else 1
        parts[rank, lane] = max(-(-count // strategy.lane) if strategy.lane else 1, min(ahead, count))
    first: dict[tuple[int, Lane], int] = {}
    used: dict[tuple[int, int, int], int] = defaultdict(int)
    for rank, lane in sorted(parts):
        first[rank, lane] = used[rank, lane[1], lane[3]]
        used[rank, lane[1], lane[3]] += parts[rank, lane]
    width = max(used.values(), default=1)
    rounds = -(-(len(gpu_drafts) - 1) // MOST_PEERS)  # channels needed to keep the peers of each within MOST_PEERS
    seen: dict[tuple[int, Lane], int] = defaultdict(int)
    for draft in sends:
        key = (draft.rank, draft.lane)
        _, peer, _, instance = draft.lane
        part, seen[key] = first[key] + seen[key] % parts[key], seen[key] + 1
        distance = (peer - draft.rank) % len(gpu_drafts) - 1
        draft.channel = (instance * width + part) * rounds + distance // MOST_PEERS
        assert draft.partner is not None
        draft.partner.channel = draft.channel
    for gpu in gpu_drafts:
        last: dict[Lane, int] = {}
        for draft in gpu.drafts:
            if draft.kind == "release":
                assert draft.partner is not None
                draft.channel = draft.partner.channel
                continue
            if draft.kind not in ("s", "r", "rrc") and draft.lane[0] != "copy":
                draft.channel = last[draft.lane]
            elif draft.kind == "cpy":
                draft.channel = draft.lane[3] * width * rounds
            last[draft.lane] = draft.channel


def make_blocks(gpu: GpuDrafts, strategy: LoweringStrategy, *, one_sided: bool) -> tuple[Threadblock, ...]:
    """Return the threadblocks of one GPU, with the dependencies of their steps."""
    gpu.drafts.sort(key=lambda draft: (draft.at, draft.lane[3]))
    groups = _groups(gpu, strategy)
    writer = _last_writers(gpu) if strategy.share else {}
    if strategy.share:
        groups = _shared(groups, writer)
    where: dict[int, tuple[int, int]] = {}
    rows: list[list[tuple[Draft, Draft | None]]] = []
    for number, group in enumerate(groups):
        group.drafts.sort(key=lambda draft: (draft.at, draft.lane[3]))
        if one_sided:
            _add_synchronization(gpu.rank, group)
        rows.append(_fused(group.drafts, writer) if strategy.fuse else [(draft, None) for draft in group.drafts])
        for index, (draft, sent) in enumerate(rows[-1]):
            where[id(draft)] = number, index
            if sent is not None:
                where[id(sent)] = number, index
    waits = _waits(gpu, where)
    awaited = Counter(target for targets in waits.values() for target in targets)
    return tuple(
        Threadblock(
            group.send,
            group.recv,
            group.channel,
            tuple(
                _step(draft, sent, waits.get((number, index), ()), awaited[number, index])
                for index, (draft, sent) in enumerate(rows[number])
            ),
        )
        for number, group in enumerate(groups)
    )


def _step(draft: Draft, sent: Draft | None, waits: tuple[tuple[int, int], ...], awaited: int) -> Step:
    if sent is None:
        return Step(draft.kind, draft.src, draft.dst, draft.count, waits, awaited)
    kind = {"r": "rcs", "rrc": "rrcs"}[draft.kind]
    return Step(kind, draft.src, draft.dst, draft.count, waits, awaited)


def _add_synchronization(rank: int, group: _Group) -> None:
    """Make a one-sided sender wait until the receiver has entered the call, before the first send that requires it.

    At its end, the sender waits until the scratch that its early sends wrote is free for the next call.
    """
    sends = [k for k, draft in enumerate(group.drafts) if draft.kind == "s" and not draft.early]
    early = sum(draft.kind == "s" and draft.early for draft in group.drafts)
    announces = any(draft.kind == "r" and draft.partner and not draft.partner.early for draft in group.drafts)

    def make(kind: str) -> Draft:
        return Draft(kind, rank, ("", -1, 0, 0), -1, ("s", 0), ("s", 0), 0)

    if sends:
        group.drafts.insert(sends[0], make("await-ready"))
    if announces:
        group.drafts.insert(0, make("ready"))
    group.drafts += [make("await-release") for _ in range(early)]


def _groups(gpu: GpuDrafts, strategy: LoweringStrategy) -> list[_Group]:
    """Return one threadblock per connection, direction and channel; copies get one or more per instance, or for all."""
    groups: dict[tuple[str, int, int], _Group] = {}
    copies = 0
    for draft in gpu.drafts:
        direction, peer, _, _ = draft.lane
        channel = 0 if direction == "copy" and strategy.share else draft.channel
        key = (direction, peer, channel)
        if direction == "copy" and strategy.lane:
            key = (direction, copies // strategy.lane, channel)
            copies += 1
        group = groups.get(key)
        if group is None:
            send, recv = (peer if direction == "send" else -1), (peer if direction == "recv" else -1)
            group = groups[key] = _Group(send, recv, channel, [])
        group.drafts.append(draft)
    return list(groups.values())


def _last_writers(gpu: GpuDrafts) -> dict[int, Draft]:
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


def _shared(groups: list[_Group], writer: dict[int, Draft]) -> list[_Group]:
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
            result.append(_Group(other.send, group.recv, group.channel, group.drafts + other.drafts))
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


def _waits(gpu: GpuDrafts, where: dict[int, tuple[int, int]]) -> dict[tuple[int, int], tuple[tuple[int, int], ...]]:
    """Return for every step (threadblock, index) the steps it must wait for, without those that other waits imply.

    A read comes after the last write; a write comes after the last write and all reads since.
    """
    wrote: dict[BufferSlot, tuple[int, int]] = {}
    read: dict[BufferSlot, list[tuple[int, int]]] = defaultdict(list)
    clock: dict[tuple[int, int], dict[int, int]] = {}  # after a step: the last completed step of every threadblock
    now: dict[int, dict[int, int]] = defaultdict(dict)
    waits: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}
    for draft in gpu.drafts:
        place = where[id(draft)]
        required = {wrote[slot] for slot in draft.reads() if slot in wrote}
        for slot in draft.writes():
            required |= {wrote[slot], *read[slot]} if slot in wrote else set(read[slot])
        known = now[place[0]]
        left = [p for p in required if p[0] != place[0] and known.get(p[0], -1) < p[1]]
        left = [p for p in left if not any(clock[q].get(p[0], -1) >= p[1] for q in left if q != p)]
        if left:
            waits[place] = (*waits.get(place, ()), *sorted(left))
        known = dict(known)
        for p in left:
            for block, step in (*clock[p].items(), p):
                known[block] = max(known.get(block, -1), step)
        known[place[0]] = place[1]
        now[place[0]] = clock[place] = known
        for slot in draft.writes():
            wrote[slot], read[slot] = place, []
        for slot in draft.reads():
            if wrote.get(slot) != place:
                read[slot].append(place)
    return waits
