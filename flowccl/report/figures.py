"""The pictures of a report as Bokeh models: machine, timeline, bytes in flight.

`assets/report.js` fills the models and connects them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from flowccl.errors import InputError
from flowccl.plot.node_positions import link_lines, position_nodes
from flowccl.report.columns import Columns, ReportColumns
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology

MOST_LINES = 4_000
"""Links in the picture of the machine; more would be a grey area. The busiest are shown."""

IMAGE_ROWS, IMAGE_COLUMNS = 300, 1_200  # pixels of the timeline where bars are too many to draw one by one
_TOOLS = "pan,xwheel_zoom,box_zoom,reset"
_PIXELS_PER_LETTER = 7  # of the names of links


def bokeh_modules() -> Any:
    """Return the package bokeh; raise InputError if it is not installed."""
    try:
        import bokeh
        import bokeh.embed
        import bokeh.models
        import bokeh.plotting
    except ImportError:
        raise InputError("reports need Bokeh: pip install flowccl[report]") from None
    return bokeh


@dataclass(frozen=True)
class Figures:
    """The figures of one schedule, and the models that the script of the page needs, by name."""

    roots: dict[str, Any]
    models: dict[str, Any]


def make_figures(schedule: Schedule, columns: ReportColumns, use: Columns, time_range: Any) -> Figures:
    """Return the figures of one schedule; `time_range` is the time axis, which several schedules share."""
    machine, machine_models = _machine(schedule.topology, use)
    left = _label_width([schedule.topology.link_name(link) for link in columns.links.tolist()])
    timeline, timeline_models = _timeline(columns, time_range, left)
    flight = _in_flight(columns, time_range, left)
    source = bokeh_modules().models.ColumnDataSource
    data = {
        "hops": source(columns.hops),
        "transfers": source(columns.transfers),
        "arrivals": source(columns.arrivals),
    }
    roots = {"machine": machine, "timeline": timeline, "flight": flight}
    return Figures(roots, {**roots, **machine_models, **timeline_models, **data})


def _figure(label: str, **options: Any) -> Any:
    bokeh = bokeh_modules()
    common = {
        "toolbar_location": "right",
        "background_fill_alpha": 0,
        "border_fill_alpha": 0,
        "output_backend": "canvas",
    }
    figure = bokeh.plotting.figure(sizing_mode="stretch_width", min_border=8, **{**common, **options})
    figure.toolbar.logo = None
    figure.name = label
    return figure


def _label_width(names: list[str]) -> int:
    """The space left of both figures with a time axis, so that their axes are aligned."""
    return _PIXELS_PER_LETTER * max((len(name) for name in names), default=0) + 40


def _timeline(columns: ReportColumns, time_range: Any, left: int) -> tuple[Any, dict[str, Any]]:
    models = bokeh_modules().models
    rows = len(columns.links)
    figure = _figure(
        "timeline",
        tools=_TOOLS,
        active_scroll="xwheel_zoom",
        height=int(np.clip(16 * rows + 90, 260, 640)),
        x_range=time_range,
        y_range=models.Range1d(-rows + 0.5, 0.5),
        min_border_left=left,
        x_axis_label="time [us]",
        lod_threshold=None,
    )
    figure.yaxis.ticker = models.BasicTicker(min_interval=1, desired_num_ticks=28)
    figure.yaxis.minor_tick_line_color = None
    figure.ygrid.visible = False
    image = models.ColumnDataSource(
        {
            "image": [np.zeros((IMAGE_ROWS, IMAGE_COLUMNS), dtype=np.uint32)],
            "x": [0.0],
            "y": [0.0],
            "dw": [1.0],
            "dh": [1.0],
        }
    )
    figure.image_rgba("image", x="x", y="y", dw="dw", dh="dh", source=image)
    empty: Columns = {name: np.zeros(0) for name in ("left", "right", "bottom", "top")}
    bars = models.ColumnDataSource({**empty, "colour": np.zeros(0, dtype=np.str_)})
    sides = {name: name for name in ("left", "right", "bottom", "top")}
    bar = figure.quad(**sides, fill_color="colour", line_color="#ffffff", line_width=0.6, source=bars)
    path = models.ColumnDataSource(dict(empty))
    outline = figure.quad(**sides, fill_color=None, line_color="#000000", line_width=1.6, source=path)
    cursor = models.Span(location=0, dimension="height", line_width=1.2, line_dash="dashed")
    finish = models.Span(location=0, dimension="height", line_width=1.4)
    bound = models.Span(location=0, dimension="height", line_width=1.4, line_dash=[6, 3])
    for span in (cursor, finish, bound):
        figure.add_layout(span)
    found = {"image": image, "bars": bars, "bar": bar.glyph, "path": path, "outline": outline.glyph}
    return figure, {**found, "cursor": cursor, "finish": finish, "bound": bound}


def _machine(topology: Topology, use: Columns) -> tuple[Any, dict[str, Any]]:
    """The nodes and links, with the use of each link."""
    models = bokeh_modules().models
    plan = position_nodes(topology)
    corners = np.concatenate([plan.place, *plan.outlines.values()])
    low, high = corners.min(axis=0) - 0.8, corners.max(axis=0) + 0.8
    figure = _figure(
        "machine",
        tools="pan,wheel_zoom,reset",
        active_scroll=None,
        height=420,
        match_aspect=True,
        x_range=models.Range1d(*map(float, (low[0], high[0]))),
        y_range=models.Range1d(*map(float, (low[1], high[1]))),
    )
    figure.axis.visible = figure.grid.visible = False
    for name, outline in plan.outlines.items():
        figure.patch(*outline.T, fill_color="#8090a0", fill_alpha=0.12, line_color="#8090a0", line_alpha=0.5)
        (x, y), out = plan.labels[name]
        align = "center" if abs(out[0]) < 0.5 else "left" if out[0] > 0 else "right"
        base = "middle" if abs(out[1]) < 0.5 else "bottom" if out[1] > 0 else "top"
        figure.text([x], [y], [name], text_align=align, text_baseline=base, text_font_size="11px", name="label")
    chosen = np.argsort(-use["use"], kind="stable")[:MOST_LINES]
    links = models.ColumnDataSource(_lines(topology, plan.place, np.sort(chosen)))
    figure.segment("x0", "y0", "x1", "y1", line_color="colour", line_width="width", line_alpha="alpha", source=links)
    dots = models.ColumnDataSource({"x": np.zeros(0), "y": np.zeros(0), "colour": np.zeros(0, dtype=np.str_)})
    figure.scatter("x", "y", size=9, fill_color="colour", line_color="#ffffff", line_width=1, source=dots)
    nodes = models.ColumnDataSource(_nodes(topology, plan.place))
    figure.scatter("x", "y", size="size", marker="marker", fill_color="colour", line_color="line", source=nodes)
    ranks = {"text_align": "center", "text_baseline": "middle", "text_font_size": "10px", "text_color": "text"}
    figure.text("x", "y", text="label", source=nodes, **ranks)
    return figure, {"links": links, "dots": dots, "nodes": nodes}


def _lines(topology: Topology, place: Any, chosen: Any) -> Columns:
    ends = link_lines(topology, place, chosen).swapaxes(0, 1)
    fastest = float(topology.link_GBps.max(initial=1.0))
    return {
        "link": chosen.astype(np.int32),
        "x0": ends[0, :, 0],
        "y0": ends[0, :, 1],
        "x1": ends[1, :, 0],
        "y1": ends[1, :, 1],
        "width": 1.2 + 2.2 * np.sqrt(topology.link_GBps[chosen] / fastest),
        "colour": np.full(len(chosen), "#8090a0"),
        "alpha": np.ones(len(chosen)),
    }


def _nodes(topology: Topology, place: Any) -> Columns:
    kinds = [node.kind for node in topology.nodes]
    few = topology.num_gpus <= 128
    return {
        "x": place[:, 0],
        "y": place[:, 1],
        "size": np.array([{"gpu": 20.0 if few else 9.0, "switch": 13.0, "memory": 11.0}[kind] for kind in kinds]),
        "marker": np.array([{"gpu": "circle", "switch": "square", "memory": "diamond"}[kind] for kind in kinds]),
        "colour": np.array([{"gpu": "#2f4b7c", "switch": "#a85f14", "memory": "#2b7a56"}[kind] for kind in kinds]),
        "line": np.full(len(kinds), "#ffffff"),
        "text": np.full(len(kinds), "#ffffff"),
        "label": np.array([str(n) if few and kind == "gpu" else "" for n, kind in enumerate(kinds)]),
    }


def _in_flight(columns: ReportColumns, time_range: Any, left: int) -> Any:
    models = bokeh_modules().models
    flight = columns.in_flight
    figure = _figure(
        "flight",
        tools=_TOOLS,
        active_scroll=None,
        height=190,
        x_range=time_range,
        min_border_left=left,
        x_axis_label="time [us]",
        y_axis_label="MB in flight",
    )
    source = models.ColumnDataSource({"time": flight["time"], "MB": flight["bytes"] / 1e6})
    figure.varea("time", 0, "MB", fill_color="#4c78a8", fill_alpha=0.35, source=source)
    figure.line("time", "MB", line_color="#4c78a8", line_width=1.6, source=source)
    figure.y_range.start = 0
    return figure
