"""Draw a machine: GPUs, switches and memories, grouped by host, and the links between them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.plot.node_positions import NodePositions, position_nodes
from flowccl.plot.picture import INK, SOFT, check_suffix, missing_glyphs_ignored, new_figure, save_figure
from flowccl.topology.faults import Fault, apply_faults
from flowccl.topology.topology import Kind, Topology
from flowccl.units import format_GBps

_COLOURS = ("#9aa5b1", "#4c78a8", "#f58518", "#54a24b", "#b0407f", "#7a4fd0")
_KINDS: dict[Kind, tuple[str, str, str]] = {  # marker, colour, words
    "gpu": ("o", "#2f4b7c", "GPU"),
    "switch": ("s", "#d9822b", "switch"),
    "memory": ("D", "#3a9a6e", "memory"),
}
_FAULT_COLOUR = "#d62728"
_FAULTS: Any = (("lost link", ":", True), ("slow link", "-", False))  # words, line style, whether the link is lost
_MAX_ARROWS = 3000
_MAX_HOST_NAMES = 48  # more names would overlap


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
    _draw_hosts(axes, topology, plan, inches)
    lines = _lines(topology)
    classes = _classes(lines.GBps)
    colours = np.where(
        _slow_lines(whole, lines, faults), _FAULT_COLOUR, np.array(_COLOURS)[_class_of(lines.GBps, classes)]
    )
    _draw_links(axes, topology, plan.place, lines, classes, colours, inches)
    _draw_faults(axes, whole, plan.place, faults)
    _draw_nodes(axes, topology, plan.place, inches)
    axes.set_title(_title(topology), fontsize=10, color=INK, linespacing=1.4, pad=12, parse_math=False)
    _draw_key(axes, topology, lines, classes, inches, faults)
    save_figure(figure, path)


@dataclass(frozen=True)
class _Lines:
    """Lines between nodes: one line for both directions if their bandwidths are equal, otherwise one arrow each."""

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    GBps: NDArray[np.float64]
    both: NDArray[np.bool_]
    bent: NDArray[np.bool_]


def _lines(topology: Topology) -> _Lines:
    """Lines of a machine; the bandwidths of parallel links are added."""
    count = len(topology.nodes)
    src, dst = topology.link_src.astype(np.int64), topology.link_dst.astype(np.int64)
    key, inverse = np.unique(src * count + dst, return_inverse=True)
    GBps = np.bincount(inverse.reshape(-1), topology.link_GBps, len(key))
    a, b = key // count, key % count
    back = np.minimum(np.searchsorted(key, b * count + a), len(key) - 1)
    has_back = key[back] == b * count + a if len(key) else np.zeros(0, dtype=np.bool_)
    alike = has_back & np.isclose(GBps[back], GBps)
    keep = ~alike | (a < b)
    return _Lines(a[keep], b[keep], GBps[keep], alike[keep], (has_back & ~alike)[keep])


def _classes(GBps: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Bandwidth ranges, at most one per colour; most machines have only a few distinct values."""
    values = np.unique(np.round(GBps, 6))
    groups = np.array_split(values, min(len(values), len(_COLOURS))) if len(values) else []
    return [(float(group[0]), float(group[-1])) for group in groups]


def _class_of(GBps: NDArray[np.float64], classes: list[tuple[float, float]]) -> NDArray[np.int64]:
    return np.searchsorted(np.array([low for low, _ in classes]), np.round(GBps, 6), side="right").astype(np.int64) - 1


def _widths(classes: list[tuple[float, float]], inches: float) -> list[float]:
    """Line width of each class in points; dense pictures get thinner lines."""
    fastest = classes[-1][1] if classes else 1.0
    return [float((0.7 + 2.4 * np.sqrt(high / fastest)) * np.clip(inches / 0.5, 0.3, 1.0)) for _, high in classes]


def _draw_links(
    axes: Any,
    topology: Topology,
    place: NDArray[np.float64],
    lines: _Lines,
    classes: Any,
    colours: NDArray[np.str_],
    inches: float,
) -> None:
    from matplotlib.collections import PathCollection

    kind, widths = _class_of(lines.GBps, classes), np.array(_widths(classes, inches))
    crowd = len(lines.src)
    alpha = 0.85 if crowd <= 400 else 0.5 if crowd <= 2000 else 0.3
    paths = _paths(topology, place, lines)
    arrows = ~lines.both if np.sum(~lines.both) <= _MAX_ARROWS else np.zeros(crowd, dtype=np.bool_)
    plain = np.flatnonzero(~arrows)
    axes.add_collection(
        PathCollection(
            [paths[i] for i in plain],
            facecolors="none",
            edgecolors=colours[plain],
            linewidths=widths[kind[plain]],
            alpha=alpha,
            zorder=2,
        )
    )
    for i in np.flatnonzero(arrows).tolist():
        _draw_arrow(axes, paths[i], colours[i], float(widths[kind[i]]), alpha, inches)


def _draw_faults(axes: Any, whole: Topology, place: NDArray[np.float64], faults: Sequence[Fault]) -> None:
    """Draw lost links as dotted lines, crossed out; an arrow if only one direction is lost."""
    from matplotlib.patches import FancyArrowPatch

    lost = {(whole.links[k].src, whole.links[k].dst) for f in faults if f.bandwidth_GBps is None for k in f.links}
    for a, b in sorted(lost):
        if (b, a) in lost and b < a:
            continue
        head = "-" if (b, a) in lost else "-|>"
        style: dict[str, Any] = {"arrowstyle": head, "mutation_scale": 10, "linestyle": ":", "linewidth": 1.6}
        axes.add_patch(FancyArrowPatch(place[a], place[b], color=_FAULT_COLOUR, shrinkB=9, zorder=3, **style))
        axes.scatter(*((place[a] + place[b]) / 2), s=60, marker="x", color=_FAULT_COLOUR, zorder=3)


def _slow_lines(whole: Topology, lines: _Lines, faults: Sequence[Fault]) -> NDArray[np.bool_]:
    """Which lines stand for a slow link."""
    slow = {(whole.links[k].src, whole.links[k].dst) for f in faults if f.bandwidth_GBps is not None for k in f.links}
    return np.array([ends in slow for ends in zip(lines.src.tolist(), lines.dst.tolist(), strict=True)], dtype=np.bool_)


def _draw_arrow(axes: Any, path: Any, colour: str, width: float, alpha: float, inches: float) -> None:
    from matplotlib.patches import FancyArrowPatch

    head = max(3.0, 7 + 2 * width) * min(1.0, inches / 0.4)
    arrow = FancyArrowPatch(
        path=_shortened(path, 0.3),
        arrowstyle="-|>",
        mutation_scale=head,
        color=colour,
        linewidth=width,
        alpha=alpha,
        zorder=2,
    )
    axes.add_patch(arrow)


def _shortened(path: Any, trim: float) -> Any:
    """The path, shortened by `trim` at its end."""
    from matplotlib.path import Path as Curve

    points = path.vertices.copy()
    last = points[-1] - points[-2]
    points[-1] = points[-1] - trim * last / max(float(np.hypot(*last)), 1e-9)
    return Curve(points, path.codes)


def _paths(topology: Topology, place: NDArray[np.float64], lines: _Lines) -> list[Any]:
    """Straight paths, bent if another node blocks them or if each direction has its own arrow."""
    from matplotlib.path import Path as Curve

    start, end = place[lines.src], place[lines.dst]
    blocked = _blocked(topology, place, lines)
    paths = []
    for a, b, bent, aside in zip(start, end, lines.bent.tolist(), blocked.tolist(), strict=True):
        along = b - a
        length = max(float(np.hypot(*along)), 1e-9)
        unit = along / length
        normal = np.array([unit[1], -unit[0]])
        if aside:
            reach = 0.55 * normal
            paths.append(Curve([a, a + 0.5 * unit + reach, b - 0.5 * unit + reach, b], [1, 4, 4, 4]))
        elif bent:
            paths.append(Curve([a, (a + b) / 2 + 0.3 * normal, b], [1, 3, 3]))
        else:
            paths.append(Curve([a, b], [1, 2]))
    return paths


def _blocked(topology: Topology, place: NDArray[np.float64], lines: _Lines) -> NDArray[np.bool_]:
    """Which straight lines would cross a node that is not their endpoint; lines between hosts need less clearance."""
    result = np.zeros(len(lines.src), dtype=np.bool_)
    for i, (a, b) in enumerate(zip(lines.src.tolist(), lines.dst.tolist(), strict=True)):
        along = place[b] - place[a]
        length = max(float(np.hypot(*along)), 1e-9)
        to = place - place[a]
        where = to @ along / length
        off = np.abs(to[:, 0] * along[1] - to[:, 1] * along[0]) / length
        clearance = 0.2 if topology.nodes[a].host == topology.nodes[b].host else 0.06
        result[i] = bool(np.any((off < clearance) & (where > 0.3) & (where < length - 0.3)))
    return result


def _draw_hosts(axes: Any, topology: Topology, plan: NodePositions, inches: float) -> None:
    from matplotlib.patches import Polygon

    every = -(-len(plan.outlines) // _MAX_HOST_NAMES)
    for number, (name, outline) in enumerate(plan.outlines.items()):
        axes.add_patch(Polygon(outline, facecolor="#f2f3f5", edgecolor="#c9cdd2", linewidth=0.8, zorder=0))
        if number % every:
            continue
        (x, y), out = plan.labels[name]
        across = "center" if abs(out[0]) < 0.15 else "left" if out[0] > 0 else "right"
        upright = "center" if abs(out[1]) < 0.3 else "bottom" if out[1] > 0 else "top"
        ranks = [n for n in range(topology.num_gpus) if topology.nodes[n].host == name]
        in_a_row = len(ranks) > 1 and ranks[-1] - ranks[0] == len(ranks) - 1
        words = f"{name}: {ranks[0]}-{ranks[-1]}" if in_a_row and not _rank_font(topology, inches) else name
        font = 9 if inches > 0.3 else 7
        axes.text(x, y, words, fontsize=font, color=SOFT, ha=across, va=upright, zorder=5, parse_math=False)


def _rank_font(topology: Topology, inches: float) -> float:
    """Font size in points of the ranks inside the GPUs; 0 if they would be too small to read."""
    font = min(8.0, inches * 72 * (0.3 if topology.num_gpus <= 100 else 0.22))
    return font if font >= 3.5 else 0.0


def _draw_nodes(axes: Any, topology: Topology, place: NDArray[np.float64], inches: float) -> None:
    unit = inches * 72  # points
    font = _rank_font(topology, inches)
    for kind, (marker, colour, _) in _KINDS.items():
        which = [n for n, node in enumerate(topology.nodes) if node.kind == kind]
        size = {"gpu": 0.56, "switch": 0.48, "memory": 0.4}[kind] * unit
        rim = min(0.8, 0.05 * unit)
        style = {"marker": marker, "color": colour, "edgecolors": "white", "linewidths": rim}
        alone = [not topology.nodes[n].host for n in which]  # nodes outside hosts keep a minimum size
        axes.scatter(*place[which].T, s=np.where(alone, max(size, 5.0), size) ** 2, zorder=4, **style)
        if kind == "gpu" and font:
            for n in which:
                axes.text(*place[n], str(n), fontsize=font, color="white", ha="center", va="center", zorder=5)
    others = range(topology.num_gpus, len(topology.nodes))
    between = [n for n in others if not topology.nodes[n].host]
    for n in others if unit >= 18 else between if len(between) <= 20 else []:
        _draw_name(axes, topology, place, n, unit)


def _draw_name(axes: Any, topology: Topology, place: NDArray[np.float64], node: int, unit: float) -> None:
    """Draw the name of a switch or a memory on a side without lines."""
    from matplotlib.patheffects import withStroke

    linked = np.concatenate(
        (topology.link_dst[topology.link_src == node], topology.link_src[topology.link_dst == node])
    )
    to = place[linked] - place[node]
    angle = np.arctan2(to[:, 1], to[:, 0])
    sides = {-np.pi / 2: (0, -1), np.pi / 2: (0, 1), 0.0: (1, 0), np.pi: (-1, 0)}
    free = {side: float(np.abs(np.angle(np.exp(1j * (angle - side)))).min(initial=np.pi)) for side in sides}
    x, y = sides[next((side for side in sides if free[side] > 0.6), max(free, key=lambda side: free[side]))]
    font = min(7.0, max(5.0, 0.17 * unit))
    away = 0.26 * unit + 3.0
    axes.annotate(
        topology.nodes[node].name,
        place[node],
        (x * away, y * (away + font / 3)),
        textcoords="offset points",
        fontsize=font,
        color=INK,
        ha={0: "center", 1: "left", -1: "right"}[x],
        va="center",
        zorder=6,
        parse_math=False,
        path_effects=[withStroke(linewidth=2, foreground="white")],
    )


def _draw_key(
    axes: Any, topology: Topology, lines: _Lines, classes: Any, inches: float, faults: Sequence[Fault]
) -> None:
    from matplotlib.lines import Line2D

    present = {node.kind for node in topology.nodes}
    ranks = " (number: rank)" if _rank_font(topology, inches) else ""
    rows = [
        Line2D(
            [], [], linestyle="", marker=marker, markersize=8, color=colour, label=words.replace("GPU", f"GPU{ranks}")
        )
        for kind, (marker, colour, words) in _KINDS.items()
        if kind in present
    ]
    line_counts = np.bincount(_class_of(lines.GBps, classes), minlength=len(classes)).tolist() if classes else []
    widths = _widths(classes, max(inches, 0.35))
    for number, (low, high) in reversed(list(enumerate(classes))):
        words = format_GBps(high) if low == high else f"{low:.4g} to {format_GBps(high)}"
        words += f", {line_counts[number]} {'line' if line_counts[number] == 1 else 'lines'}"
        rows.append(Line2D([], [], color=_COLOURS[number], linewidth=widths[number], label=words))
    if len(lines.src):
        words = "line: both directions" + (", arrow: one direction" if np.any(~lines.both) else "")
        rows.append(Line2D([], [], linestyle="", label=words))
    for words, style, lost in _FAULTS:
        if any((fault.bandwidth_GBps is None) == lost for fault in faults):
            rows.append(Line2D([], [], color=_FAULT_COLOUR, linewidth=2, linestyle=style, label=words))
    with missing_glyphs_ignored():
        axes.figure.draw_without_rendering()  # computes the text positions
        right = axes.get_tightbbox().transformed(axes.transAxes.inverted()).x1
    beside = (max(1.0, right) + 0.01, 0.5)
    axes.legend(handles=rows, loc="center left", bbox_to_anchor=beside, fontsize=8, frameon=False, labelspacing=0.8)


def _title(topology: Topology) -> str:
    parts = [f"{topology.num_gpus} GPUs" + (f" in {len(topology.hosts)} hosts" if len(topology.hosts) > 1 else "")]
    for kind, plural in (("switch", "switches"), ("memory", "memories")):
        count = sum(node.kind == kind for node in topology.nodes)
        if count:
            parts.append(f"{count} {kind if count == 1 else plural}")
    parts.append(f"{len(topology.links)} links")
    if topology.limits:
        parts.append(f"{len(topology.limits)} shared {'limit' if len(topology.limits) == 1 else 'limits'} (not drawn)")
    return f"{topology.name}\n{', '.join(parts)}"
