"""The report of an audit: a table with filters, times over size, and the timeline of a step, in one page."""

import json
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from flowccl.jobs.audit import Audit
from flowccl.jobs.rows import AuditRow
from flowccl.jobs.words import group_in_words, headline, notes, size_in_words
from flowccl.units import format_us
from flowccl.version import VERSION

_MOST_CALLS = 20_000  # calls of the timeline
_EARLY = 0.01  # of a step: the timeline begins so much before it, because not all steps are equally long
_PAGE = """<!DOCTYPE html>
<html lang="en"><head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
<script type="application/json" id="facts">{facts}</script>
</head><body><main>
<header><h1>{machine}</h1><span class="soft">{about}</span>
<span class="right"><button id="theme" type="button">Light or dark</button></span></header>
<p><strong>{headline}</strong></p>
<h2>Kinds of calls</h2>
<div class="controls">
<label for="filter">filter</label><input id="filter" type="search" placeholder="allreduce, 0-7, NIC ...">
<label for="collective">collective</label><select id="collective"><option value="">all</option></select>
<label for="least">measured / bound at least</label><input id="least" type="number" min="0" step="0.1" value="0">
<span id="shown" class="soft" aria-live="polite"></span></div>
<div class="scroll"><table id="rows"><thead><tr></tr></thead><tbody></tbody></table></div>
<button id="more" type="button" hidden>Show more rows</button>
<h3>Explanation</h3>
<div class="story" id="story" aria-live="polite">Click a row, a dot or a call to see its explanation.</div>
<h2>Times over size</h2>
<div class="controls"><label for="shownkind">dots</label><select id="shownkind"></select></div>
<div class="legend" id="legend"></div>
<canvas id="sizes" class="picture" role="img" aria-label="Times over size; the table has the same data"></canvas>
<h2>Timeline of a step</h2>
<p class="soft">{timeline}</p>
<canvas id="timeline" class="picture" role="img" aria-label="Calls of a step by rank"></canvas>
<h2>Notes</h2>
<pre>{notes}</pre>
<p class="soft">Made with flowccl {version}.</p>
</main><script>{script}</script></body></html>
"""


def audit_html(audit: Audit) -> str:
    """Return the report of an audit as HTML; it works offline."""
    assets = resources.files("flowccl.report") / "assets"
    timeline, words = _timeline(audit)
    facts = {"rows": [_row(audit, row) for row in audit.rows], "timeline": timeline}
    about = f"{len(audit.matched):,} calls, {audit.ranks} ranks, runtime {audit.runtime.name}"
    return _PAGE.format(
        title=escape(f"flowccl: audit on {audit.topology.name}"),
        style=(assets / "report.css").read_text(encoding="utf-8"),
        facts=json.dumps(facts, separators=(",", ":"), allow_nan=False).replace("</", "<\\/"),
        machine=escape(audit.topology.name),
        about=escape(about),
        headline=escape(headline(audit)),
        timeline=escape(words),
        notes=escape("\n".join(notes(audit))),
        version=VERSION,
        script=(assets / "audit.js").read_text(encoding="utf-8"),
    )


def _row(audit: Audit, row: AuditRow) -> dict[str, Any]:
    """A row for the script: numbers rounded to what the page shows."""
    numbers = {
        "measured": row.measured_us,
        "wait": row.waiting_us if row.measured_us is not None else None,
        "library": row.library_us,
        "plan": None if row.plan is None else row.plan.us,
        "bound": row.bound_us,
        "ratio": row.ratio,
        "saved": row.saved_us,
    }
    rounded = {key: None if value is None else float(f"{value:.5g}") for key, value in numbers.items()}
    return rounded | {
        "collective": row.kind.collective,
        "bytes": row.kind.size_bytes,
        "size": size_in_words(row),
        "group": group_in_words(row.kind.group),
        "calls": row.kind.count,
        "share": round(row.share, 5),
        "bottleneck": row.bottleneck,
        "story": _story(audit, row),
    }


def _story(audit: Audit, row: AuditRow) -> str:
    """The explanation of a row in sentences."""
    kind = row.kind
    found = [
        f"{kind.collective} of {size_in_words(row)} in the group {group_in_words(kind.group)}: {kind.count} calls, "
        f"{row.calls_per_step:.3g} per step."
    ]
    if row.measured_us is not None:
        found.append(
            f"Half of them took {format_us(row.measured_us)} or less from the arrival of the last rank; ranks waited "
            f"{format_us(row.waiting_us)} for it on average."
        )
    if row.bound is not None:
        found.append(f"No algorithm is faster than {format_us(row.bound.us)} here: {row.bound.witness}.")
    if row.together is not None:
        found.append(
            f"{row.groups_together} groups do this at the same time; together they need {format_us(row.together.us)} "
            f"({row.together.witness}) and took {format_us(row.window_us)}."
        )
    if row.library_us is not None:
        found.append(f"NCCL's own model predicts {format_us(row.library_us)}.")
    if row.plan is not None and row.plan.us is not None:
        saves = "" if row.saved_us is None else f" It saves {format_us(row.saved_us)} of a step."
        found.append(f"The best plan found ({row.plan.method}) takes {format_us(row.plan.us)}.{saves}")
    elif row.plan is not None:
        found.append(f"There is no plan: {row.plan.reason}.")
    if kind.exposed < 0.99:
        found.append(f"{100 * (1 - kind.exposed):.0f} % of its time overlaps other calls of the same rank.")
    return " ".join(found)


def _timeline(audit: Audit) -> tuple[list[list[float]], str]:
    """Calls of one step: start and duration in us, first and last rank, row; a step in the middle of the logs."""
    found = audit.matched
    with_time = np.flatnonzero(np.isfinite(found.start_ns) & np.isfinite(found.duration_ns))
    if not len(with_time):
        return [], "The logs have no starts, so there is no timeline."
    first, last = float(found.start_ns[with_time].min()), float(found.end_ns[with_time].max())
    step = audit.steps.step_ns or last - first
    begin = first + step * int(max((last - first) / step - 1, 0) // 2) - _EARLY * step
    row_of = np.full(len(found), -1, dtype=np.int64)
    for number, row in enumerate(audit.rows):
        row_of[row.kind.calls] = number
    inside = with_time[
        (found.start_ns[with_time] >= begin) & (found.start_ns[with_time] < begin + step) & (row_of[with_time] >= 0)
    ]
    words = (
        f"One step of {format_us(step / 1000)}; {len(inside):,} calls, each a bar for the ranks of its group. "
        "Colours: measured / bound, from green (1) to red (10 or more)."
    )
    if len(inside) > _MOST_CALLS:
        words += f" The first {_MOST_CALLS:,} are shown."
        inside = inside[:_MOST_CALLS]
    bars = []
    for at in inside.tolist():
        number = int(row_of[at])
        first_us = round((float(found.start_ns[at]) - begin) / 1000, 3)
        duration = round(float(found.duration_ns[at]) / 1000, 3)
        bars += [[first_us, duration, low, high, number] for low, high in _runs(audit.rows[number].kind.group)]
    return bars, words


def _runs(group: tuple[int, ...]) -> list[tuple[int, int]]:
    """The ranks of a group as runs of neighbours."""
    found: list[tuple[int, int]] = []
    for rank in sorted(group):
        if found and rank == found[-1][1] + 1:
            found[-1] = (found[-1][0], rank)
        else:
            found.append((rank, rank))
    return found
