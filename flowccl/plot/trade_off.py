"""Plot completion time over messages per GPU: what more chunks buy."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from flowccl.plot.picture import check_suffix, new_figure, save_figure


def plot_trade_off(
    title: str,
    messages: Sequence[int],
    times_us: Mapping[str, Sequence[float]],
    lower_bound_us: float,
    path: str | Path,
) -> None:
    """Draw one line of times per entry of `times_us` over the messages per GPU, and the lower bound."""
    check_suffix(path)
    figure = new_figure(8.5, 5.5)
    axes = figure.add_subplot()
    for (name, values), style in zip(times_us.items(), ("o-", "s--"), strict=False):
        axes.plot(messages, values, style, label=name, markersize=5)
    axes.axhline(lower_bound_us, color="black", linestyle=":", label="lower bound")
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(messages), [str(count) for count in messages])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("most messages that one GPU sends")
    axes.set_ylabel("completion time [us]")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=9)
    save_figure(figure, path)
