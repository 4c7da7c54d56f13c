"""From moves to steps: where each chunk lies on each GPU at each moment, and which instruction moves it on."""

from collections import defaultdict
from dataclasses import dataclass, field

from flowccl.errors import InputError
from flowccl.export.limits import Limits
from flowccl.export.lowering.buffers import Cell, Layout
from flowccl.export.lowering.causes import Causes
from flowccl.export.lowering.merge import merge_contiguous
from flowccl.export.lowering.moves import Event, Move

WORTH_LATENCIES = 50  # a signal's latency is worth saving where it is more than this part of the whole

Lane = tuple[str, int, int, int]
"""A stream of steps: ("send" | "recv", peer, way, instance) or ("copy", -1, 0, instance). Each keeps its order."""


@dataclass(slots=True, eq=False)
class Draft:
    """A step before it has a threadblock. `at` is its place in the order of all steps of all GPUs.

    `src` and `dst` are first cells of `count` chunks; of a send, `dst` lies on the peer; of a plain receive, `src`
    does. `partner` is the other end of a send or receive. One-sided senders and receivers also tell each other how
    far they are: "here" (the receiver is in the call), "meet" (the sender waits for that), "free" (the receiver has
    used what an `early` send put into its scratch before they met) and "freed" (the sender waits for that). Sends of
    one `message` travel together.
    """

    kind: str
    rank: int
    lane: Lane
    at: int
    src: Cell
    dst: Cell
    count: int = 1
    partner: "Draft | None" = None
    channel: int = 0
    early: bool = False
    message: int = -1

    def reads(self) -> list[Cell]:
        """Cells of this GPU that the step reads."""
        if self.kind in ("r", "here", "meet", "free", "freed"):
            return []
        cells = _cells(self.src, self.count)
        return cells + _cells(self.dst, self.count) if self.kind == "re" else cells

    def writes(self) -> list[Cell]:
        """Cells of this GPU that the step writes, or gives away."""
        return [] if self.kind in ("s", "here", "meet", "freed") else _cells(self.dst, self.count)


@dataclass(slots=True)
class Work:
    """All steps of one GPU, in order, and how many chunks of scratch they use."""

    rank: int
    drafts: list[Draft] = field(default_factory=list)
    scratch: int = 0


def _cells(first: Cell, count: int) -> list[Cell]:
    return [(first[0], first[1] + k) for k in range(count)]


def lower(
    layout: Layout, moves: list[Move], events: list[Event], limits: Limits, *, by_way: bool, merge: bool
) -> list[Work]:
    """The steps of every GPU, for all instances; each way between two GPUs is a lane of its own where `by_way`.

    Chunks that travel together are one step where they lie side by side; where `merge`, others that do are too.
    """
    works = [Work(rank) for rank in range(layout.demand.num_gpus)]
    used = [0] * len(works)
    for instance in range(layout.instances):
        maker = _Maker(layout, moves, events, limits, by_way, instance, used)
        maker.run(events)
        for draft in merge_contiguous(maker.drafts, limits.count, only_messages=not merge):
            works[draft.rank].drafts.append(draft)
        used = maker.scratch
    for work, count in zip(works, used, strict=True):
        work.scratch = count
    return works


class _Maker:
    """Walks through the events of one instance and keeps, for every GPU and chunk, where it lies."""

    def __init__(
        self,
        layout: Layout,
        moves: list[Move],
        events: list[Event],
        limits: Limits,
        by_way: bool,
        instance: int,
        used: list[int],
    ) -> None:
        self.by_way = by_way
        demand = layout.demand
        self.layout, self.moves, self.limits, self.instance = layout, moves, limits, instance
        self.scratch = list(used)
        self.drafts: list[Draft] = []
        self.place: dict[tuple[int, int], Cell] = {}
        self.owner: dict[tuple[int, Cell], int] = {}  # which chunk's data a cell of a GPU holds
        self.wanted = set(zip(demand.destination_rank.tolist(), demand.destination_chunk.tolist(), strict=True))
        for rank, chunk in zip(demand.source_rank.tolist(), demand.source_chunk.tolist(), strict=True):
            self._put(rank, chunk, layout.input(rank, chunk, instance))
        self.sends_left = _sends_left(moves, events)
        self.accumulator: dict[tuple[int, int], Cell] = {}
        self.causes = Causes(len(moves)) if limits.one_sided else None
        self.open: dict[int, Draft] = {}
        self.early = _early(moves) if limits.one_sided else set()
        self.lent: dict[tuple[int, int], Draft] = {}  # early receives of a GPU and chunk whose scratch is in use

    def run(self, events: list[Event]) -> None:
        """All steps: own data first, then the moves, last what lies in the wrong place."""
        for rank in range(self.layout.demand.num_gpus):
            for src, dst in self.layout.own_copies(rank, self.instance):
                self._copy(rank, src, dst, self.layout.demand.pieces)
        for event in events:
            (self._send if event.sends else self._receive)(event.move)
        for key in list(self.lent):
            self._free(key)
        for rank, chunk in sorted(self.wanted):
            final, now = self.layout.output(rank, chunk, self.instance), self.place.get((rank, chunk))
            if now is None:
                raise InputError(f"gpu {rank} never gets chunk {chunk}; the schedule is not valid")
            if now != final:
                self._copy(rank, now, final, 1)

    def _way(self, move: Move) -> int:
        return move.way if self.by_way else 0

    def _put(self, rank: int, chunk: int, cell: Cell) -> None:
        self.place[rank, chunk] = cell
        self.owner[rank, cell] = chunk

    def _copy(self, rank: int, src: Cell, dst: Cell, count: int) -> None:
        most = self.limits.count
        for k in range(0, count, most):
            a, b = (src[0], src[1] + k), (dst[0], dst[1] + k)
            self._step("cpy", rank, ("copy", -1, 0, self.instance), a, b, min(most, count - k))

    def _step(self, kind: str, rank: int, lane: Lane, src: Cell, dst: Cell, count: int = 1) -> Draft:
        draft = Draft(kind, rank, lane, len(self.drafts), src, dst, count)
        self.drafts.append(draft)
        return draft

    def _send(self, i: int) -> None:
        move = self.moves[i]
        if (move.src, move.chunk) not in self.place:
            raise InputError(
                f"transfer {move.transfer}: gpu {move.src} sends chunk {move.chunk} but has nothing of it then; "
                "the schedule is not valid"
            )
        cell = self.place[move.src, move.chunk]
        self.open[i] = self._step("s", move.src, ("send", move.dst, self._way(move), self.instance), cell, ("o", 0))
        self.open[i].message = move.message
        self.sends_left[move.src, move.chunk] -= 1
        if self.causes is not None:
            self.causes.send(i, move.src, cell)
        if not self.sends_left[move.src, move.chunk]:
            self._free((move.src, move.chunk))

    def _receive(self, i: int) -> None:
        move, send = self.moves[i], self.open.pop(i)
        key, lane = (move.dst, move.chunk), ("recv", move.src, self._way(move), self.instance)
        now = self.place.get(key)
        self._free(key)
        if i in self.early and self._receive_early(i, send, lane):
            return
        if not move.reduce or now is None:
            target = self._target(i)
            self._arrive(i, send, lane, "r", target)
            self._put(*key, target)
            return
        total = self._accumulator(key)
        if "rrc" in self.limits.instructions:
            self._arrive(i, send, lane, "rrc", total, now)
        elif now != total:  # nothing lies there yet: receive into it, then add one's own
            self._arrive(i, send, lane, "r", total)
            self._add(i, lane, now, total)
        else:
            stage = self._new_scratch(move.dst)
            self._arrive(i, send, lane, "r", stage)
            self._add(i, lane, stage, total)
        self._put(*key, total)

    def _receive_early(self, i: int, send: Draft, lane: Lane) -> bool:
        """Into scratch, before the two have met, then at once to where it belongs; False where that is not free."""
        move = self.moves[i]
        key, now = (move.dst, move.chunk), self.place.get((move.dst, move.chunk))
        final = self.layout.output(*key, self.instance) if key in self.wanted else None
        adds = move.reduce and now is not None
        if final is not None and not adds and not self._is_free(i, final):
            return False
        stage = self._new_scratch(move.dst)
        self._arrive(i, send, lane, "r", stage)
        send.early = True
        assert send.partner is not None
        self.lent[key] = send.partner
        if adds and now is not None:
            total = self._accumulator(key)
            if now != total:
                self._step("cpy", move.dst, lane, now, total)
            self._add(i, lane, stage, total)
            self._put(*key, total)
            self._free(key)
            return True
        self._put(*key, stage)
        if final is not None:
            self._copy(move.dst, stage, final, 1)
            if self.causes is not None:
                self.causes.local(i, move.dst, [stage, final])
        if not self.sends_left[key]:
            self._free(key)
        return True

    def _free(self, key: tuple[int, int]) -> None:
        """Nothing reads any more what an early send put into scratch; what is wanted has been copied from there."""
        receive = self.lent.pop(key, None)
        if receive is None:
            return
        free = self._step("free", receive.rank, receive.lane, receive.dst, receive.dst)
        free.partner = receive
        if self.place[key] == receive.dst and key in self.wanted:
            self._put(*key, self.layout.output(*key, self.instance))

    def _add(self, i: int, lane: Lane, src: Cell, dst: Cell) -> None:
        rank = self.moves[i].dst
        self._step("re", rank, lane, src, dst)
        if self.causes is not None:
            self.causes.local(i, rank, [src, dst])

    def _arrive(self, i: int, send: Draft, lane: Lane, kind: str, cell: Cell, own: Cell | None = None) -> None:
        receive = self._step(kind, self.moves[i].dst, lane, send.src if own is None else own, cell)
        send.dst, send.partner, receive.partner = cell, receive, send
        if self.causes is not None:
            self.causes.receive(i, self.moves[i].dst, cell)

    def _target(self, i: int) -> Cell:
        """Where a chunk goes that replaces what was there: its final place if that is free, else scratch."""
        move = self.moves[i]
        if (move.dst, move.chunk) in self.wanted:
            final = self.layout.output(move.dst, move.chunk, self.instance)
            if self._is_free(i, final) and (self.causes is None or self.causes.covers(i, move.dst, final)):
                return final
        now = self.place.get((move.dst, move.chunk))
        if self.causes is None and now is not None and now[0] == "s":
            return now
        return self._new_scratch(move.dst)

    def _is_free(self, i: int, final: Cell) -> bool:
        """Whether the final place of what arrives holds nothing else that is still sent from there."""
        move = self.moves[i]
        other = self.owner.get((move.dst, final), move.chunk)
        return other == move.chunk or not self._needed(move.dst, other, final)

    def _needed(self, rank: int, chunk: int, cell: Cell) -> bool:
        """Whether a GPU still sends a chunk from a cell, or has nowhere else what it must end with."""
        return self.place.get((rank, chunk)) == cell and self.sends_left[rank, chunk] > 0

    def _accumulator(self, key: tuple[int, int]) -> Cell:
        """Where a GPU adds up a chunk: where it must end, else scratch; never in input that others still need."""
        if key not in self.accumulator:
            rank, chunk = key
            free = key in self.wanted and not (self.layout.inplace and self.layout.apart)
            final = self.layout.output(rank, chunk, self.instance) if free else None
            self.accumulator[key] = final or self._new_scratch(rank)
        return self.accumulator[key]

    def _new_scratch(self, rank: int) -> Cell:
        self.scratch[rank] += 1
        return "s", self.scratch[rank] - 1


def _sends_left(moves: list[Move], events: list[Event]) -> dict[tuple[int, int], int]:
    left: dict[tuple[int, int], int] = defaultdict(int)
    for event in events:
        if event.sends:
            left[moves[event.move].src, moves[event.move].chunk] += 1
    return left


def _early(moves: list[Move]) -> set[int]:
    """Moves that would cost time if their ends had to meet before: the first of each way, where that matters.

    Meeting takes a signal's latency. A send that begins later than that loses nothing, and where the whole takes much
    longer, another copy is not worth it.
    """
    finish_ps = max((move.arrival_ps for move in moves), default=0)
    first: dict[tuple[int, int, int], int] = {}
    for i, move in enumerate(moves):
        first.setdefault((move.src, move.dst, move.way), i)
    return {i for i in first.values() if moves[i].start_ps < moves[i].latency_ps > finish_ps / WORTH_LATENCIES}
