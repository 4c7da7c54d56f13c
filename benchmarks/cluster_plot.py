"""Draw the gaps of the benchmark `clusters` as a table of colours."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.clusters import COLLECTIVES, faulty, short
from benchmarks.report import is_later
from flowccl.plot.picture import INK, check_suffix, new_figure, save_figure
from flowccl.units import format_bytes

_MOST = 0.3  # gap of the darkest colour


def plot_gaps(rows: Sequence[dict[str, Any]], path: str) -> None:
    """One cell per row of the benchmark: its gap in %; a frame where a baseline is earlier."""
    check_suffix(path)
    downs = list(dict.fromkeys((row["machine"], row["fault"]) for row in rows))
    sizes = sorted({row["size_bytes"] for row in rows})
    names = [name for name in COLLECTIVES if any(row["collective"] == name for row in rows)]
    across = [(name, size) for name in names for size in sizes]
    gap = np.full((len(downs), len(across)), np.nan)
    figure = new_figure(3.2 + 0.5 * len(across), 1.2 + 0.26 * len(downs))
    axes = figure.add_subplot()
    for row in rows:
        y, x = downs.index((row["machine"], row["fault"])), across.index((row["collective"], row["size_bytes"]))
        gap[y, x] = row.get("gap", np.inf)
        words = f"{100 * gap[y, x]:.1f}" if np.isfinite(gap[y, x]) else "x"
        colour = "white" if gap[y, x] > 0.6 * _MOST else INK
        weight = "bold" if is_later(row) else "normal"
        axes.text(x, y, words, ha="center", va="center", fontsize=6, color=colour, weight=weight)
    axes.imshow(np.minimum(gap, _MOST), cmap="YlOrRd", vmin=0, vmax=_MOST, aspect="auto")
    axes.set_xticks(range(len(across)), [format_bytes(size) for _, size in across], rotation=90, fontsize=6)
    labels = [f"{short(machine)}, {faulty(fault)}" for machine, fault in downs]
    axes.set_yticks(range(len(downs)), labels, fontsize=6, parse_math=False)
    for number, name in enumerate(names):
        axes.text((number + 0.5) * len(sizes) - 0.5, -0.9, name, ha="center", fontsize=7, color=INK)
        axes.axvline(number * len(sizes) - 0.5, color="white", linewidth=2)
    axes.set_title("Gap to the lower bound in %; bold: later than a baseline", fontsize=8, color=INK, pad=18)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    save_figure(figure, path)
