"""Plot algbw over size: one line per method, and the limit from the lower bound."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from flowccl.plot.picture import INK, SOFT, check_suffix, new_figure, save_figure
from flowccl.units import format_bytes


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


def plot_comparison(
    title: str, sizes: Sequence[int], algbw_GBps: Mapping[str, Sequence[float | None]], path: str | Path
) -> None:
    """Draw algbw over size on logarithmic axes, one line per method; the entry "bound" is drawn as the limit."""
    check_suffix(path)
    figure = new_figure(8.5, 5.5)
    axes = figure.add_subplot()
    for number, (name, values) in enumerate(algbw_GBps.items()):
        points = [(size, value) for size, value in zip(sizes, values, strict=True) if value]
        if not points:
            continue
        style = {"bound": "k--", "auto": "o-"}.get(name, ("s:", "^:", "v:", "D:", "x:", "+:", "*:")[number % 7])
        width = 2.2 if name == "auto" else 1.2
        label = "limit from the lower bound" if name == "bound" else name
        axes.plot(*zip(*points, strict=True), style, label=label, linewidth=width, markersize=5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(list(sizes), [format_bytes(size) for size in sizes], rotation=30)
    axes.minorticks_off()
    axes.set_xlabel("size")
    axes.set_ylabel("algbw [GB/s]")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9)
    save_figure(figure, path)
