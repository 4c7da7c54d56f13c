"""Draw a machine: GPUs, switches and memories, grouped by host, and the links between them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.plot.node_positions import NodePositions, link_lines, position_nodes
from flowccl.plot.picture import INK, SOFT, check_suffix, missing_glyphs_ignored, new_figure, save_figure
from flowccl.topology.faults import Fault, apply_faults
from flowccl.topology.topology import Topology
from flowccl.units import format_GBps
from flowccl.wording import counted

_COLOURS = ("#9aa5b1", "#4c78a8", "#f58518", "#54a24b", "#b0407f", "#7a4fd0")
_KINDS = {  # marker, colour, size in units, words
    "gpu": ("o", "#2f4b7c", 0.56, "GPU"),
    "switch": ("s", "#d9822b", 0.48, "switch"),
    "memory": ("D", "#3a9a6e", 0.4, "memory"),
}
_FAULT_COLOUR = "#d62728"
_MAX_HOST_NAMES = 48  # more names would overlap
_LEAST_FONT = 3.5  # points; smaller ranks cannot be read


def plot_topology(whole: Topology, path: str | Path, faults: Sequence[Fault] = ()) -> None:
    """Draw a machine into a PNG, SVG or PDF file; faster links have thicker lines, links with a fault red ones."""
    check_suffix(path)
    topology = apply_faults(whole, faults)
    plan = position_nodes(whole)
    corners = np.concatenate([plan.place, *plan.outlines.values(), *(label[:1] for label in plan.labels.values())])
    low, high = corners.min(axis=0) - 0.7, corners.max(axis=0) + 0.7
    width, height = (high - low).tolist()
    inches = min(0.62, 14 / width, 14 / height)  # per unit
    figure = new_figure(width * inches, height * inches)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    axes.axis("off")
    _draw_hosts(axes, plan, 9 if inches > 0.3 else 7)
    rows = _draw_links(axes, whole, topology, plan.place, faults)
    font = min(8.0, inches * 72 * (0.3 if topology.num_gpus <= 100 else 0.22))
    rows = [*_draw_nodes(axes, topology, plan.place, inches * 72, font), *rows]
    axes.set_title(_title(topology), fontsize=10, color=INK, linespacing=1.4, pad=12, parse_math=False)
    with missing_glyphs_ignored():
        axes.figure.draw_without_rendering()  # computes the text positions
        right = axes.get_tightbbox().transformed(axes.transAxes.inverted()).x1
    beside = (max(1.0, right) + 0.01, 0.5)
    axes.legend(handles=rows, loc="center left", bbox_to_anchor=beside, fontsize=8, frameon=False, labelspacing=0.8)
    save_figure(figure, path)


def _draw_links(
    axes: Any, whole: Topology, topology: Topology, place: NDArray[np.float64], faults: Sequence[Fault]
) -> list[Any]:
    """Draw the links by classes of bandwidth, one for each colour; return the rows of the key."""
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D

    values = np.unique(np.round(topology.link_GBps, 6))
    classes = np.array_split(values, min(len(values), len(_COLOURS))) if len(values) else []
    alpha = 0.85 if len(topology.links) <= 800 else 0.5 if len(topology.links) <= 4000 else 0.3
    rows = []
    for number, some in reversed(list(enumerate(classes))):
        links = np.flatnonzero(np.isin(np.round(topology.link_GBps, 6), some))
        wide = float(0.7 + 2.4 * np.sqrt(some[-1] / values[-1])) * (0.6 if len(topology.links) > 400 else 1.0)
        style: dict[str, Any] = {"color": _COLOURS[number], "linewidth": wide}
        axes.add_collection(LineCollection(list(link_lines(topology, place, links)), alpha=alpha, zorder=2, **style))
        words = format_GBps(some[-1]) if len(some) == 1 else f"{some[0]:.4g} to {format_GBps(some[-1])}"
        rows.append(Line2D([], [], label=f"{words}, {counted(len(links), 'link')}", **style))
    if len(topology.links):
        rows.append(Line2D([], [], linestyle="", label="one line for each direction"))
    for words, line, is_lost in (("lost link", ":", True), ("slow link", "-", False)):
        links = np.array([k for f in faults if (f.bandwidth_GBps is None) == is_lost for k in f.links], dtype=np.int64)
        if len(links):
            red: dict[str, Any] = {"color": _FAULT_COLOUR, "linewidth": 1.8, "linestyle": line}
            lines = link_lines(whole, place, links)
            axes.add_collection(LineCollection(list(lines), zorder=3, **red))
            axes.scatter(*(lines.mean(axis=1)).T, s=60 if is_lost else 0, marker="x", color=_FAULT_COLOUR, zorder=3)
            rows.append(Line2D([], [], label=words, **red))
    return rows


def _draw_hosts(axes: Any, plan: NodePositions, font: int) -> None:
    from matplotlib.patches import Polygon

    every = -(-len(plan.outlines) // _MAX_HOST_NAMES)
    for number, (name, outline) in enumerate(plan.outlines.items()):
        axes.add_patch(Polygon(outline, facecolor="#f2f3f5", edgecolor="#c9cdd2", linewidth=0.8, zorder=0))
        if number % every == 0:
            (x, y), out = plan.labels[name]
            across = "center" if abs(out[0]) < 0.15 else "left" if out[0] > 0 else "right"
            upright = "center" if abs(out[1]) < 0.3 else "bottom" if out[1] > 0 else "top"
            axes.text(x, y, name, fontsize=font, color=SOFT, ha=across, va=upright, zorder=5, parse_math=False)


def _draw_nodes(axes: Any, topology: Topology, place: NDArray[np.float64], unit: float, font: float) -> list[Any]:
    """Draw the nodes, with the ranks of GPUs and the names of the others; return the rows of the key."""
    from matplotlib.lines import Line2D
    from matplotlib.patheffects import withStroke

    rows = []
    for kind, (marker, colour, size, words) in _KINDS.items():
        which = [n for n, node in enumerate(topology.nodes) if node.kind == kind]
        if not which:
            continue
        style: dict[str, Any] = {"marker": marker, "color": colour}
        area, rim = max(size * unit, 3.0) ** 2, min(0.8, 0.05 * unit)
        axes.scatter(*place[which].T, s=area, edgecolors="white", linewidths=rim, zorder=4, **style)
        has_ranks = kind == "gpu" and font >= _LEAST_FONT
        for n in which if has_ranks else []:
            axes.text(*place[n], str(n), fontsize=font, color="white", ha="center", va="center", zorder=5)
        label = f"{words} (number: rank)" if has_ranks else words
        rows.append(Line2D([], [], linestyle="", markersize=8, label=label, **style))
    others = [n for n in range(topology.num_gpus, len(topology.nodes)) if unit >= 18 or not topology.nodes[n].host]
    for n in others if unit >= 18 or len(others) <= 20 else []:
        look: dict[str, Any] = {"fontsize": min(7.0, max(5.0, 0.17 * unit)), "ha": "center", "va": "top", "zorder": 6}
        look |= {"color": INK, "path_effects": [withStroke(linewidth=2, foreground="white")], "parse_math": False}
        axes.annotate(topology.nodes[n].name, place[n], (0, -0.26 * unit - 1), textcoords="offset points", **look)
    return rows


def _title(topology: Topology) -> str:
    parts = [
        counted(topology.num_gpus, "GPU") + (f" in {len(topology.hosts)} hosts" if len(topology.hosts) > 1 else "")
    ]
    for kind, plural in (("switch", "switches"), ("memory", "memories")):
        count = sum(node.kind == kind for node in topology.nodes)
        parts += [counted(count, kind, plural)] if count else []
    parts.append(counted(len(topology.links), "link"))
    if topology.limits:
        parts.append(f"{counted(len(topology.limits), 'shared limit')} (not drawn)")
    return f"{topology.name}\n{', '.join(parts)}"
