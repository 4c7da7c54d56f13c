"""Symmetric schedules: lowered once for the GPU that stands for all of them, and copied for each rank.

On a machine that looks the same from every GPU, the messages of GPU 0's data and their images under a group are a whole
schedule. Every GPU sends and receives one image of each message, so one GPU stands for all: a message to the GPU that
an element maps the sender to has this element in the place of its peer. What that GPU does is what GPU 0 does; the
blocks of its buffers and its peers are moved by an element for what another GPU does.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import members, pointers
from flowccl.demand.collectives import collective
from flowccl.demand.demand import Demand
from flowccl.export.lowering.actions import FLUSH, MASK, POST, SEND, WAIT, WORK, Actions, Channels, Ranges
from flowccl.export.lowering.buffers import BufferLayout
from flowccl.export.lowering.build import Built
from flowccl.export.lowering.dependencies import Ordered
from flowccl.export.proof.steps import OneGpu
from flowccl.runtimes.execution import Execution
from flowccl.schedule.compact import CompactSchedule, compact_form
from flowccl.schedule.messages import Messages, messages_of
from flowccl.schedule.placement import BUFFER_BITS, OUTPUT, ChunksOfOne
from flowccl.schedule.schedule import Schedule
from flowccl.topology.routes import Routes

I64 = NDArray[np.int64]


def orbits_of(schedule: Schedule, execution: Execution, layout: BufferLayout) -> "Orbits | None":
    """Return what one GPU does for all others, where the schedule is symmetric and can be lowered like that."""
    if execution.packets or execution.loops > 1 or (layout.inplace and layout.collective == "alltoall"):
        return None
    compact = compact_form(schedule)
    if (
        compact is None
        or np.any(np.diff(compact.one.shape.root_ptr) > 1)
        or np.any(np.diff(compact.one.shape.end_ptr) > 1)
    ):
        return None
    return Orbits(compact)


@dataclass(frozen=True, eq=False)
class Orbits:
    """The messages of a symmetric schedule as one GPU sends and receives them."""

    compact: CompactSchedule

    @cached_property
    def schedule(self) -> Schedule:
        """The messages that GPU 0 sends: the images of those of its data, whose numbers and times they have."""
        one, group = self.compact.one, self.compact.group
        size = np.diff(one.routes.ptr)[one.route]
        row, hop = members(size)
        hop += one.routes.ptr[:-1][one.route][row]
        links = group.moved_links(one.routes.link[hop], group.difference(np.zeros(len(one), np.int32), self._root)[row])
        routes, route = Routes(pointers(size), links).distinct()
        return replace(one, demand=self.demand, chunk=self.chunks.leaves.astype(np.int32), routes=routes, route=route)

    @cached_property
    def demand(self) -> Demand:
        """The demand of all GPUs."""
        whole = self.compact
        return collective(whole.collective, len(whole.group), whole.size_bytes, whole.pieces)

    @cached_property
    def chunks(self) -> ChunksOfOne:
        """The chunks that the GPU sends, and those as which they arrive there."""
        zero = np.zeros(len(self._root), dtype=np.int32)
        compact, chunk = self.compact, self.compact.one.chunk
        sides = (compact.chunks_of(chunk, compact.group.difference(zero, node)) for node in (self._root, self._end))
        return ChunksOfOne(self.demand, *sides)

    @cached_property
    def messages(self) -> Messages:
        """The messages, all from the one GPU to itself."""
        one = self.compact.one
        assert one.costs is not None
        found = messages_of(one, one.costs.is_proxied)
        return replace(found, src=0 * found.src, root=0 * found.root, end=0 * found.end)

    @property
    def peer(self) -> I64:
        """The element that maps the sender of each message to its receiver."""
        first = self.messages.first
        return self.compact.group.difference(self._end, self._root)[first].astype(np.int64)

    @property
    def back(self) -> I64:
        """The element that maps the receiver of each message to its sender."""
        first = self.messages.first
        return self.compact.group.difference(self._root, self._end)[first].astype(np.int64)

    @cached_property
    def _root(self) -> NDArray[np.int32]:
        shape = self.compact.one.shape
        return np.asarray(shape.root_node[shape.root_ptr[:-1]][self.compact.one.route])

    @cached_property
    def _end(self) -> NDArray[np.int32]:
        shape = self.compact.one.shape
        return np.asarray(shape.end_node[shape.end_ptr[:-1]][self.compact.one.route])

    def one_gpu(self, first: Built) -> OneGpu | None:
        """How GPU 0 stands for all in a simulation, where `first` is what it does; None where orbits are not free."""
        group, timing = self.compact.group, self.compact.one.timing
        key = np.unique(np.stack((timing.hop_transfer, group.link_orbits[timing.hop_link]), axis=1), axis=0)
        if not group.free_links[timing.hop_link].all() or len(key) < len(timing.hop_link):
            return None
        sent: dict[Hashable, Hashable] = {}
        for kind, ends in (("memory", first.memory.ends), ("port", first.port.ends)):
            rows, place, count = ends[np.lexsort(ends.T[::-1])].tolist(), {}, Counter[int]()
            for _, here, peer, there in rows:
                place[here, peer, there] = count[peer]
                count[peer] += 1
            for _, here, peer, there in rows:
                back = int(group.difference(np.array(0), np.array(peer)))
                if (there, back, here) in place:
                    got = ("signal", peer, 0, kind, place[here, peer, there])
                    sent[got] = ("signal", 0, back, kind, place[there, back, here])
        return OneGpu(sent, group.link_orbits.astype(np.int64))

    # -- copies for the ranks ---

    def can_copy(self, built: Built, layout: BufferLayout) -> bool:
        """Whether no range of slots lies in several blocks, which would not stay neighbours."""
        r = built.ranges
        rows = [(r.source, r.slots), (r.target, r.slots)]
        rows.append((r.added, np.repeat(r.slots, r.added_high - r.added_low)[: len(r.added)]))
        each = layout.per_block
        return not any(
            np.any((start >> BUFFER_BITS <= OUTPUT) & ((start & MASK) // each != ((start & MASK) + size - 1) // each))
            for start, size in rows
        )

    def copied(
        self, built: Built, ordered: Ordered, layout: BufferLayout, schedule: Schedule, ranks: I64
    ) -> tuple[Built, Ordered]:
        """Return what these ranks do as images of what the one GPU does; `schedule` has the messages of all of them.

        That is the schedule of all GPUs, or the one of GPU 0's messages.
        """
        nodes, is_whole = len(schedule.topology.nodes), len(schedule) > len(self.compact.one)
        actions, ranges = self._copied_actions(built, ordered, layout, ranks, is_whole=is_whole)
        ids, memory, port, actions = self._copied_channels(built, ordered, actions, ranks)
        messages = built.messages
        if is_whole:
            assert schedule.costs is not None
            messages = messages_of(schedule, schedule.costs.is_proxied)
        times = len(messages) // max(len(built.messages), 1)
        moments = {name: np.tile(getattr(built.times, name), times) for name in ("start", "posted")}
        scratch, packets = (_at(ranks, nodes, count) for count in (built.places.scratch, built.places.packets))
        whole = replace(
            built,
            actions=actions,
            ranges=ranges,
            ids=ids,
            memory=memory,
            port=port,
            places=replace(built.places, scratch=scratch, packets=packets),
            messages=messages,
            times=replace(built.times, **moments),
            rate_GBps=np.tile(built.rate_GBps, times),
        )
        return whole, _copied_order(ordered, actions, ranks, nodes)

    def _copied_actions(
        self, built: Built, ordered: Ordered, layout: BufferLayout, ranks: I64, *, is_whole: bool
    ) -> tuple[Actions, Ranges]:
        """The actions of some ranks and what they move: each has the ranges twice, for what it sends and gets."""
        old, group = ordered.actions, self.compact.group
        count, size, at = len(old.kind), len(built.ranges.source), np.arange(len(ranks), dtype=np.int64)[:, None]
        gets = (old.kind == WAIT) & (old.message >= 0)
        offset = at * 2 * size + np.where(gets, size, 0)
        rank = np.repeat(ranks, count)
        message = np.broadcast_to(old.message, (len(ranks), count)).copy()
        if is_whole:
            first = self.messages.first[np.maximum(old.message, 0)]
            node = np.where(gets | (old.kind == WORK), self._end[first], self._root[first])
            image = group.difference(ranks[:, None], node[None, :]).astype(np.int64)
            message = np.where(old.message >= 0, image * len(self.messages) + old.message, -1)
        image_of_peer = group.image(np.maximum(old.peer, 0)[None, :], ranks[:, None]).astype(np.int64)
        peer = np.where(old.peer >= 0, image_of_peer, -1)
        copies = {name: np.tile(getattr(old, name), len(ranks)) for name in Actions._fields}
        moved = {"range_low": old.range_low + offset, "range_high": old.range_high + offset}
        columns = copies | {"rank": rank, "message": message, "peer": peer} | moved
        return Actions(**{name: np.ascontiguousarray(columns[name]).reshape(-1) for name in Actions._fields}), (
            self._copied_ranges(built, layout, ranks)
        )

    def _copied_ranges(self, built: Built, layout: BufferLayout, ranks: I64) -> Ranges:
        """The ranges of some ranks: first those of what they do themselves, then those of what arrives."""
        old, actions, group = built.ranges, built.actions, self.compact.group
        to = np.zeros(len(old.source), dtype=np.int64)
        sends = np.flatnonzero((actions.kind == SEND) | (actions.kind == POST))
        owner, number = members((actions.range_high - actions.range_low)[sends])
        to[actions.range_low[sends[owner]] + number] = actions.peer[sends[owner]]
        by = ranks[:, None]
        source, target = self._moved(old.source, by, layout), self._moved(old.target, by, layout)
        far = self._moved(old.target, group.image(to[None, :], by).astype(np.int64), layout)
        added = self._moved(old.added, by, layout)
        low = np.arange(len(ranks), dtype=np.int64)[:, None] * len(old.added)
        twice = [np.concatenate((value + low, value + low), axis=1) for value in (old.added_low, old.added_high)]
        return Ranges(
            np.concatenate((source, source), axis=1).reshape(-1),
            np.concatenate((far, target), axis=1).reshape(-1),
            np.tile(old.slots, 2 * len(ranks)),
            twice[0].reshape(-1),
            twice[1].reshape(-1),
            added.reshape(-1),
        )

    def _moved(self, place: I64, by: I64, layout: BufferLayout) -> I64:
        """The places of the images: in a buffer with a block for each rank, the block of another rank."""
        buffer, index = place >> BUFFER_BITS, place & MASK
        counts, each = layout.whole_counts, layout.per_block
        several = np.array([*(count > each for count in counts), False, False])[buffer]
        block = self.compact.group.image(np.where(several, index // each, 0)[None, :], by).astype(np.int64)
        moved = buffer << BUFFER_BITS | block * each + index % each
        return np.where(several, moved, np.broadcast_to(place, moved.shape))

    def _copied_channels(
        self, built: Built, ordered: Ordered, actions: Actions, ranks: I64
    ) -> tuple[I64, Channels, Channels, Actions]:
        """The numbers of the channels of some ranks, those inside hosts, those of NICs, and the actions with them."""
        used = _UsedChannels.of(built, ordered.actions)
        low = np.arange(len(ranks), dtype=np.int64)[:, None] * len(used.channel)
        ids, found = np.zeros((len(ranks), len(used.channel)), dtype=np.int64), []
        for is_port, ends in ((False, built.memory.ends), (True, built.port.ends)):
            chosen = np.flatnonzero(used.is_port == is_port)
            numbers, channels = self._channels(used.channel[chosen], used.side[chosen], used.gives[chosen], ends, ranks)
            ids[:, chosen] = numbers
            found.append(channels)
        columns = {"channel_low": used.ptr[:-1] + low, "channel_high": used.ptr[1:] + low}
        actions = actions._replace(**{name: column.reshape(-1) for name, column in columns.items()})
        return ids.reshape(-1), found[0], found[1], actions

    def _channels(
        self, channel: I64, side: I64, gives: NDArray[np.bool_], ends: I64, ranks: I64
    ) -> tuple[I64, Channels]:
        """The number of the channel of each use by each rank, and all channels; the lower GPU comes first."""
        group, at = self.compact.group, ranks[:, None]
        here, peer, there = (column[channel][None, :] for column in ends.T[1:])
        first = np.where(side[None, :] == 0, at, group.difference(at, peer)).astype(np.int64)
        second = group.image(first, peer).astype(np.int64)
        swaps = first > second
        lower = np.where(swaps, second, first), np.where(swaps, there, here)
        columns = *lower, np.where(swaps, first, second), np.where(swaps, here, there)
        blocks = 1 + int(ends[:, [1, 3]].max(initial=0))
        key = ((columns[0] * blocks + columns[1]) * len(group) + columns[2]) * blocks + columns[3]
        _, one, number = np.unique(key.reshape(-1), return_index=True, return_inverse=True)
        rows = np.stack([np.broadcast_to(column, key.shape).reshape(-1)[one] for column in columns], axis=1)
        number = number.reshape(-1)
        is_upper = np.broadcast_to(np.where(side[None, :] == 0, swaps, ~swaps), key.shape).reshape(-1)
        carries = np.zeros(2 * len(rows), dtype=np.bool_)
        carries[2 * number + (is_upper == np.broadcast_to(gives[None, :], key.shape).reshape(-1))] = True
        return number.reshape(key.shape), Channels(np.ascontiguousarray(rows), carries)


@dataclass(frozen=True, eq=False)
class _UsedChannels:
    """The channels of the actions of one GPU: which one, at which of its ends, and whether the GPU sends there."""

    ptr: I64
    channel: I64
    side: I64
    gives: NDArray[np.bool_]
    is_port: NDArray[np.bool_]

    @classmethod
    def of(cls, built: Built, actions: Actions) -> "_UsedChannels":
        """Return the uses in the order of the actions; a flush is for all channels on which its threadblock posts."""
        swaps = np.where(built.pairs.direction < 0, -1 - built.pairs.direction, built.pairs.direction) % 2
        side_of = np.zeros(len(built.actions.kind), dtype=np.int64)
        side_of[built.pairs.send], side_of[built.pairs.wait] = swaps, 1 - swaps
        ends = np.concatenate((built.pairs.send, built.pairs.wait))
        keys = _key(built.actions)[ends]
        order = np.argsort(keys)
        chosen = np.flatnonzero((actions.channel_high > actions.channel_low) & (actions.message >= 0))
        at = ends[order][np.searchsorted(keys[order], _key(actions)[chosen])]
        side, number = side_of[at], built.ids[actions.channel_low[chosen]]
        is_port = np.isin(actions.kind, (POST, FLUSH)) | built.is_proxied[actions.message] & (actions.message >= 0)
        rows = [(chosen, number, side)]
        for flush in np.flatnonzero(actions.kind == FLUSH).tolist():
            posts = (actions.kind[chosen] == POST) & (actions.block[chosen] == actions.block[flush])
            both = np.unique(2 * number[posts] + side[posts])
            rows.append((np.full(len(both), flush), both // 2, both % 2))
        row, channel, side = (np.concatenate(column) for column in zip(*rows, strict=True))
        order = np.argsort(row, kind="stable")
        row = row[order]
        ptr = pointers(np.bincount(row, minlength=len(actions.kind)))
        return cls(ptr, channel[order], side[order], actions.kind[row] != WAIT, is_port[row])


def _key(actions: Actions) -> I64:
    """A number for each action of a message that uses a channel, another one for each."""
    blocks = 1 + int(actions.block.max(initial=0))
    return np.asarray((2 * actions.message + (actions.kind == WAIT)) * blocks + actions.block)


def _copied_order(ordered: Ordered, actions: Actions, ranks: I64, nodes: int) -> Ordered:
    """The order of the actions of some ranks, and their semaphores."""
    times = len(ranks)
    size = np.zeros((nodes, ordered.blocks), dtype=np.int64)
    size[ranks] = np.diff(ordered.block_ptr)[: ordered.blocks]
    return Ordered(
        actions,
        pointers(size.reshape(-1)),
        ordered.blocks,
        _tiled(ordered.acquire_ptr, times),
        np.tile(ordered.acquire, times),
        _tiled(ordered.release_ptr, times),
        np.tile(ordered.release, times),
        _at(ranks, nodes, ordered.semaphores),
        np.tile(ordered.late, times),
    )


def _tiled(ptr: I64, times: int) -> I64:
    return pointers(np.tile(np.diff(ptr), times))


def _at(ranks: I64, nodes: int, value: I64) -> I64:
    """The first value at each of some ranks, and 0 at all other nodes."""
    found = np.zeros(nodes, dtype=np.int64)
    found[ranks] = value[0]
    return found
