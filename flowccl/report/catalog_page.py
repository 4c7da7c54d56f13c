"""The report of a catalog: time by size of each collective, with the ranges of its plans, the bound and the library."""

from collections.abc import Sequence
from html import escape
from typing import Any

from flowccl.catalog.model import Catalog, Rule, TimePoint
from flowccl.errors import InputError
from flowccl.report.figures import bokeh_modules
from flowccl.report.shell import page_html
from flowccl.report.tables import table
from flowccl.units import format_bytes, format_us
from flowccl.version import VERSION
from flowccl.wording import counted, percent

_MOST_TICKS = 16  # labels of sizes that fit below a figure
_LINES = (  # name, field of a point, colour, dashes
    ("plan of the catalog", "program_us", "#1f77b4", "solid"),
    ("the library's own algorithm, predicted", "library_us", "#d9822b", "dashed"),
    ("lower bound", "lower_bound_us", "#2e9b5f", "dotted"),
)


def catalog_html(catalog: Catalog) -> str:
    """Return the report of a catalog as HTML."""
    if not catalog.times:
        raise InputError("the catalog has no times, so there is nothing to show; build it again")
    bokeh = bokeh_modules()
    document, parts = bokeh.document.Document(), []
    for number, collective in enumerate(catalog.collectives):
        points = sorted((p for p in catalog.times if p.collective == collective), key=lambda p: p.size_bytes)
        rules = sorted((r for r in catalog.rules if r.collective == collective), key=lambda r: r.bytes)
        figure = _figure(points, rules)
        figure.name = f"sizes{number}"
        document.add_root(figure)
        script = bokeh.models.CustomJS(args={"figure": figure}, code="flowccl.plain(figure)")
        document.js_on_event("document_ready", script)
        served = _served(rules)
        parts.append(
            {
                "before": f"<h2>{escape(collective)}</h2>",
                "figures": [(figure.name, f"Time by size of {collective}; the table below has the same data")],
                "between": [""],
                "after": f"<p>{served}</p>" + _rules_table(catalog, rules) + _times_table(points),
            }
        )
    machine = catalog.machine
    top = (
        f"<header><h1>{escape(machine.name)}</h1>"
        f'<span class="soft">{counted(machine.ranks, "GPU")}, runtime {escape(catalog.runtime)}, '
        f"{counted(len(catalog.plans), 'plan')}, flowccl {VERSION}</span>"
        '<span class="right"><button id="theme" type="button">Light or dark</button></span></header>'
    )
    return page_html(document, f"flowccl: catalog of {machine.name}", top, parts, {"schedules": []})


def _figure(points: Sequence[TimePoint], rules: Sequence[Rule]) -> Any:
    bokeh = bokeh_modules()
    figure = bokeh.plotting.figure(
        sizing_mode="stretch_width",
        height=380,
        tools="pan,wheel_zoom,box_zoom,reset",
        x_axis_type="log",
        y_axis_type="log",
        x_axis_label="size",
        y_axis_label="time [us]",
        background_fill_alpha=0,
        border_fill_alpha=0,
    )
    figure.toolbar.logo = None
    sizes = [point.size_bytes for point in points]
    shown = sizes[:: max(1, -(-len(sizes) // _MOST_TICKS))]
    figure.xaxis.ticker = shown
    figure.xaxis.major_label_overrides = {size: format_bytes(size) for size in shown}
    for number, rule in enumerate(rules):
        low = max(rule.bytes.low, 1)
        colour = "#8090a0" if rule.plan is None else ("#1f77b4", "#7a5fd0")[number % 2]
        band = bokeh.models.BoxAnnotation(left=low, right=rule.bytes.high, fill_color=colour, fill_alpha=0.10)
        figure.add_layout(band)
    for label, key, colour, dash in _LINES:
        found = [(p.size_bytes, getattr(p, key)) for p in points if getattr(p, key)]
        if not found:
            continue
        size, time = zip(*found, strict=True)
        plan = [p.plan or "library" for p in points if getattr(p, key)]
        source = bokeh.models.ColumnDataSource({"size": list(size), "time": list(time), "plan": plan})
        figure.line("size", "time", source=source, color=colour, line_dash=dash, line_width=2, legend_label=label)
        dots = figure.scatter("size", "time", source=source, color=colour, size=6)
        tips = [("what", label), ("size", "@size{0,0} B"), ("time", "@time{0,0.00} us"), ("plan here", "@plan")]
        figure.add_tools(bokeh.models.HoverTool(renderers=[dots], tooltips=tips))
    figure.legend.location = "top_left"
    figure.legend.background_fill_alpha = 0
    figure.legend.border_line_alpha = 0
    return figure


def _served(rules: Sequence[Rule]) -> str:
    plans = len({rule.plan for rule in rules if rule.plan is not None})
    own = sum(rule.plan is None for rule in rules)
    text = f"Bands are the ranges of sizes: {counted(plans, 'plan')} in {counted(len(rules), 'range')}"
    if not own:
        return f"{text}."
    return f"{text}; {counted(own, 'grey band leaves', 'grey bands leave')} the call to the library."


def _rules_table(catalog: Catalog, rules: Sequence[Rule]) -> str:
    rows = []
    for rule in rules:
        plan = catalog.plan(rule.plan) if rule.plan is not None else None
        sizes = f"{format_bytes(rule.bytes.low)} to {format_bytes(rule.bytes.high)}"
        where = "in place" if rule.inplace else "out of place"
        name, chunks = (escape(plan.name), str(plan.chunks)) if plan else ("the library's own algorithm", "")
        measured = format_us(plan.measured_us) if plan and plan.measured_us is not None else ""
        rows.append((sizes, where, name, chunks, escape(rule.reason), measured))
    head = ("sizes", "call", "plan", "chunks", "reason", "measured")
    shown = 6 if any(row[5] for row in rows) else 5  # without the last column if nothing was measured
    return table("Which plan serves which size", head[:shown], [row[:shown] for row in rows], (3, 5))


def _times_table(points: Sequence[TimePoint]) -> str:
    rows = []
    for point in points:
        times = [point.program_us, point.library_us, point.lower_bound_us]
        known = point.program_us is not None and point.lower_bound_us
        gap = percent(point.program_us / point.lower_bound_us - 1) if known else ""  # type: ignore[operator]
        cells = ["" if us is None else format_us(us) for us in times]
        rows.append((format_bytes(point.size_bytes), escape(point.plan or "library"), *cells, gap))
    head = ("size", "plan", "time of the plan", "library", "lower bound", "above the bound")
    return f'<div class="scroll">{table("Predicted times", head, rows, (0, 2, 3, 4, 5))}</div>'
