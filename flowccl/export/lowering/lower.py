"""From moves to steps: track the location of each chunk on each GPU, and choose the instruction for each move."""

from collections import defaultdict
from itertools import pairwise

from flowccl.errors import InputError
from flowccl.export.lowering.buffers import BufferLayout, BufferSlot
from flowccl.export.lowering.drafts import Draft, GpuSteps, Lane
from flowccl.export.lowering.merge import merge_contiguous
from flowccl.export.lowering.moves import Event, Move
from flowccl.runtimes.limits import RuntimeLimits


def lower(
    layout: BufferLayout, moves: list[Move], events: list[Event], limits: RuntimeLimits, *, by_route: bool, merge: bool
) -> list[GpuSteps]:
    """Return the steps of every GPU, for all instances; with `by_route`, each route between two GPUs has its own lane.

    Chunks of one message become one step if their slots are adjacent; with `merge`, other adjacent chunks do too.
    """
    gpu_drafts = [GpuSteps(rank) for rank in range(layout.demand.num_gpus)]
    used = [0] * len(gpu_drafts)
    for instance in range(layout.instances):
        lowering = _Lowering(layout, moves, events, limits, by_route, instance, used)
        lowering.run(events)
        for draft in merge_contiguous(lowering.drafts, limits.count, only_messages=not merge):
            gpu_drafts[draft.rank].drafts.append(draft)
        used = lowering.scratch
    for gpu, count in zip(gpu_drafts, used, strict=True):
        gpu.scratch = count
    return gpu_drafts


class _Lowering:
    """Processes the events of one instance in order and tracks the slot of every chunk on every GPU."""

    def __init__(
        self,
        layout: BufferLayout,
        moves: list[Move],
        events: list[Event],
        limits: RuntimeLimits,
        by_route: bool,
        instance: int,
        used: list[int],
    ) -> None:
        self.by_route = by_route
        demand = layout.demand
        self.layout, self.moves, self.limits, self.instance = layout, moves, limits, instance
        self.scratch = list(used)
        self.drafts: list[Draft] = []
        self.place: dict[tuple[int, int], BufferSlot] = {}
        self.owner: dict[tuple[int, BufferSlot], int] = {}  # the chunk whose data is in a slot of a GPU
        self.wanted = set(zip(demand.destination_rank.tolist(), demand.destination_chunk.tolist(), strict=True))
        for rank, chunk in zip(demand.source_rank.tolist(), demand.source_chunk.tolist(), strict=True):
            self._put(rank, chunk, layout.input(rank, chunk, instance))
        self.sends_left = _sends_left(moves, events)
        self.accumulator: dict[tuple[int, int], BufferSlot] = {}
        self.open: dict[int, Draft] = {}
        self.bundles = _bundles_of(moves) if by_route else {}  # in the order of times, all are there when the first is
        self.leaves: dict[int, BufferSlot] = {}  # the places of moves among the chunks of their messages
        self.arrives: dict[int, BufferSlot] = {}

    def run(self, events: list[Event]) -> None:
        """Make all steps: local copies of own data, then the moves, then copies of results to their final slots."""
        for rank in range(self.layout.demand.num_gpus):
            for src, dst in self.layout.own_copies(rank, self.instance):
                self._copy(rank, src, dst, self.layout.demand.pieces)
        for event in events:
            (self._send if event.sends else self._receive)(event.move)
        for rank, chunk in sorted(self.wanted):
            final, now = self.layout.output(rank, chunk, self.instance), self.place.get((rank, chunk))
            if now is None:
                raise InputError(f"gpu {rank} never gets chunk {chunk}; the schedule is not valid")
            if now != final:
                self._copy(rank, now, final, 1)

    def _route(self, move: Move) -> int:
        return move.route if self.by_route else 0

    def _put(self, rank: int, chunk: int, slot: BufferSlot) -> None:
        self.place[rank, chunk] = slot
        self.owner[rank, slot] = chunk

    def _copy(self, rank: int, src: BufferSlot, dst: BufferSlot, count: int) -> None:
        most = self.limits.count
        for k in range(0, count, most):
            a, b = (src[0], src[1] + k), (dst[0], dst[1] + k)
            self._step("cpy", rank, ("copy", -1, 0, self.instance), a, b, min(most, count - k))

    def _step(self, kind: str, rank: int, lane: Lane, src: BufferSlot, dst: BufferSlot, count: int = 1) -> Draft:
        draft = Draft(kind, rank, lane, len(self.drafts), src, dst, count)
        self.drafts.append(draft)
        return draft

    def _send(self, i: int) -> None:
        move = self.moves[i]
        if (move.src, move.chunk) not in self.place:
            raise InputError(
                f"transfer {move.transfer}: gpu {move.src} sends chunk {move.chunk} before it has any data of it; "
                "the schedule is not valid"
            )
        self._pack(i)
        slot, lane = self.place[move.src, move.chunk], ("send", move.dst, self._route(move), self.instance)
        self.open[i] = self._step("s", move.src, lane, self.leaves.get(i, slot), ("o", 0))
        self.open[i].message = move.message
        self.sends_left[move.src, move.chunk] -= 1

    def _receive(self, i: int) -> None:
        move, send = self.moves[i], self.open.pop(i)
        key, lane = (move.dst, move.chunk), ("recv", move.src, self._route(move), self.instance)
        now = self.place.get(key)
        if not move.reduce or now is None:
            target = self._target(i)
            self._arrive(i, send, lane, "r", target)
            self._put(*key, target)
            return
        total = self._accumulator(key)
        if "rrc" in self.limits.instructions:
            self._arrive(i, send, lane, "rrc", total, now)
        elif now != total:  # the accumulator is empty: receive into it, then reduce the own contribution
            self._arrive(i, send, lane, "r", total)
            self._step("re", move.dst, lane, now, total)
        else:
            stage = self._new_scratch(move.dst)
            self._arrive(i, send, lane, "r", stage)
            self._step("re", move.dst, lane, stage, total)
        self._put(*key, total)

    def _arrive(
        self, i: int, send: Draft, lane: Lane, kind: str, slot: BufferSlot, own: BufferSlot | None = None
    ) -> None:
        receive = self._step(kind, self.moves[i].dst, lane, send.src if own is None else own, slot)
        send.dst, send.partner, receive.partner = slot, receive, send

    def _target(self, i: int) -> BufferSlot:
        """Return the slot for a chunk that replaces the present data: its final slot if that is free, else scratch.

        The chunks of a message get adjacent slots of the scratch if their final slots are not adjacent.
        """
        move = self.moves[i]
        self._unpack(i)
        if i in self.arrives:
            return self.arrives.pop(i)
        if (move.dst, move.chunk) in self.wanted:
            final = self.layout.output(move.dst, move.chunk, self.instance)
            if self._is_free(i, final):
                return final
        now = self.place.get((move.dst, move.chunk))
        if now is not None and now[0] == "s":
            return now
        return self._new_scratch(move.dst)

    def _pack(self, i: int) -> None:
        """Copy the chunks of a message next to each other before they are sent, unless they already are."""
        bundle, rank = self.bundles.get(i, ()), self.moves[i].src
        slots = [self.place[rank, self.moves[k].chunk] for k in bundle if i == bundle[0]]
        if bundle and i == bundle[0] and not _are_adjacent(slots):
            for k, slot in zip(bundle, slots, strict=True):
                self.leaves[k] = self._new_scratch(rank)
                self._copy(rank, slot, self.leaves[k], 1)

    def _unpack(self, i: int) -> None:
        """Let the chunks of a message arrive next to each other in scratch, unless their final slots are adjacent."""
        bundle = self.bundles.get(i, ())
        finals = [self._output(k) for k in bundle if self._is_wanted(k)]
        if bundle and i == bundle[0] and not (len(finals) == len(bundle) and _are_adjacent(finals)):
            self.arrives.update((k, self._new_scratch(self.moves[i].dst)) for k in bundle)

    def _is_wanted(self, i: int) -> bool:
        """Whether the receiver of a move keeps its chunk."""
        return (self.moves[i].dst, self.moves[i].chunk) in self.wanted

    def _output(self, i: int) -> BufferSlot:
        """Return the final slot of the chunk of a move on its receiver."""
        return self.layout.output(self.moves[i].dst, self.moves[i].chunk, self.instance)

    def _is_free(self, i: int, final: BufferSlot) -> bool:
        """Whether the final slot of an arriving chunk has no data of another chunk that is still to be sent."""
        move = self.moves[i]
        other = self.owner.get((move.dst, final), move.chunk)
        return other == move.chunk or not self._needed(move.dst, other, final)

    def _needed(self, rank: int, chunk: int, slot: BufferSlot) -> bool:
        """Whether a GPU still has to send a chunk from a slot."""
        return self.place.get((rank, chunk)) == slot and self.sends_left[rank, chunk] > 0

    def _accumulator(self, key: tuple[int, int]) -> BufferSlot:
        """Return the slot in which a GPU reduces a chunk: its final slot, or scratch if that input is still needed."""
        if key not in self.accumulator:
            free = key in self.wanted and not (self.layout.inplace and self.layout.is_one_shot)
            output = self.layout.output(*key, self.instance)
            self.accumulator[key] = output if free else self._new_scratch(key[0])
        return self.accumulator[key]

    def _new_scratch(self, rank: int) -> BufferSlot:
        self.scratch[rank] += 1
        return "s", self.scratch[rank] - 1


def _sends_left(moves: list[Move], events: list[Event]) -> dict[tuple[int, int], int]:
    left: dict[tuple[int, int], int] = defaultdict(int)
    for event in events:
        move = moves[event.move]
        if event.sends:
            left[move.src, move.chunk] += 1
    return left


def _bundles_of(moves: list[Move]) -> dict[int, tuple[int, ...]]:
    """Return for every move the moves of its message, if these are several; reductions have places of their own.

    Chunks that are adjacent at both ends are one step, so that a message of the schedule is one of the program.
    """
    together: dict[tuple[int, int, int, int], list[int]] = {}
    for i, move in enumerate(moves):
        if move.message >= 0 and not move.reduce:
            together.setdefault((move.src, move.dst, move.route, move.message), []).append(i)
    several = [tuple(bundle) for bundle in together.values() if len(bundle) > 1]
    return {i: bundle for bundle in several for i in bundle}


def _are_adjacent(slots: list[BufferSlot]) -> bool:
    """Whether each slot is the one after the slot before it."""
    return all(after == (before[0], before[1] + 1) for before, after in pairwise(slots))
