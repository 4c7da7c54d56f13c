"""What leaving a method out of auto costs, on a fixed sample of rows of four benchmarks and of allreduces.

Every row is synthesized once. Beside the answer, the best schedule of each method is kept, refined or not; without a
method, a row has the best schedule of the others. This ignores that other methods would have more time, and that some
continue from what others found; `--without` leaves methods out indeed, and `--against` compares with an earlier file.
"""

import argparse
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from benchmarks import clusters, quality, runtime, unseen, unseen_machines
from benchmarks.report import environment, geometric_mean_gap
from flowccl.auto.refine import SUFFIX
from flowccl.compilation import warm_up
from flowccl.errors import FlowcclError
from flowccl.methods.registry import REGISTRY, methods_where
from flowccl.result import Result
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine
from flowccl.topology.topology import Topology
from flowccl.units import parse_bytes

SEEDS = range(20)  # of `unseen`: seeds on which rules are developed
DIRECT = ["dgx1", "mi250:1", "torus:4x4", "torus:3x5", "mesh:4x4", "hypercube:4", "ring:8", "mi300x:1"]
DIRECT_SIZES = ["1KB", "64KB", "1MB", "64MB"]  # of allreduces over direct links, for which several methods exist


@dataclass(frozen=True, slots=True)
class Row:
    """One problem of one benchmark."""

    benchmark: str
    machine: str
    fault: str
    collective: str
    size: str

    @property
    def topology(self) -> Topology:
        """The machine."""
        if self.benchmark == "unseen":
            return unseen_machines.draw(int(self.machine)).topology
        if self.benchmark == "direct":
            return machine(self.machine)
        if self.benchmark == "papers":
            return quality.problem(self.machine)
        if self.benchmark == "runtime":
            return runtime.Row(self.machine, self.collective, self.size).topology
        return clusters.Row(self.machine, self.fault, self.collective, self.size).topology

    def __str__(self) -> str:
        return " ".join(filter(None, (self.benchmark, self.machine, self.fault, self.collective, self.size)))


def all_rows() -> list[Row]:
    """Every row of the benchmarks, unseen only on the seeds of development, and allreduces over direct links."""
    collectives = clusters.COLLECTIVES
    papers = [Row("papers", *row) for row in product(quality.PAPERS, [""], collectives, map(str, quality.TABLE8))]
    many = [Row("papers", *row) for row in product(quality.MANY, [""], collectives, map(str, quality.MANY_SIZES))]
    today = [Row("clusters", row.machine, row.fault, row.collective, row.size) for row in clusters.all_rows()]
    drawn = [Row("unseen", str(seed), "", *row) for seed, row in product(SEEDS, unseen.ROWS)]
    programs = [Row("runtime", row.machine, "", row.collective, row.size) for row in runtime.all_rows()]
    direct = [Row("direct", name, "", "allreduce", size) for name, size in product(DIRECT, DIRECT_SIZES)]
    return [*papers, *many, *today, *drawn, *programs, *direct]


def sample(count: int) -> list[Row]:
    """Rows of each benchmark, drawn once and for all."""
    rows, random = all_rows(), Random(43)
    chosen = []
    for name in dict.fromkeys(row.benchmark for row in rows):
        mine = [row for row in rows if row.benchmark == name]
        chosen += [mine[i] for i in sorted(random.sample(range(len(mine)), min(count, len(mine))))]
    return chosen


def main(arguments: Sequence[str]) -> int:
    """Run the rows that are missing and print the table; exit code 0."""
    options = _options(arguments)
    for name in filter(None, options.without.split(",")):
        REGISTRY[name] = replace(REGISTRY[name], in_auto=None)
    path = Path(options.json)
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else {}
    warm_up(methods_where(lambda info: info.in_auto is not None))
    for row in sample(options.rows):
        if options.only and row.benchmark not in options.only.split(","):
            continue
        if str(row) not in rows:
            clusters.forget()
            rows[str(row)] = measure(row, options)
            value = {"environment": environment(), "options": vars(options), "rows": rows}
            path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
            print(f"{row!s:<80} {rows[str(row)].get('method', 'failed')}", flush=True)
    print(table(rows))
    if options.against:
        print("\n" + comparison(json.loads(Path(options.against).read_text(encoding="utf-8"))["rows"], rows))
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks ablation", description=__doc__)
    parser.add_argument("--rows", type=int, default=60, help="rows of each benchmark (default: 60)")
    parser.add_argument("--only", help="only rows of these benchmarks, separated by commas")
    parser.add_argument("--time-limit", type=float, default=5.0, help="seconds for each row (default: 5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without", default="", help="methods to leave out of auto, separated by commas")
    parser.add_argument("--json", required=True, metavar="FILE", help="keep rows here, and run the missing ones")
    parser.add_argument("--against", metavar="FILE", help="compare with an earlier file")
    return parser.parse_args(arguments)


def measure(row: Row, options: argparse.Namespace) -> dict[str, Any]:
    """Synthesize a row; return its lower bound and the best completion time of every method."""
    try:
        result = synthesize(
            row.topology,
            row.collective,
            parse_bytes(row.size),
            time_limit_s=options.time_limit,
            seed=options.seed,
            gap=0.005,
            runtime="mscclpp" if row.benchmark == "runtime" else "ideal",
            sms=runtime.SMS if row.benchmark == "runtime" else None,
        )
    except FlowcclError as error:
        return {"error": str(error)}
    return {"method": _owner(result.schedule.method), "bound_us": result.bound.us, "best_us": _best(result)}


def _best(result: Result) -> dict[str, float]:
    best: dict[str, float] = {}
    for schedule in (result.schedule, *result.found):
        name = _owner(schedule.method)
        best[name] = min(best.get(name, math.inf), schedule.finish_us)
    return best


def _owner(method: str) -> str:
    """The method whose schedule was refined."""
    return method.removesuffix(SUFFIX)


def table(rows: dict[str, dict[str, Any]]) -> str:
    """For every method: rows on which it has the earliest schedule, and what leaving it out costs."""
    good = {name: row for name, row in rows.items() if "error" not in row}
    finish = {name: min(row["best_us"].values()) for name, row in good.items()}
    base = geometric_mean_gap([finish[name] / row["bound_us"] - 1 for name, row in good.items()])
    wins = Counter(min(row["best_us"], key=row["best_us"].__getitem__) for row in good.values())
    lines = [f"{len(good)} rows, geometric mean of the gaps {base:.2%}", ""]
    lines += [
        "| method | rows with a schedule | earliest | cost in points | largest loss | on |",
        "|---|---|---|---|---|---|",
    ]
    costs = []
    for method in sorted({method for row in good.values() for method in row["best_us"]}):
        without = {
            name: min((us for other, us in row["best_us"].items() if other != method), default=math.inf)
            for name, row in good.items()
        }
        alone = [name for name, us in without.items() if us == math.inf]
        gaps = [without[name] / row["bound_us"] - 1 for name, row in good.items() if name not in alone]
        kept = geometric_mean_gap([finish[name] / good[name]["bound_us"] - 1 for name in good if name not in alone])
        losses = {name: without[name] / finish[name] - 1 for name in good if name not in alone}
        worst = max(losses, key=losses.__getitem__)
        count = sum(method in row["best_us"] for row in good.values())
        costs.append((geometric_mean_gap(gaps) - kept, method, count, losses[worst], worst if losses[worst] else ""))
    for cost, method, count, loss, worst in sorted(costs, reverse=True):
        lines.append(f"| {method} | {count} | {wins[method]} | {100 * cost:.2f} | {loss:.1%} | {worst} |")
    return "\n".join(lines)


def comparison(before: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> str:
    """The geometric mean of the gaps before and now on the rows of both, and the rows that became later."""
    both = [name for name in before if name in now and "error" not in before[name] and "error" not in now[name]]
    bound = {name: max(before[name]["bound_us"], now[name]["bound_us"]) for name in both}
    times = [{name: min(rows[name]["best_us"].values()) for name in both} for rows in (before, now)]
    means = [geometric_mean_gap([us[name] / bound[name] - 1 for name in both]) for us in times]
    lines = [f"{len(both)} rows, geometric mean of the gaps before {means[0]:.2%}, now {means[1]:.2%}"]
    later = sorted(((times[1][name] / times[0][name] - 1, name) for name in both), reverse=True)
    return "\n".join([*lines, *(f"  {by:+.2%} {name}" for by, name in later if by > 0.005 or by < -0.005)])
