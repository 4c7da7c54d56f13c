"""A schedule as messages between processes, in an order without deadlock.

Every transfer becomes one message from each of its roots to each of its ends: a copy inside a switch becomes several
messages, and a reduction inside a switch becomes a reduction at the end. The level of a message is one more than that
of the last arrival before it. A process executes its levels in order and sends and receives all messages of a level
together, so it only waits for messages of lower levels, and no deadlock is possible. Data that arrives in a level is
stored or reduced later, in the order of the schedule's times, so the order of reductions is that of the schedule.

Only the GPUs of the demand are processes. Memories, and GPUs that only relay data, are simulated by one of them.
"""

from dataclasses import dataclass, field

from flowccl.errors import InputError
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
