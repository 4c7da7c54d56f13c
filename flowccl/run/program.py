"""A schedule as messages between processes, in an order that cannot deadlock.

Every transfer becomes one message from each of its roots to each of its ends: a switch that copies is several
messages, one that adds up is a sum at the end. A message's level is one more than that of the last arrival before
it, so a process that goes through its levels in order, sending and receiving all messages of a level at once, only
waits for messages of lower levels: no two processes ever wait for each other. What a level brings is stored or added
later, in the order of the schedule's times, so sums are those of the schedule.

Only GPUs of the demand are processes. Memories, and GPUs that only pass data on, are played by one of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowccl.errors import InputError, ScheduleError
from flowccl.run.buffer_layout import Layout
from flowccl.run.reference import events
from flowccl.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Message:
    """One chunk from one node to another; `src_process` and `dst_process` play them. `tag` is its own."""

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
        """Whether one process plays both ends."""
        return self.src_process == self.dst_process


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a transfer brings to a node: the messages from all its roots, added to what is there or in its place."""

    node: int
    chunk: int
    reduce: bool
    messages: tuple[Message, ...]


@dataclass(slots=True)
class Level:
    """What a process does in one level: settle what came and send, in this order; then receive."""

    steps: list[Message | Arrival] = field(default_factory=list)
    receives: list[Message] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Program:
    """What each of `processes` processes does, level by level. `player[node]` is the process that plays a node."""

    schedule: Schedule
    processes: int
    levels: list[list[Level]]
    messages: list[Message]
    player: dict[int, int]

    def played(self) -> list[str]:
        """Who plays a node that is no rank, in words: "memory0 is played by rank 0"."""
        names, ranks = self.schedule.topology.nodes, self.schedule.demand.num_gpus
        return [f"{names[node].name} is played by rank {at}" for node, at in self.player.items() if node >= ranks]

    def operations(self, process: int) -> list[str]:
        """The operations of a process in words, in order; for people and tests."""
        result = []
        for level in self.levels[process]:
            for step in level.steps:
                if isinstance(step, Arrival):
                    result.append(f"{'reduce' if step.reduce else 'store'} chunk {step.chunk}")
                elif not step.local:
                    result.append(f"send chunk {step.chunk} to {step.dst_process} tag {step.tag}")
            result += [f"recv chunk {m.chunk} from {m.src_process} tag {m.tag}" for m in level.receives]
        return result


def make_program(schedule: Schedule, processes: int | None = None) -> Program:
    """The messages of a schedule for so many processes; by default one for each rank of the demand."""
    ranks = schedule.demand.num_gpus
    count = ranks if processes is None else processes
    if count < ranks:
        raise InputError(
            f"the schedule is for {ranks} ranks, but there are {count} processes; start {ranks}, or make a schedule "
            f"for {count} gpus"
        )
    timing = schedule.timing
    player = _players(schedule, count)
    ends: dict[int, list[int]] = {}
    for transfer, node in zip(timing.end_transfer.tolist(), timing.end_node.tolist(), strict=True):
        ends.setdefault(transfer, []).append(node)
    levels: list[dict[int, Level]] = [{} for _ in range(count)]
    messages: list[Message] = []
    bringing: dict[tuple[int, int], list[Message]] = {}  # (transfer, end): its messages
    last: dict[tuple[int, int], int] = {}  # (node, chunk): level of the last arrival
    for is_send, row in events(schedule):
        if is_send:
            i, node = int(timing.root_transfer[row]), int(timing.root_node[row])
            chunk = int(schedule.chunk[i])
            level = last.get((node, chunk), -1) + 1
            for end in ends[i]:
                message = Message(len(messages), i, chunk, node, end, player[node], player[end], level)
                messages.append(message)
                bringing.setdefault((i, end), []).append(message)
                levels[player[node]].setdefault(level, Level()).steps.append(message)
                if not message.local:
                    levels[player[end]].setdefault(level, Level()).receives.append(message)
        else:
            i, node = int(timing.end_transfer[row]), int(timing.end_node[row])
            chunk, came = int(schedule.chunk[i]), tuple(bringing[i, node])
            last[node, chunk] = max(last.get((node, chunk), -1), *(message.level for message in came))
            arrival = Arrival(node, chunk, bool(schedule.reduce[i]), came)
            levels[player[node]].setdefault(last[node, chunk] + 1, Level()).steps.append(arrival)
    ordered = [[mine[level] for level in sorted(mine)] for mine in levels]
    return Program(schedule, count, ordered, messages, player)


def _players(schedule: Schedule, processes: int) -> dict[int, int]:
    """Which process plays each storing node that has a part: ranks themselves, others spare processes, then in turn."""
    ranks = schedule.demand.num_gpus
    used = set(schedule.timing.root_node.tolist()) | set(schedule.timing.end_node.tolist())
    player = {rank: rank for rank in range(ranks)}
    for number, node in enumerate(sorted(used - set(range(ranks)))):
        player[node] = ranks + number if ranks + number < processes else number % ranks
    return player


Exchange = Callable[[Sequence[tuple[int, int, Any]], Sequence[tuple[int, int, Any]]], None]
"""Sends and receives all (process, tag, flat array) of a level, and returns when all are done."""


def run_process(
    program: Program,
    layout: Layout,
    process: int,
    buffers: tuple[Any, Any],
    exchange: Exchange,
    empty: Callable[[int], Any],
    *,
    apart: bool = False,
) -> None:
    """Play one process: from its input to its output, the pair `buffers`. Works on numpy arrays and torch tensors.

    Arrays are never changed once they are sent; sums are new arrays. Empty pieces are not sent at all. Where input and
    output are `apart`, what is no sum arrives where it stays.
    """
    given, output = buffers
    value = {key: given[place] for key, place in layout.taken.items() if key[0] == process}
    came: dict[int, Any] = {}
    there: dict[int, Any] = {}  # chunk: its place in the output, where it has arrived
    for level in program.levels[process]:
        sends: list[tuple[int, int, Any]] = []
        for step in level.steps:
            if isinstance(step, Arrival):
                _settle(step, value, came)
            elif (step.src, step.chunk) not in value:
                name = program.schedule.topology.nodes[step.src].name
                raise ScheduleError(f"transfer {step.transfer}: {name} sends chunk {step.chunk}, which it lacks")
            elif step.local:
                came[step.tag] = value[step.src, step.chunk]
            elif layout.chunk_count[step.chunk]:
                sends.append((step.dst_process, step.tag, value[step.src, step.chunk]))
        receives = []
        for message in level.receives:
            here = layout.placed.get((process, message.chunk)) if apart and message.dst == process else None
            if here is not None and len(layout.demand.sources(message.chunk)) == 1:
                came[message.tag] = there[message.chunk] = output[here]
            else:
                came[message.tag] = empty(layout.chunk_count[message.chunk])
            if layout.chunk_count[message.chunk]:
                receives.append((message.src_process, message.tag, came[message.tag]))
        if sends or receives:
            exchange(sends, receives)
    _place(layout, process, value, (given, output), None if apart else empty, there)


def _settle(arrival: Arrival, value: dict[tuple[int, int], Any], came: dict[int, Any]) -> None:
    total = came.pop(arrival.messages[0].tag)
    for message in arrival.messages[1:]:
        total = total + came.pop(message.tag)
    key = (arrival.node, arrival.chunk)
    value[key] = value[key] + total if arrival.reduce and key in value else total


def _place(
    layout: Layout,
    process: int,
    value: dict[tuple[int, int], Any],
    buffers: tuple[Any, Any],
    empty: Callable[[int], Any] | None,
    there: dict[int, Any],
) -> None:
    """Put what this process wants, and what stays on it, into its output, unless it is `there` already.

    The output may overlap the input where there is an `empty` to make room for what stays.
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
