"""One schedule for several tenants, as for `flowccl synth --tenants`.

Several candidate schedules are built, and the one with the smallest weighted sum of completion times is returned: one
schedule of all chunks together, and the tenants' separate schedules concatenated in several orders (Smith's rule:
weight / completion time alone), where later tenants use the gaps that earlier tenants leave. A separate schedule uses
the whole machine. For a group that needs no other GPUs, there is also one inside the group: tenants on disjoint parts
of the machine then share no link.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, permutations
from typing import Any

import numpy as np

from flowccl.bounds.lower_bound import lower_bound
from flowccl.demand.demand import Demand
from flowccl.demand.tenants import Tenant, combined_demand
from flowccl.errors import DemandError, InvalidScheduleError
from flowccl.result import Result
from flowccl.schedule.generation.serial import generate_serial, sequence
from flowccl.schedule.metrics import measure
from flowccl.schedule.schedule import Schedule, stacked_messages
from flowccl.schedule.transform import left_shift
from flowccl.synthesis import synthesize
from flowccl.synthesis.options import SearchOptions
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology
from flowccl.units import ps_to_us
from flowccl.verifier.verify import verify

_MOST_TO_FILL = 20_000  # transfers; up to this number, each one is inserted into the first gap
_ALL_ORDERS = 3  # tenants; up to this number, every order is tried


@dataclass(frozen=True)
class TenantsResult:
    """The schedule of all tenants, and the completion time of each."""

    result: Result
    tenants: tuple[Tenant, ...]
    finish_us: Mapping[str, float]
    lower_bound_us: Mapping[str, float]
    weighted_bound_us: float = 0.0

    @property
    def weighted_sum_us(self) -> float:
        """Sum over the tenants of weight times completion time."""
        return sum(tenant.weight * self.finish_us[tenant.name] for tenant in self.tenants)

    def to_json(self) -> dict[str, Any]:
        """The result as JSON, with one entry per tenant."""
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
    search: SearchOptions | None = None,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    **changed: Any,
) -> TenantsResult:
    """One schedule for all tenants.

    `tenants_of` returns the tenants for a number of chunks per block; the other arguments are those of `synthesize`.
    If a tenant excludes some GPUs as relays, the chunks are not scheduled together: the search would route chunks of
    this tenant through the excluded GPUs.
    """
    first = tuple(tenants_of(1))
    own = [_can_do_without(topology, tenant) for tenant in first]
    open_to_all = not any(tenant.demand.forbidden for tenant in first)
    options = replace(search or SearchOptions(), **changed)
    options = replace(options, time_limit_s=options.time_limit_s / (len(first) + sum(own) + open_to_all))

    def planned(number: int, inside_group: bool) -> Result:
        return synthesize(topology, _only(tenants_of, number, inside_group), None, options, should_stop=should_stop)

    alone = [planned(number, False) for number in range(len(first))]
    results = list(alone)
    schedules = _in_orders(first, alone)
    if any(own):
        among = [planned(number, True) if own[number] else alone[number] for number in range(len(first))]
        results += [part for part, able in zip(among, own, strict=True) if able]
        schedules += _in_orders(first, among)
    bound = None
    if open_to_all:
        together = partial(_together, tenants_of)
        combined = synthesize(topology, together, None, options, should_stop=should_stop)
        schedules.append(combined.schedule)
        results.append(combined)
        bound = combined.bound
    best = min(schedules, key=_weighted_ps)
    violations = verify(best)
    if violations:
        raise InvalidScheduleError(
            f"internal error, please report it: invalid schedule by {best.method}: {violations[0]}"
        )
    seconds = sum(part.synthesis_s for part in results)
    bound = bound or lower_bound(topology, combined_demand(first))
    whole = replace(results[-1], schedule=best, bound=bound, metrics=measure(best), synthesis_s=seconds)
    ends = zip([share.name for share in best.demand.tenants], finishes_ps(best), strict=True)
    bounds = {tenant.name: part.bound.us for tenant, part in zip(first, alone, strict=True)}
    weighted = _weighted_bound_us(topology, first, alone)
    return TenantsResult(whole, first, {name: ps_to_us(ps) for name, ps in ends}, bounds, weighted)


def _can_do_without(topology: Topology, tenant: Tenant) -> bool:
    """Whether a group that may use other GPUs as relays also works without them."""
    demand = tenant.demand
    if demand.group is None or demand.relays == () or len(demand.group) == demand.num_gpus:
        return False
    try:
        replace(demand, relays=()).check_fits(topology)
    except DemandError:
        return False
    return True


def _only(tenants_of: Callable[[int], Sequence[Tenant]], number: int, inside_group: bool) -> Callable[[int], Demand]:
    """The demand of one tenant, as a function of the number of chunks per block."""

    def demand_of(count: int) -> Demand:
        demand = tenants_of(count)[number].alone
        return replace(demand, relays=()) if inside_group else demand

    return demand_of


def _together(tenants_of: Callable[[int], Sequence[Tenant]], count: int) -> Demand:
    return combined_demand(tenants_of(count))


def _in_orders(tenants: Sequence[Tenant], parts: Sequence[Result]) -> list[Schedule]:
    """The concatenated schedules of all tenants, one for each order of `_orders`."""
    return [
        one_after_another([parts[number].schedule for number in order], [tenants[number] for number in order])
        for order in _orders(tenants, parts)
    ]


def _weighted_bound_us(topology: Topology, tenants: Sequence[Tenant], alone: Sequence[Result]) -> float:
    """A lower bound on the weighted sum of completion times.

    The last tenant of a set to complete does not complete before the lower bound of all chunks of the set. So in every
    order of completion, each tenant completes no earlier than the lower bound of the tenants up to it; the result is
    the minimum over all orders. With many tenants, each tenant's own lower bound is used.
    """
    numbers = range(len(tenants))
    bound_us = {frozenset([n]): alone[n].bound.us for n in numbers}
    if len(tenants) > _ALL_ORDERS:
        return sum(tenants[n].weight * bound_us[frozenset([n])] for n in numbers)
    for size in range(2, len(tenants) + 1):
        for some in combinations(numbers, size):
            bound_us[frozenset(some)] = lower_bound(topology, combined_demand([tenants[n] for n in some])).us
    return min(
        sum(tenants[n].weight * bound_us[frozenset(order[: place + 1])] for place, n in enumerate(order))
        for order in permutations(numbers)
    )


def finishes_ps(schedule: Schedule) -> list[int]:
    """The completion time of each tenant of the schedule's demand."""
    tenants = schedule.demand.tenants
    ends = np.cumsum([tenant.chunks for tenant in tenants])
    owner = np.searchsorted(ends, schedule.chunk[schedule.timing.end_transfer], side="right")
    last = np.zeros(len(tenants), dtype=np.int64)
    np.maximum.at(last, owner, schedule.timing.end_arrival_ps)
    return [int(ps) for ps in last]


def one_after_another(parts: Sequence[Schedule], tenants: Sequence[Tenant]) -> Schedule:
    """The concatenation of the tenants' separate schedules, with gaps closed.

    The demand of each part contains the start time of its tenant.
    """
    rows = [
        replace(tenant, demand=replace(part.demand, relays=tenant.demand.relays), start_ps=0)
        for tenant, part in zip(tenants, parts, strict=True)
    ]
    demand = combined_demand(rows)
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
    unlimited = not both.topology.has_buffer_limits
    if both.topology.changes or (unlimited and len(both) <= _MOST_TO_FILL):  # later tenants use earlier tenants' gaps
        starts = np.cumsum([0, *(len(part) for part in parts)])
        order = [sequence(part) + base for part, base in zip(parts, starts, strict=False)]
        return generate_serial(both, np.concatenate(order))
    return left_shift(both)


def _orders(tenants: Sequence[Tenant], alone: Sequence[Result]) -> list[tuple[int, ...]]:
    """The orders to try: every order of few tenants, else only that of Smith's rule."""
    if len(tenants) <= _ALL_ORDERS:
        return list(permutations(range(len(tenants))))
    takes = [max(part.schedule.finish_ps, 1) for part in alone]
    return [tuple(sorted(range(len(tenants)), key=lambda n: (-tenants[n].weight / takes[n], n)))]


def _weighted_ps(schedule: Schedule) -> tuple[float, int]:
    """The objective: the weighted sum of completion times, then the last completion time."""
    ends = finishes_ps(schedule)
    return sum(share.weight * ps for share, ps in zip(schedule.demand.tenants, ends, strict=True)), max(ends)
