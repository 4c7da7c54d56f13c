"""Common parts of the benchmarks: the mean of gaps, and files with rows, versions, hardware and options."""

import argparse
import json
import math
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

LATER = 1.005  # finish / best baseline from which a row counts as later


def geometric_mean_gap(gaps: ArrayLike) -> float:
    """Geometric mean of the ratios finish / lower bound, minus 1."""
    return float(np.exp(np.log1p(np.asarray(gaps)).mean()) - 1)


def warmed_up() -> bool:
    """Load all compiled loops, so that no row waits for them."""
    from flowccl.compilation import warm_up
    from flowccl.methods.registry import methods_where

    warm_up(methods_where(lambda info: info.in_auto is not None))
    return True


def environment() -> dict[str, Any]:
    """Versions of the packages, and the hardware."""
    packages = ("numpy", "scipy", "highspy", "numba")
    return {
        "flowccl": version("flowccl"),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": [round(x, 2) for x in os.getloadavg()],
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def store(path: str | None, options: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Write the rows with the environment and the options to a JSON file; do nothing without a path."""
    if path is not None:
        value = {"environment": environment(), "options": options, "rows": rows}
        Path(path).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        print(f"stored in {path}")


def stored_rows(
    options: argparse.Namespace, same: Sequence[str], key: Sequence[str]
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows of an earlier run with the same options by key; rows with an error are run again."""
    if options.json is None or not Path(options.json).exists():
        return {}
    value = json.loads(Path(options.json).read_text(encoding="utf-8"))
    for name in same:
        if value["options"][name] != getattr(options, name):
            flag = f"--{name.replace('_', '-')} {value['options'][name]}"
            raise SystemExit(f"{options.json} has rows with {flag}; give the same, or another file")
    return {tuple(row[part] for part in key): row for row in value["rows"] if "error" not in row}


def replace_rows(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Replace the file of --json by one with these rows."""
    if options.json is not None:
        path = Path(options.json)
        new = path.with_name(path.name + ".new")
        value = {"environment": environment(), "options": vars(options), "rows": rows}
        new.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        new.replace(path)


def best_baseline(row: dict[str, Any]) -> tuple[str, float]:
    """The name and the completion time of the earliest baseline or textbook algorithm; infinity without one."""
    found = row.get("baselines_us", {})
    return min(found.items(), key=lambda item: (item[1], item[0]), default=("", math.inf))


def is_later(row: dict[str, Any]) -> bool:
    """Whether the schedule is later than the best baseline, or there is none."""
    return "error" in row or row["finish_us"] > LATER * best_baseline(row)[1]
