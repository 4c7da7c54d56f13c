"""Machines, schedules and results in notebooks: a small table and a small picture as HTML. Needs no extra.

The classes load this module by name in `_repr_html_`, because the layers below do not import the layers above.
"""

import base64
import colorsys
import struct
import zlib
from collections.abc import Iterable
from html import escape

import numpy as np
from numpy.typing import NDArray

from flowccl.plot.level_of_detail import row_image
from flowccl.plot.node_positions import position_nodes
from flowccl.plot.timeline import link_rows
from flowccl.result import Result, schedule_facts
from flowccl.schedule.metrics import measure
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology
from flowccl.units import PS_PER_US, format_GBps, format_us
from flowccl.wording import counted

_WIDTH, _ROW = 640, 6  # pixels of the timeline, and of one of its rows
_MOST_ROWS, _MOST_LINES = 40, 1_500
_KINDS = {"gpu": ("#3d6fb5", 0.26), "switch": ("#c9761f", 0.2), "memory": ("#2f9468", 0.18)}  # colour, radius


def topology_html(topology: Topology) -> str:
    """Return the counts of a machine and a picture of its nodes and links."""
    kinds = [node.kind for node in topology.nodes]
    rows = [("machine", topology.name), ("GPUs", str(topology.num_gpus))]
    rows += [(name, str(kinds.count(name))) for name in ("switch", "memory") if name in kinds]
    rows += [("hosts", str(len(topology.hosts) or "not given")), ("links", str(len(topology.links)))]
    if len(topology.links):
        low, high = float(topology.link_GBps.min()), float(topology.link_GBps.max())
        rows.append(("bandwidth", format_GBps(high) if low == high else f"{low:.4g} to {format_GBps(high)}"))
    return _beside(_table(rows), _machine_svg(topology))


def schedule_html(schedule: Schedule) -> str:
    """Return the facts of a schedule and a picture of its timeline."""
    return _beside(_table(schedule_facts(schedule, measure(schedule))), _timeline(schedule))


def result_html(result: Result) -> str:
    """Return the facts of a result, with lower bound and gap, and a picture of the timeline."""
    return _beside(_table(result.facts), _timeline(result.schedule))


def _table(rows: Iterable[tuple[str, str]]) -> str:
    cells = "".join(f'<tr><th style="text-align:left">{escape(a)}</th><td>{escape(b)}</td></tr>' for a, b in rows)
    return f"<table>{cells}</table>"


def _beside(table: str, picture: str) -> str:
    style = "display:flex;gap:24px;flex-wrap:wrap;align-items:flex-start"
    return f'<div style="{style}"><div style="max-width:420px">{table}</div><div>{picture}</div></div>'


def _machine_svg(topology: Topology) -> str:
    place = position_nodes(topology).place * (1, -1)
    low, high = place.min(axis=0) - 0.6, place.max(axis=0) + 0.6
    width, height = (high - low).tolist()
    scale = min(420 / width, 320 / height)
    pairs = sorted({(min(k.src, k.dst), max(k.src, k.dst)) for k in topology.links})
    lines = [
        f'<line x1="{place[a, 0]:.2f}" y1="{place[a, 1]:.2f}" x2="{place[b, 0]:.2f}" y2="{place[b, 1]:.2f}"/>'
        for a, b in pairs[:_MOST_LINES]
    ]
    nodes = []
    for n, node in enumerate(topology.nodes):
        colour, radius = _KINDS[node.kind]
        title = f"<title>{escape(node.name)}</title>"
        at = f'cx="{place[n, 0]:.2f}" cy="{place[n, 1]:.2f}"'
        nodes.append(f'<circle {at} r="{radius}" fill="{colour}">{title}</circle>')
    more = f"<br>{_MOST_LINES} of {len(pairs)} connections are shown" if len(pairs) > _MOST_LINES else ""
    return (
        f'<svg role="img" aria-label="{escape(topology.name)}" '
        f'width="{width * scale:.0f}" height="{height * scale:.0f}" '
        f'viewBox="{low[0]:.2f} {low[1]:.2f} {width:.2f} {height:.2f}">'
        f'<g stroke="#8a97a6" stroke-width="0.05">{"".join(lines)}</g>{"".join(nodes)}</svg>{more}'
    )


def _timeline(schedule: Schedule) -> str:
    """Links over time, the busiest ones, coloured by the source of the chunk."""
    timing = schedule.timing
    if not len(schedule):
        return "no transfers"
    used, chosen = len(np.unique(timing.hop_link)), np.sort(link_rows(schedule, _MOST_ROWS))
    hops = np.flatnonzero(np.isin(timing.hop_link, chosen))
    demand = schedule.demand
    source = demand.source_rank[demand.source_ptr[schedule.chunk[timing.hop_transfer[hops]]]]
    colours = np.array([colorsys.hls_to_rgb(0.89 * n / demand.num_gpus, 0.5, 0.62) for n in range(demand.num_gpus)])
    finish = max(schedule.finish_us, 1e-6)
    begin, until = timing.hop_from_ps[hops] / PS_PER_US, timing.hop_to_ps[hops] / PS_PER_US
    row = np.searchsorted(chosen, timing.hop_link[hops])
    image = row_image(row, begin, until, colours[source], np.ones(len(hops)), len(chosen), (0.0, finish), _WIDTH)
    tall = np.repeat(image, _ROW, axis=0)
    tall[_ROW - 1 :: _ROW] = 0
    shown = f"{len(chosen)} of {used} used links" if len(chosen) < used else counted(used, "used link")
    words = f"{shown}, 0 to {format_us(finish)}; colour: source of the chunk"
    return f'<img alt="timeline of {shown}" src="{_png(tall)}"><br><small>{words}</small>'


def _png(image: NDArray[np.float64]) -> str:
    """An RGBA image as a data address."""
    pixels = np.round(255 * image).astype(np.uint8)
    height, width, _ = pixels.shape
    lines = np.concatenate((np.zeros((height, 1), dtype=np.uint8), pixels.reshape(height, -1)), axis=1)  # filter: none

    def part(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)  # 8 bits per channel, RGBA
    body = part(b"IHDR", head) + part(b"IDAT", zlib.compress(lines.tobytes(), 9)) + part(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()
