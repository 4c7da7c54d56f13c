"""Plot the times of a catalog over size: plans by range, the library, and the lower bound."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from flowccl.plot.picture import SOFT, check_suffix, new_figure, save_figure
from flowccl.units import format_bytes

Curve = tuple[Sequence[int], Sequence[float]]
"""Sizes in bytes, and microseconds at each of them."""


def plot_catalog(
    title: str, plans: Mapping[str, Curve], others: Mapping[str, Curve], edges: Sequence[int], path: str | Path
) -> None:
    """Draw time over size on logarithmic axes: a thick line per plan, the others dashed, a line at every edge."""
    check_suffix(path)
    figure = new_figure(9.0, 5.5)
    axes = figure.add_subplot()
    for name, curve in others.items():
        axes.plot(*curve, "--", label=name, linewidth=1.2, color="black" if name == "lower bound" else SOFT)
    for name, curve in plans.items():
        axes.plot(*curve, "o-", label=name, linewidth=2.2, markersize=4)
    for edge in edges:
        axes.axvline(edge, color=SOFT, linewidth=0.6, alpha=0.6)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = list(edges)
    axes.set_xticks(ticks, [format_bytes(size) for size in ticks], rotation=30)
    axes.minorticks_off()
    axes.set_xlabel("size")
    axes.set_ylabel("predicted time [us]")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save_figure(figure, path)
