"""Several tenants in one schedule: the wire for `flowccl synth --tenants`.

Several schedules are made, and the one with the least weighted sum of finishes wins: all chunks at once, and each
tenant alone, put one after the other in several orders (Smith's rule: weight over time alone), where the later ones
fill what the earlier ones leave free. Alone means as if nobody else were there, and, for groups that can do without the
other GPUs, also among themselves: tenants on parts of their own then never meet.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from typing import Any

import numpy as np

from flowccl.bounds.lower_bound import lower_bound
from flowccl.demand.demand import Demand
from flowccl.demand.tenants import Tenant, together
from flowccl.errors import DemandError, InvalidScheduleError
from flowccl.result import Result
from flowccl.schedule.generation.serial import generate_serial, sequence
from flowccl.schedule.metrics import measure
from flowccl.schedule.schedule import Schedule, stacked_messages
from flowccl.schedule.transform import left_shift
from flowccl.synthesis import synthesize
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology
from flowccl.units import ps_to_us
from flowccl.verifier.verify import verify

_MOST_TO_FILL = 20_000  # transfers that are put into gaps one by one
_FEW = 3  # tenants for which every order is tried


@dataclass(frozen=True)
class TenantsResult:
    """The schedule of all tenants, and when each is over."""

    result: Result
    tenants: tuple[Tenant, ...]
    finish_us: Mapping[str, float]
    lower_bound_us: Mapping[str, float]
    weighted_bound_us: float = 0.0

    @property
    def weighted_sum_us(self) -> float:
        """Finish of each tenant times its weight, added up."""
        return sum(tenant.weight * self.finish_us[tenant.name] for tenant in self.tenants)

    def to_json(self) -> dict[str, Any]:
        """The result with one entry per tenant."""
        rows = [
            {
                "name": tenant.name,
                "weight": tenant.weight,
                "start_us": ps_to_us(tenant.start_ps),
                "finish_us": self.finish_us[tenant.name],
                "lower_bound_us": self.lower_bound_us[tenant.name],
            }
            for tenant in self.tenants
        ]
        return (
            self.result.to_json()
            | {"tenants": rows, "weighted_sum_us": self.weighted_sum_us}
            | {"weighted_bound_us": self.weighted_bound_us}
        )


def synthesize_tenants(
    topology: Topology,
    tenants_of: Callable[[int], Sequence[Tenant]],
    *,
    time_limit_s: float = 10.0,
    **options: Any,
) -> TenantsResult:
    """One schedule for all tenants, which are made for a number of chunks; other options are those of synthesize.

    Where a tenant keeps some GPUs out, all chunks at once are not tried: they would pass through them.
    """
    first = tuple(tenants_of(1))
    own = [_can_do_without(topology, tenant) for tenant in first]
    open_to_all = not any(tenant.demand.forbidden for tenant in first)
    share_s = time_limit_s / (len(first) + sum(own) + open_to_all)

    def planned(number: int, among_themselves: bool) -> Result:
        only = _only(tenants_of, number, among_themselves)
        return synthesize(topology, only, time_limit_s=share_s, **options)

    alone = [planned(number, False) for number in range(len(first))]
    results = list(alone)
    candidates = _in_orders(first, alone)
    if any(own):
        among = [planned(number, True) if own[number] else alone[number] for number in range(len(first))]
        results += [part for part, able in zip(among, own, strict=True) if able]
        candidates += _in_orders(first, among)
    bound = None
    if open_to_all:
        at_once = synthesize(topology, lambda count: together(tenants_of(count)), time_limit_s=share_s, **options)
        candidates.append(at_once.schedule)
        results.append(at_once)
        bound = at_once.bound
    best = min(candidates, key=_weighted_ps)
    violations = verify(best)
    if violations:
        raise InvalidScheduleError(f"{best.method} made a wrong schedule, please report it: {violations[0]}")
    seconds = sum(part.synthesis_s for part in results)
    bound = bound or lower_bound(topology, together(first))
    whole = replace(results[-1], schedule=best, bound=bound, metrics=measure(best), synthesis_s=seconds)
    ends = zip([share.name for share in best.demand.tenants], finishes_ps(best), strict=True)
    bounds = {tenant.name: part.bound.us for tenant, part in zip(first, alone, strict=True)}
    weighted = _weighted_bound_us(topology, first, alone)
    return TenantsResult(whole, first, {name: ps_to_us(ps) for name, ps in ends}, bounds, weighted)


def _can_do_without(topology: Topology, tenant: Tenant) -> bool:
    """Whether a group that may use other GPUs can also do without them."""
    demand = tenant.demand
    if demand.group is None or demand.relays == () or len(demand.group) == demand.num_gpus:
        return False
    try:
        replace(demand, relays=()).check_fits(topology)
    except DemandError:
        return False
    return True


def _only(
    tenants_of: Callable[[int], Sequence[Tenant]], number: int, among_themselves: bool
) -> Callable[[int], Demand]:
    """The demand of one of the tenants, for a number of chunks."""

    def demand_of(count: int) -> Demand:
        demand = tenants_of(count)[number].alone
        return replace(demand, relays=()) if among_themselves else demand

    return demand_of


def _in_orders(tenants: Sequence[Tenant], parts: Sequence[Result]) -> list[Schedule]:
    """The schedules of all tenants one after the other, in every order worth a try."""
    return [
        one_after_another([parts[number].schedule for number in order], [tenants[number] for number in order])
        for order in _orders(tenants, parts)
    ]


def _weighted_bound_us(topology: Topology, tenants: Sequence[Tenant], alone: Sequence[Result]) -> float:
    """No schedule has a smaller weighted sum of finishes.

    Whoever is over last of some tenants is not over before the floor of all their chunks; so for every order in which
    they may be over, each one's finish is at least the floor of those up to it. For many tenants, each one's own.
    """
    numbers = range(len(tenants))
    floor = {frozenset([n]): alone[n].bound.us for n in numbers}
    if len(tenants) > _FEW:
        return sum(tenants[n].weight * floor[frozenset([n])] for n in numbers)
    for size in range(2, len(tenants) + 1):
        for some in combinations(numbers, size):
            floor[frozenset(some)] = lower_bound(topology, together([tenants[n] for n in some])).us
    return min(
        sum(tenants[n].weight * floor[frozenset(order[: place + 1])] for place, n in enumerate(order))
        for order in permutations(numbers)
    )


def finishes_ps(schedule: Schedule) -> list[int]:
    """When each tenant of the schedule's demand is over."""
    shares = schedule.demand.tenants
    ends = np.cumsum([share.chunks for share in shares])
    owner = np.searchsorted(ends, schedule.chunk[schedule.timing.end_transfer], side="right")
    last = np.zeros(len(shares), dtype=np.int64)
    np.maximum.at(last, owner, schedule.timing.end_arrival_ps)
    return [int(ps) for ps in last]


def one_after_another(parts: Sequence[Schedule], tenants: Sequence[Tenant]) -> Schedule:
    """Schedules of different chunks on one machine as one: each link is free for the next when the first is done.

    Each is one tenant's alone; its demand knows when the tenant starts.
    """
    rows = [
        replace(who, demand=replace(part.demand, relays=who.demand.relays), start_ps=0)
        for who, part in zip(tenants, parts, strict=True)
    ]
    demand = together(rows)
    chunk_base = np.cumsum([0, *(len(part.demand) for part in parts)])
    route_base = np.cumsum([0, *(len(part.routes) for part in parts)])
    time_base = np.cumsum([0, *(part.finish_ps for part in parts)])
    routes = Routes.from_lists([part.routes.links(r) for part in parts for r in range(len(part.routes))])
    both = Schedule(
        parts[0].topology,
        demand,
        routes,
        np.concatenate([part.chunk + base for part, base in zip(parts, chunk_base, strict=False)]),
        np.concatenate([part.route + base for part, base in zip(parts, route_base, strict=False)]),
        np.concatenate([part.start_ps + base for part, base in zip(parts, time_base, strict=False)]),
        np.concatenate([part.reduce for part in parts]),
        ", ".join(dict.fromkeys(part.method for part in parts)),
        stacked_messages(parts),
    )
    roomy = all(node.buffer_bytes is None for node in both.topology.nodes)
    if both.topology.changes or (roomy and len(both) <= _MOST_TO_FILL):  # later tenants fill what the first leave free
        starts = np.cumsum([0, *(len(part) for part in parts)])
        order = [sequence(part) + base for part, base in zip(parts, starts, strict=False)]
        return generate_serial(both, np.concatenate(order))
    return left_shift(both)


def _orders(tenants: Sequence[Tenant], alone: Sequence[Result]) -> list[tuple[int, ...]]:
    """Smith's rule, and for few tenants every order."""
    if len(tenants) <= _FEW:
        return list(permutations(range(len(tenants))))
    takes = [max(part.schedule.finish_ps, 1) for part in alone]
    return [tuple(sorted(range(len(tenants)), key=lambda n: (-tenants[n].weight / takes[n], n)))]


def _weighted_ps(schedule: Schedule) -> tuple[float, int]:
    """What is to be least: the weighted sum of finishes, then the last finish."""
    ends = finishes_ps(schedule)
    return sum(share.weight * ps for share, ps in zip(schedule.demand.tenants, ends, strict=True)), max(ends)
