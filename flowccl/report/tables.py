"""The tables and facts of a report as HTML: the same as the pictures, for screen readers and for printing."""

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from flowccl.bounds.lower_bound import Bound
from flowccl.explain import Explanation
from flowccl.explain.words import gain_rows, last_arrival, path_in_parts, path_rows, slack_in_words
from flowccl.plot.timeline import link_rows
from flowccl.report.columns import completed
from flowccl.report.rows import link_times
from flowccl.report.runtimes import RuntimeRow
from flowccl.schedule.metrics import measure
from flowccl.schedule.schedule import Schedule
from flowccl.units import format_bytes, format_GBps, format_us, ps_to_us
from flowccl.wording import counted, percent

MOST_ROWS = 1_000  # of a table; the page says how many it leaves out


def table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = (), identity: str = ""
) -> str:
    """Return an HTML table; cells are HTML, `numbers` are the columns aligned to the right."""
    kind = ['class="n"' if column in numbers else "" for column in range(len(head))]
    lines = [f'<table id="{identity}">' if identity else "<table>", f"<caption>{caption}</caption>"]
    lines.append("<thead><tr>" + "".join(f'<th scope="col" {k}>{h}</th>' for k, h in zip(kind, head, strict=True)))
    lines.append("</tr></thead><tbody>")
    for row in rows:
        first, *rest = row
        opening = first if first.startswith("<tr") else "<tr>"
        cells = rest if first.startswith("<tr") else [first, *rest]
        lines.append(opening + "".join(f"<td {k}>{cell}</td>" for k, cell in zip(kind, cells, strict=True)) + "</tr>")
    return "\n".join([*lines, "</tbody></table>"])


def facts(explanation: Explanation, bound: Bound) -> str:
    """Return the facts in boxes: completion time, bound, gap, bandwidth, transfers."""
    schedule, metrics = explanation.schedule, measure(explanation.schedule)
    gap = schedule.finish_ps / max(bound.ps, 1) - 1
    demand = schedule.demand
    chunks = f"{_sizes(demand.chunk_bytes)} each" + (f", {demand.pieces} per block" if demand.pieces > 1 else "")
    boxes = [
        ("completion time", format_us(schedule.finish_us), f"{last_arrival(explanation)} then"),
        ("lower bound", format_us(bound.us), "no schedule on this machine is faster"),
        ("gap", percent(gap), "optimal: equal to the lower bound" if gap <= 0 else "above the lower bound"),
        ("algbw", format_GBps(metrics.algbw_GBps), f"busbw {format_GBps(metrics.busbw_GBps)}"),
        ("chunks", f"{len(demand):,}", chunks),
        ("transfers", f"{len(schedule):,}", f"at most {counted(metrics.messages_per_gpu, 'message')} per GPU"),
    ]
    cells = [
        f'<div class="fact">{escape(name)}<b>{value}</b><span>{escape(more)}</span></div>'
        for name, value, more in boxes
    ]
    why = f"<p>Why no schedule can be faster: {escape(bound.witness)}.</p>"
    return f'<div class="facts">{"".join(cells)}</div>{why}'


def _sizes(chunk_bytes: NDArray[np.int64]) -> str:
    """The size of chunks; sizes that differ by a byte or two are one size."""
    least, most = int(chunk_bytes.min()), int(chunk_bytes.max())
    return f"{format_bytes(least)} to {format_bytes(most)}" if most > 1.01 * least else format_bytes(least)


def critical_path_section(explanation: Explanation, most: int = 40) -> str:
    """Return the critical path in words, as `flowccl explain` prints it."""
    runs = path_rows(explanation)
    rows = [(start, escape(link), str(count), escape(why)) for start, link, count, why in runs[:most]]
    more = f"; {len(runs) - most} more rows: flowccl explain --json" if len(runs) > most else ""
    head = ("start", "link", "transfers", "why it starts then")
    text = (
        f"<p>The critical path is the chain of transfers that ends last. It has {escape(path_in_parts(explanation))}. "
        f"Slack: {escape(slack_in_words(explanation))}.</p>"
    )
    return text + table(f"Critical path{more}", head, rows, (0, 2))


def gains_section(explanation: Explanation) -> str:
    """Return what more bandwidth would save with the same transfers in the same order."""
    if explanation.gains is None:
        return "<p>Links change their bandwidth over time: what faster links would save is not computed.</p>"
    rows = [(escape(name), finish, escape(saved)) for name, finish, saved in gain_rows(explanation)]
    head = ("with 10 % more bandwidth", "completion time", "saves")
    return table("What more bandwidth would save, with the same transfers in the same order", head, rows, (1,))


def links_section(explanation: Explanation, number: int) -> str:
    """Return the table of links, the busiest first, with idle times and their reasons."""
    schedule = explanation.schedule
    times, use, topology = link_times(schedule), measure(schedule).link_use, schedule.topology
    used = link_rows(schedule)
    order = used[np.lexsort((used, -use[used]))]
    finish = max(schedule.finish_ps, 1)
    rows = []
    for link in order[:MOST_ROWS].tolist():
        bar = f'<span class="bar" style="width:{80 * min(1.0, float(use[link])):.0f}px"></span>'
        idle = (times.waits_data[link], times.waits_other[link], times.not_needed[link])
        rows.append(
            (
                f'<tr data-link="{link}" tabindex="0" aria-selected="false">',
                escape(topology.link_name(link)),
                format_GBps(float(topology.link_GBps[link])),
                str(times.transfers[link]),
                format_bytes(float(times.bytes[link])),
                f"{bar} {100 * use[link]:.1f} %",
                *(f"{100 * part / finish:.1f} %" for part in idle),
            )
        )
    head = (
        "link",
        "bandwidth",
        "transfers",
        "bytes",
        "use",
        "waits for data",
        "waits for others",
        "not needed any more",
    )
    unused = len(topology.links) - len(used)
    more = f" The {len(order) - MOST_ROWS} least used are left out." if len(order) > MOST_ROWS else ""
    unused_words = f" {counted(unused, 'link is', 'links are')} not used." if unused else ""
    caption = f"Use of links, and idle time by reason, as parts of the completion time.{unused_words}{more} "
    caption += '<span class="on-screen">A click, or Enter, shows a link alone in the timeline.</span>'
    return f'<div class="scroll">{table(caption, head, rows, range(1, 8), f"links-{number}")}</div>'


def gpus_section(explanation: Explanation) -> str:
    """Return when each GPU has all its data."""
    schedule = explanation.schedule
    gpu, time, size = completed(schedule)
    count = schedule.topology.num_gpus
    last = np.zeros(count, dtype=np.int64)
    np.maximum.at(last, gpu, time)
    total = np.bincount(gpu, size, count)
    order = np.argsort(-last, kind="stable")[:MOST_ROWS].tolist()
    rows = []
    for n in order:
        bar = f'<span class="bar" style="width:{80 * last[n] / max(schedule.finish_ps, 1):.0f}px"></span>'
        done = f"{bar} {format_us(ps_to_us(int(last[n])))}" if total[n] else "receives nothing"
        rows.append((escape(schedule.topology.nodes[n].name), format_bytes(float(total[n])), done))
    more = f"; the first {count - MOST_ROWS} to complete are left out" if count > MOST_ROWS else ""
    head = ("GPU", "receives", "has all its data at")
    return f'<div class="scroll">{table(f"Completion per GPU, the last first{more}", head, rows, (1, 2))}</div>'


def runtimes_in_words(rows: Sequence[RuntimeRow]) -> str:
    """Return which runtimes load the schedule, in a sentence."""
    if any(row.verdict == "not tried" for row in rows):
        return "<p>Which runtimes load it: not tried for this many transfers, see <i>Runtimes</i> below.</p>"
    loads = ", ".join(f"{escape(row.name)} (about {row.time} there)" for row in rows if row.verdict == "yes")
    return f"<p>Runtimes that load it: {loads or 'none, see <i>Runtimes</i> below for the reasons'}.</p>"


def runtimes_section(schedule: Schedule, rows: Sequence[RuntimeRow]) -> str:
    """Return which runtimes load the schedule, and what its program costs there."""
    cells = [tuple(escape(cell) for cell in (r.name, r.verdict, r.time, r.compared, r.note)) for r in rows]
    head = ("runtime", "loads it", "time there", "compared with the schedule", "note")
    own = schedule.runtime.name if schedule.runtime is not None else ""
    if own:
        why = f"The schedule was made for {own}: its times include what a message costs there."
    else:
        why = "The schedule's own time counts bytes and latencies; on a runtime, each message costs time too."
    text = f"<p>{escape(why)} The time of a program is an estimate with these costs.</p>"
    if any(row.verdict == "not tried" for row in rows):
        text += (
            f"<p>Lowering {len(schedule):,} transfers takes about {max(1, round(len(schedule) / 1000))} s and was left "
            "out: <code>flowccl report --runtimes</code> does it, and <code>flowccl export</code> writes the "
            "program for one runtime.</p>"
        )
    return text + table("The schedule as a program of a runtime", head, cells, (2,))


def comparison(names: Sequence[str], explanations: Sequence[Explanation], bounds: Sequence[Bound]) -> str:
    """Return the table that compares several schedules."""
    rows = []
    for number, (name, found, bound) in enumerate(zip(names, explanations, bounds, strict=True)):
        schedule, metrics = found.schedule, measure(found.schedule)
        parts = {part: f"{100 * ps / max(schedule.finish_ps, 1):.1f} %" for part, ps in found.parts_ps.items()}
        rows.append(
            (
                f'<a href="#schedule-{number}">{escape(name)}</a>',
                escape(f"{schedule.demand.collective}, {format_bytes(schedule.demand.size_bytes)}"),
                escape(schedule.method or "not given"),
                format_us(schedule.finish_us),
                percent(schedule.finish_ps / max(bound.ps, 1) - 1),
                format_GBps(metrics.algbw_GBps),
                f"{len(schedule):,}",
                parts["sending"],
                parts["latency"],
            )
        )
    head = ("schedule", "collective", "method", "completion time", "gap", "algbw", "transfers", "sending", "latency")
    caption = "All schedules; sending and latency are parts of the critical path. The timelines share one time axis."
    return table(caption, head, rows, range(3, 9))
