"""A schedule as messages between processes, in an order without deadlock.

Every transfer becomes one message from each of its roots to each of its ends: a copy inside a switch becomes several
messages, and a reduction inside a switch becomes a reduction at the end. The level of a message is one more than that
of the last arrival before it. A process executes its levels in order and sends and receives all messages of a level
together, so it only waits for messages of lower levels, and no deadlock is possible. Data that arrives in a level is
stored or reduced later, in the order of the schedule's times, so the order of reductions is that of the schedule.

Only the GPUs of the demand are processes. Memories, and GPUs that only relay data, are simulated by one of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowccl.errors import InputError, ScheduleError
from flowccl.run.element_layout import ElementLayout
from flowccl.run.reference import events
from flowccl.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Message:
    """One chunk from one node to another, run by `src_process` and `dst_process`. Every message has its own `tag`."""

    tag: int
    transfer: int
    chunk: int
    src: int
    dst: int
    src_process: int
    dst_process: int
    level: int

    @property
    def local(self) -> bool:
        """Whether one process runs both ends."""
        return self.src_process == self.dst_process


@dataclass(frozen=True, slots=True)
class Arrival:
    """The arrival of a transfer at a node: messages from all roots, reduced with the present data or replacing it."""

    node: int
    chunk: int
    reduce: bool
    messages: tuple[Message, ...]


@dataclass(slots=True)
class Level:
    """Work of a process in one level: apply arrivals and send, in the order of `steps`; then receive."""

    steps: list[Message | Arrival] = field(default_factory=list)
    receives: list[Message] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class MessageProgram:
    """The levels of each of `processes` processes. `process_of[node]` is the process that runs a node."""

    schedule: Schedule
    processes: int
    levels: list[list[Level]]
    messages: list[Message]
    process_of: dict[int, int]

    def describe_stand_ins(self) -> list[str]:
        """Return one line per node that is not a rank: "memory0 is simulated by rank 0"."""
        names, ranks = self.schedule.topology.nodes, self.schedule.demand.num_gpus
        return [
            f"{names[node].name} is simulated by rank {at}" for node, at in self.process_of.items() if node >= ranks
        ]

    def operations(self, process: int) -> list[str]:
        """Return readable operations of a process in order, for debugging and tests."""
        result = []
        for level in self.levels[process]:
            for step in level.steps:
                if isinstance(step, Arrival):
                    result.append(f"{'reduce' if step.reduce else 'store'} chunk {step.chunk}")
                elif not step.local:
                    result.append(f"send chunk {step.chunk} to {step.dst_process} tag {step.tag}")
            result += [f"recv chunk {m.chunk} from {m.src_process} tag {m.tag}" for m in level.receives]
        return result


def make_program(schedule: Schedule, processes: int | None = None) -> MessageProgram:
    """Return the message program of a schedule for `processes` processes, by default one for each rank."""
    ranks = schedule.demand.num_gpus
    count = ranks if processes is None else processes
    if count < ranks:
        raise InputError(
            f"the schedule is for {ranks} ranks, but there are {count} processes; start {ranks}, or synthesize a "
            f"schedule for {count} gpus"
        )
    timing = schedule.timing
    process_of = _node_processes(schedule, count)
    ends: dict[int, list[int]] = {}
    for transfer, node in zip(timing.end_transfer.tolist(), timing.end_node.tolist(), strict=True):
        ends.setdefault(transfer, []).append(node)
    levels: list[dict[int, Level]] = [{} for _ in range(count)]
    messages: list[Message] = []
    arriving: dict[tuple[int, int], list[Message]] = {}  # (transfer, end): its messages
    last: dict[tuple[int, int], int] = {}  # (node, chunk): level of the last arrival
    for is_send, row in events(schedule):
        if is_send:
            i, node = int(timing.root_transfer[row]), int(timing.root_node[row])
            chunk = int(schedule.chunk[i])
            level = last.get((node, chunk), -1) + 1
            for end in ends[i]:
                message = Message(len(messages), i, chunk, node, end, process_of[node], process_of[end], level)
                messages.append(message)
                arriving.setdefault((i, end), []).append(message)
                levels[process_of[node]].setdefault(level, Level()).steps.append(message)
                if not message.local:
                    levels[process_of[end]].setdefault(level, Level()).receives.append(message)
        else:
            i, node = int(timing.end_transfer[row]), int(timing.end_node[row])
            chunk, came = int(schedule.chunk[i]), tuple(arriving[i, node])
            last[node, chunk] = max(last.get((node, chunk), -1), *(message.level for message in came))
            arrival = Arrival(node, chunk, bool(schedule.reduce[i]), came)
            levels[process_of[node]].setdefault(last[node, chunk] + 1, Level()).steps.append(arrival)
    ordered = [[by_level[level] for level in sorted(by_level)] for by_level in levels]
    return MessageProgram(schedule, count, ordered, messages, process_of)


def _node_processes(schedule: Schedule, processes: int) -> dict[int, int]:
    """Return the process of each storing node that is used: ranks, then additional processes, then ranks in turn."""
    ranks = schedule.demand.num_gpus
    used = set(schedule.timing.root_node.tolist()) | set(schedule.timing.end_node.tolist())
    process_of = {rank: rank for rank in range(ranks)}
    for number, node in enumerate(sorted(used - set(range(ranks)))):
        process_of[node] = ranks + number if ranks + number < processes else number % ranks
    return process_of


Exchange = Callable[[Sequence[tuple[int, int, Any]], Sequence[tuple[int, int, Any]]], None]
"""Sends and receives all (process, tag, flat array) of a level, and returns when all are complete."""


def run_process(
    program: MessageProgram,
    layout: ElementLayout,
    process: int,
    buffers: tuple[Any, Any],
    exchange: Exchange,
    empty: Callable[[int], Any],
    *,
    separate: bool = False,
) -> None:
    """Run one process from its input to its output, the pair `buffers`, on numpy arrays or torch tensors.

    Arrays are never changed after they are sent; reductions are new arrays. Empty pieces are not sent. If input and
    output are `separate`, chunks without a reduction are received directly into the output.
    """
    given, output = buffers
    value = {key: given[place] for key, place in layout.taken.items() if key[0] == process}
    came: dict[int, Any] = {}
    there: dict[int, Any] = {}  # chunk: its part of the output, if it was received there
    for level in program.levels[process]:
        sends: list[tuple[int, int, Any]] = []
        for step in level.steps:
            if isinstance(step, Arrival):
                _apply(step, value, came)
            elif (step.src, step.chunk) not in value:
                name = program.schedule.topology.nodes[step.src].name
                raise ScheduleError(f"transfer {step.transfer}: {name} sends chunk {step.chunk} without having it")
            elif step.local:
                came[step.tag] = value[step.src, step.chunk]
            elif layout.chunk_count[step.chunk]:
                sends.append((step.dst_process, step.tag, value[step.src, step.chunk]))
        receives = []
        for message in level.receives:
            here = layout.placed.get((process, message.chunk)) if separate and message.dst == process else None
            if here is not None and len(layout.demand.sources(message.chunk)) == 1:
                came[message.tag] = there[message.chunk] = output[here]
            else:
                came[message.tag] = empty(layout.chunk_count[message.chunk])
            if layout.chunk_count[message.chunk]:
                receives.append((message.src_process, message.tag, came[message.tag]))
        if sends or receives:
            exchange(sends, receives)
    _place(layout, process, value, (given, output), None if separate else empty, there)


def _apply(arrival: Arrival, value: dict[tuple[int, int], Any], came: dict[int, Any]) -> None:
    total = came.pop(arrival.messages[0].tag)
    for message in arrival.messages[1:]:
        total = total + came.pop(message.tag)
    key = (arrival.node, arrival.chunk)
    value[key] = value[key] + total if arrival.reduce and key in value else total


def _place(
    layout: ElementLayout,
    process: int,
    value: dict[tuple[int, int], Any],
    buffers: tuple[Any, Any],
    empty: Callable[[int], Any] | None,
    there: dict[int, Any],
) -> None:
    """Write the wanted chunks and the kept parts of this process to its output, unless they are `there` already.

    The output may overlap the input if `empty` is given, which provides memory for the kept parts.
    """
    given, output = buffers
    kept = []
    for rank, here, to in layout.kept:
        if rank == process:
            part = given[here] if empty is None else empty(here.stop - here.start)
            if empty is not None:
                part[:] = given[here]
            kept.append((to, part))
    for (rank, chunk), place in layout.placed.items():
        if rank == process:
            if (rank, chunk) not in value:
                raise ScheduleError(f"gpu{rank} ends without chunk {chunk}")
            if value[rank, chunk] is not there.get(chunk):
                output[place] = value[rank, chunk]
    for place, part in kept:
        output[place] = part
