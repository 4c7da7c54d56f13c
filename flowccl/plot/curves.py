"""Plots over sizes or messages: one line per method, plan or bound; and bars of times."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flowccl.plot.picture import INK, SOFT, check_suffix, new_figure, save_figure


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a plot through points (x, y), with a style of matplotlib."""

    name: str
    points: Sequence[tuple[float, float]]
    style: str = "o-"
    width: float = 1.5


def plot_curves(
    title: str,
    curves: Sequence[Curve],
    path: str | Path,
    labels: tuple[str, str],
    ticks: Mapping[int, str],
    *,
    log_y: bool = True,
    edges: Sequence[int] = (),
) -> None:
    """Draw curves over a logarithmic x axis with these ticks; `labels` are those of the axes, `edges` thin lines."""
    check_suffix(path)
    figure = new_figure(9.0, 5.5)
    axes = figure.add_subplot()
    for curve in curves:
        axes.plot(*zip(*curve.points, strict=True), curve.style, label=curve.name, linewidth=curve.width, markersize=5)
    for edge in edges:
        axes.axvline(edge, color=SOFT, linewidth=0.6, alpha=0.6)
    axes.set_xscale("log")
    if log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xticks(list(ticks), list(ticks.values()), rotation=30)
    axes.minorticks_off()
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save_figure(figure, path)


def plot_beside_baselines(title: str, rows: Sequence[tuple[str, float]], path: str | Path) -> None:
    """Draw a horizontal bar for the time of each row; the row "lower bound" is also drawn as a vertical line."""
    check_suffix(path)
    figure = new_figure(8.0, 0.6 * len(rows) + 1.2)
    axes = figure.add_subplot()
    names, times = zip(*rows, strict=True)
    colours = [
        "#999999" if name == "lower bound" else "#2a7ab0" if name.startswith("this") else "#c9b27c" for name in names
    ]
    bars = axes.barh(names, times, color=colours)
    axes.bar_label(bars, labels=[f" {us:.4g} us" for us in times], color=INK)
    axes.axvline(dict(rows)["lower bound"], color=SOFT, linestyle="--", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.2 * max(times))
    axes.set_xlabel("predicted completion time [us]")
    axes.set_title(title)
    save_figure(figure, path)
