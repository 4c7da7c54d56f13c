"""The page: sections of HTML, the figures, the data and the scripts in one file."""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from flowccl.bounds.lower_bound import Bound
from flowccl.errors import InputError
from flowccl.explain import Explanation, explain
from flowccl.files import write_bytes
from flowccl.report import tables
from flowccl.report.colourings import Colouring, colourings
from flowccl.report.columns import ReportColumns, report_columns
from flowccl.report.figures import IMAGE_COLUMNS, IMAGE_ROWS, MOST_LINES, bokeh_modules, make_figures
from flowccl.report.runtimes import RuntimeRow, quickly_lowered, runtime_rows
from flowccl.report.shell import page_html
from flowccl.schedule.metrics import measure
from flowccl.schedule.schedule import Schedule
from flowccl.units import format_bytes
from flowccl.verifier.bound import bound_of
from flowccl.version import VERSION
from flowccl.wording import counted

MOST_SCHEDULES = 8  # of one page


def save_report(
    schedules: Sequence[Schedule],
    path: str | Path,
    *,
    names: Sequence[str] | None = None,
    runtimes: bool = False,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Write a report of one schedule, or of several for the same machine, as one HTML file; see `report_html`."""
    write_bytes(path, report_html(schedules, names=names, runtimes=runtimes, progress=progress).encode())


def report_html(
    schedules: Sequence[Schedule],
    *,
    names: Sequence[str] | None = None,
    runtimes: bool = False,
    progress: Callable[[str], None] | None = None,
) -> str:
    """Return the report as HTML. `progress` is called with the name of each phase.

    Small schedules are lowered for every runtime; with `runtimes`, large ones too.
    """
    check_comparable(schedules)
    say = progress or (lambda _: None)
    names = list(names or [f"schedule {number + 1}" for number in range(len(schedules))])
    explained = []
    for name, schedule in zip(names, schedules, strict=True):
        say(f"explaining {name}")
        explained.append(explain(schedule))
    say("lower bound")
    bounds = _bounds(schedules)
    rows = _runtimes(names, schedules, runtimes, say)
    say("drawing")
    return _page(names, explained, bounds, rows)


def check_comparable(schedules: Sequence[Schedule]) -> None:
    """Raise InputError unless the schedules are for one machine and not too many."""
    if not schedules:
        raise InputError("a report needs at least one schedule")
    if len(schedules) > MOST_SCHEDULES:
        raise InputError(f"a report shows at most {MOST_SCHEDULES} schedules, got {len(schedules)}")
    first = schedules[0].topology
    for schedule in schedules[1:]:
        if schedule.topology.fingerprint != first.fingerprint:
            raise InputError(
                f"the schedules are for different machines, {first.name} and {schedule.topology.name}; "
                "a comparison needs one machine: make a report of each"
            )


def _bounds(schedules: Sequence[Schedule]) -> list[Bound]:
    """The lower bound of each schedule; those with the same task have the same, because chunks do not matter."""
    known: dict[tuple[Any, ...], Bound] = {}
    for number, schedule in enumerate(schedules):
        key = _task(schedule, number)
        known[key] = known.get(key) or bound_of(schedule)
    return [known[_task(schedule, number)] for number, schedule in enumerate(schedules)]


def _task(schedule: Schedule, number: int) -> tuple[Any, ...]:
    """A key that is equal for schedules of the same collective and size, for the same runtime."""
    demand = schedule.demand
    plain = demand.collective not in ("custom", "alltoallv") and demand.ready_ps is None and not demand.tenants
    runtime = None if schedule.runtime is None else schedule.runtime.name
    root = demand.source_rank[0].item()
    whole = (runtime, demand.collective, demand.size_bytes, demand.group, demand.relays, root)
    return whole if plain else (number,)


def _runtimes(
    names: Sequence[str], schedules: Sequence[Schedule], every: bool, say: Callable[[str], None]
) -> list[list[RuntimeRow]]:
    """The rows of the table of runtimes of each schedule."""
    rows = []
    for name, schedule, quick in zip(names, schedules, quickly_lowered(schedules), strict=True):
        if every or quick:
            say(f"lowering {name}")
        rows.append(runtime_rows(schedule, every or quick))
    return rows


def _page(
    names: Sequence[str],
    explained: Sequence[Explanation],
    bounds: Sequence[Bound],
    runtimes: Sequence[Sequence[RuntimeRow]],
) -> str:
    bokeh = bokeh_modules()
    last = max([found.schedule.finish_us for found in explained] + [bound.us for bound in bounds])
    end = max(last, 1e-6) * 1.02
    time_range = bokeh.models.Range1d(0.0, end, bounds=(-0.02 * end, 1.02 * end), min_interval=end * 1e-6)
    document, parts, facts = bokeh.document.Document(), [], []
    roots: list[Any] = []
    for number, (name, found, bound, rows) in enumerate(zip(names, explained, bounds, runtimes, strict=True)):
        columns = report_columns(found)
        figures = make_figures(found.schedule, columns, {"use": measure(found.schedule).link_use}, time_range)
        _connect(bokeh, document, number, figures.models)
        for root in figures.roots.values():
            root.name = f"{root.name}{number}"
        roots += figures.roots.values()
        heading = _heading(found.schedule, name if len(explained) > 1 else "")
        parts.append(_part(number, heading, found, bound, columns, rows))
        facts.append(_facts(found, bound, columns))
    with document.models.freeze():  # Bokeh collects the models once, not after every figure
        for root in roots:
            document.add_root(root)
    title = f"flowccl: {', '.join(names)}"
    return page_html(document, title, _top(names, explained, bounds), parts, {"schedules": facts})


def _connect(bokeh: Any, document: Any, number: int, models: dict[str, Any]) -> None:
    """Call the script of the page when the models are there, and when ranges or the pointer move."""
    script = bokeh.models.CustomJS
    names = ", ".join(models)
    document.js_on_event("document_ready", script(args=models, code=f"flowccl.start({number}, {{{names}}})"))
    ranged = script(code=f"flowccl.ranged({number})")
    for axis in (models["timeline"].x_range, models["timeline"].y_range):
        axis.js_on_change("start", ranged)
        axis.js_on_change("end", ranged)
    models["timeline"].js_on_event("mousemove", script(code=f"flowccl.views[{number}].hover(cb_obj.x, cb_obj.y)"))
    models["timeline"].js_on_event("tap", script(code=f"flowccl.views[{number}].tapTimeline(cb_obj.x, cb_obj.y)"))
    models["machine"].js_on_event("tap", script(code=f"flowccl.views[{number}].tapMachine(cb_obj.x, cb_obj.y)"))


def _facts(found: Explanation, bound: Bound, columns: ReportColumns) -> dict[str, Any]:
    """What the script needs to know beside the columns."""
    schedule, topology = found.schedule, found.schedule.topology
    wanted = set(schedule.demand.destination_rank.tolist())
    return {
        "finish_us": schedule.finish_us,
        "bound_us": bound.us,
        "gpus": topology.num_gpus,
        "chunks": len(schedule.demand),
        "nodes": [node.name for node in topology.nodes],
        "receives": [int(n in wanted) for n in range(topology.num_gpus)],
        "links": columns.links.tolist(),
        "link_names": [topology.link_name(link) for link in range(len(topology.links))],
        "link_ends": [[link.src, link.dst] for link in topology.links],
        "use": measure(schedule).link_use.round(4).tolist(),
        "transfer_columns": list(columns.transfers),
        "colourings": [choice.to_json() for choice in colourings(columns.transfers)],
        "image": [IMAGE_ROWS, IMAGE_COLUMNS],
    }


def _top(names: Sequence[str], explained: Sequence[Explanation], bounds: Sequence[Bound]) -> str:
    topology = explained[0].schedule.topology
    head = (
        f"<header><h1>{escape(topology.name)}</h1>"
        f'<span class="soft">{counted(topology.num_gpus, "GPU")}, {counted(len(topology.links), "link")}</span>'
        '<span class="right"><button id="theme" type="button">Light or dark</button></span></header>'
    )
    if len(explained) == 1:
        return head
    return f"{head}<h2>Comparison</h2>{tables.comparison(names, explained, bounds)}"


def _heading(schedule: Schedule, name: str) -> str:
    demand = schedule.demand
    what = f"{demand.collective}, {format_bytes(demand.size_bytes)}"
    by = f", method {schedule.method}" if schedule.method else ""
    return f"{name}: {what}{by}" if name else f"{what}{by}"


def _part(
    number: int,
    heading: str,
    found: Explanation,
    bound: Bound,
    columns: ReportColumns,
    runtimes: Sequence[RuntimeRow],
) -> dict[str, Any]:
    """The HTML around the figures of one schedule."""
    schedule = found.schedule
    return {
        "figures": [
            (f"machine{number}", f"The machine {schedule.topology.name}; the table of links has the same data"),
            (f"timeline{number}", f"Timeline of {len(columns.links)} links; the tables have the same data"),
            (f"flight{number}", "Bytes in flight over time"),
        ],
        "before": f'<h2 id="schedule-{number}">{escape(heading)}</h2>{tables.facts(found, bound)}'
        f"{tables.runtimes_in_words(runtimes)}"
        f"{_left_out(schedule, columns)}<h3>Machine</h3>{_use_legend()}",
        "between": [
            _time_controls(number) + "<h3>Timeline</h3>" + _timeline_controls(number, colourings(columns.transfers)),
            f'<div class="story" id="story-{number}" aria-live="polite">Point at the timeline to see a transfer, or '
            "why a link is idle. Drag to pan, use the wheel to zoom, click a row to show it alone.</div>",
            "",
        ],
        "after": "<h3>Why it ends then</h3>"
        + tables.critical_path_section(found)
        + tables.gains_section(found)
        + "<h3>Links</h3>"
        + tables.links_section(found, number)
        + "<h3>GPUs</h3>"
        + tables.gpus_section(found)
        + "<h3>Runtimes</h3>"
        + tables.runtimes_section(schedule, runtimes)
        + f'<p class="soft">Made with flowccl {VERSION}.</p>',
    }


def _left_out(schedule: Schedule, columns: ReportColumns) -> str:
    """What the pictures do not show."""
    notes = []
    if columns.left_out_hops:
        notes.append(
            f"The timeline leaves out {columns.left_out_hops:,} transfers on {columns.left_out_links:,} links, which "
            "are neither on the critical path nor among the busiest; the tables count them."
        )
    if columns.late_hops:
        notes.append(f"Of the links that it shows, the timeline leaves out the last {columns.late_hops:,} transfers.")
    if len(schedule.topology.links) > MOST_LINES:
        notes.append(f"The picture of the machine shows the {MOST_LINES:,} busiest of its links.")
    return "".join(f'<p class="soft">{note}</p>' for note in notes)


def _use_legend() -> str:
    steps = [(0.0, "unused"), (0.01, "little"), (0.5, "half"), (1.0, "all of the time")]
    marks = "".join(f'<span><i data-use="{use}"></i>{words}</span>' for use, words in steps)
    return (
        f'<div class="legend use"><span>links by use:</span>{marks}'
        "<span>GPUs turn from light blue to dark green as their data arrives</span>"
        '<span class="on-screen">click a link or a node to select it</span></div>'
    )


def _time_controls(number: int) -> str:
    return (
        f'<div class="controls"><button id="play-{number}" type="button">Play</button>'
        f'<label for="slider-{number}">time</label>'
        f'<input id="slider-{number}" type="range" min="0" max="1000" value="0">'
        f'<output id="moment-{number}" for="slider-{number}"></output></div>'
    )


def _timeline_controls(number: int, choices: Sequence[Colouring]) -> str:
    options = "".join(f'<option value="{choice.key}">{choice.key}</option>' for choice in choices)
    return (
        f'<div class="controls"><label for="colour-{number}">colour by</label>'
        f'<select id="colour-{number}">{options}</select>'
        f'<label><input id="critical-{number}" type="checkbox" checked> critical path outlined</label>'
        f'<button id="clear-{number}" type="button">Show all links</button>'
        f'<span id="selected-{number}" class="soft" aria-live="polite">shown: all links</span></div>'
        f'<div class="legend" id="legend-{number}"></div>'
        '<p class="soft">Solid line: completion time. Dashed green line: lower bound. Dashed blue line: the time of '
        "the slider.</p>"
    )
