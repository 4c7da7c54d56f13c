"""A small log of each format: simulated ones, others written as their tools document them, and real ones of NCCL."""

import gzip
import shutil
from pathlib import Path

from tests.gpu.nccl_trace import of_two
from tests.jobs.simulated import (
    Simulated,
    write_clog,
    write_csv,
    write_flight_recorder,
    write_inspector,
    write_profiler,
)

NCCL_JOB = Path(__file__).parents[1] / "data" / "nccl_job"
CALLS = [
    Simulated(name, size, (0, 1, 2, 3), 1_000_000 + 100_000 * at, 20_000 + at, (0, 10, 20, 30))
    for at, (name, size) in enumerate(
        [("allreduce", 4096), ("allgather", 8192), ("reduce_scatter", 8192), ("alltoall", 1 << 20)] * 5
    )
]
NCCL_TESTS = """# nThread 1 nGpus 8 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
# Using devices
#  Rank  0 Group  0 Pid  11034 on   node-1 device  0 [0x1b] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  11034 on   node-1 device  1 [0x43] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid  11034 on   node-1 device  2 [0x52] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid  11034 on   node-1 device  3 [0x61] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    27.00   38.84   67.96      0    26.95   38.91   68.09      0
     2097152        524288     float     sum      -1    35.10   59.75  104.56      0    35.40   59.24  103.67      0
     4194304       1048576     float     sum      -1    47.30   88.67  155.18      0    47.10   89.05  155.84    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 121.5
# Collective test concluded: all_reduce_perf
"""
NCCL_LOG = "".join(
    f"host0:{100 + rank}:{200 + rank} [{rank}] NCCL INFO ncclCommInitRank comm 0x55{rank} rank {rank} nranks 4 "
    f"cudaDev {rank} nvmlDev {rank} busId 1b000 commId 0xabc - Init COMPLETE\n"
    + "".join(
        f"host0:{100 + rank}:{200 + rank} [{rank}] NCCL INFO {name}: opCount {number:x} sendbuff 0x7f00 "
        f"recvbuff 0x7f01 count {count} datatype 7 op 0 root 0 comm 0x55{rank} [nranks=4] stream 0x99\n"
        f"host0:{100 + rank}:{200 + rank} [{rank}] NCCL INFO {name}: {4 * count} Bytes -> Algo RING proto LL "
        "channel{Lo..Hi}={0..1}\n"
        for number, (name, count) in enumerate([("AllReduce", 1024), ("AllGather", 512), ("ReduceScatter", 512)])
    )
    for rank in range(4)
)


def _only(writer, pattern: str):
    """The file of the first rank of a simulated job."""

    def write(folder: Path) -> Path:
        writer(CALLS, folder, 4)
        return sorted(folder.glob(pattern))[0]

    return write


def _text(name: str, text: str):
    def write(folder: Path) -> Path:
        (folder / name).write_text(text)
        return folder / name

    return write


def _gzip(folder: Path) -> Path:
    path = _only(write_profiler, "trace*")(folder)
    packed = folder / "trace.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    return packed


def _execution_trace(folder: Path) -> Path:
    import json

    node = {
        "id": 5,
        "name": "c10d::allreduce_",
        "ctrl_deps": 2,
        "inputs": {
            "values": [[[1, 2, 0, 1000, 4, "cpu"]], "<Object>"],
            "shapes": [[[1000]], []],
            "types": ["GenericList[Tensor(float)]", "Object"],
        },
        "attrs": [],
    }
    groups = '[{"pg_name": "0", "ranks": [], "group_size": 4, "group_count": 1}]'
    first = {"id": 3, "name": "## process_group:init ##", "inputs": {"values": [groups], "shapes": [[]], "types": []}}
    path = folder / "et_0.json"
    path.write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": [first, *[node] * 20]}, indent=1))
    return path


def _real(name: str):
    """A real file of PyTorch and NCCL, with a second rank in its group."""

    def write(folder: Path) -> Path:
        shutil.copytree(NCCL_JOB / name, folder / "real" / name)
        of_two(folder / "real", (name,))
        return next((folder / "real" / "as_two_ranks" / name).iterdir())

    return write


SAMPLES = {
    "profiler": _only(write_profiler, "trace*"),
    "profiler, gzip": _gzip,
    "flight recorder": _only(write_flight_recorder, "nccl_trace*"),
    "flight recorder, JSON": _only(lambda c, f, r: write_flight_recorder(c, f, r, as_json=True), "fr_trace*"),
    "execution trace": _execution_trace,
    "inspector": _only(write_inspector, "inspector*"),
    "clog": _only(write_clog, "clog*"),
    "csv": _only(write_csv, "*.csv"),
    "nccl-tests": _text("all_reduce.txt", NCCL_TESTS),
    "NCCL log": _text("nccl.log", NCCL_LOG),
    "profiler, real": _real("profiler"),
    "flight recorder, real": _real("flight_recorder"),
    "execution trace, real": _real("execution_trace"),
    "NCCL log, real": _real("nccl_log"),
}


def write_sample(name: str, folder: Path) -> Path:
    """Write the sample of a format; returns its path."""
    return SAMPLES[name](folder)
