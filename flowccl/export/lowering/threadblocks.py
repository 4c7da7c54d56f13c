"""From steps to threadblocks: who runs which connection on which channel, and which step waits for which."""

from collections import Counter, defaultdict
from dataclasses import dataclass

from flowccl.export.lowering.buffers import Cell
from flowccl.export.lowering.lower import Draft, Lane, Work

MOST_PEERS = 32  # threadblocks of one channel that send; more peers go to further channels


@dataclass(frozen=True, slots=True)
class Shape:
    """How to lay out the steps.

    `merge` neighbours; `lane`: most steps of a connection on one channel (0: any number); `share` threadblocks
    between receives and sends; `fuse` what then follows each other into one instruction; `ahead`: as many channels
    as let senders run ahead of receivers like in the schedule.
    """

    merge: bool = False
    lane: int = 0
    share: bool = False
    fuse: bool = False
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction on `count` chunks from `src` to `dst`.

    `waits` are (threadblock, step) of the same GPU, `awaited` is how many steps wait for this one. Of a send, `dst`
    lies on the peer; of a plain receive, `src` does. A fused step sends on what it stores.
    """

    kind: str
    src: Cell
    dst: Cell
    count: int
    waits: tuple[tuple[int, int], ...]
    awaited: int


@dataclass(frozen=True, slots=True)
class Block:
    """A threadblock: at most one peer to send to and one to receive from, on one channel; -1 is none."""

    send: int
    recv: int
    channel: int
    steps: tuple[Step, ...]


@dataclass(slots=True, eq=False)
class _Group:
    """A threadblock in the making."""

    send: int
    recv: int
    channel: int
    drafts: list[Draft]


def assign_channels(
    works: list[Work], shape: Shape, needed: dict[tuple[int, int, int], int], *, one_sided: bool
) -> None:
    """Give every step its channel: the same at both ends, and the busiest connections in equal parts on several.

    `needed` are the channels of each (src, dst, way) that keep senders from waiting for receivers; a one-sided
    runtime needs one.
    """
    sends = [draft for work in works for draft in work.drafts if draft.kind == "s"]
    parts: dict[tuple[int, Lane], int] = {}
    for (rank, lane), count in Counter((draft.rank, draft.lane) for draft in sends).items():
        ahead = needed[rank, lane[1], lane[2]] if shape.ahead and not one_sided else 1
        parts[rank, lane] = max(-(-count // shape.lane) if shape.lane else 1, min(ahead, count))
    first: dict[tuple[int, Lane], int] = {}
    used: dict[tuple[int, int, int], int] = defaultdict(int)
    for rank, lane in sorted(parts):
        first[rank, lane] = used[rank, lane[1], lane[3]]
        used[rank, lane[1], lane[3]] += parts[rank, lane]
    width = max(used.values(), default=1)
    rounds = -(-(len(works) - 1) // MOST_PEERS)  # so many channels, that each has few enough peers
    seen: dict[tuple[int, Lane], int] = defaultdict(int)
    for draft in sends:
        key = (draft.rank, draft.lane)
        _, peer, _, instance = draft.lane
        part, seen[key] = first[key] + seen[key] % parts[key], seen[key] + 1
        apart = (peer - draft.rank) % len(works) - 1
        draft.channel = (instance * width + part) * rounds + apart // MOST_PEERS
        assert draft.partner is not None
        draft.partner.channel = draft.channel
    for work in works:
        last: dict[Lane, int] = {}
        for draft in work.drafts:
            if draft.kind == "free":
                assert draft.partner is not None
                draft.channel = draft.partner.channel
                continue
            if draft.kind not in ("s", "r", "rrc") and draft.lane[0] != "copy":
                draft.channel = last[draft.lane]
            elif draft.kind == "cpy":
                draft.channel = draft.lane[3] * width * rounds
            last[draft.lane] = draft.channel


def make_blocks(work: Work, shape: Shape, *, one_sided: bool) -> tuple[Block, ...]:
    """The threadblocks of one GPU, and what each of their steps waits for."""
    work.drafts.sort(key=lambda draft: (draft.at, draft.lane[3]))
    groups = _groups(work, shape)
    writer = _last_writers(work) if shape.share else {}
    if shape.share:
        groups = _shared(groups, writer)
    where: dict[int, tuple[int, int]] = {}
    rows: list[list[tuple[Draft, Draft | None]]] = []
    for number, group in enumerate(groups):
        group.drafts.sort(key=lambda draft: (draft.at, draft.lane[3]))
        if one_sided:
            _meet(work.rank, group)
        rows.append(_fused(group.drafts, writer) if shape.fuse else [(draft, None) for draft in group.drafts])
        for index, (draft, sent) in enumerate(rows[-1]):
            where[id(draft)] = number, index
            if sent is not None:
                where[id(sent)] = number, index
    waits = _waits(work, where)
    awaited = Counter(target for targets in waits.values() for target in targets)
    return tuple(
        Block(
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


def _meet(rank: int, group: _Group) -> None:
    """A one-sided sender waits until the receiver is in the call, before the first send that needs it.

    At the end it waits until the scratch that it wrote before is free for the next call.
    """
    sends = [k for k, draft in enumerate(group.drafts) if draft.kind == "s" and not draft.early]
    early = sum(draft.kind == "s" and draft.early for draft in group.drafts)
    needs = any(draft.kind == "r" and draft.partner and not draft.partner.early for draft in group.drafts)

    def make(kind: str) -> Draft:
        return Draft(kind, rank, ("", -1, 0, 0), -1, ("s", 0), ("s", 0), 0)

    if sends:
        group.drafts.insert(sends[0], make("meet"))
    if needs:
        group.drafts.insert(0, make("here"))
    group.drafts += [make("freed") for _ in range(early)]


def _groups(work: Work, shape: Shape) -> list[_Group]:
    """One threadblock per connection, way and channel, and for copies one per instance (or for all), or more."""
    groups: dict[tuple[str, int, int], _Group] = {}
    copies = 0
    for draft in work.drafts:
        way, peer, _, _ = draft.lane
        channel = 0 if way == "copy" and shape.share else draft.channel
        key = (way, peer, channel)
        if way == "copy" and shape.lane:
            key = (way, copies // shape.lane, channel)
            copies += 1
        group = groups.get(key)
        if group is None:
            send, recv = (peer if way == "send" else -1), (peer if way == "recv" else -1)
            group = groups[key] = _Group(send, recv, channel, [])
        group.drafts.append(draft)
    return list(groups.values())


def _last_writers(work: Work) -> dict[int, Draft]:
    """For every send of data that one step wrote as it is: that step."""
    writer: dict[Cell, Draft] = {}
    result = {}
    for draft in work.drafts:
        if draft.kind == "s":
            wrote = writer.get(draft.src)
            whole = all(writer.get(cell) is wrote for cell in draft.reads())
            if wrote is not None and whole and (wrote.dst, wrote.count) == (draft.src, draft.count):
                result[id(draft)] = wrote
        for cell in draft.writes():
            writer[cell] = draft
    return result


def _shared(groups: list[_Group], writer: dict[int, Draft]) -> list[_Group]:
    """Receives and sends of a channel in common threadblocks, those first that pass on most."""
    receives = {id(draft): group for group in groups if group.recv >= 0 for draft in group.drafts}
    passed: Counter[tuple[int, int]] = Counter()
    number = {id(group): i for i, group in enumerate(groups)}
    for i, group in enumerate(groups):
        for draft in group.drafts:
            source = receives.get(id(writer.get(id(draft)))) if group.send >= 0 else None
            if source is not None and source.channel == group.channel:
                passed[number[id(source)], i] += 1
    free_in = [i for i, group in enumerate(groups) if group.recv >= 0]
    free_out = [i for i, group in enumerate(groups) if group.send >= 0]
    pairs = [pair for pair, _ in passed.most_common()]
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
    """Pairs (step, send that it takes along): a receive, right after it the send of what it stored."""
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


def _waits(work: Work, where: dict[int, tuple[int, int]]) -> dict[tuple[int, int], tuple[tuple[int, int], ...]]:
    """For every step (threadblock, index) those that it must wait for, less what follows from others.

    A read comes after the last write; a write comes after the last write and all reads since.
    """
    wrote: dict[Cell, tuple[int, int]] = {}
    read: dict[Cell, list[tuple[int, int]]] = defaultdict(list)
    clock: dict[tuple[int, int], dict[int, int]] = {}  # after a step: the last step done, of every threadblock
    now: dict[int, dict[int, int]] = defaultdict(dict)
    waits: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}
    for draft in work.drafts:
        place = where[id(draft)]
        needs = {wrote[cell] for cell in draft.reads() if cell in wrote}
        for cell in draft.writes():
            needs |= {wrote[cell], *read[cell]} if cell in wrote else set(read[cell])
        known = now[place[0]]
        left = [p for p in needs if p[0] != place[0] and known.get(p[0], -1) < p[1]]
        left = [p for p in left if not any(clock[q].get(p[0], -1) >= p[1] for q in left if q != p)]
        if left:
            waits[place] = (*waits.get(place, ()), *sorted(left))
        known = dict(known)
        for p in left:
            for block, step in (*clock[p].items(), p):
                known[block] = max(known.get(block, -1), step)
        known[place[0]] = place[1]
        now[place[0]] = clock[place] = known
        for cell in draft.writes():
            wrote[cell], read[cell] = place, []
        for cell in draft.reads():
            if wrote.get(cell) != place:
                read[cell].append(place)
    return waits
