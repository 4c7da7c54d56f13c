"""Draw the gaps of the benchmark `unseen`: the part of the rows that are within each gap, per collective."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowccl.plot.picture import INK, check_suffix, new_figure, save_figure

_LEAST = 1e-4  # gaps below are drawn here: the axis is logarithmic


def plot_unseen(rows: Sequence[dict[str, Any]], path: str) -> None:
    """One curve per collective: gaps in ascending order, against the part of the rows."""
    check_suffix(path)
    figure = new_figure(6.0, 3.6)
    axes = figure.add_subplot()
    good = [row for row in rows if "error" not in row]
    for name in dict.fromkeys(row["collective"] for row in good):
        gaps = np.sort([max(row["gap"], _LEAST) for row in good if row["collective"] == name])
        axes.step(100 * gaps, np.arange(1, len(gaps) + 1) / len(gaps), where="post", label=name)
    axes.set_xscale("log")
    axes.set_xlabel("gap to the lower bound in %", fontsize=8, color=INK)
    axes.set_ylabel("part of the rows", fontsize=8, color=INK)
    axes.legend(fontsize=7)
    save_figure(figure, path)
