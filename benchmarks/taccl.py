"""TACCL's finishes in TE-CCL's table 8 beside methods taccl, milp and auto; its synthesis times beside ours.

A row of the table is good when the finish of method taccl is at most TACCL's. A row of synthesis times (section 6.3,
with Gurobi on their machine) is good when ours, of the whole command, is at most theirs.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import store
from flowccl.errors import FlowcclError
from flowccl.published import published_us
from flowccl.result import Result
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine
from flowccl.topology.sketch import Sketch
from flowccl.topology.sketch_files import load_sketch
from flowccl.topology.topology import Topology
from flowccl.units import format_bytes, format_us

TIMES = (  # machine, collective, seconds: TACCL section 6.3
    ("ndv2:4", "allgather", 1.0),
    ("ndv2:4", "alltoall", 48.0),
    ("ndv2:4", "allreduce", 2.0),
    ("dgx2:2", "allgather", 41.0),
    ("dgx2:2", "alltoall", 125.0),
    ("ndv2:10", "allgather", 480.0),
)


def main(arguments: Sequence[str]) -> int:
    """Print the tables; exit code 1 where a row of table 8 is not good."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks taccl", description=__doc__)
    parser.add_argument("--part", choices=("finish", "time", "all"), default="all")
    parser.add_argument("--methods", default="taccl,milp,auto")
    parser.add_argument("--sketch", type=Path, help="for ndv2:2; default: derived from the machine")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds per method and size (default: 10)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="store all rows")
    options = parser.parse_args(arguments)
    rows = _finishes(options) if options.part != "time" else []
    times = _times(options) if options.part != "finish" else []
    store(options.json, {key: str(value) for key, value in vars(options).items()}, rows + times)
    return 1 if any(not row["good"] for row in rows) else 0


def _finishes(options: argparse.Namespace) -> list[dict[str, Any]]:
    methods = options.methods.split(",")
    topology = machine("ndv2:2")
    sketch = None if options.sketch is None else load_sketch(options.sketch, topology)
    print(
        f"{'ndv2:2':<10} {'size':>8} {'TACCL':>12} {'floor':>12}  " + "  ".join(f"{m:>24}" for m in methods) + "  good"
    )
    rows = []
    for collective in ("allgather", "alltoall"):
        for size, theirs_us in sorted(published_us("ndv2:2", collective)["TACCL"].items()):
            found = {m: _run(topology, collective, size, m, sketch, options) for m in methods}
            floor = max((r.bound.us for r in found.values() if isinstance(r, Result)), default=0.0)
            ours = found.get("taccl")
            good = isinstance(ours, Result) and ours.schedule.finish_us <= theirs_us
            cells = "  ".join(f"{_cell(r):>24}" for r in found.values())
            head = f"{collective:<10} {format_bytes(size):>8} {format_us(theirs_us):>12} {format_us(floor):>12}"
            print(f"{head}  {cells}  {'yes' if good else 'NO'}", flush=True)
            numbers = {m: r.schedule.finish_us for m, r in found.items() if isinstance(r, Result)}
            seconds = {m: r.synthesis_s for m, r in found.items() if isinstance(r, Result)}
            row = {"collective": collective, "size": size, "taccl_us": theirs_us, "floor_us": floor, "good": good}
            rows.append(row | {"finish_us": numbers, "synthesis_s": seconds})
    return rows


def _run(
    topology: Topology, collective: str, size: int, method: str, sketch: Sketch | None, options: argparse.Namespace
) -> Result | str:
    told = {"sketch": sketch} if method == "taccl" and sketch is not None else {}
    limits = {"time_limit_s": options.time_limit, "seed": options.seed}
    try:
        return synthesize(topology, collective, size, method=method, options=told, **limits)
    except FlowcclError as error:
        return str(error)


def _cell(result: Result | str) -> str:
    if isinstance(result, str):
        return result[:24]
    return f"{format_us(result.schedule.finish_us)} in {result.synthesis_s:.1f} s"


def _times(options: argparse.Namespace) -> list[dict[str, Any]]:
    print(f"\n{'machine':<10} {'collective':<12} {'TACCL':>8} {'ours':>8} {'finish':>12} {'floor':>12}  no later")
    rows = []
    for name, collective, theirs_s in TIMES:
        began = time.monotonic()
        limit = max(min(theirs_s, options.time_limit), 1.0)
        result = synthesize(machine(name), collective, 1_000_000, method="taccl", time_limit_s=limit, seed=options.seed)
        took, finish, floor = time.monotonic() - began, result.schedule.finish_us, result.bound.us
        times = f"{theirs_s:>6.0f} s {took:>6.1f} s {format_us(finish):>12} {format_us(floor):>12}"
        print(f"{name:<10} {collective:<12} {times}  {'yes' if took <= theirs_s else 'NO'}", flush=True)
        row = {"machine": name, "collective": collective, "taccl_s": theirs_s, "seconds": took}
        rows.append(row | {"finish_us": finish, "floor_us": floor, "good": took <= theirs_s})
    return rows
