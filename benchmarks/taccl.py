"""Finishes of TACCL from table 8 of TE-CCL, compared with taccl, milp and auto; synthesis times compared with taccl.

The table is compared on two machines, with the sketch of TACCL: on `ndv2:2`, whose InfiniBand has the 12.5 GB/s of the
published rows, and on the machine of TACCL's own topology file, whose InfiniBand has 9.52 GB/s. A row is good if the
finish of method taccl is at most that of TACCL; published finishes below the lower bound of the file's machine are
marked. A row of synthesis times (TACCL section 6.3, measured with Gurobi) is good if the time of the whole command is
at most that of TACCL.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import store
from flowccl.errors import FlowcclError
from flowccl.papers.published import published_us
from flowccl.papers.taccl.sketch import Sketch
from flowccl.papers.taccl.sketch_files import load_sketch
from flowccl.result import Result
from flowccl.synthesis import synthesize
from flowccl.topology.importers import ImportOptions, import_machine
from flowccl.topology.machines import machine
from flowccl.topology.topology import Topology
from flowccl.units import format_bytes, format_GBps, format_us

FILES = Path(__file__).parents[1] / "tests" / "data" / "taccl"
TIMES = (  # machine, collective, seconds: TACCL section 6.3
    ("ndv2:4", "allgather", 1.0),
    ("ndv2:4", "alltoall", 48.0),
    ("ndv2:4", "allreduce", 2.0),
    ("dgx2:2", "allgather", 41.0),
    ("dgx2:2", "alltoall", 125.0),
    ("ndv2:10", "allgather", 480.0),
)


def main(arguments: Sequence[str]) -> int:
    """Print the tables; exit code 1 if a row of table 8 that is possible is not good."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks taccl", description=__doc__)
    parser.add_argument("--part", choices=("finish", "file", "time", "all"), default="all")
    parser.add_argument("--methods", default="taccl,milp,auto")
    parser.add_argument("--sketch", type=Path, default=FILES / "sk1-ndv2-n2.json", help="sketch (default: sk1)")
    parser.add_argument("--topology", type=Path, default=FILES / "topo-ndv2-1MB.json", help="TACCL's (default: 1MB)")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds per method and size (default: 10)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="store all rows")
    options = parser.parse_args(arguments)
    rows = []
    if options.part in ("finish", "all"):
        rows += _finishes(machine("ndv2:2"), options.methods.split(","), options)
    if options.part in ("file", "all"):
        import_options = ImportOptions(sketch=options.sketch)
        own = import_machine(str(options.topology), "taccl", import_options, None, None).topology
        print(f"\nthe machine of {options.topology.name}; InfiniBand: {_slowest(own)}")
        rows += _finishes(own, ["taccl"], options)
    times = _times(options) if options.part in ("time", "all") else []
    store(options.json, {key: str(value) for key, value in vars(options).items()}, rows + times)
    return 1 if any(not row["good"] and row["possible"] for row in rows) else 0


def _slowest(topology: Topology) -> str:
    return format_GBps(min(link.bandwidth_GBps for link in topology.links))


def _finishes(topology: Topology, methods: list[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    sketch = load_sketch(options.sketch, topology)
    head = f"{'two NDv2':<10} {'size':>8} {'TACCL':>12} {'bound':>12}  "
    print(head + "  ".join(f"{m:>24}" for m in methods) + "  good")
    rows = []
    for collective in ("allgather", "alltoall"):
        for size, theirs_us in sorted(published_us("ndv2:2", collective)["TACCL"].items()):
            found = {m: _run(topology, collective, size, m, sketch, options) for m in methods}
            bound = max((r.bound.us for r in found.values() if isinstance(r, Result)), default=0.0)
            ours = found.get("taccl")
            good = isinstance(ours, Result) and ours.schedule.finish_us <= theirs_us
            possible = bound <= theirs_us
            cells = "  ".join(f"{_cell(r):>24}" for r in found.values())
            head = f"{collective:<10} {format_bytes(size):>8} {format_us(theirs_us):>12} {format_us(bound):>12}"
            verdict = "yes" if good else "NO" if possible else f"TACCL is {1 - theirs_us / bound:.1%} below the bound"
            print(f"{head}  {cells}  {verdict}", flush=True)
            numbers = {m: r.schedule.finish_us for m, r in found.items() if isinstance(r, Result)}
            seconds = {m: r.synthesis_s for m, r in found.items() if isinstance(r, Result)}
            row = {"machine": topology.name, "collective": collective, "size": size, "taccl_us": theirs_us}
            row |= {"bound_us": bound, "good": good, "possible": possible}
            rows.append(row | {"finish_us": numbers, "synthesis_s": seconds})
    return rows


def _run(
    topology: Topology, collective: str, size: int, method: str, sketch: Sketch, options: argparse.Namespace
) -> Result | str:
    method_options = {"sketch": sketch} if method == "taccl" else {}
    limits = {"time_limit_s": options.time_limit, "seed": options.seed}
    try:
        return synthesize(topology, collective, size, method=method, options=method_options, **limits)
    except FlowcclError as error:
        return str(error)


def _cell(result: Result | str) -> str:
    if isinstance(result, str):
        return result[:24]
    return f"{format_us(result.schedule.finish_us)} in {result.synthesis_s:.1f} s"


def _times(options: argparse.Namespace) -> list[dict[str, Any]]:
    print(f"\n{'machine':<10} {'collective':<12} {'TACCL':>8} {'taccl':>8} {'finish':>12} {'bound':>12}  good")
    rows = []
    for name, collective, theirs_s in TIMES:
        began = time.monotonic()
        limit = max(min(theirs_s, options.time_limit), 1.0)
        limits = {"chunks": 1, "time_limit_s": limit, "seed": options.seed}  # one chunk count, as in TACCL
        result = synthesize(machine(name), collective, 1_000_000, method="taccl", **limits)
        took, finish, bound = time.monotonic() - began, result.schedule.finish_us, result.bound.us
        times = f"{theirs_s:>6.0f} s {took:>6.1f} s {format_us(finish):>12} {format_us(bound):>12}"
        print(f"{name:<10} {collective:<12} {times}  {'yes' if took <= theirs_s else 'NO'}", flush=True)
        row = {"machine": name, "collective": collective, "taccl_s": theirs_s, "seconds": took}
        rows.append(row | {"finish_us": finish, "bound_us": bound, "good": took <= theirs_s})
    return rows
