"""Another machine for the same job: what a fault, or faster links, would do to all of its calls."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flowccl.errors import InputError
from flowccl.jobs.audit import Audit
from flowccl.jobs.rows import AuditRow
from flowccl.jobs.words import group_in_words, size_in_words
from flowccl.topology.faults import links_named, with_faults
from flowccl.topology.topology import Topology
from flowccl.units import format_us, parse_GBps

_MOST_ROWS = 8


def changed(topology: Topology, rates: Sequence[str], without: Sequence[str]) -> Topology:
    """Return the machine with other bandwidths ("gpu3 <-> rail3=100Gb/s", slower or faster) and without some links."""
    links = list(topology.links)
    for text in rates:
        name, equals, rate = text.rpartition("=")
        if not equals:
            raise InputError(
                f"--what-if {text!r}: write the bandwidth behind the link, for example 'gpu0 -> gpu1=100Gb/s'"
            )
        GBps = parse_GBps(rate.strip(), f"--what-if {text!r}")
        for at in links_named(topology, name, "--what-if")[1]:
            links[at] = replace(links[at], bandwidth_GBps=GBps, changes=())
    words = f"{topology.name}, {', '.join(rates)}" if rates else topology.name
    return with_faults(replace(topology, name=words, links=tuple(links)), without=without)


@dataclass(frozen=True, slots=True)
class Totals:
    """Times of all calls of a step in us, on average over the ranks: of rows that both audits know."""

    library_us: float
    plan_us: float
    bound_us: float


@dataclass(frozen=True, eq=False)
class MachineComparison:
    """The same job on two machines."""

    before: Audit
    after: Audit

    def totals(self) -> tuple[Totals, Totals]:
        """The totals on both machines."""
        pairs = self._pairs()
        known = [
            [(a, b) for a, b in pairs if read(a) is not None and read(b) is not None]
            for read in (_library, _plan, _bound)
        ]
        totals = []
        for side in (0, 1):
            parts = [
                sum(
                    (read(pair[side]) or 0.0) * pair[side].calls_per_step * self.before.weight(pair[0]) for pair in rows
                )
                for read, rows in zip((_library, _plan, _bound), known, strict=True)
            ]
            totals.append(Totals(*parts))
        return totals[0], totals[1]

    def _pairs(self) -> list[tuple[AuditRow, AuditRow]]:
        other = {_key(row): row for row in self.after.rows}
        return [(row, other[_key(row)]) for row in self.before.rows if _key(row) in other]

    def describe(self) -> str:
        """Return the totals and the rows that change most, as text."""
        before, after = self.totals()
        lines = [f"what if      {self.after.topology.name}"]
        for name, a, b in (
            ("NCCL's model", before.library_us, after.library_us),
            ("best plans", before.plan_us, after.plan_us),
            ("lower bounds", before.bound_us, after.bound_us),
        ):
            if a or b:
                ratio = f" ({b / a:.2f} times)" if a else ""
                lines.append(f"{name:<13}{format_us(a)} of a step become {format_us(b)}{ratio}")
        changes = sorted(self._pairs(), key=lambda pair: -abs((_bound(pair[1]) or 0) - (_bound(pair[0]) or 0)))
        for one, two in changes[:_MOST_ROWS]:
            if (_bound(one) or 0.0) != (_bound(two) or 0.0):
                what = f"{one.kind.collective} of {size_in_words(one)} in {group_in_words(one.kind.group)}"
                lines.append(
                    f"  {what}: bound {format_us(_bound(one) or 0)} -> {format_us(_bound(two) or 0)}; {two.bottleneck}"
                )
        return "\n".join(lines)


def _key(row: AuditRow) -> tuple[object, ...]:
    return row.kind.collective, row.kind.size_bytes, row.kind.group, row.kind.root


def _library(row: AuditRow) -> float | None:
    return row.library_us


def _plan(row: AuditRow) -> float | None:
    return None if row.plan is None else row.plan.us


def _bound(row: AuditRow) -> float | None:
    return None if row.bound is None else row.bound.us
