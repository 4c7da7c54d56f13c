"""The MSCCL++ execution plan of a schedule that was made for MSCCL++, as JSON of v0.8 and later."""

import json
from collections import defaultdict
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from flowccl.errors import InputError
from flowccl.export.formats.mscclpp_threadblock import Tables, ThreadblockWriter
from flowccl.export.lowering.actions import Action
from flowccl.export.lowering.buffers import BufferLayout
from flowccl.export.lowering.build import Built
from flowccl.export.lowering.connections import Channels
from flowccl.export.lowering.dependencies import add_semaphores, in_order
from flowccl.export.lowering.repeated import Repetition, divided, late_waits
from flowccl.export.lowering.uneven import UnevenLayout, buffer_bytes, slots_of
from flowccl.runtimes.execution import Execution
from flowccl.runtimes.limits import CHANNELS_PER_BLOCK, MSCCLPP_LIMITS, Excess
from flowccl.runtimes.profiles import ALIGNMENT_BYTES
from flowccl.schedule.placement import PACKETS, SCRATCH
from flowccl.schedule.schedule import Schedule
from flowccl.topology.neighbours import neighbours

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


@dataclass(slots=True)
class _PlanGpu:
    """The threadblocks of one GPU: their operations and tables, without those that do nothing."""

    blocks: list[ThreadblockWriter]
    semaphores: int


def write_plan(
    schedule: Schedule,
    execution: Execution,
    layout: BufferLayout,
    built: Built,
    min_bytes: int,
    max_bytes: int,
    repetition: Repetition | None = None,
) -> WrittenPlan:
    """Return the plan; `layout` has the slots of the plan, of which each chunk has as many as a group is wide.

    With a repetition, `built` has what threadblocks do with the first part of every chunk, and they repeat it.
    """
    gpus = schedule.demand.num_gpus
    blocks = 1 + max((action.block for action in built.actions), default=0)
    posting = execution.groups * execution.width
    hints = _hints(built, execution.width, _paths(schedule, built))
    slots = slots_of(layout, schedule, built.messages, built.places)
    packets, plain = (
        [slots.total(rank, buffer, int(count), execution.width) for rank, count in enumerate(counts.tolist())]
        for buffer, counts in ((PACKETS, built.places.packets), (SCRATCH, built.places.scratch))
    )
    ordered = in_order(built, gpus, blocks)
    entries = _entries(built.memory, built.port)
    by_rank: list[list[Action]] = [[] for _ in range(gpus)]
    for action in built.actions:
        by_rank[action.rank].append(action)
    found, semaphores = [], [add_semaphores(actions, blocks, overwrites=layout.inplace) for actions in by_rank]
    late = late_waits(built.pairs) if repetition else set()
    for rank in range(gpus):
        rows = []
        for number, actions in enumerate(ordered[rank]):
            writer = ThreadblockWriter(hints, slots, rank, packets[rank])
            kind = "port" if number >= posting and ("memory", rank, number) not in entries else "memory"
            writer.begin(kind, *entries.get((kind, rank, number), ([], [])))
            if repetition is None:
                writer.write(actions, kind)
            else:
                writer.write_repeated(divided(actions, late), kind, repetition.unit_bytes)
            if writer.operations:
                rows.append(writer)
        found.append(_PlanGpu(rows, semaphores[rank]))
    _check_limits(found, execution.sms)
    scratch = [
        used + -(-count // 2) if execution.packets else count for used, count in zip(packets, plain, strict=True)
    ]
    if execution.packets and built.places.scratch.any():
        _check_even(layout)
        min_bytes, max_bytes = _only_size(schedule.demand.size_bytes, layout.chunks, min_bytes, max_bytes)
    switches = _switches(found)
    body = ",\n".join(_gpu(rank, gpu, built, layout, scratch[rank], switches) for rank, gpu in enumerate(found))
    return WrittenPlan(
        _plan(schedule, execution, layout, body, min_bytes, max_bytes, repetition),
        max(len(gpu.blocks) for gpu in found),
        max((len(block.operations) + 2 * block.repeats for gpu in found for block in gpu.blocks), default=0),
        max(scratch[:gpus], default=0),
        layout.chunks,
    )


def _hints(built: Built, width: int, paths: list[str]) -> list[str]:
    """Return the start, rate and path of each message as its threadblocks have them: fields of steps that send."""
    times, is_nic = built.times, built.is_proxied
    return [
        f',"message":{m},"start_ps":{posted if nic else start},"GBps":{rate if nic else rate / width:.12g}{path}'
        for m, (nic, rate, start, posted, path) in enumerate(
            zip(is_nic, built.rate_GBps, times.start, times.posted, paths, strict=True)
        )
    ]


def _paths(schedule: Schedule, built: Built) -> list[str]:
    """Return the links of each message, where there are several routes between its GPUs; no runtime reads them."""
    near = neighbours(schedule.topology)
    several = np.flatnonzero(np.diff(near.pair_ptr) > 1)
    pairs = set(zip(near.src[several].tolist(), near.end[several].tolist(), strict=True))
    shape, route = schedule.shape, schedule.route[built.first]
    ends = zip(
        shape.root_node[shape.root_ptr[route]].tolist(), shape.end_node[shape.end_ptr[route]].tolist(), strict=True
    )
    return [
        f',"links":{list(schedule.routes.links(r))}' if pair in pairs else ""
        for pair, r in zip(ends, route.tolist(), strict=True)
    ]


def _entries(memory: Channels, port: Channels) -> dict[tuple[str, int, int], tuple[list[int], list[int]]]:
    """Return for each (type, GPU, threadblock) the channels on which it receives, and those on which it sends."""
    result: dict[tuple[str, int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for channels in (memory, port):
        for number, (a, block, b, other) in enumerate(channels.ends):
            for src, here, dst, there in ((a, block, b, other), (b, other, a, block)):
                if (number, src) in channels.used:
                    result[channels.kind, src, here][1].append(number)
                    result[channels.kind, dst, there][0].append(number)
    return result


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


def _check_limits(gpus: list[_PlanGpu], sms: int) -> None:
    """Raise InputError if a threadblock exceeds a limit of the runtime."""
    for rank, gpu in enumerate(gpus):
        if len(gpu.blocks) > sms:
            excess = Excess("threadblocks per gpu", len(gpu.blocks), sms, f"gpu {rank}")
            raise CrowdedError(f"mscclpp cannot run this schedule: {excess}; synthesize with --sms {len(gpu.blocks)}")
        for number, block in enumerate(gpu.blocks):
            tables, where = block.tables, f"gpu {rank}, threadblock {number}"
            count = len(block.operations) + 2 * block.repeats
            required = [Excess("operations per threadblock", count, MSCCLPP_LIMITS.steps, where)]
            for kind in ("memory", "port"):
                channels, buffers = len(tables.channels[kind]), len(tables.buffers[kind])
                required.append(Excess(f"{kind} channels per threadblock", channels, CHANNELS_PER_BLOCK, where))
                required.append(Excess(f"remote buffers per threadblock ({kind})", buffers, CHANNELS_PER_BLOCK, where))
            for excess in required:
                if excess.need > excess.most:
                    words = f"mscclpp cannot run this schedule: {excess}"
                    raise CrowdedError(words) if excess is required[0] else InputError(words)


def _switches(gpus: list[_PlanGpu]) -> list[tuple[int, tuple[int, ...]]]:
    """Return the channels of switches, as (buffer, ranks), in an order common to all GPUs."""
    return sorted({switch for gpu in gpus for block in gpu.blocks for switch in block.tables.switches})


def _plan(
    schedule: Schedule,
    execution: Execution,
    layout: BufferLayout,
    body: str,
    min_bytes: int,
    max_bytes: int,
    repetition: Repetition | None,
) -> bytes:
    collective = MSCCLPP_LIMITS.collectives[schedule.demand.collective]
    identity = sha256(body.encode()).hexdigest()[:12]
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
        "size_bytes": buffer_bytes(schedule.demand) * execution.loops,
    }
    if repetition is not None:  # starts and rates of each message for each part; the runtime ignores them
        head["parts"] = {"start_ps": repetition.start_ps, "GBps": repetition.GBps}
    if isinstance(layout, UnevenLayout):  # what each rank sends to each; the runtime ignores it, the proof does not
        head["block_chunks"] = layout.blocks
    return f'{json.dumps(head)[:-1]}, "gpus": [\n{body}\n]}}\n'.encode()


def _gpu(
    rank: int,
    gpu: _PlanGpu,
    built: Built,
    layout: BufferLayout,
    scratch: int,
    switches: list[tuple[int, tuple[int, ...]]],
) -> str:
    place: dict[tuple[str, int], int] = {}
    channels = []
    for one in (built.memory, built.port):
        used = {number for block in gpu.blocks for number in block.tables.channels[one.kind]}
        numbers_in_order = sorted(used, key=lambda number: one.ends[number])
        place |= {(one.kind, number): k for k, number in enumerate(numbers_in_order)}
        peers = [b if a == rank else a for a, _, b, _ in (one.ends[number] for number in numbers_in_order)]
        if numbers_in_order:
            channels.append({"channel_type": one.kind, "connected_to": peers})
    own = [switch for switch in switches if rank in switch[1]]
    for buffer, ranks in own:
        group = {"size": len(ranks), "ranks": list(ranks)}
        channels.append({"channel_type": "switch", "buffer_type": "ios"[buffer], "rank_groups": [group]})
    remote: dict[tuple[str, int, int], int] = {}
    for block in gpu.blocks:
        for kind, table in block.tables.buffers.items():
            for peer, buffer in table:
                remote.setdefault((kind, peer, buffer), len(remote))
    rows = [{"rank": peer, "type": "ios"[buffer], "access_channel_types": [kind]} for kind, peer, buffer in remote]
    counts = layout.counts(rank) if isinstance(layout, UnevenLayout) else layout.whole_counts
    head = {
        "id": rank,
        "input_chunks": counts[0],
        "output_chunks": counts[1],
        "scratch_chunks": scratch,
        "channels": channels,
        "remote_buffers": rows,
        "semaphores": [{"init_value": 0}] * gpu.semaphores,
    }
    blocks = ",\n".join(_block(number, block, place, remote, own) for number, block in enumerate(gpu.blocks))
    return f'{json.dumps(head)[:-1]}, "threadblocks": [\n{blocks}]}}'


def _block(
    number: int,
    block: ThreadblockWriter,
    place: dict[tuple[str, int], int],
    remote: dict[tuple[str, int, int], int],
    switches: list[tuple[int, tuple[int, ...]]],
) -> str:
    tables: Tables = block.tables
    channels = [
        {"channel_type": kind, "channel_ids": [place[kind, number] for number in table]}
        for kind, table in tables.channels.items()
        if table
    ]
    if tables.switches:
        ids = [switches.index(switch) for switch in tables.switches]
        channels.append({"channel_type": "switch", "channel_ids": ids})
    buffers = [
        {"access_channel_type": kind, "remote_buffer_ids": [remote[kind, peer, buffer] for peer, buffer in table]}
        for kind, table in tables.buffers.items()
        if table
    ]
    head = json.dumps({"id": number, "channels": channels, "remote_buffer_refs": buffers})
    listed = ",\n".join(block.operations)
    return f'{head[:-1]}, "ops": [\n{listed}]}}'
