"""Print stored results (files written with --json) as the Markdown tables of docs/benchmarks.md."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.clusters import faulty, short, summary
from benchmarks.report import best_baseline
from flowccl.units import format_bytes


def main(arguments: Sequence[str]) -> int:
    """Print one table per file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tables", description=__doc__)
    parser.add_argument("file", nargs="+", help="file that clusters, quality, speed or scale wrote with --json")
    for name in parser.parse_args(arguments).file:
        stored = json.loads(Path(name).read_text(encoding="utf-8"))
        print(_where(stored) + "\n")
        rows = stored["rows"]
        kinds = {"fault": _clusters, "auto_us": _quality, "reached_s": _speed}
        table = next((table for key, table in kinds.items() if key in rows[0]), _scale)
        print("\n".join(table(rows)) + "\n")
    return 0


def _where(stored: dict[str, Any]) -> str:
    where, options = stored["environment"], stored["options"]
    versions = ", ".join(f"{name} {where[name]}" for name in ("flowccl", "python", "numpy", "numba", "highspy"))
    given = ", ".join(
        f"{name.replace('_', '-')} {value}" for name, value in options.items() if value and name not in ("json", "plot")
    )
    return f"{where['cores']} cores, load {where['load'][0]}; {versions}; {given}."


def _quality(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| machine | collective | size | lower bound, us | auto, us | gap | best other, us | witness |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        others = {method: us for method, us in row["finish_us"].items() if method != "auto" and us is not None}
        best = min(others.items(), key=lambda item: item[1], default=None)
        cells = [row["machine"], row["collective"], format_bytes(row["size_bytes"]), f"{row['lower_bound_us']:.6g}"]
        cells += [f"{row['auto_us']:.6g}", f"{row['gap']:.2%}", f"{best[0]} {best[1]:.6g}" if best else ""]
        lines.append("| " + " | ".join([*cells, row["bound_witness"]]) + " |")
    return lines


def _clusters(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| machine | fault | collective | size | lower bound, us | auto, us | gap | method | chunks | messages per GPU "
        "| best baseline, us | MSCCL++, us |",
        "|---" * 12 + "|",
    ]
    for row in rows:
        cells = [short(row["machine"]), faulty(row["fault"]), row["collective"], format_bytes(row["size_bytes"])]
        if "error" in row:
            cells += ["", row["error"], *[""] * 6]
        else:
            name, us = best_baseline(row)
            program = "" if row["mscclpp_us"] is None else f"{row['mscclpp_us']:.6g}"
            cells += [f"{row['lower_bound_us']:.6g}", f"{row['finish_us']:.6g}", f"{row['gap']:.2%}", row["method"]]
            cells += [str(row["chunks"]), str(row["messages_per_gpu"]), f"{name} {us:.6g}", program]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, "", summary(rows) + "."]


def _speed(rows: list[dict[str, Any]]) -> list[str]:
    gaps = list(rows[0]["reached_s"])
    heads = " | ".join(f"within {float(gap):.0%}" for gap in gaps)
    lines = [
        f"| machine | collective | size | first, s | {heads} | end, s | gap | method |",
        "|---" * (7 + len(gaps)) + "|",
    ]
    for row in rows:
        reached = ["-" if row["reached_s"][gap] is None else f"{row['reached_s'][gap]:.2f}" for gap in gaps]
        cells = [row["machine"], row["collective"], format_bytes(row["size_bytes"]), f"{row['first_s']:.3f}", *reached]
        cells += [f"{row['synthesis_s']:.2f}", f"{row['gap']:.2%}", row["method"]]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _scale(rows: list[dict[str, Any]]) -> list[str]:
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for row in rows:
        cells = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return lines
