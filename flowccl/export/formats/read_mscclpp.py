"""MSCCL++ execution plans (JSON, v0.8 and later) as a program.

Supported are the operations that move data between two GPUs, on one or through a switch, and those that order them; of
the packets, those that flowccl writes. Pipelines become loops. Barriers are not supported.
"""

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import FileError
from flowccl.export.formats.plan_steps import PlanSteps
from flowccl.export.formats.plan_tables import (
    BlockTables,
    PlanChannel,
    PlanError,
    blocks_of,
    field_of,
    number_of,
    numbers_of,
)
from flowccl.export.formats.plan_text import PlanOperations, scanned, written_again
from flowccl.export.garbage import few_collections
from flowccl.export.proof.program import RuntimeProgram
from flowccl.export.proof.steps import StepObjects
from flowccl.files import parse_json, read_bytes
from flowccl.memory import VARIABLE, available_bytes
from flowccl.runtimes.limits import CHANNELS_PER_BLOCK, MSCCLPP_LIMITS
from flowccl.units import format_bytes

MAX_PLAN_BYTES = 2_000_000_000

_ARRAYS, _OBJECTS = 9, 30  # bytes of memory for a byte of text, at most: in flowccl's form, or in another one


def read_mscclpp(path: str | Path) -> RuntimeProgram:
    """Return the program in an MSCCL++ plan; raise FileError if the file is not one."""
    return parse_mscclpp(read_bytes(Path(path), MAX_PLAN_BYTES), str(path))


def parse_mscclpp(data: bytes, name: str) -> RuntimeProgram:
    """Return the program in the text of an MSCCL++ plan.

    Raise FileError where something is wrong with its form, or where the memory does not suffice.
    """
    _check_memory(data, name, _ARRAYS)
    with few_collections():
        found, value = scanned(data), None
        if found is not None:
            with suppress(FileError):  # the whole text says where
                value = parse_json(found[0], name)
        if value is None:
            _check_memory(data, name, _OBJECTS)
            found, value = None, parse_json(data, name)
        try:
            return _PlanReader(value, None if found is None else found[1]).program
        except PlanError as error:
            raise FileError(f"{name}: {error}") from None


def _check_memory(data: bytes, name: str, times: int) -> None:
    """Refuse a plan that does not fit into memory."""
    needed, available = times * len(data), available_bytes()
    if needed > available:
        raise FileError(
            f"{name}: reading this plan takes about {format_bytes(needed)} of memory, "
            f"{format_bytes(int(available))} are available; set {VARIABLE}"
        )


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


class _SwitchChannel(NamedTuple):
    """A channel of a GPU to a switch: a buffer of all GPUs of a group."""

    buffer: str
    ranks: tuple[int, ...]


class _GpuTables(NamedTuple):
    """What the tables of the threadblocks of a GPU name: its channels by type, and buffers of other GPUs."""

    channels: dict[str, list[PlanChannel]]
    buffers: list[tuple[int, str]]


class _PlanReader:
    """Converts a plan to a program; with `found`, its operations were read before, in the order of threadblocks."""

    def __init__(self, plan: Any, found: PlanOperations | None) -> None:
        self.has_numbers, self.texts, self.units = found is not None, list[str](), set[int]()
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
        self.groups = [self._switch_channels(gpu, rank) for rank, gpu in enumerate(gpus)]
        self._check_groups()
        self.tables = BlockTables()
        for rank, gpu in enumerate(gpus):
            self._gpu(gpu, rank)
        if found is None:
            if len(self.units) > 1:
                raise PlanError(f"pipelines with different units are not supported, got {sorted(self.units)}")
            again = scanned(("\n".join(self.texts) + "\n").encode())
            assert again is not None
            found = again[1]
        self.program.unit_bytes = found.unit_bytes
        steps = PlanSteps(self.program, self.tables, found.rows, found.first, found.rates)
        self.program.operations = StepObjects(steps.table(plan.get("max_message_size", 2**64 - 1)))

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
        channels: dict[str, list[PlanChannel]] = {"memory": [], "port": []}
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
                channels[kind].append(PlanChannel(peer, kind, seen[kind, peer]))
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
            self._block(block, rank, semaphores, _GpuTables(channels, remote), f"{where} threadblock {number}")

    def _block(self, block: Any, rank: int, semaphores: int, gpu: _GpuTables, where: str) -> None:
        """Read the tables of a threadblock and its operations."""
        self.tables.begin(rank, semaphores)
        for table in field_of(block, "channels", list, where):
            self._name_channels(table, rank, gpu.channels, where)
        for table in block.get("remote_buffer_refs", []):
            kind = field_of(table, "access_channel_type", str, where)
            if kind not in gpu.channels:
                raise PlanError(f"{where}: access_channel_type must be memory or port, got {kind[:40]!r}")
            ids = numbers_of(table, "remote_buffer_ids", where, 0, len(gpu.buffers) - 1)
            self.tables.add_buffers(list(gpu.channels).index(kind), [gpu.buffers[i] for i in ids])
        if self.has_numbers:
            if field_of(block, "ops", int, where) != len(self.tables.rank) - 1:
                raise PlanError(f"{where}: ops are not in order")
            return
        self.texts.append(written_again(field_of(block, "ops", list, where), self.units, where))

    def _name_channels(self, table: Any, rank: int, channels: dict[str, list[PlanChannel]], where: str) -> None:
        """Add the channels or the switches that the operations of a threadblock name by their places."""
        kind = field_of(table, "channel_type", str, where)
        if kind not in channels and kind != "switch":
            raise PlanError(f"{where}: channel_type must be memory, port or switch, got {kind[:40]!r}")
        high = len(self.groups[rank] if kind == "switch" else channels[kind]) - 1
        count = 0
        for i in numbers_of(table, "channel_ids", where, 0, high):
            if kind == "switch":
                count = self.tables.add_switch(*self.groups[rank][i])
            else:
                count = self.tables.add_channel(list(channels).index(kind), channels[kind][i])
        if count > CHANNELS_PER_BLOCK:
            words = f"{where}: channels per threadblock: {count}, but mscclpp allows at most {CHANNELS_PER_BLOCK}"
            self.program.found("limit", words)
