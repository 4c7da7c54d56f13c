"""Synthesis speed: seconds to the first schedule, and to gaps of 10, 5, 2 and 1 % to the final lower bound."""

import argparse
from collections.abc import Sequence
from typing import Any

from benchmarks.quality import problem
from benchmarks.report import store
from flowccl.result import Result
from flowccl.synthesis import synthesize
from flowccl.units import format_bytes, parse_bytes

MACHINES = ("dgx1", "ndv2:2", "dgx2:2", "mi250:2", "dgx_a100:4", "dgx_h100:4", "torus:4x4x4", "random:1")
SIZES = ("1KB", "1MB", "1GB")
GAPS = (0.10, 0.05, 0.02, 0.01)


def main(arguments: Sequence[str]) -> int:
    """Print one line per machine, collective and size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks speed", description=__doc__)
    parser.add_argument("--machines", default=",".join(MACHINES))
    parser.add_argument("--collectives", default="allgather,alltoall")
    parser.add_argument("--sizes", default=",".join(SIZES))
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="FILE", help="store all rows")
    options = parser.parse_args(arguments)
    heads = "".join(f"{f'{gap:.0%}':>8}" for gap in GAPS) + f" {'end':>8} {'gap':>8} {'transfers':>9}  method"
    print(f"{'machine':<13} {'collective':<10} {'size':>6} {'first':>8}{heads}")
    rows: list[dict[str, Any]] = []
    for name in options.machines.split(","):
        for collective in options.collectives.split(","):
            for size in map(parse_bytes, options.sizes.split(",")):
                limits = {"time_limit_s": options.time_limit, "seed": options.seed}
                result = synthesize(problem(name), collective, size, gap=min(GAPS) / 2, **limits)
                rows.append(_row(name, collective, size, result))
                _show(rows[-1])
    store(options.json, vars(options), rows)
    return 0


def _row(name: str, collective: str, size: int, result: Result) -> dict[str, Any]:
    bound = result.bound.us

    def reached(gap: float) -> float | None:
        return next((step.elapsed_s for step in result.trace if (step.finish_us or 0) <= bound * (1 + gap)), None)

    return {
        "machine": name,
        "collective": collective,
        "size_bytes": size,
        "first_s": result.trace[0].elapsed_s,
        "reached_s": {str(gap): reached(gap) for gap in GAPS},
        "synthesis_s": result.synthesis_s,
        "gap": result.gap,
        "transfers": len(result.schedule),
        "method": result.schedule.method,
    }


def _show(row: dict[str, Any]) -> None:
    what = f"{row['machine']:<13} {row['collective']:<10} {format_bytes(row['size_bytes']):>6} {row['first_s']:8.3f}"
    reached = "".join(f"{'-' if at is None else f'{at:.2f}':>8}" for at in row["reached_s"].values())
    end = f"{row['synthesis_s']:8.2f} {row['gap']:8.2%} {row['transfers']:6}  {row['method']}"
    print(f"{what}{reached} {end}", flush=True)
