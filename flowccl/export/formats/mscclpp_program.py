"""The MSCCL++ execution plan of a schedule that was made for MSCCL++, as JSON of v0.8 and later."""

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import InputError
from flowccl.export.formats.plan_heads import gpu_texts
from flowccl.export.formats.plan_writing import WrittenBlocks, written_blocks
from flowccl.export.lowering.buffers import BufferLayout
from flowccl.export.lowering.build import Built
from flowccl.export.lowering.dependencies import Ordered, check_once
from flowccl.export.lowering.uneven import UnevenLayout, buffer_bytes, units_of
from flowccl.runtimes.execution import Execution
from flowccl.runtimes.limits import CHANNELS_PER_BLOCK, MSCCLPP_LIMITS, Excess
from flowccl.runtimes.profiles import ALIGNMENT_BYTES
from flowccl.schedule.generation.loops import rows_of_parts
from flowccl.schedule.placement import PACKETS, SCRATCH
from flowccl.schedule.schedule import Schedule

MOST_BYTES = 2**64 - 1


class CrowdedError(InputError):
    """A threadblock has more operations than the runtime allows, or a GPU more threadblocks than the schedule."""


@dataclass(frozen=True, slots=True)
class WrittenPlan:
    """The text of a plan, and the most that any GPU or threadblock needs; scratch is counted in chunks of the plan."""

    data: bytes
    threadblocks: int
    operations: int
    scratch_chunks: int
    chunks: int


@dataclass(frozen=True, slots=True)
class Repetition:
    """How a plan for a size repeats operations: bytes of a chunk of the plan at a time.

    `start_ps` and `GBps` are the starts and rates of each message in the schedule, for each part.
    """

    size_bytes: int
    unit_bytes: int
    start_ps: list[list[int]]
    GBps: list[list[float]]


def repetition_of(schedule: Schedule, part: Schedule, built: Built) -> Repetition:
    """Return how the plan of a schedule with loops repeats operations; `built` is made from that of its first part."""
    assert schedule.costs is not None
    rows, timing = rows_of_parts(schedule)[built.messages.first], schedule.timing
    rate = schedule.rate_GBps.copy()
    rate[timing.hop_transfer[::-1]] = timing.hop_GBps[::-1]
    packed = np.where(built.is_proxied[:, None], schedule.costs.pack_ps[rows], 0)
    start = schedule.start_ps[rows] + packed
    size_bytes, unit_bytes = schedule.demand.size_bytes, int(part.demand.chunk_bytes.min())
    return Repetition(size_bytes, unit_bytes, start.tolist(), rate[rows].tolist())


def write_plan(
    schedule: Schedule,
    execution: Execution,
    layout: BufferLayout,
    built: Built,
    ordered: Ordered,
    min_bytes: int,
    max_bytes: int,
    repetition: Repetition | None = None,
) -> WrittenPlan:
    """Return the plan of the actions that are in order.

    `layout` has the slots of the plan: as many of each chunk as threadblocks work on it when it arrives. With a
    repetition, `built` has what threadblocks do with the first part of every chunk, and they repeat it.
    """
    gpus = schedule.demand.num_gpus
    units = units_of(layout, schedule, built.messages, built.places)
    packets, plain = (
        units.totals(buffer, counts, execution.slots)
        for buffer, counts in ((PACKETS, built.places.packets), (SCRATCH, built.places.scratch))
    )
    if repetition is not None:
        check_once(ordered)
    unit_bytes = 0 if repetition is None else repetition.unit_bytes
    blocks = written_blocks(schedule, execution, built, ordered, units, packets, unit_bytes)
    _check_limits(blocks, gpus, execution.sms)
    scratch = packets + -(-plain // 2) if execution.packets else plain
    if execution.packets and built.places.scratch.any():
        _check_even(layout)
        min_bytes, max_bytes = _only_size(schedule.demand.size_bytes, layout.chunks, min_bytes, max_bytes)
    body = gpu_texts(built, blocks, layout, scratch.tolist(), ordered.semaphores.tolist(), gpus)
    return WrittenPlan(
        _plan(schedule, execution, layout, body, min_bytes, max_bytes, repetition),
        int(np.bincount(blocks.rank, minlength=1).max()),
        int(blocks.operations.max(initial=0)),
        int(scratch[:gpus].max(initial=0)),
        layout.chunks,
    )


def _only_size(size: int, chunks: int, min_bytes: int, max_bytes: int) -> tuple[int, int]:
    """Return the smallest and largest size of a plan that serves only the size of its schedule.

    It keeps plain data in scratch. With another size, packets of that size would be there, and could be taken for it.
    """
    reason = "mscclpp: with packets (--proto LL) this plan keeps data in scratch, so it serves only the size of "
    if min_bytes > size or (max_bytes and max_bytes < size):
        raise InputError(f"{reason}its schedule, {size} bytes, which --min-bytes and --max-bytes exclude")
    if size % (chunks * ALIGNMENT_BYTES):
        raise InputError(f"{reason}its schedule, and {size} bytes is no multiple of {chunks * ALIGNMENT_BYTES} bytes")
    return size, size


def _check_even(layout: BufferLayout) -> None:
    if isinstance(layout, UnevenLayout):
        raise InputError(
            "mscclpp: this alltoallv keeps data in scratch, which packets do not allow; use --proto Simple"
        )


def _check_limits(blocks: WrittenBlocks, gpus: int, sms: int) -> None:
    """Raise InputError if a threadblock exceeds a limit of the runtime."""
    count = np.bincount(blocks.rank, minlength=gpus)
    limited: list[tuple[str, NDArray[np.int64], int]] = [
        ("operations per threadblock", blocks.operations, MSCCLPP_LIMITS.steps)
    ]
    for kind, channels, buffers in (("memory", 0, 2), ("port", 1, 3)):
        limited.append((f"{kind} channels per threadblock", blocks.sizes(channels), CHANNELS_PER_BLOCK))
        limited.append((f"remote buffers per threadblock ({kind})", blocks.sizes(buffers), CHANNELS_PER_BLOCK))
    exceeds = (
        np.any([need > most for _, need, most in limited], axis=0) if len(blocks.rank) else np.zeros(0, dtype=bool)
    )
    wrong = np.append(np.flatnonzero(exceeds | (count > sms)[blocks.rank]), len(blocks.rank))[0]
    if wrong == len(blocks.rank):
        return
    rank, first = int(blocks.rank[wrong]), int(np.searchsorted(blocks.rank, blocks.rank[wrong]))
    if count[rank] > sms:
        excess = Excess("threadblocks per gpu", int(count[rank]), sms, f"gpu {rank}")
        raise CrowdedError(f"mscclpp cannot run this schedule: {excess}; synthesize with --sms {excess.need}")
    for name, need, most in limited:
        if need[wrong] > most:
            excess = Excess(name, int(need[wrong]), most, f"gpu {rank}, threadblock {wrong - first}")
            words = f"mscclpp cannot run this schedule: {excess}"
            raise CrowdedError(words) if name is limited[0][0] else InputError(words)


def _plan(
    schedule: Schedule,
    execution: Execution,
    layout: BufferLayout,
    body: list[bytes],
    min_bytes: int,
    max_bytes: int,
    repetition: Repetition | None,
) -> bytes:
    collective = MSCCLPP_LIMITS.collectives[schedule.demand.collective]
    digest = sha256()
    for part in body:
        digest.update(part)
    identity = digest.hexdigest()[:12]
    head: dict[str, Any] = {
        "name": f"flowccl_{collective}_{schedule.demand.num_gpus}gpus_{min_bytes}_{max_bytes}_{identity}",
        "collective": collective,
        "protocol": execution.protocol,
        "inplace": layout.inplace,
        "reuse_resources": False,
        "use_double_scratch_buffer": False,
        "buffer_alignment": ALIGNMENT_BYTES,
        "num_threads_per_block": 1024,
        "min_message_size": min_bytes,
        "max_message_size": max_bytes or MOST_BYTES,
        # for which the hints of sends hold; the runtime ignores it
        "size_bytes": buffer_bytes(schedule.demand) if repetition is None else repetition.size_bytes,
    }
    if repetition is not None:  # starts and rates of each message for each part; the runtime ignores them
        head["parts"] = {"start_ps": repetition.start_ps, "GBps": repetition.GBps}
    if isinstance(layout, UnevenLayout):  # what each rank sends to each; the runtime ignores it, the proof does not
        head["block_chunks"] = layout.blocks
    return b"".join((json.dumps(head)[:-1].encode(), b', "gpus": [\n', *body, b"\n]}\n"))
