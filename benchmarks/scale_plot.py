"""Draw the benchmark `scale`: seconds, memory and gap against GPUs, on logarithmic axes."""

from collections.abc import Sequence
from typing import Any

from flowccl.plot.picture import INK, check_suffix, new_figure, save_figure

_PANELS = (("seconds", "seconds", 1.0), ("memory_GB", "memory in GB", 1.0), ("gap", "gap in %", 100.0))


def plot_scale(rows: Sequence[dict[str, Any]], published: Sequence[dict[str, Any]], path: str) -> None:
    """One panel for each figure, one line for each kind and collective; published seconds are single marks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    check_suffix(path)
    figure = new_figure(9.0, 4.2)
    for number, (name, words, factor) in enumerate(_PANELS, 1):
        axes = figure.add_subplot(1, len(_PANELS), number)
        good = [row for row in rows if row.get(name)]
        for kind, collective in dict.fromkeys((row["kind"], row["collective"]) for row in good):
            own = sorted(
                (row["gpus"], factor * row[name])
                for row in good
                if (row["kind"], row["collective"]) == (kind, collective)
            )
            axes.plot(*zip(*own, strict=True), marker="o", markersize=3, linewidth=1, label=f"{collective}, {kind}")
        if name == "seconds":
            for author in dict.fromkeys(row["name"] for row in published):
                own = [(row["gpus"], row["seconds"]) for row in published if row["name"] == author]
                axes.plot(*zip(*own, strict=True), marker="x", markersize=5, linestyle="", label=f"{author}, published")
            figure.legend(fontsize=7, ncols=3, loc="lower center", frameon=False)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.tick_params(labelsize=7)
        axes.set_xlabel("GPUs", fontsize=8, color=INK)
        axes.set_ylabel(words, fontsize=8, color=INK)
    figure.subplots_adjust(left=0.07, right=0.98, top=0.96, bottom=0.29, wspace=0.28)
    save_figure(figure, path)
