"""Gaps of auto on the machines of the papers, compared with published results, and on many other machines."""

import argparse
import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import geometric_mean_gap, store, warmed_up
from flowccl.analysis.compare import Comparison, compare
from flowccl.auto.refine import SUFFIX
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
_PRINTED = 1.001  # tolerance for the few digits of published finishes
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
    """Print the table; exit code 1 if a finish is later than a published finish or than another method."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks quality", description=__doc__)
    parser.add_argument("--set", choices=("papers", "many", "all"), default="all")
    parser.add_argument("--machines", help="only these machines, separated by commas")
    parser.add_argument("--collectives", default="allgather,alltoall")
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--gap", type=float, default=0.005)
    parser.add_argument("--lean", type=float, default=0.005)
    parser.add_argument("--min-chunk", metavar="SIZE", help="least chunk, e.g. 1B (default: 4KB)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--beside", default="", help=f"also run these methods, e.g. {','.join(OTHERS)}")
    parser.add_argument("--stored", metavar="FILE", help="take the rows of auto from --json of an earlier run")
    parser.add_argument("--sizes", help="only these sizes, e.g. 64KB,1MB")
    parser.add_argument("--json", metavar="FILE", help="store all rows")
    options = parser.parse_args(arguments)
    chosen = {"papers": PAPERS, "many": MANY, "all": PAPERS + MANY}[options.set]
    names = options.machines.split(",") if options.machines else chosen
    stored = _stored(options.stored)
    methods = (*(() if stored else ("auto",)), *(name for name in options.beside.split(",") if name))
    heads = f"{'bound us':>11} {'auto us':>11} {'gap':>8} {'s':>6} {'chunks':>6} {'found by':<24} {'best other':<16}"
    print(f"{'machine':<16} {'collective':<10} {'size':>8} {heads} witness")
    rows: list[dict[str, Any]] = []
    warmed_up()
    for name in names:
        for collective in options.collectives.split(","):
            sizes = TABLE8 if name in PAPERS else MANY_SIZES
            if options.sizes:
                sizes = [parse_bytes(size) for size in options.sizes.split(",")]
            least = None if options.min_chunk is None else parse_bytes(options.min_chunk)
            limits: dict[str, Any] = {"time_limit_s": options.time_limit, "seed": options.seed}
            limits |= {"gap": options.gap, "lean": options.lean, "min_chunk_bytes": least}

            def add_row(row: Comparison, where: tuple[str, str] = (name, collective)) -> None:
                rows.append(_row(*where, row, stored.get((*where, row.size_bytes), {}), options.lean))
                _show(rows[-1])

            compare(problem(name), collective, sizes, methods, **limits, on_row=add_row)
    _summary(rows)
    store(options.json, vars(options), rows)
    return 1 if any(row["beaten_by"] for row in rows) else 0


def _stored(path: str | None) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Rows of an earlier run by machine, collective and size; empty without a file."""
    rows = json.loads(Path(path).read_text())["rows"] if path else []
    return {(row["machine"], row["collective"], row["size_bytes"]): row for row in rows}


def _row(name: str, collective: str, row: Comparison, stored: dict[str, Any], lean: float) -> dict[str, Any]:
    here = row.to_json()
    auto = stored.get("auto_us") or row.finish_us["auto"] or math.inf
    bound = max(row.lower_bound_us, stored.get("lower_bound_us", 0.0))
    others = {method: us for method, us in row.finish_us.items() if method != "auto" and us is not None}
    tolerance = {method: (1 + lean) * (1.0 if method in REGISTRY else _PRINTED) for method in others}
    beaten = [method for method, us in others.items() if auto > us * tolerance[method]]
    kept = {"machine": name, "collective": collective, "auto_us": auto, "gap": auto / bound - 1, "beaten_by": beaten}
    return {**here, **kept, "lower_bound_us": bound}


def _show(row: dict[str, Any]) -> None:
    others = {method: us for method, us in row["finish_us"].items() if method != "auto" and us is not None}
    best = min(others.items(), key=lambda item: item[1], default=None)
    beside = f"{best[0]} {best[1]:.6g}" if best else ""
    mark = f"  LATER THAN {', '.join(row['beaten_by'])}" if row["beaten_by"] else ""
    what = f"{row['machine']:<16} {row['collective']:<10} {format_bytes(row['size_bytes']):>8}"
    times = f"{row['lower_bound_us']:11.6g} {row['auto_us']:11.6g} {row['gap']:8.2%}"
    answer = row["answers"].get("auto")
    found = f"{answer['seconds']:6.2f} {answer['chunks']:6} {answer['method']:<24}" if answer else " " * 38
    print(f"{what} {times} {found} {beside:<16} {row['bound_witness'][:70]}{mark}", flush=True)


def _summary(rows: list[dict[str, Any]]) -> None:
    gaps = np.array([row["gap"] for row in rows])
    beaten = sum(bool(row["beaten_by"]) for row in rows)
    print(
        f"{len(rows)} rows: geometric mean of the gaps {geometric_mean_gap(gaps):.2%}, largest {gaps.max():.2%}, "
        f"at most 5 % on {(gaps <= 0.05).mean():.0%} of the rows; later than another method on {beaten}"
    )
    if answers := [row["answers"]["auto"] for row in rows if "auto" in row["answers"]]:
        seconds = np.array([answer["seconds"] for answer in answers])
        found = Counter(answer["method"].removesuffix(SUFFIX) for answer in answers)
        print(f"seconds: median {np.median(seconds):.2f}, most {seconds.max():.2f}")
        print("found by: " + ", ".join(f"{method} {count}" for method, count in found.most_common()))


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
