"""The operations of a threadblock of an MSCCL++ plan, and what each of them does."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from flowccl.export.formats.plan_barriers import GROUPS, LOCAL, LOOPS, PUTS, Threads
from flowccl.export.formats.plan_fields import PlanError, field_of, number_of, numbers_of
from flowccl.export.formats.read_packets import PACKET_STEPS
from flowccl.export.proof.program import Cell, Operation, RuntimeProgram
from flowccl.runtimes.limits import MSCCLPP_LIMITS, SEMAPHORES_PER_STEP

_SIGNALS = {"signal", "wait", "rlxsignal", "rlxwait"}
_SEMAPHORES = {"sem_acquire", "sem_release"}
_MOST_CHANNELS = 8  # of an operation


@dataclass(slots=True)
class PlanChannel:
    """A channel of a GPU: its peer, and its index among the channels of its type to that peer."""

    peer: int
    kind: str
    place: int
    out: int = -1
    into: int = -1


@dataclass(frozen=True, slots=True)
class SwitchChannel:
    """A channel of a GPU to a switch: a buffer of all GPUs of a group."""

    buffer: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlanBlock:
    """What the operations of a threadblock can name: channels by type, switches, and buffers of other GPUs."""

    rank: int
    number: int
    semaphores: int
    channels: dict[str, list[PlanChannel]] = field(default_factory=lambda: {"memory": [], "port": []})
    switches: list[SwitchChannel] = field(default_factory=list)
    buffers: dict[str, list[tuple[int, str]]] = field(default_factory=lambda: {"memory": [], "port": []})

    def __str__(self) -> str:
        return f"gpu {self.rank} threadblock {self.number}"


def within_limit(program: RuntimeProgram, name: str, need: int, most: int, where: str) -> None:
    """Note in a program that it needs more than the runtime allows."""
    if need > most:
        program.found("limit", f"{where}: {name}: {need}, but mscclpp allows at most {most}")


@dataclass(frozen=True, slots=True)
class OperationReader:
    """Reads the operations of a threadblock; `users` are the threadblocks that use each semaphore, by operation."""

    program: RuntimeProgram
    block: PlanBlock
    users: dict[Hashable, Counter[tuple[str, int]]]

    def read(self, operations: list[Any]) -> list[Operation]:
        """Return the operations; what the runtime would do wrong is noted in the program."""
        self._limit("operations per threadblock", len(operations), MSCCLPP_LIMITS.steps, str(self.block))
        threads, found = Threads(), []
        for index, op in enumerate(operations):
            where = f"{self.block} step {index}"
            operation = Operation(self.block.rank, self.block.number, index, field_of(op, "name", str, where))
            found.append(operation)
            _read_hints(op, operation, where)
            self._effect(op, operation, where)
            problem = threads.problem(operation, is_port=op.get("channel_type") == "port")
            if problem:
                self.program.found("sync", f"{operation}: {problem}")
        _set_flushes(found)
        return found

    def _effect(self, op: Any, operation: Operation, where: str) -> None:
        """Add what an operation does."""
        name = operation.name
        if name in LOCAL:
            self._local(op, operation, where)
        elif name in GROUPS:
            self._group(op, operation, where)
        elif name in PACKET_STEPS:
            self._packets(op, operation, where)
        elif name in PUTS or name in _SIGNALS:
            self._remote(op, operation, where)
        elif name in _SEMAPHORES:
            self._semaphore(op, operation, where)
        elif name == "flush":
            self._flush(op, operation, where)
        elif name != "nop" and name not in LOOPS:
            raise PlanError(f"{where}: operation {name[:40]!r} is not supported")

    def _limit(self, name: str, need: int, most: int, where: str) -> None:
        within_limit(self.program, name, need, most, where)

    def _flush(self, op: Any, operation: Operation, where: str) -> None:
        """Let a flush complete all puts before it on its channels; it has as many targets as channels."""
        ports = self.block.channels["port"]
        used = [ports[i] for i in numbers_of(op, "channel_ids", where, 0, len(ports) - 1)]
        self._limit("channels per operation", len(used), _MOST_CHANNELS, where)
        if len(field_of(op, "dst_buff", list, where)) != len(used):
            raise PlanError(f"{where}: a flush needs as many targets as channels, because the runtime counts those")
        operation.flushes = [("signal", operation.rank, c.peer, c.kind, c.place) for c in used]

    def _local(self, op: Any, operation: Operation, where: str) -> None:
        sources = [_cells(b, operation.rank, where) for b in field_of(op, "src_buff", list, where)]
        targets = [_cells(b, operation.rank, where) for b in field_of(op, "dst_buff", list, where)]
        if len(targets) != 1 or not sources or (operation.name == "copy" and len(sources) != 1):
            raise PlanError(f"{where}: {operation.name} needs one target, and one source (re: at least one)")
        if any(len(cells) != len(targets[0]) for cells in sources):
            raise PlanError(f"{where}: sources and target differ in size")
        self._limit("sources of an operation", len(sources), MSCCLPP_LIMITS.operands, where)
        for k, target in enumerate(targets[0]):
            operation.assigns.append((target, tuple(cells[k] for cells in sources)))

    def _group(self, op: Any, operation: Operation, where: str) -> None:
        """Add the effect of an operation of a switch: it stores in all GPUs of the group; glres also loads from all."""
        sources, targets = field_of(op, "src_buff", list, where), field_of(op, "dst_buff", list, where)
        if len(sources) != 1 or len(targets) != 1:
            raise PlanError(f"{where}: {operation.name} needs one source and one target")
        switches, high = self.block.switches, len(self.block.switches) - 1
        stored = switches[number_of(targets[0], "switch_channel_id", where, 0, high)]
        loaded = SwitchChannel("", (operation.rank,))
        if operation.name == "glres":
            loaded = switches[number_of(sources[0], "switch_channel_id", where, 0, high)]
        into = [_cells(targets[0], rank, where, stored.buffer) for rank in stored.ranks]
        out = [_cells(sources[0], rank, where, loaded.buffer or None) for rank in loaded.ranks]
        if len(into[0]) != len(out[0]):
            raise PlanError(f"{where}: source and target differ in size")
        for k in range(len(into[0])):
            operation.assigns += [(cells[k], tuple(read[k] for read in out)) for cells in into]
        operation.size, operation.group = len(into[0]), stored.ranks

    def _remote(self, op: Any, operation: Operation, where: str) -> None:
        own = self.block.channels
        kind = field_of(op, "channel_type", str, where)
        if kind not in own:
            raise PlanError(f"{where}: channel_type must be memory or port, got {kind[:40]!r}")
        used = [own[kind][i] for i in numbers_of(op, "channel_ids", where, 0, len(own[kind]) - 1)]
        self._limit("channels per operation", len(used), _MOST_CHANNELS, where)
        if operation.name in PUTS:
            self._put(op, operation, used, where)
        if operation.name.endswith("wait"):
            operation.pops += [("signal", c.peer, operation.rank, c.kind, c.place) for c in used]
        elif operation.name != "put" and (kind == "port" or operation.name not in PUTS):
            operation.pushes += [("signal", operation.rank, c.peer, c.kind, c.place) for c in used]
        elif operation.name in ("pws", "pwsf"):
            self.program.found("signal", f"{where}: {operation.name} on a memory channel does not signal; use signal")

    def _put(self, op: Any, operation: Operation, used: list[PlanChannel], where: str) -> None:
        sources, targets = field_of(op, "src_buff", list, where), field_of(op, "dst_buff", list, where)
        if len(sources) != 1 or len(targets) != 1 or len(used) != 1:
            raise PlanError(f"{where}: a put with several buffers or channels is not supported")
        buffers = self.block.buffers[used[0].kind]
        rank, kind = buffers[number_of(targets[0], "buffer_id", where, 0, len(buffers) - 1)]
        if rank != used[0].peer:
            raise PlanError(f"{where}: puts into a buffer of gpu {rank} over a channel to gpu {used[0].peer}")
        src = _cells(sources[0], operation.rank, where)
        dst = _cells(targets[0], rank, where, kind)
        if len(src) != len(dst):
            raise PlanError(f"{where}: puts {len(src)} chunks into {len(dst)}")
        operation.assigns = [(target, (source,)) for target, source in zip(dst, src, strict=True)]
        operation.sends_to, operation.size, operation.is_proxied = rank, len(src), used[0].kind == "port"
        if operation.name == "pws":
            operation.lingers = set(src)

    def _packets(self, op: Any, operation: Operation, where: str) -> None:
        """Add the effect of an operation on packets: it puts plain data or packets, or takes data from packets."""
        sources, targets = field_of(op, "src_buff", list, where), field_of(op, "dst_buff", list, where)
        reduces, puts = operation.name == "repkt", operation.name in ("ppkt", "rppkt")
        if len(targets) != 1 or not (len(sources) == 1 or (reduces and len(sources) > 1)):
            raise PlanError(f"{where}: {operation.name} needs one target, and one source (repkt: at least two)")
        self._limit("sources of an operation", len(sources), MSCCLPP_LIMITS.operands, where)
        first = 1 if reduces or operation.name == "ppkt" else 0  # the sources before it are plain data
        cells = [_cells(b, operation.rank, where) for b in sources[:first]]
        cells += [_packet_cells(b, operation.rank, where) for b in sources[first:]]
        if puts:
            buffers = self.block.buffers["memory"]
            rank, kind = buffers[number_of(targets[0], "buffer_id", where, 0, len(buffers) - 1)]
            if kind != "s" or field_of(op, "channel_type", str, where) != "memory":
                raise PlanError(f"{where}: packets must be put into scratch, over a memory channel")
            into = _packet_cells(targets[0] | {"type": "s"}, rank, where)
            operation.sends_to, operation.size, operation.packets = rank, len(into), True
            operation.is_proxied = False
        else:
            into = _cells(targets[0], operation.rank, where)
        if any(len(found) != len(into) for found in cells):
            raise PlanError(f"{where}: sources and target differ in size")
        for k, target in enumerate(into):
            operation.assigns.append((target, tuple(found[k] for found in cells)))

    def _semaphore(self, op: Any, operation: Operation, where: str) -> None:
        ids = numbers_of(op, "semaphore_ids", where, 0, self.block.semaphores - 1)
        self._limit("semaphores per operation", len(ids), SEMAPHORES_PER_STEP, where)
        for number in ids:
            key = ("semaphore", operation.rank, operation.rank, number)
            (operation.pops if operation.name == "sem_acquire" else operation.pushes).append(key)
            self.users[key][operation.name, operation.block] += 1


def _set_flushes(operations: list[Operation]) -> None:
    """Set the flush of each put: a flushed put completes all earlier puts on its channel."""
    flush: dict[Hashable, int] = {}
    for operation in reversed(operations):
        flush.update((key, operation.index) for key in operation.flushes)
        if operation.name == "pwsf":
            flush.update((key, operation.index) for key in operation.pushes)
        elif operation.lingers:
            operation.flushed_by = min((flush[key] for key in operation.pushes if key in flush), default=-1)


def _cells(buffer: Any, rank: int, where: str, kind: str | None = None) -> list[Cell]:
    name = kind or field_of(buffer, "type", str, where)
    if name not in ("i", "o", "s"):
        raise PlanError(f"{where}: a buffer must be i, o or s, got {name[:40]!r}")
    index, size = number_of(buffer, "index", where, 0, 2**31 - 1), number_of(buffer, "size", where, 1, 2**20)
    return [(rank, name, index + k) for k in range(size)]


def _packet_cells(buffer: Any, rank: int, where: str) -> list[Cell]:
    found = _cells(buffer, rank, where)
    if found[0][1] != "s":
        raise PlanError(f"{where}: packets must be in scratch")
    return [(rank, "p", index) for _, _, index in found]


def _read_hints(op: Any, operation: Operation, where: str) -> None:
    """Read what the schedule says about a step: its message, start, rate and links; only flowccl's own files do."""
    if "start_ps" in op:
        operation.start_ps = number_of(op, "start_ps", where)
    if "message" in op:
        operation.message = number_of(op, "message", where)
    if "links" in op:
        operation.links = tuple(numbers_of(op, "links", where, 0, 2**31))
    operation.leaves = op.get("leaves") is True
    rate = op.get("GBps", 0.0)
    if type(rate) not in (int, float) or not 0 <= rate < 1e9:
        raise PlanError(f"{where}: GBps must be a number of at least 0, got {str(rate)[:40]!r}")
    operation.GBps = float(rate)
