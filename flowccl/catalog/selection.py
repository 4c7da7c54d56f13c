"""Selection: the plan of a call, and why it was chosen."""

from bisect import bisect_right
from dataclasses import dataclass

from flowccl.catalog.model import ANY_TYPE, Call, Catalog, CatalogPlan, Rule
from flowccl.units import format_bytes


@dataclass(frozen=True, slots=True)
class Choice:
    """The plan of a call; None means the library's own algorithm. `reason` says why."""

    plan: CatalogPlan | None
    reason: str
    rule: Rule | None = None


class Selector:
    """Chooses plans of a catalog: one look-up in a table and one binary search per call."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self._table = {}
        for key, rows in catalog.by_key().items():
            chosen = [_of_rule(catalog, rule) for rule in rows]
            self._table[key] = ([rule.bytes.low for rule in rows], chosen)

    def select(self, call: Call) -> Choice:
        """Return the plan of a call, or the fallback with its reason."""
        fingerprint = self.catalog.machine.fingerprint
        if call.fingerprint is not None and call.fingerprint != fingerprint:
            return Choice(None, f"the catalog is for the machine {fingerprint}, this one is {call.fingerprint}")
        found = self._table.get((call.collective, call.ranks, call.inplace, call.dtype))
        if found is None:
            found = self._table.get((call.collective, call.ranks, call.inplace, ANY_TYPE))
        if found is None:
            return Choice(None, self._no_rule(call))
        lows, chosen = found
        at = bisect_right(lows, call.size_bytes) - 1
        if at < 0:
            return Choice(None, f"{call.size_bytes:,} B is below the smallest size of the catalog, {lows[0]:,} B")
        choice = chosen[at]
        rule, plan = choice.rule, choice.plan
        if rule is not None and call.size_bytes >= rule.bytes.high:
            return Choice(None, f"no rule of the catalog covers {call.size_bytes:,} B")
        if plan is not None and call.size_bytes % plan.alignment_bytes:
            return Choice(None, _unaligned(plan, call.size_bytes), rule)
        return choice

    def predicted_us(self, collective: str, size_bytes: int) -> dict[str, float]:
        """Return predicted times of what may serve a call: its rule's plan, those beside it, and the library.

        A plan's time is that at the nearest probed size at which it is the fastest one, in proportion for larger sizes.
        """
        points = [point for point in self.catalog.times if point.collective == collective]
        rules = [rule for rule in self.catalog.rules if rule.collective == collective]
        rules.sort(key=lambda rule: rule.bytes)
        at = max(bisect_right([rule.bytes.low for rule in rules], size_bytes) - 1, 0)
        names = [rules[at], *rules[at + 1 : at + 2], *rules[max(at - 1, 0) : at]]
        found: dict[str, float] = {}
        for name in dict.fromkeys(rule.plan for rule in names if rule.plan is not None):
            rows = [(p.size_bytes, p.program_us) for p in points if p.plan == name and p.program_us is not None]
            plan = self.catalog.plan(name)
            near, us = _nearest(rows or [(plan.size_bytes, plan.program_us)], size_bytes)
            found[name] = us * max(size_bytes / near, 1.0)
        own = [(p.size_bytes, p.library_us) for p in points if p.library_us is not None]
        near, us = _nearest(own or [(size_bytes, max(found.values(), default=1.0))], size_bytes)
        return found | {"library": us * max(size_bytes / near, 1.0)}

    def _no_rule(self, call: Call) -> str:
        catalog = self.catalog
        if call.collective not in catalog.collectives:
            return f"the catalog has no rule for {call.collective}; it has {', '.join(catalog.collectives)}"
        if call.ranks != catalog.machine.ranks:
            return f"the catalog is for {catalog.machine.ranks} ranks, the call has {call.ranks}"
        return f"the catalog is for calls {'out of place' if call.inplace else 'in place'}, this call is not"


def _nearest(rows: list[tuple[int, float]], size_bytes: int) -> tuple[int, float]:
    """The row whose size is nearest, as a ratio."""
    return min(rows, key=lambda row: (max(row[0] / size_bytes, size_bytes / row[0]), row[0]))


def _unaligned(plan: CatalogPlan, size_bytes: int) -> str:
    unit = plan.alignment_bytes
    following = -(-size_bytes // unit) * unit
    return f"{plan.name} serves multiples of {unit:,} B, not {size_bytes:,} B; the next served size is {following:,} B"


def _of_rule(catalog: Catalog, rule: Rule) -> Choice:
    plan = None if rule.plan is None else catalog.plan(rule.plan)
    sizes = f"{format_bytes(rule.bytes.low)} to {format_bytes(rule.bytes.high)}"
    return Choice(plan, f"{sizes}: {rule.reason}", rule)
