"""MSCCL++ execution plans (JSON, v0.8 and later) as a program.

Supported are the operations that move data between two GPUs, on one or through a switch, and those that order them; of
the packets, those that flowccl writes. Pipelines become loops (plan_loops.py). Barriers are not supported.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import FileError
from flowccl.export.formats.plan_barriers import GROUPS, LOCAL, LOOPS, PUTS, Threads
from flowccl.export.formats.plan_fields import PlanError, blocks_of, field_of, number_of, numbers_of
from flowccl.export.formats.plan_loops import without_pipelines
from flowccl.export.formats.plan_table import LazySteps, PlanTables, scanned
from flowccl.export.formats.read_packets import PACKET_STEPS, connect_packets
from flowccl.export.garbage import few_collections
from flowccl.export.proof.program import Cell, Operation, RuntimeProgram
from flowccl.export.proof.steps import StepArrays
from flowccl.files import parse_json, read_bytes
from flowccl.runtimes.limits import CHANNELS_PER_BLOCK, MSCCLPP_LIMITS, SEMAPHORES_PER_STEP

MAX_PLAN_BYTES = 256_000_000

_TOKENS = {"signal", "wait", "rlxsignal", "rlxwait", "sem_acquire", "sem_release"}


def read_mscclpp(path: str | Path) -> RuntimeProgram:
    """Return the program in an MSCCL++ plan; raise FileError if the file is not one."""
    return parse_mscclpp(read_bytes(Path(path), MAX_PLAN_BYTES), str(path))


def parse_mscclpp(data: bytes, name: str) -> RuntimeProgram:
    """Return the program in the text of an MSCCL++ plan.

    Usual plans are read as arrays; the others operation by operation, which also finds what is wrong with them.
    """
    try:
        data, unit_bytes = without_pipelines(data, name)
    except PlanError as error:
        raise FileError(f"{name}: {error}") from None
    with few_collections():
        program = _parsed_as_arrays(data) or _parsed_by_operation(data, name)
    program.unit_bytes = unit_bytes
    return program


def _parsed_as_arrays(data: bytes) -> RuntimeProgram | None:
    """Return the program with its steps as arrays; None where something in the text is wrong or unusual."""
    found = scanned(data)
    if found is None:
        return None
    try:
        reader = _PlanReader(parse_json(found[0], "plan"), found[1])
    except (FileError, PlanError):
        return None
    if reader.table is None or reader.program.findings:
        return None
    reader.program.operations = LazySteps(reader.table, lambda: _parsed_by_operation(data, "plan").operations)
    return reader.program


def _parsed_by_operation(data: bytes, name: str) -> RuntimeProgram:
    value = parse_json(data, name)
    try:
        return _PlanReader(value).program
    except PlanError as error:
        raise FileError(f"{name}: {error}") from None


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


def _parts_of(plan: Any) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the starts and the rates of each message for each part; only flowccl's own files have them."""
    parts = plan.get("parts", {})
    try:
        start, rate = np.array(parts["start_ps"], dtype=np.int64), np.array(parts["GBps"], dtype=np.float64)
    except (KeyError, TypeError, ValueError, OverflowError):
        return np.zeros((0, 0), dtype=np.int64), np.zeros((0, 0))
    if (
        start.ndim != 2
        or start.shape != rate.shape
        or start.min(initial=0) < 0
        or not np.all((rate >= 0) & (rate < 1e9))
    ):
        raise PlanError("plan: parts must have as many starts as rates for each message, of at least 0")
    return start, rate


@dataclass(slots=True)
class _Channel:
    """A channel of a GPU: its peer, and its index among the channels of its type to that peer."""

    peer: int
    kind: str
    place: int
    out: int = -1
    into: int = -1


@dataclass(frozen=True, slots=True)
class _SwitchChannel:
    """A channel of a GPU to a switch: a buffer of all GPUs of a group."""

    buffer: str
    ranks: tuple[int, ...]


class _PlanReader:
    """Converts a plan to a program; with `tables`, its operations were read before, and become a table."""

    def __init__(self, plan: Any, tables: PlanTables | None = None) -> None:
        self.tables = tables
        self.table: StepArrays | None = None
        ours = {theirs: name for name, theirs in MSCCLPP_LIMITS.collectives.items()}
        collective = field_of(plan, "collective", str, "plan")
        if collective not in ours:
            raise PlanError(f"plan: collective must be one of {', '.join(ours)}, got {collective[:40]!r}")
        protocol = field_of(plan, "protocol", str, "plan")
        if protocol not in MSCCLPP_LIMITS.protocols:
            raise PlanError(f"plan: protocol must be {' or '.join(MSCCLPP_LIMITS.protocols)}, got {protocol[:40]!r}")
        if not field_of(plan, "name", str, "plan"):
            raise PlanError("plan: name must not be empty")
        inplace: bool = field_of(plan, "inplace", bool, "plan")
        gpus: list[Any] = field_of(plan, "gpus", list, "plan")
        if not gpus:
            raise PlanError("plan: gpus must not be empty")
        counts = []
        for rank, gpu in enumerate(gpus):
            if number_of(gpu, "id", f"gpu {rank}") != rank:
                raise PlanError(f"gpu {rank}: id must be its index in the list, got {gpu['id']}")
            names = ("input_chunks", "output_chunks", "scratch_chunks")
            i, o, s = (number_of(gpu, name, f"gpu {rank}", 0, 2**31 - 1) for name in names)
            counts.append((i, o, s))
        chunks = max(max(i, o) for i, o, _ in counts)
        self.program = RuntimeProgram(ours[collective], len(gpus), (inplace,), max(chunks, 1), counts, [], None)
        self.program.min_bytes = plan.get("min_message_size", 0)
        self.program.packets = protocol == "LL"
        self.program.blocks = blocks_of(plan, len(gpus)) if ours[collective] == "alltoallv" else None
        self.program.parts = _parts_of(plan)
        self.program.made_for_bytes = number_of(plan, "size_bytes", "plan") if "size_bytes" in plan else 0
        for rank, (i, o, _) in enumerate(counts):
            if not i or not o:
                self.program.found("limit", f"gpu {rank}: input_chunks and output_chunks must be at least 1")
        self.groups: list[list[_SwitchChannel]] = [self._switch_channels(gpu, r) for r, gpu in enumerate(gpus)]
        self._check_groups()
        self.semaphores: dict[Hashable, Counter[tuple[str, int]]] = defaultdict(Counter)
        self.operations: list[Operation] = []
        self.program.operations = self.operations
        for rank, gpu in enumerate(gpus):
            self._gpu(gpu, rank)
        if tables is not None:
            self.table = tables.table(self.program, plan.get("max_message_size", 2**64 - 1))
            return
        connect_packets(self.program, plan.get("max_message_size", 2**64 - 1))
        for key, users in self.semaphores.items():
            for name in ("sem_acquire", "sem_release"):
                if len({block for used, block in users if used == name}) > 1:
                    raise PlanError(f"semaphore {key}: {name} by several threadblocks is not supported")

    def _limit(self, name: str, need: int, most: int, where: str) -> None:
        if need > most:
            self.program.found("limit", f"{where}: {name}: {need}, but mscclpp allows at most {most}")

    def _switch_channels(self, gpu: Any, rank: int) -> list[_SwitchChannel]:
        where, found = f"gpu {rank}", []
        for channel in field_of(gpu, "channels", list, where):
            if field_of(channel, "channel_type", str, where) == "switch":
                buffer = field_of(channel, "buffer_type", str, where)
                if buffer not in ("i", "o", "s"):
                    raise PlanError(f"{where}: buffer_type must be i, o or s, got {buffer[:40]!r}")
                for group in field_of(channel, "rank_groups", list, where):
                    number_of(group, "size", where, 1)
                    ranks = numbers_of(group, "ranks", where, 0, self.program.num_gpus - 1)
                    found.append(_SwitchChannel(buffer, tuple(ranks)))
        return found

    def _check_groups(self) -> None:
        """Check that the GPUs of a group create its switch channels together, in the same order."""
        for rank, own in enumerate(self.groups):
            for number, channel in enumerate(own):
                if rank not in channel.ranks or len(set(channel.ranks)) < max(len(channel.ranks), 2):
                    words = "must have two or more different ranks, and the gpu itself"
                    self.program.found("group", f"gpu {rank}: switch channel {number}: its group {words}")
                for other in channel.ranks:
                    if self.groups[other][number : number + 1] != [channel]:
                        words = f"gpu {other} has no such channel {number}, so the group is never complete"
                        self.program.found("group", f"gpu {rank}: switch channel {number}: {words}")

    def _gpu(self, gpu: Any, rank: int) -> None:
        where = f"gpu {rank}"
        channels: dict[str, list[_Channel]] = {"memory": [], "port": []}
        seen: Counter[tuple[str, int]] = Counter()
        for channel in field_of(gpu, "channels", list, where):
            kind = field_of(channel, "channel_type", str, where)
            if kind == "switch":
                continue
            if kind not in channels:
                raise PlanError(f"{where}: channel_type must be memory, port or switch, got {kind[:40]!r}")
            for peer in numbers_of(channel, "connected_to", where, 0, self.program.num_gpus - 1):
                if peer == rank:
                    raise PlanError(f"{where}: a channel is connected to the gpu itself")
                channels[kind].append(_Channel(peer, kind, seen[kind, peer]))
                seen[kind, peer] += 1
        remote = []
        for buffer in field_of(gpu, "remote_buffers", list, where):
            kind = field_of(buffer, "type", str, where)
            if kind not in ("i", "o", "s"):
                raise PlanError(f"{where}: a remote buffer must be i, o or s, got {kind[:40]!r}")
            remote.append((number_of(buffer, "rank", where, 0, self.program.num_gpus - 1), kind))
            field_of(buffer, "access_channel_types", list, where)
        semaphores = len(gpu.get("semaphores", []))
        for number, block in enumerate(field_of(gpu, "threadblocks", list, where)):
            if number_of(block, "id", f"{where} threadblock {number}") != number:
                raise PlanError(f"{where} threadblock {number}: id must be its index in the list, got {block['id']}")
            self._block(block, rank, number, channels, remote, semaphores)

    def _block(
        self,
        block: Any,
        rank: int,
        number: int,
        channels: dict[str, list[_Channel]],
        remote: list[tuple[int, str]],
        semaphores: int,
    ) -> None:
        where = f"gpu {rank} threadblock {number}"
        own: dict[str, list[_Channel]] = {"memory": [], "port": []}
        switches: list[_SwitchChannel] = []
        for table in field_of(block, "channels", list, where):
            kind = field_of(table, "channel_type", str, where)
            if kind == "switch":
                high = len(self.groups[rank]) - 1
                switches += [self.groups[rank][i] for i in numbers_of(table, "channel_ids", where, 0, high)]
                self._limit("channels per threadblock", len(switches), CHANNELS_PER_BLOCK, where)
                continue
            if kind not in own:
                raise PlanError(f"{where}: channel_type must be memory, port or switch, got {kind[:40]!r}")
            high = len(channels[kind]) - 1
            own[kind] += [channels[kind][i] for i in numbers_of(table, "channel_ids", where, 0, high)]
            self._limit("channels per threadblock", len(own[kind]), CHANNELS_PER_BLOCK, where)
        refs: dict[str, list[tuple[int, str]]] = {"memory": [], "port": []}
        for table in block.get("remote_buffer_refs", []):
            kind = field_of(table, "access_channel_type", str, where)
            refs.setdefault(kind, []).extend(
                remote[i] for i in numbers_of(table, "remote_buffer_ids", where, 0, len(remote) - 1)
            )
        if self.tables is not None:
            if field_of(block, "ops", int, where) != len(self.tables.rank):
                raise PlanError(f"{where}: ops are not in order")
            groups = [(switch.buffer, switch.ranks) for switch in switches]
            self.tables.add(rank, own, refs, groups, semaphores)
            return
        operations: list[Any] = field_of(block, "ops", list, where)
        self._limit("operations per threadblock", len(operations), MSCCLPP_LIMITS.steps, where)
        threads = Threads()
        first = len(self.operations)
        for index, op in enumerate(operations):
            place = f"{where} step {index}"
            name = field_of(op, "name", str, place)
            operation = Operation(rank, number, index, name)
            self.operations.append(operation)
            _read_hints(op, operation, place)
            if name in LOCAL:
                self._local(op, operation, place)
            elif name in GROUPS:
                self._group(op, operation, switches, place)
            elif name in PACKET_STEPS:
                self._packets(op, operation, refs["memory"], place)
            elif name in PUTS or name in _TOKENS - {"sem_acquire", "sem_release"}:
                self._remote(op, operation, own, refs, place)
            elif name in _TOKENS:
                self._semaphore(op, operation, semaphores, place)
            elif name == "flush":
                self._flush(op, operation, own["port"], place)
            elif name != "nop" and name not in LOOPS:
                raise PlanError(f"{place}: operation {name[:40]!r} is not supported")
            problem = threads.problem(operation, is_port=op.get("channel_type") == "port")
            if problem:
                self.program.found("sync", f"{operation}: {problem}")
        self._flushes(self.operations[first:])

    def _flush(self, op: Any, operation: Operation, ports: list[_Channel], where: str) -> None:
        """Let a flush complete all puts before it on its channels; it has as many targets as channels."""
        used = [ports[i] for i in numbers_of(op, "channel_ids", where, 0, len(ports) - 1)]
        self._limit("channels per operation", len(used), 8, where)
        if len(field_of(op, "dst_buff", list, where)) != len(used):
            raise PlanError(f"{where}: a flush needs as many targets as channels, because the runtime counts those")
        operation.flushes = [("signal", operation.rank, c.peer, c.kind, c.place) for c in used]

    def _flushes(self, operations: list[Operation]) -> None:
        """Set the flush of each put: a flushed put completes all earlier puts on its channel."""
        flush: dict[Hashable, int] = {}
        for operation in reversed(operations):
            flush.update((key, operation.index) for key in operation.flushes)
            if operation.name == "pwsf":
                flush.update((key, operation.index) for key in operation.pushes)
            elif operation.lingers:
                operation.flushed_by = min((flush[key] for key in operation.pushes if key in flush), default=-1)

    def _local(self, op: Any, operation: Operation, where: str) -> None:
        sources = [self._cells(b, operation.rank, where) for b in field_of(op, "src_buff", list, where)]
        targets = [self._cells(b, operation.rank, where) for b in field_of(op, "dst_buff", list, where)]
        if len(targets) != 1 or not sources or (operation.name == "copy" and len(sources) != 1):
            raise PlanError(f"{where}: {operation.name} needs one target, and one source (re: at least one)")
        if any(len(cells) != len(targets[0]) for cells in sources):
            raise PlanError(f"{where}: sources and target differ in size")
        self._limit("sources of an operation", len(sources), MSCCLPP_LIMITS.operands, where)
        for k, target in enumerate(targets[0]):
            operation.assigns.append((target, tuple(cells[k] for cells in sources)))

    def _group(self, op: Any, operation: Operation, switches: list[_SwitchChannel], where: str) -> None:
        """Add the effect of an operation of a switch: it stores in all GPUs of the group; glres also loads from all."""
        sources, targets = field_of(op, "src_buff", list, where), field_of(op, "dst_buff", list, where)
        if len(sources) != 1 or len(targets) != 1:
            raise PlanError(f"{where}: {operation.name} needs one source and one target")
        high = len(switches) - 1
        stored = switches[number_of(targets[0], "switch_channel_id", where, 0, high)]
        loaded = _SwitchChannel("", (operation.rank,))
        if operation.name == "glres":
            loaded = switches[number_of(sources[0], "switch_channel_id", where, 0, high)]
        into = [self._cells(targets[0], rank, where, stored.buffer) for rank in stored.ranks]
        out = [self._cells(sources[0], rank, where, loaded.buffer or None) for rank in loaded.ranks]
        if len(into[0]) != len(out[0]):
            raise PlanError(f"{where}: source and target differ in size")
        for k in range(len(into[0])):
            operation.assigns += [(cells[k], tuple(read[k] for read in out)) for cells in into]
        operation.size, operation.group = len(into[0]), stored.ranks

    def _cells(self, buffer: Any, rank: int, where: str, kind: str | None = None) -> list[Cell]:
        name = kind or field_of(buffer, "type", str, where)
        if name not in ("i", "o", "s"):
            raise PlanError(f"{where}: a buffer must be i, o or s, got {name[:40]!r}")
        index, size = number_of(buffer, "index", where, 0, 2**31 - 1), number_of(buffer, "size", where, 1, 2**20)
        return [(rank, name, index + k) for k in range(size)]

    def _remote(
        self,
        op: Any,
        operation: Operation,
        own: dict[str, list[_Channel]],
        refs: dict[str, list[tuple[int, str]]],
        where: str,
    ) -> None:
        kind = field_of(op, "channel_type", str, where)
        if kind not in own:
            raise PlanError(f"{where}: channel_type must be memory or port, got {kind[:40]!r}")
        used = [own[kind][i] for i in numbers_of(op, "channel_ids", where, 0, len(own[kind]) - 1)]
        self._limit("channels per operation", len(used), 8, where)
        if operation.name in PUTS:
            self._put(op, operation, used, refs[kind], where)
        if operation.name.endswith("wait"):
            operation.pops += [("signal", c.peer, operation.rank, c.kind, c.place) for c in used]
        elif operation.name != "put" and (kind == "port" or operation.name not in PUTS):
            operation.pushes += [("signal", operation.rank, c.peer, c.kind, c.place) for c in used]
        elif operation.name in ("pws", "pwsf"):
            self.program.found("signal", f"{where}: {operation.name} on a memory channel does not signal; use signal")

    def _put(
        self, op: Any, operation: Operation, used: list[_Channel], refs: list[tuple[int, str]], where: str
    ) -> None:
        sources, targets = field_of(op, "src_buff", list, where), field_of(op, "dst_buff", list, where)
        if len(sources) != 1 or len(targets) != 1 or len(used) != 1:
            raise PlanError(f"{where}: a put with several buffers or channels is not supported")
        rank, kind = refs[number_of(targets[0], "buffer_id", where, 0, len(refs) - 1)]
        if rank != used[0].peer:
            raise PlanError(f"{where}: puts into a buffer of gpu {rank} over a channel to gpu {used[0].peer}")
        src = self._cells(sources[0], operation.rank, where)
        dst = self._cells(targets[0], rank, where, kind)
        if len(src) != len(dst):
            raise PlanError(f"{where}: puts {len(src)} chunks into {len(dst)}")
        operation.assigns = [(target, (source,)) for target, source in zip(dst, src, strict=True)]
        operation.sends_to, operation.size, operation.is_proxied = rank, len(src), used[0].kind == "port"
        if operation.name == "pws":
            operation.lingers = set(src)

    def _packets(self, op: Any, operation: Operation, refs: list[tuple[int, str]], where: str) -> None:
        """Add the effect of an operation on packets: it puts plain data or packets, or takes data from packets."""
        sources, targets = field_of(op, "src_buff", list, where), field_of(op, "dst_buff", list, where)
        reduces, puts = operation.name == "repkt", operation.name in ("ppkt", "rppkt")
        if len(targets) != 1 or not (len(sources) == 1 or (reduces and len(sources) > 1)):
            raise PlanError(f"{where}: {operation.name} needs one target, and one source (repkt: at least two)")
        self._limit("sources of an operation", len(sources), MSCCLPP_LIMITS.operands, where)
        first = 1 if reduces or operation.name == "ppkt" else 0  # the sources before it are plain data
        cells = [self._cells(b, operation.rank, where) for b in sources[:first]]
        cells += [self._packet_cells(b, operation.rank, where) for b in sources[first:]]
        if puts:
            rank, kind = refs[number_of(targets[0], "buffer_id", where, 0, len(refs) - 1)]
            if kind != "s" or field_of(op, "channel_type", str, where) != "memory":
                raise PlanError(f"{where}: packets must be put into scratch, over a memory channel")
            into = self._packet_cells(targets[0] | {"type": "s"}, rank, where)
            operation.sends_to, operation.size, operation.packets = rank, len(into), True
            operation.is_proxied = False
        else:
            into = self._cells(targets[0], operation.rank, where)
        if any(len(found) != len(into) for found in cells):
            raise PlanError(f"{where}: sources and target differ in size")
        for k, target in enumerate(into):
            operation.assigns.append((target, tuple(found[k] for found in cells)))

    def _packet_cells(self, buffer: Any, rank: int, where: str) -> list[Cell]:
        found = self._cells(buffer, rank, where)
        if found[0][1] != "s":
            raise PlanError(f"{where}: packets must be in scratch")
        return [(rank, "p", index) for _, _, index in found]

    def _semaphore(self, op: Any, operation: Operation, semaphores: int, where: str) -> None:
        ids = numbers_of(op, "semaphore_ids", where, 0, semaphores - 1)
        self._limit("semaphores per operation", len(ids), SEMAPHORES_PER_STEP, where)
        for number in ids:
            key = ("semaphore", operation.rank, operation.rank, number)
            (operation.pops if operation.name == "sem_acquire" else operation.pushes).append(key)
            self.semaphores[key][operation.name, operation.block] += 1
