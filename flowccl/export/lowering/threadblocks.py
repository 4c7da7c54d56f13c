"""From steps to threadblocks: assign connections to threadblocks and channels, and find the dependencies of steps."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.export.lowering.buffers import BufferSlot
from flowccl.export.lowering.drafts import SENDS, SWITCH_ROUTE, Draft, GpuDrafts, Lane
from flowccl.export.lowering.packets import PACKET_KINDS, forwarded, release_packets
from flowccl.runtimes.limits import RuntimeLimits

MOST_PEERS = 32  # sending threadblocks of one channel; more peers use further channels

Connection = tuple[int, int, int, int]
"""(sender, receiver, route, instance), or (rank, -1, 0, instance) for the local copies of a rank.

Operations of a switch that a rank issues are (rank, -1, SWITCH_ROUTE, instance), also at the receivers.
"""

Splits = dict[Connection, int]
"""The number of channels over which the steps of a connection are spread; 1 if it is not named."""


@dataclass(frozen=True, slots=True)
class LoweringStrategy:
    """How steps become threadblocks.

    `merge` adjacent chunks; `share` threadblocks between receives and sends; `fuse` a receive and the send after it
    into one instruction; `ahead`: use enough channels for senders to run ahead of receivers as in the schedule.
    """

    merge: bool = False
    share: bool = False
    fuse: bool = False
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction on `count` chunks from `src` to `dst`.

    `waits` are (threadblock, step) of the same GPU; `awaited` is the number of steps that wait for this one. The `dst`
    of a send and the `src` of a plain receive are on the peer. A fused step forwards the chunks that it stores. With
    packets, a "relay" leaves what it receives in its packets, and a "forward" sends from there.
    """

    kind: str
    src: BufferSlot
    dst: BufferSlot
    count: int
    waits: tuple[tuple[int, int], ...]
    awaited: int


@dataclass(frozen=True, slots=True)
class Threadblock:
    """A threadblock with at most one peer to send to and one to receive from, on one channel; -1 means none.

    One that issues operations of a switch has `members` instead: the other GPUs of the group.
    """

    send: int
    recv: int
    channel: int
    steps: tuple[Step, ...]
    connections: tuple[Connection, ...] = ()
    members: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class _Group:
    """A threadblock under construction."""

    send: int
    recv: int
    channel: int
    drafts: list[Draft]

    @property
    def members(self) -> tuple[int, ...]:
        """The other GPUs of the group of operations of a switch."""
        return tuple(dict.fromkeys(receive.rank for draft in self.drafts for receive in draft.partners))


def assign_channels(
    gpu_drafts: list[GpuDrafts],
    strategy: LoweringStrategy,
    needed: dict[tuple[int, int, int], int],
    splits: Splits,
    *,
    one_sided: bool,
) -> None:
    """Assign a channel to every step: the same at both ends; connections are spread over channels as `splits` says.

    `needed` is the number of channels of each (src, dst, route) with which senders do not wait for receivers; a
    one-sided runtime needs one.
    """
    sends = [draft for gpu in gpu_drafts for draft in gpu.drafts if draft.kind == "s"]
    parts: dict[tuple[int, Lane], int] = {}
    for (rank, lane), count in Counter((draft.rank, draft.lane) for draft in sends).items():
        ahead = needed[rank, lane[1], lane[2]] if strategy.ahead and not one_sided else 1
        parts[rank, lane] = min(count, max(splits.get((rank, *lane[1:]), 1), ahead))
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
    _assign_group_channels(gpu_drafts, splits, 1 + max((draft.channel for draft in sends), default=-1))
    for gpu in gpu_drafts:
        last: dict[Lane, int] = {}
        for draft in gpu.drafts:
            if draft.kind == "release":
                assert draft.partner is not None
                draft.channel = draft.partner.channel
                continue
            if draft.kind not in (*SENDS, "r", "rrc") and draft.lane[0] != "copy":
                draft.channel = last[draft.lane]
            elif draft.kind == "cpy":
                draft.channel = draft.lane[3] * width * rounds
            last[draft.lane] = draft.channel


def _assign_group_channels(gpu_drafts: list[GpuDrafts], splits: Splits, first: int) -> None:
    """Assign channels from `first` on to the operations of switches, spread over channels as `splits` says."""
    issued = [draft for gpu in gpu_drafts for draft in gpu.drafts if draft.partners]
    parts: dict[tuple[int, int], int] = {}
    for (rank, instance), count in Counter((draft.rank, draft.lane[3]) for draft in issued).items():
        parts[rank, instance] = min(count, splits.get((rank, -1, SWITCH_ROUTE, instance), 1))
    most = max(parts.values(), default=1)
    seen: Counter[tuple[int, int]] = Counter()
    for draft in issued:
        key = draft.rank, draft.lane[3]
        draft.channel = first + draft.lane[3] * most + seen[key] % parts[key]
        seen[key] += 1
        for receive in draft.partners:
            receive.channel = draft.channel


def make_blocks(
    gpu: GpuDrafts,
    strategy: LoweringStrategy,
    splits: Splits,
    limits: RuntimeLimits,
    fits: Callable[[tuple[int, int], tuple[int, int]], bool] | None = None,
) -> tuple[Threadblock, ...]:
    """Return the threadblocks of one GPU, with the dependencies of their steps.

    `fits` says whether a receiving and a sending threadblock, each given by its (peer, channel), may become one.
    """
    gpu.drafts.sort(key=lambda draft: (draft.at, draft.lane[3]))
    groups = _groups(gpu, strategy, splits)
    writer = _last_writers(gpu) if strategy.share else {}
    if strategy.share:
        groups = _shared(groups, writer, fits)
    where: dict[int, tuple[int, int]] = {}
    rows: list[list[tuple[Draft, Draft | None]]] = []
    drafts = list(gpu.drafts)
    stay = forwarded(gpu.drafts) if limits.packets else set()
    for number, group in enumerate(groups):
        group.drafts.sort(key=lambda draft: (draft.at, draft.lane[3]))
        if limits.direct:
            _add_synchronization(gpu.rank, group)
        elif limits.packets:
            added = release_packets(gpu.rank, group.drafts, stay)
            group.drafts += added
            drafts += [draft for draft in added if draft.kind == "release"]
        rows.append(_fused(group.drafts, writer) if strategy.fuse else [(draft, None) for draft in group.drafts])
        for index, (draft, sent) in enumerate(rows[-1]):
            where[id(draft)] = number, index
            if sent is not None:
                where[id(sent)] = number, index
    waits = _waits(drafts, where, stay)
    if limits.direct:  # a receive waits for nothing but its data, which the plan lets come only when its slot is free
        waits = {place: found for place, found in waits.items() if rows[place[0]][place[1]][0].kind != "r"}
    awaited = Counter(target for targets in waits.values() for target in targets)
    return tuple(
        Threadblock(
            group.send,
            group.recv,
            group.channel,
            tuple(
                _step(draft, sent, waits.get((number, index), ()), awaited[number, index], stays=id(draft) in stay)
                for index, (draft, sent) in enumerate(rows[number])
            ),
            tuple(dict.fromkeys(_connection(gpu.rank, draft.lane) for draft in group.drafts if draft.lane[0])),
            group.members,
        )
        for number, group in enumerate(groups)
    )


def _connection(rank: int, lane: Lane) -> Connection:
    if lane[2] == SWITCH_ROUTE:
        return (lane[1] if lane[0] == "recv" else rank, -1, *lane[2:])
    return (lane[1], rank, *lane[2:]) if lane[0] == "recv" else (rank, *lane[1:])


def _step(draft: Draft, sent: Draft | None, waits: tuple[tuple[int, int], ...], awaited: int, *, stays: bool) -> Step:
    if sent is None:
        return Step(
            PACKET_KINDS[draft.kind] if stays else draft.kind, draft.src, draft.dst, draft.count, waits, awaited
        )
    kind = {"r": "rcs", "rrc": "rrcs"}[draft.kind]
    return Step(kind, draft.src, draft.dst, draft.count, waits, awaited)


def _add_synchronization(rank: int, group: _Group) -> None:
    """Make a one-sided sender wait until the receiver has entered the call, before the first send that requires it.

    At its end, the sender waits until the scratch that its early sends wrote is free for the next call.
    """
    sends = [k for k, draft in enumerate(group.drafts) if draft.kind in SENDS and not draft.early]
    early = sum(draft.kind == "s" and draft.early for draft in group.drafts)
    announces = any(draft.kind == "r" and draft.partner and not draft.partner.early for draft in group.drafts)

    def make(kind: str) -> Draft:
        return Draft(kind, rank, ("", -1, 0, 0), -1, ("s", 0), ("s", 0), 0)

    if sends:
        group.drafts.insert(sends[0], make("await-ready"))
    if announces:
        group.drafts.insert(0, make("ready"))
    group.drafts += [make("await-release") for _ in range(early)]


def _groups(gpu: GpuDrafts, strategy: LoweringStrategy, splits: Splits) -> list[_Group]:
    """Return one threadblock per connection, direction and channel; copies get one or more per instance, or for all."""
    groups: dict[tuple[str, int, int], _Group] = {}
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


def _shared(
    groups: list[_Group], writer: dict[int, Draft], fits: Callable[[tuple[int, int], tuple[int, int]], bool] | None
) -> list[_Group]:
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
        receives_from, sends_to = (groups[i].recv, groups[i].channel), (groups[o].send, groups[o].channel)
        if i not in partner and o not in taken and (fits is None or fits(receives_from, sends_to)):
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


def _waits(
    drafts: list[Draft], where: dict[int, tuple[int, int]], stay: set[int]
) -> dict[tuple[int, int], tuple[tuple[int, int], ...]]:
    """Return for every step (threadblock, index) the steps it must wait for, without those that other waits imply.

    A read comes after the last write; a write comes after the last write and all reads since. Receives that `stay` in
    their packets do nothing: their flags order the sends that forward them.
    """
    wrote: dict[BufferSlot, tuple[int, int]] = {}
    read: dict[BufferSlot, list[tuple[int, int]]] = {}
    clock: dict[tuple[int, int], NDArray[np.int32]] = {}  # after a step: the last completed step of every threadblock
    start = np.full(1 + max((block for block, _ in where.values()), default=0), -1, dtype=np.int32)
    now: dict[int, NDArray[np.int32]] = {}
    waits: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {}
    for draft in drafts:
        if draft.kind == "r" and id(draft) in stay:
            continue
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
