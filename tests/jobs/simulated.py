"""Jobs that our clock simulates, written in every format that can hold a job."""

import csv
import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from flowccl import Topology, synthesize
from flowccl.jobs.placing import only_gpus

TYPES = {"allreduce": "AllReduce", "allgather": "AllGather", "reduce_scatter": "ReduceScatter", "alltoall": "AlltoAll"}
TORCH = {
    "allreduce": "allreduce",
    "allgather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "alltoall": "all_to_all",
}
BASE_NS = 1_790_000_000_000_000_000


@dataclass(frozen=True)
class Simulated:
    """A call: when its last rank arrives, how long it takes from there, and how early each rank arrives."""

    collective: str
    size_bytes: int
    group: tuple[int, ...]
    start_ns: int
    duration_ns: int
    early_ns: tuple[int, ...]


@cache
def ring_ns(topology: Topology, collective: str, size_bytes: int, group: tuple[int, ...], method: str = "ring") -> int:
    """The time of a ring on the GPUs of a group, in the clock of flowccl, in whole nanoseconds."""
    machine = only_gpus(topology, group)
    result = synthesize(machine, collective, size_bytes, method=method, chunks=1, time_limit_s=20)
    return -(-result.schedule.finish_ps // 1000)


def simulate(
    topology: Topology,
    step: Sequence[Sequence[tuple[str, int, tuple[int, ...]]]],
    steps: int,
    *,
    seed: int = 0,
    compute_ns: int = 200_000,
    early_ns: int = 5_000,
) -> list[Simulated]:
    """Steps of calls: the calls of one part of a step run at the same time, the parts one after the other."""
    random = np.random.default_rng(seed)
    calls, now = [], 1_000_000
    for _ in range(steps):
        for part in step:
            now += compute_ns
            longest = 0
            for collective, size, group in part:
                early = random.integers(0, early_ns, len(group))
                early[random.integers(len(group))] = 0
                took = ring_ns(topology, collective, size, group)
                calls.append(Simulated(collective, size, group, now, took, tuple(early.tolist())))
                longest = max(longest, took)
            now += longest
    return calls


def elements(call: Simulated) -> tuple[int, int]:
    """Elements of 4 bytes that a rank gives and gets."""
    whole, part = call.size_bytes // 4, call.size_bytes // 4 // len(call.group)
    return {"allgather": (part, whole), "reduce_scatter": (whole, part)}.get(call.collective, (whole, whole))


def group_names(calls: Sequence[Simulated]) -> dict[tuple[int, ...], str]:
    return {group: str(at) for at, group in enumerate(dict.fromkeys(call.group for call in calls))}


def write_profiler(calls: Sequence[Simulated], folder: Path, ranks: int, offsets: Sequence[int] = ()) -> None:
    """One trace per rank, with the kernels of NCCL; `offsets` are added to the clocks of ranks."""
    names = group_names(calls)
    for rank in range(ranks):
        mine = [call for call in calls if rank in call.group]
        events = []
        for number, call in enumerate(mine):
            early = call.early_ns[call.group.index(rank)]
            given, got = elements(call)
            start = call.start_ns - early + (offsets[rank] if offsets else 0)
            facts = {
                "Collective name": TORCH[call.collective],
                "dtype": "Float",
                "In msg nelems": given,
                "Out msg nelems": got,
                "Group size": len(call.group),
                "Process Group Name": names[call.group],
                "Process Group Ranks": str(list(call.group)),
                "In split size": "[]",
                "Out split size": "[]",
            }
            name = f"ncclDevKernel_{TYPES[call.collective]}_RING_LL"
            times = {"ts": start / 1000, "dur": (call.duration_ns + early) / 1000}
            events.append({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, **times, "args": facts})
            events.append({"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": number, "dur": 1, "args": {}})
        config = [
            {"pg_name": name, "pg_size": len(group), "ranks": list(group)}
            for group, name in names.items()
            if rank in group
        ]
        trace = {
            "schemaVersion": 1,
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks, "pg_config": config},
            "baseTimeNanoseconds": BASE_NS,
            "traceEvents": events,
            "traceName": "simulated",
        }
        (folder / f"trace{rank:03d}.json").write_text(json.dumps(trace, indent=1))


def write_flight_recorder(calls: Sequence[Simulated], folder: Path, ranks: int, as_json: bool = False) -> None:
    """One dump per rank. As in real ones, durations are those of the GPU, but starts are not.

    The host issues calls early, each rank with another lead, and finds out late that they have started.
    """
    names = group_names(calls)
    for rank in range(ranks):
        config = {name: {"name": name, "desc": "", "ranks": str(list(group))} for group, name in names.items()}
        entries, sequence = [], dict.fromkeys(names.values(), 0)
        for call in calls:
            if rank not in call.group:
                continue
            name = names[call.group]
            sequence[name] += 1
            early = call.early_ns[call.group.index(rank)]
            given, got = elements(call)
            entries.append(
                {
                    "frames": [],
                    "process_group": (name, ""),
                    "collective_seq_id": sequence[name],
                    "p2p_seq_id": 0,
                    "profiling_name": f"nccl:{TORCH[call.collective]}",
                    "time_created_ns": BASE_NS + call.start_ns - 1_000_000 - rank * 7919 % 1000 * 1000,
                    "time_discovered_started_ns": BASE_NS + (call.start_ns // 10**8 + 1) * 10**8 + rank * 10**6,
                    "duration_ms": (call.duration_ns + early) / 1e6,
                    "input_sizes": [[given]],
                    "input_dtypes": ["Float"],
                    "output_sizes": [[got]],
                    "output_dtypes": ["Float"],
                    "state": "completed",
                }
            )
        dump = {"version": "2.10", "pg_config": config, "entries": entries}
        if as_json:
            (folder / f"fr_trace_{rank}.json").write_text(json.dumps(dump))
        else:
            (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))


def write_inspector(calls: Sequence[Simulated], folder: Path, ranks: int) -> None:
    """JSON lines; the Inspector writes whole microseconds."""
    names = {group: f"0x{at + 16:x}" for group, at in zip(group_names(calls), range(10**6), strict=False)}
    for rank in range(ranks):
        lines, sequence = [], dict.fromkeys(names, 0)
        for call in (call for call in calls if rank in call.group):
            sequence[call.group] = sequence.get(call.group, 0) + 1
            early = call.early_ns[call.group.index(rank)]
            per_rank = call.collective in ("allgather", "reduce_scatter", "alltoall")
            start = (BASE_NS + call.start_ns - early) // 1000
            row = {
                "coll": TYPES[call.collective],
                "coll_sn": sequence[call.group],
                "coll_msg_size_bytes": call.size_bytes // (len(call.group) if per_rank else 1),
                "coll_exec_time_us": round((call.duration_ns + early) / 1000),
                "event_trace_ts": {"coll_start_ts": start, "kernel_events": [{"kernel_start_ts": start}]},
            }
            header = {"id": names[call.group], "rank": call.group.index(rank), "n_ranks": len(call.group)}
            about = {"hostname": f"host{rank // 8}", "pid": 1000 + rank}
            lines.append(json.dumps({"header": header, "metadata": about, "coll_perf": row}))
        (folder / f"inspector-{rank}.log").write_text("\n".join(lines) + "\n")


def write_clog(calls: Sequence[Simulated], folder: Path, ranks: int) -> None:
    names = {group: f"comm{name}" for group, name in group_names(calls).items()}
    ops = {
        "allreduce": "all_reduce",
        "allgather": "all_gather_single",
        "reduce_scatter": "reduce_scatter_single",
        "alltoall": "all_to_all_single",
    }
    for rank in range(ranks):
        lines = ["V|1|base_timestamp=1790000000.000", f"new_comm|comm=world|rank={rank}|world_size={ranks}"]
        lines += [f"split|parent=world|child={n}|ranks={','.join(map(str, g))}" for g, n in names.items() if rank in g]
        known: dict[tuple[str, int, tuple[int, ...]], int] = {}
        for call in calls:
            if rank not in call.group:
                continue
            key = (call.collective, call.size_bytes, call.group)
            if key not in known:
                known[key] = len(known) + 1
                given, got = elements(call)
                sig = f"{ops[call.collective]}|in_count={given}|out_count={got}|dtype=f32|async_op=t"
                lines.append(f"C{known[key]}|sig|{sig}|comm={names[call.group]}")
            start = call.start_ns - call.early_ns[call.group.index(rank)]
            end = call.start_ns + call.duration_ns
            lines.append(f"C{known[key]}|Q|work_id={len(lines)}|+{start / 1e9:.9f}")
            lines += [f"C{known[key]}|S|+{start / 1e9:.9f}", f"C{known[key]}|E|+{end / 1e9:.9f}"]
        (folder / f"clog_rank{rank}.log").write_text("\n".join(lines) + "\n")


def write_csv(calls: Sequence[Simulated], folder: Path, ranks: int) -> None:
    with (folder / "calls.csv").open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(("collective", "bytes", "ranks", "count", "microseconds", "rank", "start_us"))
        for call in calls:
            for rank, early in zip(call.group, call.early_ns, strict=True):
                ranks_text = " ".join(map(str, call.group))
                times = (f"{(call.duration_ns + early) / 1000:.3f}", rank, f"{(call.start_ns - early) / 1000:.3f}")
                out.writerow((call.collective, call.size_bytes, ranks_text, 1, *times))


WRITERS = {
    "profiler": write_profiler,
    "flight recorder": write_flight_recorder,
    "flight recorder, JSON": lambda calls, folder, ranks: write_flight_recorder(calls, folder, ranks, as_json=True),
    "inspector": write_inspector,
    "clog": write_clog,
    "csv": write_csv,
}
