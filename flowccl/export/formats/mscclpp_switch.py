"""MSCCL++ plans of collectives inside a switch (NVLS): switch channels with `glres` and `gstore`.

Every GPU first tells all others that it has entered the call, then issues the operations of its chunks, and at last
tells all others that it has finished. It leaves the call when all others have finished: until then they may load from
its memory and store into it.
"""

from typing import Any

from flowccl.export.lowering.buffers import BufferLayout, BufferSlot
from flowccl.runtimes.limits import CHANNELS_PER_OPERATION


def switch_gpus(layout: BufferLayout, issuers: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Return the `gpus` of a plan, one threadblock per instance; `issuers` are (chunk, issuing rank) in order."""
    loads = layout.collective == "allreduce"
    operations: list[list[list[dict[str, Any]]]] = []
    buffers: list[str] = []  # of the switch channels
    for rank in range(layout.demand.num_gpus):
        rows = []
        for instance in range(layout.instances):
            slots = [
                (layout.input(rank, chunk, instance), layout.output(rank, chunk, instance))
                for chunk, issuer in issuers
                if issuer == rank
            ]
            rows.append([_operation(loads, *run, buffers) for run in _runs(slots)])
        operations.append(rows)
    return [_gpu(layout, rank, operations[rank], buffers) for rank in range(layout.demand.num_gpus)]


def _runs(slots: list[tuple[BufferSlot, BufferSlot]]) -> list[tuple[BufferSlot, BufferSlot, int]]:
    """Return (source, target, count) of contiguous chunks, in the order of their first chunk."""
    runs: list[tuple[BufferSlot, BufferSlot, int]] = []
    for src, dst in sorted(slots):
        if runs:
            (a, b, count) = runs[-1]
            if (a[0], a[1] + count) == src and (b[0], b[1] + count) == dst:
                runs[-1] = (a, b, count + 1)
                continue
        runs.append((src, dst, 1))
    place = {src: k for k, (src, _) in enumerate(slots)}
    return sorted(runs, key=lambda run: min(place[run[0][0], run[0][1] + k] for k in range(run[2])))


def _operation(loads: bool, src: BufferSlot, dst: BufferSlot, count: int, buffers: list[str]) -> dict[str, Any]:
    target = {"switch_channel_id": _channel(buffers, dst[0]), "index": dst[1], "size": count}
    source: dict[str, Any] = {"type": src[0], "index": src[1], "size": count}
    if loads:
        source = {"switch_channel_id": _channel(buffers, src[0]), "index": src[1], "size": count}
    return {
        "name": "glres" if loads else "gstore",
        "src_buff": [source],
        "dst_buff": [target],
        "channel_ids": [target["switch_channel_id"]],
        "channel_type": "switch",
    }


def _channel(buffers: list[str], buffer: str) -> int:
    if buffer not in buffers:
        buffers.append(buffer)
    return buffers.index(buffer)


def _gpu(layout: BufferLayout, rank: int, rows: list[list[dict[str, Any]]], buffers: list[str]) -> dict[str, Any]:
    ranks = list(range(layout.demand.num_gpus))
    peers = [peer for peer in ranks if peer != rank]
    counts = layout.whole_counts
    meet = [*_with_all("signal", peers), *_with_all("wait", peers)]
    group = {"size": len(ranks), "ranks": ranks}
    groups = [{"channel_type": "switch", "buffer_type": buffer, "rank_groups": [group]} for buffer in buffers]
    return {
        "id": rank,
        "input_chunks": counts[0],
        "output_chunks": counts[1],
        "scratch_chunks": 0,
        "channels": [{"channel_type": "memory", "connected_to": peers * layout.instances}, *groups],
        "remote_buffers": [],
        "semaphores": [],
        "threadblocks": [
            {
                "id": instance,
                "channels": [
                    {
                        "channel_type": "memory",
                        "channel_ids": [instance * len(peers) + k for k in range(len(peers))],
                    },
                    {"channel_type": "switch", "channel_ids": list(range(len(buffers)))},
                ],
                "remote_buffer_refs": [],
                "ops": [*meet, {"name": "nop"}, *own, {"name": "nop"}, *meet],
            }
            for instance, own in enumerate(rows)
        ],
    }


def _with_all(name: str, peers: list[int]) -> list[dict[str, Any]]:
    """Return operations that signal all peers or wait for them."""
    ids = list(range(len(peers)))
    parts = [ids[k : k + CHANNELS_PER_OPERATION] for k in range(0, len(ids), CHANNELS_PER_OPERATION)]
    return [{"name": name, "channel_ids": part, "channel_type": "memory"} for part in parts]
