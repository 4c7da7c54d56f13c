"""The message program of one process for one number of elements, on numpy arrays or torch tensors.

All look-ups by node and chunk are done once, so that a call only slices, sends and reduces. Messages are posted as soon
as their data is known, the sends of a level before its receives.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flowccl.errors import InputError, ScheduleError
from flowccl.run.element_layout import ElementLayout
from flowccl.run.program import Arrival, Message, MessageProgram

MOST_MESSAGES = 1 << 20
"""Messages of a program; their numbers are the low bits of tags."""


class MessageCarrier(Protocol):
    """Sends and receives flat tensors. `post_*` may return before the message is complete, `wait` may not."""

    def begin(self) -> None:
        """Start a level: the messages posted until `wait` are in flight together."""

    def post_send(self, tensor: Any, peer: int, tag: int) -> None:
        """Send a tensor to a rank."""

    def post_receive(self, tensor: Any, peer: int, tag: int) -> None:
        """Receive a tensor from a rank."""

    def wait(self) -> None:
        """Wait for all messages that were posted since `begin`."""


Exchange = Callable[[Sequence[tuple[int, int, Any]], Sequence[tuple[int, int, Any]]], None]
"""Sends and receives all (process, tag, flat array) of a level, and returns when all are complete."""


class BatchCarrier:
    """Messages of a level that are exchanged together, when all of them are known."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.sends: list[tuple[int, int, Any]] = []
        self.receives: list[tuple[int, int, Any]] = []

    def begin(self) -> None:
        """Start a level."""
        self.sends, self.receives = [], []

    def post_send(self, tensor: Any, peer: int, tag: int) -> None:
        """Send a tensor to a rank."""
        self.sends.append((peer, tag, tensor))

    def post_receive(self, tensor: Any, peer: int, tag: int) -> None:
        """Receive a tensor from a rank."""
        self.receives.append((peer, tag, tensor))

    def wait(self) -> None:
        """Send and receive all messages of the level."""
        if self.sends or self.receives:
            self.exchange(self.sends, self.receives)


@dataclass(frozen=True, slots=True)
class _Send:
    """Send the tensor in a slot."""

    slot: int
    peer: int
    tag: int


@dataclass(frozen=True, slots=True)
class _Combine:
    """Put the sum of some slots into one; it is the sum with what the slot has if `add`.

    `received`: the first part is a message that nothing else reads, so that the sum can be written into it.
    """

    slot: int
    parts: tuple[int, ...]
    add: bool
    received: bool


@dataclass(frozen=True, slots=True)
class _Receive:
    """Receive a tensor of `count` elements into a slot; `start` is its place in the output, -1 for parts of sums."""

    slot: int
    count: int
    peer: int
    tag: int
    start: int


@dataclass(frozen=True, slots=True)
class _Place:
    """Copy a slot to the output from `start` on; `from_input`: it is still a part of the input."""

    slot: int
    start: int
    length: int
    from_input: bool


@dataclass(frozen=True, slots=True)
class _RankLevel:
    """Combine and send, in order; then receive."""

    steps: tuple[_Send | _Combine, ...]
    receives: tuple[_Receive, ...]


@dataclass(frozen=True, eq=False, slots=True)
class RankProgram:
    """The levels of a rank on numbered slots: `taken[slot]` is the (start, length) of the input that it has at first.

    `kept` are (start in the input, start in the output, length) of parts that stay on the rank. `sizes` are the
    elements of the input and of the output; 0: the rank has none.
    """

    slots: int
    taken: dict[int, tuple[int, int]]
    levels: tuple[_RankLevel, ...]
    placed: tuple[_Place, ...]
    kept: tuple[tuple[int, int, int], ...]
    sizes: tuple[int, int]

    def run(
        self,
        given: Any,
        output: Any,
        carrier: MessageCarrier,
        first_tag: int,
        empty: Callable[[int], Any],
        separate: bool = False,
    ) -> None:
        """Run on flat tensors, which may overlap unless they are `separate`: data is then received into the output.

        No tensor is changed after it was sent; the output comes last.
        """
        values: list[Any] = [None] * self.slots
        there: dict[int, Any] = {}  # start: a part of the output that was received there
        for level in self.levels:
            carrier.begin()
            for step in level.steps:
                if type(step) is _Send:
                    value = values[step.slot]
                    if value is None:
                        value = values[step.slot] = self._value(step.slot, values, given)
                    carrier.post_send(value, step.peer, first_tag + step.tag)
                elif type(step) is _Combine:
                    self._combine(step, values, given)
            for receive in level.receives:
                if separate and receive.start >= 0:
                    value = there[receive.start] = output[receive.start : receive.start + receive.count]
                else:
                    value = empty(receive.count)
                values[receive.slot] = value
                carrier.post_receive(value, receive.peer, first_tag + receive.tag)
            carrier.wait()
        self._finish(given, output, values, there, None if separate else empty)

    def _value(self, slot: int, values: list[Any], given: Any) -> Any:
        if (value := values[slot]) is not None:
            return value
        start, count = self.taken[slot]
        return given if count == self.sizes[0] else given[start : start + count]

    def _combine(self, step: _Combine, values: list[Any], given: Any) -> None:
        parts = step.parts + ((step.slot,) if step.add else ())
        total, may_change = self._value(parts[0], values, given), step.received
        for part in parts[1:]:
            value = self._value(part, values, given)
            if may_change:
                total += value
            else:
                total, may_change = total + value, True
        values[step.slot] = total

    def _finish(
        self, given: Any, output: Any, values: list[Any], there: dict[int, Any], empty: Callable[[int], Any] | None
    ) -> None:
        """Write the output. What comes from the input is copied before if the two may overlap."""
        parts = [(start, self._copied(given[here : here + n], n, empty)) for here, start, n in self.kept]
        for place in self.placed:
            value = self._value(place.slot, values, given)
            if value is not there.get(place.start):
                parts.append((place.start, self._copied(value, place.length, empty if place.from_input else None)))
        for start, part in parts:
            output[start : start + len(part)] = part

    def _copied(self, part: Any, count: int, empty: Callable[[int], Any] | None) -> Any:
        if empty is None:
            return part
        copy = empty(count)
        copy[:] = part
        return copy


def rank_program(program: MessageProgram, layout: ElementLayout, rank: int) -> RankProgram:
    """Return the program of a rank for buffers of the layout; pieces without elements are left out."""
    if len(program.messages) > MOST_MESSAGES:
        raise InputError(f"the schedule has {len(program.messages):,} messages; at most {MOST_MESSAGES:,} can be run")
    slots: dict[tuple[str, int, int], int] = {}

    def slot(kind: str, a: int, b: int = 0) -> int:
        return slots.setdefault((kind, a, b), len(slots))

    taken = {
        slot("node", *key): (int(place.start), int(place.stop) - int(place.start))
        for key, place in layout.taken.items()
        if key[0] == rank and layout.chunk_count[key[1]]
    }
    known, inputs = set(taken), set(taken)
    received: set[int] = set()
    levels = []
    for level in program.levels[rank]:
        steps: list[_Send | _Combine] = []
        for step in level.steps:
            if not layout.chunk_count[step.chunk]:
                continue
            if isinstance(step, Arrival):
                into, parts = slot("node", step.node, step.chunk), [slot("message", m.tag) for m in step.messages]
                add = step.reduce and into in known
                steps.append(_Combine(into, tuple(parts), add, parts[0] in received))
                known.add(into)
                is_input = not add and len(parts) == 1 and parts[0] in inputs
                inputs = inputs | {into} if is_input else inputs - {into}
                continue
            source = slot("node", step.src, step.chunk)
            if source not in known:
                name = program.schedule.topology.nodes[step.src].name
                raise ScheduleError(f"transfer {step.transfer}: {name} sends chunk {step.chunk} without having it")
            if step.local:
                steps.append(_Combine(slot("message", step.tag), (source,), False, False))
                inputs = inputs | {slot("message", step.tag)} if source in inputs else inputs
            else:
                steps.append(_Send(source, step.dst_process, step.tag))
        receives = tuple(
            _Receive(slot("message", m.tag), layout.chunk_count[m.chunk], m.src_process, m.tag, _start(layout, rank, m))
            for m in level.receives
            if layout.chunk_count[m.chunk]
        )
        received |= {receive.slot for receive in receives}
        if steps or receives:
            levels.append(_RankLevel(tuple(steps), receives))
    placed = []
    for (owner, chunk), place in layout.placed.items():
        if owner != rank or not layout.chunk_count[chunk]:
            continue
        at = slot("node", rank, chunk)
        if at not in known:
            raise ScheduleError(f"gpu{rank} ends without chunk {chunk}")
        placed.append(_Place(at, place.start, place.stop - place.start, at in inputs))
    kept = tuple((here.start, to.start, here.stop - here.start) for owner, here, to in layout.kept if owner == rank)
    takes_part = rank < len(layout.input_count)  # other processes only act as memories and relays
    sizes = (layout.input_count[rank], layout.output_count[rank]) if takes_part else (0, 0)
    return RankProgram(len(slots), taken, tuple(levels), tuple(placed), tuple(k for k in kept if k[2]), sizes)


def _start(layout: ElementLayout, rank: int, message: Message) -> int:
    """Where the output has the chunk of a message that arrives as it is; -1 for parts of sums, and for relays."""
    place = layout.placed.get((rank, message.chunk)) if message.dst == rank else None
    return -1 if place is None or len(layout.demand.sources(message.chunk)) > 1 else int(place.start)
