"""MSCCL++ execution plans: JSON in the schema of v0.8 and later.

A sender writes into the receiver's memory (put) and notifies the receiver (signal), which waits for the signal; with
protocol LL it writes packets (mscclpp_packets.py). The threadblocks of a GPU synchronize by semaphores, one for each
dependency. Operations of a switch (NVLS) use switch channels, one for each buffer that they access, and signal all
other GPUs of the host over memory channels.
"""

from collections import defaultdict
from typing import Any

from flowccl.errors import InputError
from flowccl.export.formats.mscclpp_operations import OperationWriter
from flowccl.export.formats.mscclpp_packets import PacketLayout, packet_layout, packet_writer
from flowccl.export.lowering.fastest import fastest_plan
from flowccl.export.lowering.plan import ExecutionPlan, GpuPlan
from flowccl.export.lowering.threadblocks import Step, Threadblock
from flowccl.runtimes.limits import MSCCLPP_LIMITS, check_collective
from flowccl.runtimes.profiles import ALIGNMENT_BYTES
from flowccl.schedule.schedule import Schedule

MOST_BYTES = 2**64 - 1

_End = tuple[int, int, int]
"""A connection: (sender, receiver, channel of the plan)."""

_SwitchGroup = tuple[str, tuple[int, ...]]
"""The GPUs whose buffers a switch channel joins: (buffer, ranks)."""


def mscclpp_plan(
    schedule: Schedule,
    *,
    inplace: bool = False,
    instances: int = 1,
    protocol: str = "Simple",
    min_bytes: int = 0,
    max_bytes: int = 0,
    sms: int | None = None,
) -> dict[str, Any]:
    """Return the execution plan of a schedule as a JSON value. GPUs of different hosts use port channels.

    A plan with packets that keeps partial sums in scratch serves only the size of the schedule: with another size, they
    would be where packets of this size are, and could be taken for packets.
    """
    if max_bytes and max_bytes < min_bytes:
        raise InputError(f"--max-bytes {max_bytes} is less than --min-bytes {min_bytes}")
    collective = check_collective(MSCCLPP_LIMITS, schedule.demand.collective)
    plan = fastest_plan(schedule, MSCCLPP_LIMITS, inplace=inplace, instances=instances, protocol=protocol, sms=sms)
    hosts = [node.host for node in schedule.topology.nodes[: schedule.demand.num_gpus]]
    connections, groups = _connections(plan), _groups(plan)
    packets = None
    if protocol == "LL":
        _check_one_host(connections, hosts)
        packets = [packet_layout(gpu.blocks) for gpu in plan.gpus]
        if any(layout.plain for layout in packets):
            min_bytes, max_bytes = _only_size(schedule.demand.size_bytes, plan.chunks, min_bytes, max_bytes)
    gpus = [_gpu(plan, gpu, hosts, connections, groups, packets) for gpu in plan.gpus]
    place = ("in" if inplace else "out") + ("" if protocol == "Simple" else f"_{protocol}")
    identity = f"{schedule.topology.fingerprint[:8]}_{min_bytes}_{max_bytes}_{plan.chunks}_{place}"
    return {
        "name": f"flowccl_{collective}_{schedule.demand.num_gpus}gpus_{identity}",  # must differ between plans
        "collective": collective,
        "protocol": protocol,
        "inplace": inplace,
        "reuse_resources": False,
        "use_double_scratch_buffer": False,
        "buffer_alignment": ALIGNMENT_BYTES,
        "num_threads_per_block": 1024,
        "min_message_size": min_bytes,
        "max_message_size": max_bytes or MOST_BYTES,
        "gpus": gpus,
    }


def _check_one_host(connections: dict[int, list[_End]], hosts: list[str]) -> None:
    """Raise InputError if packets would travel between hosts: MSCCL++ sends them through memory channels."""
    for ends in connections.values():
        for src, dst, _ in ends:
            if hosts[src] != hosts[dst]:
                raise InputError(
                    f"mscclpp: packets (--proto LL) are for GPUs of one host, but gpu {src} sends to gpu {dst} of "
                    "another; use --proto Simple"
                )


def _only_size(size: int, chunks: int, min_bytes: int, max_bytes: int) -> tuple[int, int]:
    """Return the smallest and largest size of a plan that serves only the size of its schedule."""
    reason = (
        "mscclpp: with packets (--proto LL) this plan keeps partial sums in scratch, so it serves only the size of "
    )
    if min_bytes > size or (max_bytes and max_bytes < size):
        raise InputError(f"{reason}its schedule, {size} bytes, which --min-bytes and --max-bytes exclude")
    if size % (chunks * ALIGNMENT_BYTES):
        raise InputError(f"{reason}its schedule, and {size} bytes is no multiple of {chunks * ALIGNMENT_BYTES} bytes")
    return size, size


def _kind(hosts: list[str], a: int, b: int) -> str:
    return "memory" if hosts[a] == hosts[b] else "port"


def _connections(plan: ExecutionPlan) -> dict[int, list[_End]]:
    """Return the connections of every GPU in an order common to both ends: the n-th channels of a pair match."""
    result: dict[int, list[_End]] = defaultdict(list)
    for gpu in plan.gpus:
        for block in gpu.blocks:
            for peer, channel in block.targets or [(member, block.channel) for member in block.members]:
                end = (gpu.rank, peer, channel)
                result[gpu.rank].append(end)
                result[peer].append(end)
    return {rank: sorted(ends, key=lambda end: (end[0] + end[1], end)) for rank, ends in result.items()}


def _groups(plan: ExecutionPlan) -> list[_SwitchGroup]:
    """Return the groups of the switch channels, in an order common to all GPUs."""
    found: set[_SwitchGroup] = set()
    for gpu in plan.gpus:
        for block in gpu.blocks:
            ranks = tuple(sorted((gpu.rank, *block.members)))
            for step in block.steps:
                if step.kind in ("gstore", "glres"):
                    buffers = {step.dst[0], step.src[0]} if step.kind == "glres" else {step.dst[0]}
                    found |= {(buffer, ranks) for buffer in buffers}
    return sorted(found)


def _gpu(
    plan: ExecutionPlan,
    gpu: GpuPlan,
    hosts: list[str],
    connections: dict[int, list[_End]],
    groups: list[_SwitchGroup],
    packets: list[PacketLayout] | None,
) -> dict[str, Any]:
    channels: dict[str, list[_End]] = {"memory": [], "port": []}
    for end in connections.get(gpu.rank, []):
        channels[_kind(hosts, end[0], end[1])].append(end)
    remote: dict[tuple[int, str], int] = {}
    kinds: list[str] = []
    for block in gpu.blocks:
        for step in block.steps:
            written = _written(step, packets is not None)
            peer = block.targets[step.target][0] if written is not None else -1
            if written is not None and (peer, written) not in remote:
                remote[peer, written] = len(remote)
                kinds.append(_kind(hosts, gpu.rank, peer))
    semaphores = _semaphores(gpu)
    counts = plan.layout.whole_counts
    switches = [(buffer, ranks) for buffer, ranks in groups if gpu.rank in ranks]
    return {
        "id": gpu.rank,
        "input_chunks": counts[0],
        "output_chunks": counts[1],
        "scratch_chunks": gpu.scratch if packets is None else packets[gpu.rank].scratch,
        "channels": [
            {"channel_type": kind, "connected_to": [b if a == gpu.rank else a for a, b, _ in ends]}
            for kind, ends in channels.items()
            if ends
        ]
        + [
            {"channel_type": "switch", "buffer_type": buffer, "rank_groups": [{"size": len(ranks), "ranks": ranks}]}
            for buffer, ranks in switches
        ],
        "remote_buffers": [
            {"rank": rank, "type": buffer, "access_channel_types": [kind]}
            for (rank, buffer), kind in zip(remote, kinds, strict=True)
        ],
        "semaphores": [{"init_value": 0} for ids in semaphores[0].values() for _ in ids],
        "threadblocks": [
            _block(gpu.rank, number, block, hosts, channels, remote, semaphores, [b for b, _ in switches], packets)
            for number, block in enumerate(gpu.blocks)
        ],
    }


def _written(step: Step, packets: bool) -> str | None:
    """Return the buffer of the receiver that a step writes, None if it does not send."""
    if step.kind not in ("s", "forward"):
        return None
    return "s" if packets else step.dst[0]


def _semaphores(gpu: GpuPlan) -> tuple[dict[tuple[int, int], list[int]], dict[tuple[int, int], list[int]]]:
    """Return the semaphores that each step acquires before it and releases after it: one for each dependency."""
    acquires: dict[tuple[int, int], list[int]] = defaultdict(list)
    releases: dict[tuple[int, int], list[int]] = defaultdict(list)
    count = 0
    for number, block in enumerate(gpu.blocks):
        for index, step in enumerate(block.steps):
            for target in step.waits:
                acquires[number, index].append(count)
                releases[target].append(count)
                count += 1
    return acquires, releases


def _block(
    rank: int,
    number: int,
    block: Threadblock,
    hosts: list[str],
    channels: dict[str, list[_End]],
    remote: dict[tuple[int, str], int],
    semaphores: tuple[dict[tuple[int, int], list[int]], dict[tuple[int, int], list[int]]],
    switches: list[str],
    packets: list[PacketLayout] | None,
) -> dict[str, Any]:
    """Return one threadblock: its tables of channels and remote buffers, and operations that index these tables."""
    ids: dict[str, list[int]] = {"memory": [], "port": []}
    kinds = {}
    for peer, channel in block.targets:
        kinds["send"] = _kind(hosts, rank, peer)
        ids[kinds["send"]].append(channels[kinds["send"]].index((rank, peer, channel)))
    if block.recv >= 0:
        kinds["recv"] = _kind(hosts, rank, block.recv)
        ids[kinds["recv"]].append(channels[kinds["recv"]].index((block.recv, rank, block.channel)))
    ids["memory"] += [channels["memory"].index((rank, peer, block.channel)) for peer in block.members]
    if block.members:
        ids["switch"] = list(range(len(switches)))
    places = {buffer: place for place, buffer in enumerate(switches)}
    writer = OperationWriter(
        kinds.get("send", ""), kinds.get("recv", ""), len(block.targets), len(block.members), places
    )
    if packets is not None:
        writer = packet_writer(block, packets[rank], packets[block.send] if block.send >= 0 else None, rank)
    written = [(step.target, _written(step, packets is not None)) for step in block.steps]
    buffers = list(dict.fromkeys((target, buffer) for target, buffer in written if buffer is not None))
    acquires, releases = semaphores
    writer.write(
        block,
        [acquires[number, index] for index in range(len(block.steps))],
        [releases[number, index] for index in range(len(block.steps))],
        {written: local for local, written in enumerate(buffers)},
    )
    return {
        "id": number,
        "channels": [{"channel_type": kind, "channel_ids": chosen} for kind, chosen in ids.items() if chosen],
        "remote_buffer_refs": [
            {
                "access_channel_type": kinds["send"],
                "remote_buffer_ids": [remote[block.targets[target][0], buffer] for target, buffer in buffers],
            }
        ]
        if buffers
        else [],
        "ops": writer.operations,
    }
