"""The message program of one rank for one number of elements, prepared so that a call only slices, sends and reduces.

`run_process` looks everything up by node and chunk; here all look-ups are done once. Messages are posted as soon as
their data is known, the sends of a level before its receives.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from flowccl.errors import InputError, ScheduleError
from flowccl.run.element_layout import ElementLayout
from flowccl.run.program import Arrival, MessageProgram

_NEXT = (1,)  # the stride of flat tensors; `as_strided` takes less time than a slice
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
    """Receive a tensor of `count` elements into a slot."""

    slot: int
    count: int
    peer: int
    tag: int


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
        self, given: Any, output: Any, carrier: MessageCarrier, first_tag: int, empty: Callable[[int], Any]
    ) -> None:
        """Run on flat tensors, which may overlap. No tensor is changed after it was sent; the output comes last."""
        values: list[Any] = [None] * self.slots
        for level in self.levels:
            carrier.begin()
            for step in level.steps:
                if type(step) is _Send:
                    slot = step.slot
                    value = values[slot]
                    if value is None:
                        start, count = self.taken[slot]
                        if count != self.sizes[0]:
                            value = given.as_strided((count,), _NEXT, given.storage_offset() + start)
                        else:
                            value = given
                        values[slot] = value
                    carrier.post_send(value, step.peer, first_tag + step.tag)
                elif type(step) is _Combine:
                    self._combine(step, values, given)
            for receive in level.receives:
                value = values[receive.slot] = empty(receive.count)
                carrier.post_receive(value, receive.peer, first_tag + receive.tag)
            carrier.wait()
        self._finish(given, output, values)

    def _value(self, slot: int, values: list[Any], given: Any) -> Any:
        if (value := values[slot]) is not None:
            return value
        start, count = self.taken[slot]
        return given[start : start + count]

    def _combine(self, step: _Combine, values: list[Any], given: Any) -> None:
        parts = step.parts + ((step.slot,) if step.add else ())
        total, may_change = self._value(parts[0], values, given), step.received
        for part in parts[1:]:
            value = self._value(part, values, given)
            total, may_change = total.add_(value) if may_change else total + value, True
        values[step.slot] = total

    def _finish(self, given: Any, output: Any, values: list[Any]) -> None:
        """Write the output. What comes from the input is read before, since the two may overlap."""
        parts = [(start, given[here : here + length].clone()) for here, start, length in self.kept]
        for place in self.placed:
            value = self._value(place.slot, values, given)
            parts.append((place.start, value.clone() if place.from_input else value))
        for start, part in parts:
            output[start : start + part.numel()].copy_(part)


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
            _Receive(slot("message", m.tag), layout.chunk_count[m.chunk], m.src_process, m.tag)
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
    sizes = layout.input_count[rank], layout.output_count[rank]
    return RankProgram(len(slots), taken, tuple(levels), tuple(placed), tuple(k for k in kept if k[2]), sizes)
