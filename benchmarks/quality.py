"""Gaps of auto: the machines of the papers with published results beside them, and many others."""

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import store
from flowccl.compare import Comparison, compare
from flowccl.methods.registry import REGISTRY
from flowccl.topology.machines import machine
from flowccl.topology.topology import Link, Node, Topology
from flowccl.units import format_bytes, parse_bytes

TABLE8 = [scale * 1000**power for power in (1, 2) for scale in (1, 4, 16, 64, 256)] + [1000**3]
PAPERS = ("ndv2:2", "dgx2:2")
MANY_SIZES = (1_000, 64_000, 1_000_000, 64_000_000, 1_000_000_000)
MANY = (
    "dgx1",
    "ndv2:4",
    "mi250:1",
    "mi250:2",
    "dgx_a100:4",
    "dgx_h100:4",
    "torus:4x4x4",
    "hypercube:5",
    "mesh:6x6",
    "dragonfly:4:2:1",
    "random:1",
    "random:2",
    "random:3",
    "random:4",
    "random:5",
)
_PRINTED = 1.001  # published finishes have so few digits
OTHERS = ("ring", "recursive-doubling", "direct", "tree", "greedy", "milp", "lp")


def problem(name: str) -> Topology:
    """A machine by name; random:SEED is a connected machine of 12 GPUs with random links."""
    if not name.startswith("random:"):
        return machine(name)
    random = np.random.default_rng(int(name.partition(":")[2]))
    gpus = 12
    order = random.permutation(gpus)
    pairs = {(int(order[i]), int(order[(i + 1) % gpus])) for i in range(gpus)}
    while len(pairs) < 3 * gpus:
        a, b = random.choice(gpus, 2, replace=False)
        pairs.add((int(a), int(b)))
    links = [
        Link(
            src=a,
            dst=b,
            bandwidth_GBps=float(random.choice([10, 25, 50])),
            latency_us=float(random.choice([0.5, 1, 2])),
        )
        for a, b in sorted(pairs)
    ]
    return Topology(name, tuple(Node(name=f"gpu{i}") for i in range(gpus)), tuple(links))


def main(arguments: Sequence[str]) -> int:
    """Print the table; exit code 1 where a finish is later than a published one or than a classic."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks quality", description=__doc__)
    parser.add_argument("--set", choices=("papers", "many", "all"), default="all")
    parser.add_argument("--machines", help="only these, separated by commas")
    parser.add_argument("--collectives", default="allgather,alltoall")
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--beside", default="", help=f"other methods with the same limit, e.g. {','.join(OTHERS)}")
    parser.add_argument("--stored", metavar="FILE", help="auto's rows from --json of an earlier run, instead of a run")
    parser.add_argument("--sizes", help="only these, e.g. 64KB,1MB")
    parser.add_argument("--json", metavar="FILE", help="store all rows")
    options = parser.parse_args(arguments)
    chosen = {"papers": PAPERS, "many": MANY, "all": PAPERS + MANY}[options.set]
    names = options.machines.split(",") if options.machines else chosen
    stored = _stored(options.stored)
    methods = (*(() if stored else ("auto",)), *(name for name in options.beside.split(",") if name))
    print(f"{'machine':<16} {'collective':<10} {'size':>8} {'floor':>11} {'auto':>11} {'gap':>8}  {'others':<10} why")
    rows: list[dict[str, Any]] = []
    for name in names:
        for collective in options.collectives.split(","):
            sizes = TABLE8 if name in PAPERS else MANY_SIZES
            if options.sizes:
                sizes = [parse_bytes(size) for size in options.sizes.split(",")]
            limits = {"time_limit_s": options.time_limit, "seed": options.seed}

            def told(row: Comparison, where: tuple[str, str] = (name, collective)) -> None:
                rows.append(_row(*where, row, stored.get((*where, row.size_bytes), {})))
                _show(rows[-1])

            compare(problem(name), collective, sizes, methods, **limits, on_row=told)
    _summary(rows)
    store(options.json, vars(options), rows)
    return 1 if any(row["beaten_by"] for row in rows) else 0


def _stored(path: str | None) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Rows of an earlier run by machine, collective and size; none without a file."""
    rows = json.loads(Path(path).read_text())["rows"] if path else []
    return {(row["machine"], row["collective"], row["size_bytes"]): row for row in rows}


def _row(name: str, collective: str, row: Comparison, stored: dict[str, Any]) -> dict[str, Any]:
    here = row.to_json()
    auto = stored.get("auto_us") or row.finish_us["auto"] or math.inf
    floor = max(row.lower_bound_us, stored.get("lower_bound_us", 0.0))
    others = {who: us for who, us in row.finish_us.items() if who != "auto" and us is not None}
    beaten = [who for who, us in others.items() if auto > us * (1.0 if who in REGISTRY else _PRINTED)]
    kept = {"machine": name, "collective": collective, "auto_us": auto, "gap": auto / floor - 1, "beaten_by": beaten}
    return {**here, **kept, "lower_bound_us": floor}


def _show(row: dict[str, Any]) -> None:
    others = {who: us for who, us in row["finish_us"].items() if who != "auto" and us is not None}
    best = min(others.items(), key=lambda item: item[1], default=None)
    beside = f"{best[0]} {best[1]:.6g}" if best else ""
    mark = f"  LATER THAN {', '.join(row['beaten_by'])}" if row["beaten_by"] else ""
    what = f"{row['machine']:<16} {row['collective']:<10} {format_bytes(row['size_bytes']):>8}"
    times = f"{row['lower_bound_us']:11.6g} {row['auto_us']:11.6g} {row['gap']:8.2%}"
    print(f"{what} {times}  {beside:<10} {row['bound_witness'][:70]}{mark}", flush=True)


def _summary(rows: list[dict[str, Any]]) -> None:
    gaps = np.array([row["gap"] for row in rows])
    mean = float(np.exp(np.log1p(gaps).mean()) - 1)
    beaten = sum(bool(row["beaten_by"]) for row in rows)
    print(
        f"{len(rows)} rows: largest gap {gaps.max():.2%}, geometric mean {mean:.2%}, "
        f"{(gaps <= 0.05).mean():.0%} of rows within 5 %, later than another on {beaten}"
    )


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
