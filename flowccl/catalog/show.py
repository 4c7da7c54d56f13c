"""A catalog as text: one table per collective."""

from flowccl.catalog.model import Catalog, Rule, TimePoint
from flowccl.units import format_bytes, format_us
from flowccl.wording import counted, percent

_HEADER = f"{'sizes':>22} {'plan':<32} {'chunks':>6} {'multiple of':>11}  at size"


def describe_catalog(catalog: Catalog) -> str:
    """Return the tables of all collectives: ranges, plans, and predicted times."""
    machine = catalog.machine
    lines = [
        f"machine      {machine.name}, {counted(machine.ranks, 'GPU')}, fingerprint {machine.fingerprint}",
        f"runtime      {catalog.runtime}",
        f"plans        {len(catalog.plans)}",
        "otherwise    the library's own algorithm",
    ]
    for name in catalog.collectives:
        rules = sorted((rule for rule in catalog.rules if rule.collective == name), key=lambda rule: rule.bytes)
        lines += ["", name, _HEADER, *(_row(catalog, rule) for rule in rules)]
    return "\n".join(lines)


def _row(catalog: Catalog, rule: Rule) -> str:
    sizes = f"{format_bytes(rule.bytes.low)} to {format_bytes(rule.bytes.high)}"
    points = [p for p in catalog.times if p.collective == rule.collective and p.size_bytes in rule.bytes]
    words = _words(points[len(points) // 2]) if points else ""
    if rule.plan is None:
        return f"{sizes:>22} {'(library)':<32} {'':>6} {'':>11}  {words}"
    plan = catalog.plan(rule.plan)
    if plan.measured_us is not None:
        late = percent(plan.measured_us / max(plan.program_us, 1e-9) - 1)
        words += f"; measured {format_us(plan.measured_us)} at {format_bytes(plan.size_bytes)} ({late} above predicted)"
    return f"{sizes:>22} {plan.name:<32} {plan.chunks:>6} {plan.alignment_bytes:>9} B  {words}"


def _words(point: TimePoint) -> str:
    """The predicted times at one size."""
    parts = [f"{format_bytes(point.size_bytes)}:"]
    if point.program_us is not None:
        parts.append(format_us(point.program_us))
        if point.lower_bound_us:
            parts.append(f"({percent(point.program_us / point.lower_bound_us - 1)} above the bound)")
    if point.library_us is not None:
        parts.append(f"library {format_us(point.library_us)}")
    return " ".join(parts)
