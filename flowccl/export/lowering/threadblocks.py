"""From steps to threadblocks: assign connections to threadblocks, and find the dependencies of steps."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.export.lowering.buffers import BufferSlot
from flowccl.export.lowering.drafts import SENDS, SWITCH_ROUTE, Draft, GpuDrafts
from flowccl.export.lowering.packets import PACKET_KINDS, forwarded, release_packets
from flowccl.export.lowering.queues import parts_of_queues, queue_of
from flowccl.runtimes.limits import RuntimeLimits

Connection = tuple[int, int, int, int]
"""(sender, receiver, route, instance), or (rank, -1, 0, instance) for the local copies of a rank.

Operations of a switch that a rank issues are (rank, -1, SWITCH_ROUTE, instance), also at the receivers. The queue of a
link is (rank, -2 - link, 0, instance), also at the receivers.
"""

Splits = dict[Connection, int]
"""The number of channels over which the steps of a connection are spread; 1 if it is not named.

For a queue, the number of threadblocks that send its parts one after the other.
"""


@dataclass(frozen=True, slots=True)
class LoweringStrategy:
    """How steps become threadblocks.

    `merge` adjacent chunks; `share` threadblocks between receives and sends; `fuse` a receive and the send after it
    into one instruction; `ahead`: use enough channels for senders to run ahead of receivers as in the schedule;
    `queues`: one threadblock sends the short messages of a link, to all peers, in the order of the schedule.
    """

    merge: bool = False
    share: bool = False
    fuse: bool = False
    ahead: bool = False
    queues: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction on `count` chunks from `src` to `dst`.

    `waits` are (threadblock, step) of the same GPU; `awaited` is the number of steps that wait for this one. The `dst`
    of a send and the `src` of a plain receive are on the peer. A fused step forwards the chunks that it stores. With
    packets, a "relay" leaves what it receives in its packets, and a "forward" sends from there. `target` is the place
    of the receiver of a send among the targets of the threadblock.
    """

    kind: str
    src: BufferSlot
    dst: BufferSlot
    count: int
    waits: tuple[tuple[int, int], ...]
    awaited: int
    target: int = 0


@dataclass(frozen=True, slots=True)
class Threadblock:
    """A threadblock with at most one peer to send to and one to receive from, on one channel; -1 means none.

    One that issues operations of a switch has `members` instead: the other GPUs of the group. `targets` are the
    (peer, channel) that it sends to: several for one that sends a queue, which has no `send`.
    """

    send: int
    recv: int
    channel: int
    steps: tuple[Step, ...]
    connections: tuple[Connection, ...] = ()
    members: tuple[int, ...] = ()
    targets: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True, eq=False)
class _Group:
    """A threadblock under construction; `queue` is the (link, instance) whose messages it sends."""

    send: int
    recv: int
    channel: int
    drafts: list[Draft]
    queue: tuple[int, int] | None = None

    @property
    def targets(self) -> tuple[tuple[int, int], ...]:
        """The (peer, channel) that it sends to."""
        return tuple(dict.fromkeys((draft.lane[1], draft.channel) for draft in self.drafts if draft.kind == "s"))

    @property
    def members(self) -> tuple[int, ...]:
        """The other GPUs of the group of operations of a switch."""
        return tuple(dict.fromkeys(receive.rank for draft in self.drafts for receive in draft.partners))


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
    in_order: list[tuple[_Group, int]] = []
    for number, group in enumerate(groups):
        group.drafts.sort(key=lambda draft: (draft.at, draft.lane[3]))
        if limits.direct:
            _add_synchronization(gpu.rank, group)
            in_order += [(group, number)] if group.queue else []
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
    _keep_order(in_order, waits)
    awaited = Counter(target for targets in waits.values() for target in targets)
    targets = [group.targets for group in groups]
    return tuple(
        Threadblock(
            group.send,
            group.recv,
            group.channel,
            tuple(
                _step(
                    draft,
                    sent,
                    waits.get((number, index), ()),
                    awaited[number, index],
                    stays=id(draft) in stay,
                    target=targets[number].index((draft.lane[1], draft.channel)) if group.queue else 0,
                )
                for index, (draft, sent) in enumerate(rows[number])
            ),
            tuple(dict.fromkeys(_connection(gpu.rank, draft, strategy) for draft in group.drafts if draft.lane[0])),
            group.members,
            targets[number],
        )
        for number, group in enumerate(groups)
    )


def _keep_order(queues: list[tuple[_Group, int]], waits: dict[tuple[int, int], tuple[tuple[int, int], ...]]) -> None:
    """Let the first send of each part of a queue wait for the last send of the part before it."""
    last: dict[tuple[int, int] | None, tuple[int, int]] = {}
    for group, number in sorted(queues, key=lambda row: min(draft.at for draft in row[0].drafts if draft.kind == "s")):
        sends = [index for index, draft in enumerate(group.drafts) if draft.kind == "s"]
        first, before = (number, sends[0]), last.get(group.queue)
        if before is not None and before not in waits.get(first, ()):
            waits[first] = (*waits.get(first, ()), before)
        last[group.queue] = number, sends[-1]


def _connection(rank: int, draft: Draft, strategy: LoweringStrategy) -> Connection:
    lane, send = draft.lane, draft.partner if draft.lane[0] == "recv" else draft
    if strategy.queues and send is not None and send.queue >= 0:
        return queue_of(send)
    if lane[2] == SWITCH_ROUTE:
        return (lane[1] if lane[0] == "recv" else rank, -1, *lane[2:])
    return (lane[1], rank, *lane[2:]) if lane[0] == "recv" else (rank, *lane[1:])


def _step(
    draft: Draft,
    sent: Draft | None,
    waits: tuple[tuple[int, int], ...],
    awaited: int,
    *,
    stays: bool,
    target: int,
) -> Step:
    if sent is None:
        kind = PACKET_KINDS[draft.kind] if stays else draft.kind
        return Step(kind, draft.src, draft.dst, draft.count, waits, awaited, target)
    kind = {"r": "rcs", "rrc": "rrcs"}[draft.kind]
    return Step(kind, draft.src, draft.dst, draft.count, waits, awaited)


def _add_synchronization(rank: int, group: _Group) -> None:
    """Make a one-sided sender wait until the receiver has entered the call, before the first send that requires it.

    At its end, the sender waits until the scratch that its early sends wrote is free for the next call.
    """
    sends = [draft for draft in group.drafts if draft.kind in SENDS and not draft.early]
    early = [draft for draft in group.drafts if draft.kind == "s" and draft.early]
    announces = any(draft.kind == "r" and draft.partner and not draft.partner.early for draft in group.drafts)

    def make(kind: str, peer: int = -1, channel: int = -1) -> Draft:
        return Draft(kind, rank, ("", peer, 0, 0), -1, ("s", 0), ("s", 0), 0, channel=channel)

    first = {(draft.lane[1], draft.channel): draft for draft in reversed(sends)}
    for (peer, channel), draft in first.items():
        group.drafts.insert(group.drafts.index(draft), make("await-ready", peer, channel))
    if announces:
        group.drafts.insert(0, make("ready"))
    group.drafts += [make("await-release", draft.lane[1], draft.channel) for draft in early]


def _groups(gpu: GpuDrafts, strategy: LoweringStrategy, splits: Splits) -> list[_Group]:
    """Return one threadblock per connection, direction and channel; copies get one or more per instance, or for all."""
    groups: dict[tuple[str, int, int], _Group] = {}
    queued = parts_of_queues([gpu], splits) if strategy.queues else {}
    queues: dict[tuple[int, int, int], _Group] = {}
    total = Counter(draft.lane[3] for draft in gpu.drafts if draft.lane[0] == "copy")
    copies: Counter[int] = Counter()
    for draft in gpu.drafts:
        if id(draft) in queued:
            link, instance, part = queued[id(draft)]
            queues.setdefault((link, instance, part), _Group(-1, -1, 0, [], (link, instance))).drafts.append(draft)
            continue
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
    return [*groups.values(), *queues.values()]


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
