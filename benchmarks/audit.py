"""Time and memory of `flowccl audit` on a million calls, without searches: CSV, JSON lines and Chrome JSON.

`python -m benchmarks audit` writes logs of 8 ranks of a training job to a temporary folder and audits them, each format
in a process of its own. The seconds are those of reading, matching and bounds; starting Python is not counted.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

RANKS = 8
STEP = (("AllReduce", 4_194_304), ("AllGather", 1_048_576), ("ReduceScatter", 1_048_576), ("AllReduce", 65_536)) * 25
"""The calls of a step: 100 of 3 collectives and sizes."""
NAMES = {"AllReduce": "allreduce", "AllGather": "allgather", "ReduceScatter": "reduce_scatter"}
TORCH = {"AllReduce": "allreduce", "AllGather": "_allgather_base", "ReduceScatter": "_reduce_scatter_base"}
LIMITS_S = {"csv": 10, "jsonl": 10, "chrome": 60}
LIMIT_MB = 1000


def rows(rank: int, count: int) -> Iterator[tuple[str, int, float, float]]:
    """The calls of a rank: collective, size, start and duration in microseconds; no two times are alike."""
    now = 1000.0
    for number in range(count):
        name, size = STEP[number % len(STEP)]
        took = size / 200_000 + 10 + (number * 7919 % 1000) / 500
        late = (number * 31 + rank * 17) % 5
        yield name, size, now + late, took - late
        now += took + 20


def write_csv(folder: Path, count: int) -> None:
    """One file of all ranks."""
    with (folder / "calls.csv").open("w") as file:
        file.write("collective,bytes,ranks,count,microseconds,rank,start_us\n")
        for rank in range(RANKS):
            file.writelines(
                f"{NAMES[name]},{size},0-7,1,{took:.3f},{rank},{start:.3f}\n"
                for name, size, start, took in rows(rank, count)
            )


def write_jsonl(folder: Path, count: int) -> None:
    """A file of NCCL's Inspector for each rank."""
    for rank in range(RANKS):
        head = f'{{"header": {{"id": "0x7f8c496ae9f661", "rank": {rank}, "n_ranks": 8, "nnodes": 1}}, "metadata": '
        with (folder / f"inspector{rank}.log").open("w") as file:
            for number, (name, size, start, took) in enumerate(rows(rank, count)):
                data = size if name == "AllReduce" else size // RANKS
                file.write(
                    f'{head}{{"inspector_output_format_version": "v4.0", "dump_timestamp_us": {start:.0f}, '
                    f'"hostname": "h0", "pid": {1000 + rank}}}, "coll_perf": {{"coll": "{name}", "coll_sn": {number}, '
                    f'"coll_msg_size_bytes": {data}, "coll_exec_time_us": {took:.0f}, "coll_algobw_gbs": 120.5, '
                    '"coll_busbw_gbs": 210.9}}\n'
                )


def write_chrome(folder: Path, count: int) -> None:
    """A trace of the PyTorch profiler for each rank, laid out as the profiler does."""
    config = '[{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 8, "ranks": []}]'
    for rank in range(RANKS):
        with (folder / f"trace{rank}.json").open("w") as file:
            file.write(
                '{\n  "schemaVersion": 1,\n  "distributedInfo": {"backend": "nccl", '
                f'"rank": {rank}, "world_size": 8, "pg_config": {config}}},\n  "traceEvents": [\n'
            )
            for number, (name, size, start, took) in enumerate(rows(rank, count)):
                given = size // 4 // (RANKS if name == "AllGather" else 1)
                got = size // 4 // (RANKS if name == "ReduceScatter" else 1)
                file.write(
                    f'  {{\n    "ph": "X", "cat": "kernel", "name": "ncclDevKernel_{name}_RING_LL(ncclDevKernelArgs'
                    f'Storage<4096ul>)", "pid": 0, "tid": 20,\n    "ts": {start:.3f}, "dur": {took:.3f},\n "args": {{\n'
                    f'      "External id": {number}, "queued": 0, "device": 0, "stream": 20, "correlation": '
                    f'{number}, "registers per thread": 96, "blocks per SM": 0.18, '
                    '"warps per SM": 2.9, "grid": [24, 1, 1], "block": [512, 1, 1], "occupancy": 0,\n'
                    f'      "Collective name": "{TORCH[name]}", "In msg nelems": {given}, "Out msg nelems": {got}, '
                    '"Group size": 8, "dtype": "Float", "In split size": "[]", "Out split size": "[]", '
                    '"Process Group Name": "0", "Process Group Description": "default_pg", '
                    f'"Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]", "Rank": {rank}\n    }}\n  }},\n'
                )
            file.write('  {"ph": "i", "s": "g", "name": "Record Window End", "ts": 0}\n  ],\n  "traceName": "t"\n}\n')


WRITERS = {"csv": write_csv, "jsonl": write_jsonl, "chrome": write_chrome}


def measured(folder: Path) -> dict[str, float]:
    """Audit a folder in this process: seconds of reading and of everything, rows, and the peak of memory in MB."""
    from flowccl import machine
    from flowccl.jobs.audit import audit
    from flowccl.jobs.reading import read_logs
    from flowccl.jobs.words import describe
    from flowccl.runtimes.profiles import PROFILES

    begun = time.perf_counter()
    logs = read_logs([folder])
    read = time.perf_counter()
    found = audit(logs.calls, machine("dgx_h100:1"), PROFILES["ideal"], searched=0)
    describe(found)
    done = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return {"calls": len(logs.calls), "kinds": len(found.rows), "read_s": read - begun, "s": done - begun, "MB": peak}


def main(arguments: Sequence[str]) -> int:
    """Write the logs and print one line for each format; the exit code is 1 if a limit is passed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks audit", description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000_000, help="calls of all ranks together")
    parser.add_argument("--formats", nargs="+", choices=list(WRITERS), default=list(WRITERS))
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.folder is not None:
        print(json.dumps(measured(options.folder)))
        return 0
    print("| format | calls | file | read | audit | memory |\n|---|---|---|---|---|---|")
    good = True
    for name in options.formats:
        with tempfile.TemporaryDirectory() as folder:
            WRITERS[name](Path(folder), options.calls // RANKS)
            size = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
            command = [sys.executable, "-m", "benchmarks", "audit", "--folder", folder]
            found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        good &= found["s"] <= LIMITS_S[name] and found["MB"] <= LIMIT_MB
        print(
            f"| {name} | {found['calls']:,} | {size:.0f} MB | {found['read_s']:.1f} s | {found['s']:.1f} s | "
            f"{found['MB']:.0f} MB |",
            flush=True,
        )
    return 0 if good else 1
