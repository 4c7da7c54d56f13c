"""Common parts of the benchmarks: the mean of gaps, and files with rows, versions, hardware and options."""

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def geometric_mean_gap(gaps: ArrayLike) -> float:
    """Geometric mean of the ratios finish / lower bound, minus 1."""
    return float(np.exp(np.log1p(np.asarray(gaps)).mean()) - 1)


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
