"""An audit in words: two sentences, a table, and what must be said about the logs."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from flowccl.jobs.audit import Audit
from flowccl.jobs.rows import AuditRow
from flowccl.units import format_bytes, format_us
from flowccl.wording import counted

_MOST_ROWS = 20
HEAD = (
    "collective",
    "size",
    "group",
    "calls",
    "share",
    "wait",
    "measured",
    "NCCL's model",
    "best plan",
    "bound",
    "m/b",
    "saves/step",
    "bottleneck",
)
"""The columns of the table; times in us."""


def describe(audit: Audit, most: int = _MOST_ROWS) -> str:
    """Return the sentences, the table with at most `most` rows, and the notes."""
    parts = [headline(audit), "", *_table(audit, most), ""]
    parts += notes(audit)
    return "\n".join(parts).rstrip()


def headline(audit: Audit) -> str:
    """Return the two sentences that come first."""
    measured = [row for row in audit.rows if row.measured_us is not None]
    if not measured:
        first = f"The logs have {counted(len(audit.matched), 'call')} and no times."
        return f"{first} NCCL's model, plans and lower bounds below are for a call of each kind."
    spent = audit.communication_us
    if audit.step_us and spent <= audit.step_us:
        first = f"Communication takes {100 * spent / audit.step_us:.0f} % of a step of {format_us(audit.step_us)}."
    elif audit.steps.count != 1:
        first = f"Communication takes {format_us(spent)} of a step."
    else:
        first = f"Communication takes {format_us(spent)} in these logs."
    found = [row for row in audit.rows if row.plan is not None and row.plan.us is not None]
    kinds = counted(len(audit.rows), "kind of calls", "kinds of calls")
    if not found:
        return f"{first} The hardware allows {format_us(audit.possible_us)} less."
    if not audit.worthwhile:
        none = f"no plan that was found gains {100 * audit.worth:g} % of its calls"
        return f"{first} The hardware allows {format_us(audit.possible_us)} less; {none}."
    plans = f"plans for {len(audit.worthwhile)} of {kinds} gain {format_us(audit.saved_us)} of it"
    return f"{first} The hardware allows {format_us(audit.possible_us)} less; {plans}."


def group_in_words(ranks: Sequence[int]) -> str:
    """Return ranks as ranges: "0-7", "0-24:8" for every eighth, "0,3,9"; of long lists the first ones.

    >>> group_in_words((0, 8, 16, 24)), group_in_words((0, 1, 2)), group_in_words((0, 3, 4))
    ('0-24:8', '0-2', '0,3-4')
    """
    ranks = list(ranks)
    if len(ranks) > 2:
        steps = {b - a for a, b in pairwise(ranks)}
        if len(steps) == 1 and (step := steps.pop()) > 0:
            return f"{ranks[0]}-{ranks[-1]}" + (f":{step}" if step > 1 else "")
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    texts = [str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts]
    return ",".join(texts) if len(texts) <= 6 else f"{','.join(texts[:4])},... ({len(ranks)})"


def size_in_words(row: AuditRow) -> str:
    """Return the size of a row, or the sizes of its class."""
    kind = row.kind
    if kind.least_bytes == kind.most_bytes:
        return format_bytes(kind.size_bytes)
    return f"{format_bytes(kind.least_bytes)}..{format_bytes(kind.most_bytes)}"


def cells(row: AuditRow) -> list[str]:
    """Return the cells of a row of the table."""
    plan = "" if row.plan is None else "-" if row.plan.us is None else _number(row.plan.us)
    mark = "*" if row.together is not None else ""
    return [
        row.kind.collective,
        size_in_words(row),
        group_in_words(row.kind.group),
        str(row.kind.count),
        "" if row.measured_us is None else f"{100 * row.share:.1f} %",
        "" if row.measured_us is None else _number(row.waiting_us),
        _number(row.measured_us),
        _number(row.library_us),
        plan,
        _number(row.bound_us) + mark,
        "" if row.ratio is None else f"{row.ratio:.2f}" if row.ratio < 100 else f"{row.ratio:.0f}",
        _number(row.saved_us),
        row.bottleneck,
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


def _table(audit: Audit, most: int) -> list[str]:
    rows = [cells(row) for row in audit.rows[:most]]
    widths = [max(len(line[at]) for line in [list(HEAD), *rows]) for at in range(len(HEAD))]
    left = (0, 1, 2, len(HEAD) - 1)
    lines = []
    for line in [list(HEAD), *rows]:
        padded = [text.ljust(widths[at]) if at in left else text.rjust(widths[at]) for at, text in enumerate(line)]
        lines.append("  ".join(padded).rstrip())
    if len(audit.rows) > most:
        lines.append(f"... and {len(audit.rows) - most} more rows; --rows {len(audit.rows)} shows all")
    return lines


def notes(audit: Audit) -> list[str]:
    """Return what must be said: steps, clocks, overlap, missing ranks, rows that do not fit the machine."""
    found, every = [f"steps        {audit.steps.how}"], audit.rows
    clocks = audit.matched.clocks
    if clocks.uncertainty_ns is not None:
        most = float(abs(clocks.offset_ns).max()) / 1000
        found.append(
            f"clocks       aligned by the ends of common calls: up to {format_us(most)} apart; "
            f"what remains is at most {format_us(clocks.uncertainty_ns / 1000)} in 95 % of the ends"
        )
    if audit.waiting_us > 0:
        found.append(
            f"waiting      a rank waits {format_us(audit.waiting_us)} of a step for others; not part of `measured`"
        )
    if audit.step_us and audit.communication_us > audit.step_us:
        found.append("steps        the calls take longer than a step: some are of another run, or have no rank")
    if audit.exposure.overlapping:
        found.append(
            f"overlap      {counted(audit.exposure.overlapping, 'call')} overlap others of the same rank: "
            "their times are not added"
        )
    partial = [row for row in every if row.measured_us is not None and row.kind.ranks_seen < len(row.kind.group)]
    if partial and any(audit.calls.rank >= 0):
        found.append(
            f"ranks        of {counted(len(partial), 'kind of calls', 'kinds of calls')} the logs lack ranks: "
            "`measured` may contain waiting"
        )
    if any(row.together is not None for row in every):
        found.append(
            "bound *      of calls of several groups that run at the same time and share the machine; "
            "a call alone could be faster"
        )
    reasons = {row.plan.reason for row in every if row.plan is not None and row.plan.us is None}
    found += [f"no plan      {reason}" for reason in sorted(reasons)[:3]]
    waiting = sum(row.plan is None and row.bound is not None for row in every)
    if waiting:
        less = " with less to gain" if any(row.plan is not None for row in every) else ""
        found.append(f"plans        not searched for {counted(waiting, 'row')}{less}; --searched N searches more")
    if audit.suspicion.suspects:
        found.append(f"slow link    {audit.suspicion.in_words()}")
    found += [f"below bound  {words}" for words in misfits(audit)]
    if audit.matched.unmatched:
        found.append(
            f"unmatched    {audit.matched.unmatched:,} rows: other ranks of their group have fewer calls of this kind"
        )
    return found + [f"note         {note}" for note in audit.notes]


def misfits(audit: Audit) -> list[str]:
    """Return sentences on rows that were faster than the machine allows: the file and the log do not fit."""
    worst: dict[str, tuple[float, AuditRow]] = {}
    for row in audit.rows:
        if row.below_bound and row.bound is not None and row.measured_us:
            factor = row.bound.us / row.measured_us
            if factor > worst.get(row.bound.bottleneck, (1.0, row))[0]:
                worst[row.bound.bottleneck] = factor, row
    return [
        f"{row.kind.collective} of {size_in_words(row)} took {format_us(row.measured_us or 0)}, the machine allows "
        f"{format_us(row.bound.us if row.bound else 0)}: the file does not fit the log; {name} must be at least "
        f"{factor:.2f} times faster"
        for name, (factor, row) in sorted(worst.items(), key=lambda item: -item[1][0])
    ]


def to_json(audit: Audit) -> dict[str, Any]:
    """Return one JSON object, for scripts."""
    return {
        "machine": audit.topology.name,
        "runtime": audit.runtime.name,
        "headline": headline(audit),
        "calls": len(audit.matched),
        "rows_read": len(audit.calls),
        "steps": audit.steps.count,
        "step_us": audit.step_us,
        "steps_how": audit.steps.how,
        "communication_us": audit.communication_us,
        "waiting_us": audit.waiting_us,
        "possible_us": audit.possible_us,
        "saved_us": audit.saved_us,
        "overlapping": audit.exposure.overlapping,
        "clock_uncertainty_us": _us(audit.matched.clocks.uncertainty_ns),
        "sources": [
            {"path": s.path, "format": s.format, "rows": s.rows, "skipped": s.skipped, "notes": list(s.notes)}
            for s in audit.calls.sources
        ],
        "rows": [row_to_json(row) for row in audit.rows],
        "slow_links": [asdict(suspect) for suspect in audit.suspicion.suspects],
        "slow_links_alike": audit.suspicion.alike,
        "below_bound": misfits(audit),
        "notes": notes(audit),
    }


def _us(ns: float | None) -> float | None:
    return None if ns is None else ns / 1000


def row_to_json(row: AuditRow) -> dict[str, Any]:
    """Return one row as a flat object."""
    kind = row.kind
    return {
        "collective": kind.collective,
        "size_bytes": kind.size_bytes,
        "least_bytes": kind.least_bytes,
        "most_bytes": kind.most_bytes,
        "group": list(kind.group),
        "root": kind.root if kind.root >= 0 else None,
        "calls": kind.count,
        "calls_per_step": row.calls_per_step,
        "share": row.share,
        "waiting_us": row.waiting_us,
        "measured_us": row.measured_us,
        "library_us": row.library_us,
        "plan_us": None if row.plan is None else row.plan.us,
        "plan_method": None if row.plan is None else row.plan.method or None,
        "plan_reason": None if row.plan is None else row.plan.reason or None,
        "bound_us": row.bound_us,
        "bound_alone_us": None if row.bound is None else row.bound.us,
        "groups_together": row.groups_together,
        "bound_together_us": None if row.together is None else row.together.us,
        "window_us": row.window_us or None,
        "measured_over_bound": row.ratio,
        "saved_us_per_step": row.saved_us,
        "possible_us_per_step": row.possible_us,
        "bottleneck": row.bottleneck,
        "witness": (row.together or row.bound).witness if row.bound is not None else None,
        "exposed": kind.exposed,
    }
