"""From moves to steps: where each chunk lies on each GPU at each moment, and which instruction moves it on."""

from collections import defaultdict
from dataclasses import dataclass, field

from flowccl.errors import InputError
from flowccl.export.layout import Cell, Layout
from flowccl.export.limits import Limits
from flowccl.export.merge import merge_contiguous
from flowccl.export.moves import Event, Move

Lane = tuple[str, int, int, int]
"""A stream of steps: ("send" | "recv", peer, way, instance) or ("copy", -1, 0, instance). Each keeps its order."""


@dataclass(slots=True, eq=False)
class Draft:
    """A step before it has a threadblock. `at` is its place in the order of all steps of all GPUs.

    `src` and `dst` are first cells of `count` chunks; of a send, `dst` lies on the peer; of a plain receive, `src`
    does. `partner` is the other end of a send or receive.
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

    def reads(self) -> list[Cell]:
        """Cells of this GPU that the step reads."""
        if self.kind == "r":
            return []
        cells = _cells(self.src, self.count)
        return cells + _cells(self.dst, self.count) if self.kind == "re" else cells

    def writes(self) -> list[Cell]:
        """Cells of this GPU that the step writes."""
        return [] if self.kind == "s" else _cells(self.dst, self.count)


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
    """The steps of every GPU, for all instances; each way between two GPUs is a lane of its own where `by_way`."""
    works = [Work(rank) for rank in range(layout.demand.num_gpus)]
    used = [0] * len(works)
    for instance in range(layout.instances):
        maker = _Maker(layout, moves, events, limits, by_way, instance, used)
        maker.run(events)
        drafts = merge_contiguous(maker.drafts, limits.count) if merge else maker.drafts
        for draft in drafts:
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
        self.causes = _Causes(len(moves)) if limits.one_sided else None
        self.open: dict[int, Draft] = {}

    def run(self, events: list[Event]) -> None:
        """All steps: own data first, then the moves, last what lies in the wrong place."""
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
        self.sends_left[move.src, move.chunk] -= 1
        if self.causes is not None:
            self.causes.send(i, move.src, cell)

    def _receive(self, i: int) -> None:
        move, send = self.moves[i], self.open.pop(i)
        key, lane = (move.dst, move.chunk), ("recv", move.src, self._way(move), self.instance)
        now = self.place.get(key)
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
            other = self.owner.get((move.dst, final), move.chunk)
            free = other == move.chunk or not self._needed(move.dst, other, final)
            if free and (self.causes is None or self.causes.covers(i, move.dst, final)):
                return final
        now = self.place.get((move.dst, move.chunk))
        if self.causes is None and now is not None and now[0] == "s":
            return now
        return self._new_scratch(move.dst)

    def _needed(self, rank: int, chunk: int, cell: Cell) -> bool:
        """Whether a GPU still sends a chunk from a cell, or has nowhere else what it must end with."""
        return self.place.get((rank, chunk)) == cell and self.sends_left[rank, chunk] > 0

    def _accumulator(self, key: tuple[int, int]) -> Cell:
        """Where a GPU adds up a chunk: where it must end, else scratch; never in the caller's input."""
        if key not in self.accumulator:
            rank, chunk = key
            final = self.layout.output(rank, chunk, self.instance) if key in self.wanted else None
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


class _Causes:
    """Which moves have surely been received before another is sent: a put must not overtake a reader far away.

    With FIFOs the receiver decides when its memory changes. Where the sender writes into it (MSCCL++), a cell that
    was used before may be written only if every use of it has caused this send. Sets of moves are bits of an int.
    """

    def __init__(self, moves: int) -> None:
        self.before_send = [0] * moves
        self.cell: dict[tuple[int, Cell], int] = {}  # moves known where this cell's data is
        self.users: dict[tuple[int, Cell], list[int]] = {}  # moves that used the cell on its GPU

    def send(self, i: int, rank: int, cell: Cell) -> None:
        """Move i reads a cell and leaves: everything known there is known to it."""
        self.before_send[i] = self.cell.get((rank, cell), 0) | 1 << i
        self.users.setdefault((rank, cell), []).append(i)

    def receive(self, i: int, rank: int, cell: Cell) -> None:
        """Move i arrives in a cell."""
        self.cell[rank, cell] = self.cell.get((rank, cell), 0) | self.before_send[i]
        self.users.setdefault((rank, cell), []).append(i)

    def local(self, i: int, rank: int, cells: list[Cell]) -> None:
        """Move i's data is added up with other cells of the same GPU."""
        known = self.before_send[i]
        for cell in cells:
            known |= self.cell.get((rank, cell), 0)
            self.users.setdefault((rank, cell), []).append(i)
        self.cell[rank, cells[-1]] = known

    def covers(self, i: int, rank: int, cell: Cell) -> bool:
        """Whether all users of a cell have caused move i."""
        return all(self.before_send[i] >> user & 1 for user in self.users.get((rank, cell), []))
