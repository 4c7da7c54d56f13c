"""Draw the timeline of a schedule: one row per link, one bar per message while it occupies the link."""

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.errors import InputError
from flowccl.plot.level_of_detail import COLUMNS, draw_image, row_image
from flowccl.plot.picture import INK, SOFT, check_suffix, new_figure, save_figure
from flowccl.schedule.schedule import Schedule
from flowccl.units import PS_PER_US, format_bytes, format_us

MAX_ROWS = 120
_ROW_INCHES = 0.155
_MANY_BARS = 20_000  # more bars become an image, and so do bars that are narrower than a pixel


def plot_timeline(
    schedule: Schedule, path: str | Path, *, lower_bound_us: float | None = None, max_rows: int = MAX_ROWS
) -> None:
    """Draw when each link is busy, coloured by the source of the chunk, into a PNG, SVG or PDF file.

    Chunks of one message are stacked in one bar. Unused links are omitted. If more than `max_rows` links are used, the
    busiest are drawn.
    """
    check_suffix(path)
    if len(schedule) == 0:
        raise InputError("the schedule has no transfers, so there is no timeline to draw")
    rows = link_rows(schedule, max_rows)
    height = max(1.2, _ROW_INCHES * len(rows))
    figure = new_figure(11.0, height + 1.6)
    left, bottom = 0.16, 0.75 / (height + 1.6)
    axes = figure.add_axes((left, bottom, 0.72, height / (height + 1.6)))
    colour, shown, what = _colours(schedule.demand)
    _draw_bars(axes, schedule, rows, colour)
    _draw_rows(axes, schedule, rows)
    _draw_ends(axes, schedule, lower_bound_us)
    _draw_title(axes, schedule, rows, lower_bound_us)
    _draw_key(figure, axes, shown, what, height)
    save_figure(figure, path)


def link_rows(schedule: Schedule, most: int | None = None) -> NDArray[np.int64]:
    """Return the used links, or the `most` busiest of them, by host, source node and destination node."""
    timing, topology = schedule.timing, schedule.topology
    links = np.unique(timing.hop_link)
    if most is not None:
        busy = np.bincount(timing.hop_link, timing.hop_to_ps - timing.hop_from_ps, len(topology.links))
        links = np.sort(links[np.argsort(-busy[links], kind="stable")[: max(1, most)]])
    host = {name: place for place, name in enumerate(topology.hosts)}
    place = np.array([host.get(node.host, len(host)) for node in topology.nodes])
    src, dst = topology.link_src[links], topology.link_dst[links]
    return links[np.lexsort((links, dst, src, place[src]))].astype(np.int64)


def _colours(demand: Demand) -> tuple[NDArray[np.int64], int, str]:
    """Colour index of each chunk, the number of colours, and their meaning.

    The colour is the source rank; if all chunks share it, the destination rank; otherwise the block or the chunk.
    """
    single_source = np.all(np.diff(demand.source_ptr) == 1)
    single_destination = np.all(np.diff(demand.destination_ptr) == 1)
    if single_source and len(np.unique(demand.source_rank)) > 1:
        return demand.source_rank.astype(np.int64), demand.num_gpus, "source rank of the chunk"
    if single_destination and len(np.unique(demand.destination_rank)) > 1:
        return demand.destination_rank.astype(np.int64), demand.num_gpus, "destination rank of the chunk"
    chunk = np.arange(len(demand), dtype=np.int64)
    blocks = -(-len(demand) // demand.pieces)
    if blocks > 1:
        return chunk // demand.pieces, blocks, "block of the buffer"
    return chunk, len(demand), "chunk"


def _palette(count: int) -> NDArray[np.float64]:
    """Return `count` colours; neighbouring colours are distinguishable."""
    from matplotlib import colormaps

    if count <= 10:
        return np.asarray(colormaps["tab10"](np.arange(count)))
    if count <= 20:
        order = [*range(0, 20, 2), *range(1, 20, 2)]
        return np.asarray(colormaps["tab20"](np.array(order[:count])))
    return np.asarray(colormaps["turbo"](np.linspace(0.03, 0.97, count)))


def _draw_bars(axes: Any, schedule: Schedule, rows: NDArray[np.int64], colour: NDArray[np.int64]) -> None:
    from matplotlib.collections import PolyCollection

    timing = schedule.timing
    row_of = np.full(len(schedule.topology.links), -1, dtype=np.int64)
    row_of[rows] = np.arange(len(rows))
    hops, transfer, place, together = _members(schedule, np.flatnonzero(row_of[timing.hop_link] >= 0))
    row = row_of[timing.hop_link[hops]]
    begin, until = timing.hop_from_ps[hops] / PS_PER_US, timing.hop_to_ps[hops] / PS_PER_US
    corners: Any = np.empty((len(hops), 4, 2))
    corners[:, 0, 0] = corners[:, 1, 0] = begin
    corners[:, 2, 0] = corners[:, 3, 0] = until
    corners[:, 0, 1] = corners[:, 3, 1] = row - 0.41 + 0.82 * place / together
    corners[:, 1, 1] = corners[:, 2, 1] = row - 0.41 + 0.82 * (place + 1) / together
    shade = colour[schedule.chunk[transfer]]
    crowded = np.bincount(row).max() > 150  # then white edges would hide the bars
    if len(hops) > _MANY_BARS or np.bincount(row).max() > COLUMNS:
        span = (min(0.0, float(begin.min())), float(until.max()))
        image = row_image(row, begin, until, _palette(int(colour.max()) + 1)[shade], 1 / together, len(rows), span)
        draw_image(axes, image, span)
        return
    bars = PolyCollection(
        corners,
        facecolors=_palette(int(colour.max()) + 1)[shade],
        edgecolors="none" if crowded else "white",
        linewidths=0 if crowded else 0.4,
        zorder=2,
    )
    axes.add_collection(bars, autolim=False)


def _members(schedule: Schedule, hops: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
    """Chunks of the messages on these hops: (hop, transfer, position in the message, chunks in the message)."""
    leader = schedule.leader
    size = np.bincount(leader, minlength=len(schedule))
    first = np.cumsum(size) - size
    owner = schedule.timing.hop_transfer[hops]  # the first transfer of each message
    hop = np.repeat(hops, size[owner])
    place = np.arange(len(hop)) - np.repeat(np.cumsum(size[owner]) - size[owner], size[owner])
    owner = schedule.timing.hop_transfer[hop]
    return hop, np.argsort(leader, kind="stable")[first[owner] + place], place, size[owner]


def _draw_rows(axes: Any, schedule: Schedule, rows: NDArray[np.int64]) -> None:
    """Draw the names of the links, a light band behind every second source node, and a line between hosts."""
    topology = schedule.topology
    names = [topology.link_name(link).replace("->", "→") for link in rows.tolist()]
    seen: dict[str, int] = {}
    for position, name in enumerate(names):  # parallel links have the same name
        seen[name] = seen.get(name, 0) + 1
        names[position] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    axes.set_yticks(range(len(names)), names, fontsize=6.5, parse_math=False)
    axes.set_ylim(len(names) - 0.5, -0.5)
    sources = topology.link_src[rows].tolist()
    first = 0
    for band, (node, group) in enumerate(groupby(sources)):
        after = first + len(list(group))
        if band % 2:
            axes.axhspan(first - 0.5, after - 0.5, color="#f1f1f1", zorder=0, linewidth=0)
        if first and topology.nodes[node].host != topology.nodes[sources[first - 1]].host:
            axes.axhline(first - 0.5, color=SOFT, linewidth=0.8, zorder=1)
        first = after
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _draw_ends(axes: Any, schedule: Schedule, lower_bound_us: float | None) -> None:
    """Draw the time axis, the finish and the lower bound."""
    finish = schedule.finish_us
    start = min(0.0, float(schedule.start_ps.min()) / PS_PER_US)
    axes.set_xlim(start, max(finish, lower_bound_us or 0.0, 1e-6) * 1.02)
    axes.set_xlabel("time [us]", fontsize=9, color=INK)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", color="#dddddd", linewidth=0.5, zorder=0.5)
    axes.set_axisbelow(True)
    axes.axvline(finish, color=INK, linewidth=1.3, zorder=3, label=f"finish {format_us(finish)}")
    if lower_bound_us is not None:
        label = f"lower bound {format_us(lower_bound_us)}"
        axes.axvline(lower_bound_us, color="#c0392b", linewidth=1.3, linestyle=(0, (4, 2)), zorder=3, label=label)
    corner = (axes.get_position().x1, 0.0)
    axes.figure.legend(loc="lower right", bbox_to_anchor=corner, fontsize=8, frameon=False, ncols=2, borderaxespad=0.2)


def _draw_title(axes: Any, schedule: Schedule, rows: NDArray[np.int64], lower_bound_us: float | None) -> None:
    demand, finish = schedule.demand, schedule.finish_us
    first = f"{schedule.topology.name}: {demand.collective}, {format_bytes(demand.size_bytes)}, {demand.num_gpus} GPUs"
    second = f"finish {format_us(finish)}"
    if lower_bound_us:
        gap = finish / lower_bound_us - 1
        second += f", lower bound {format_us(lower_bound_us)}, gap {gap:.2%}"
    if schedule.method:
        second += f", method {schedule.method}"
    used = len(np.unique(schedule.timing.hop_link))
    if used > len(rows):
        second += f"\nthe {len(rows)} busiest of {used} used links are shown"
    axes.set_title(f"{first}\n{second}", fontsize=10, loc="left", color=INK, linespacing=1.4, parse_math=False)


def _draw_key(figure: Any, axes: Any, count: int, what: str, height: float) -> None:
    """Draw the colour bar with its labels."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    if count == 1:
        return
    box = axes.get_position()
    tall = min(1.0, max(0.19 * min(count, 40), 1.2) / height)
    bar = figure.add_axes((box.x1 + 0.02, box.y1 - tall * box.height, 0.016, tall * box.height))
    norm = BoundaryNorm(np.arange(count + 1) - 0.5, count)
    step = -(-count // max(2, min(40, int(tall * height / 0.13))))
    if step > 1:
        what = f"{what}: {count} colours, labelled in steps of {step}"
    key = figure.colorbar(ScalarMappable(norm, ListedColormap(_palette(count))), cax=bar, ticks=range(0, count, step))
    key.ax.invert_yaxis()
    key.ax.tick_params(labelsize=7, length=0)
    key.ax.minorticks_off()
    key.outline.set_visible(False)
    key.set_label(what, fontsize=8, color=INK)
