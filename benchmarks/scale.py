"""Large clusters, whole, with a fault, below leaves and for a runtime: what whole `flowccl synth` processes take.

Each row is a process of its own, so its seconds include loading, the search, the program and the lower bound, and its
memory is the largest that the process had. Published figures of TACOS and PCCL, on machines of their authors, are
beside them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.report import store

PUBLISHED: tuple[dict[str, Any], ...] = (
    {"name": "TACOS, allreduce", "gpus": 128, "seconds": 1.08},  # arXiv 2304.05301v3, abstract
    {"name": "TACOS, allreduce", "gpus": 512, "seconds": 6.09 * 60},  # arXiv 2304.05301v2, abstract: heterogeneous
    {"name": "TACOS, allreduce", "gpus": 40_000, "seconds": 2.52 * 3600},  # the same
    {"name": "PCCL, alltoall", "gpus": 512, "seconds": 11.68 * 60},  # arXiv 2606.07019v1, abstract
)
_LEAVES = ":network=fat-tree:oversubscription=2:spines=4"
KINDS: dict[str, tuple[str, list[str]]] = {
    "whole": ("", []),
    "lost NIC": ("", ["--without", "gpu3 <-> rail3"]),
    "slow NIC": ("", ["--slow", "gpu3 <-> rail3=12.5GB/s"]),
    "leaves": (_LEAVES, []),
    "lost uplink": (_LEAVES, ["--without", "leaf0 <-> spine0"]),
    "mscclpp": ("", ["--for", "mscclpp"]),
}
"""What follows the number of hosts in the name of the machine, and the options of `synth`."""
_GPUS_PER_HOST = 8
_LARGE_ALLTOALL, _LARGE_ALLTOALL_SIZE = 512, "1GB"  # GPUs from which blocks of 64 MB would be smaller than messages


def main(arguments: Sequence[str]) -> int:
    """Print a line for each row as it ends; 1 where a process ended with an error that is no refusal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks scale", description=__doc__)
    parser.add_argument("--hosts", default="8,16,32,64", help="of 8 GPUs (default: 8,16,32,64)")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of machines (default: {', '.join(KINDS)})")
    parser.add_argument("--collectives", default="allreduce", help="separated by commas (default: allreduce)")
    parser.add_argument("--size", default="64MB", help="except alltoall from 512 GPUs on, 1GB (default: 64MB)")
    parser.add_argument("--time-limit", type=float, default=20.0, metavar="S", help="of each search (default: 20)")
    parser.add_argument("--json", metavar="FILE", help="store all rows")
    parser.add_argument("--plot", metavar="FILE", help="draw seconds, memory and gap against GPUs")
    options = parser.parse_args(arguments)
    print(_line("kind", "collective", "GPUs", "seconds", "CPU s", "GB", "gap", "program", "method or refusal"))
    rows = []
    for command in _commands(options):
        rows.append(_measured(**command))
        print(_row_line(rows[-1]), flush=True)
    for row in PUBLISHED:
        print(_line(row["name"], "", f"{row['gpus']:,}", f"{row['seconds']:,.1f}", "", "", "", "", "as published"))
    store(options.json, vars(options), rows)
    if options.plot:
        from benchmarks.scale_plot import plot_scale

        plot_scale(rows, PUBLISHED, options.plot)
    return 1 if any(row["code"] not in (0, 2) for row in rows) else 0


def _commands(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The kind, the collective, the GPUs and the arguments of each row."""
    for kind in options.kinds.split(","):
        for collective in options.collectives.split(","):
            for hosts in map(int, options.hosts.split(",")):
                (network, kind_options), gpus = KINDS[kind], hosts * _GPUS_PER_HOST
                is_large = collective == "alltoall" and gpus >= _LARGE_ALLTOALL
                size = _LARGE_ALLTOALL_SIZE if is_large else options.size
                words = [f"dgx_h100:{hosts}{network}", collective, "--size", size, *kind_options]
                words += ["--time-limit", f"{options.time_limit:g}", "--json", "--quiet"]
                yield {"kind": kind, "collective": collective, "gpus": gpus, "words": words}


def _measured(kind: str, collective: str, gpus: int, words: Sequence[str]) -> dict[str, Any]:
    """Run `flowccl synth` in a process, and return what it took and found."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen([sys.executable, "-m", "flowccl", "synth", *words], stdout=out, stderr=err)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        text, problem = out.read(), err.read().decode(errors="replace").strip()
    row: dict[str, Any] = {"kind": kind, "collective": collective, "gpus": gpus, "code": process.returncode}
    row |= {"seconds": time.monotonic() - began, "cpu_s": used.ru_utime + used.ru_stime}
    row["memory_GB"] = used.ru_maxrss / (1e9 if sys.platform == "darwin" else 1e6)
    if process.returncode:
        return row | {"problem": problem.rpartition("\n")[2]}
    found = json.loads(text)
    names = ("gap", "finish_us", "lower_bound_us", "method", "chunks", "transfers", "stopped", "synthesis_s")
    return row | {name: found.get(name) for name in (*names, "program_us")}


def _row_line(row: dict[str, Any]) -> str:
    used = (f"{row['seconds']:.1f}", f"{row['cpu_s']:.1f}", f"{row['memory_GB']:.2f}")
    if row["code"]:
        return _line(row["kind"], row["collective"], f"{row['gpus']:,}", *used, "-", "-", row["problem"])
    program = "" if row["kind"] != "mscclpp" else "left out" if row["program_us"] is None else "made"
    found = (f"{100 * row['gap']:.1f} %", program, row["method"])
    return _line(row["kind"], row["collective"], f"{row['gpus']:,}", *used, *found)


def _line(*cells: str) -> str:
    widths = (17, 15, 7, 9, 8, 7, 9, 10)
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=False)) + f"  {cells[-1]}"
