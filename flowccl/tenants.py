"""Several tenants in one schedule: the wire for `flowccl synth --tenants`.

Two kinds of schedules are made, and the one with the least weighted sum of finishes wins: all chunks at once, and each
tenant alone, put one after the other in several orders (Smith's rule: weight over time alone), where the later ones
fill what the earlier ones leave free.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np

from flowccl.check.metrics import measure
from flowccl.check.verify import verify
from flowccl.demand.demand import Demand
from flowccl.demand.tenants import Tenant, together
from flowccl.errors import InvalidScheduleError
from flowccl.result import Result
from flowccl.schedule.schedule import Schedule, stacked_messages
from flowccl.schedule.settle import sequence, settle
from flowccl.schedule.transform import retime
from flowccl.synthesize import synthesize
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology
from flowccl.units import ps_to_us

_MOST_TO_FILL = 20_000  # transfers that are put into gaps one by one
_FEW = 3  # tenants for which every order is tried


@dataclass(frozen=True)
class TenantsResult:
    """The schedule of all tenants, and when each is over."""

    result: Result
    tenants: tuple[Tenant, ...]
    finish_us: Mapping[str, float]
    lower_bound_us: Mapping[str, float]

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
        return self.result.to_json() | {"tenants": rows, "weighted_sum_us": self.weighted_sum_us}


def synthesize_tenants(
    topology: Topology,
    tenants_of: Callable[[int], Sequence[Tenant]],
    *,
    time_limit_s: float = 10.0,
    **options: Any,
) -> TenantsResult:
    """One schedule for all tenants, which are made for a number of chunks; other options are those of synthesize."""
    first = tuple(tenants_of(1))
    share_s = time_limit_s / (len(first) + 1)
    made: dict[int, Sequence[Tenant]] = {}

    def at_once(count: int) -> Demand:
        tenants = tenants_of(count)
        demand = together(tenants)
        made[len(demand)] = tenants
        return demand

    result = synthesize(topology, at_once, time_limit_s=share_s, **options)
    alone = []
    for number in range(len(first)):

        def only(count: int, number: int = number) -> Demand:
            return together([tenants_of(count)[number]])

        alone.append(synthesize(topology, only, time_limit_s=share_s, **options))
    candidates = [(result.schedule, made[len(result.schedule.demand)])]
    for order in _orders(first, alone):
        parts = [alone[number].schedule for number in order]
        tenants = [replace(first[number], demand=alone[number].schedule.demand) for number in order]
        candidates.append((one_after_another(parts), tenants))
    best, members = min(candidates, key=lambda pair: _weighted_ps(*pair))
    violations = verify(best)
    if violations:
        raise InvalidScheduleError(f"{best.method} made a wrong schedule, please report it: {violations[0]}")
    seconds = result.synthesis_s + sum(part.synthesis_s for part in alone)
    whole = replace(result, schedule=best, metrics=measure(best), synthesis_s=seconds)
    ends = zip([tenant.name for tenant in members], finishes_ps(best, members), strict=True)
    floors = {tenant.name: part.bound.us for tenant, part in zip(first, alone, strict=True)}
    return TenantsResult(whole, first, {name: ps_to_us(ps) for name, ps in ends}, floors)


def finishes_ps(schedule: Schedule, tenants: Sequence[Tenant]) -> list[int]:
    """When each tenant is over; its chunks follow each other in the schedule's demand."""
    ends = np.cumsum([len(tenant.demand) for tenant in tenants])
    owner = np.searchsorted(ends, schedule.chunk[schedule.timing.end_transfer], side="right")
    last = np.zeros(len(tenants), dtype=np.int64)
    np.maximum.at(last, owner, schedule.timing.end_arrival_ps)
    return [int(ps) for ps in last]


def one_after_another(parts: Sequence[Schedule]) -> Schedule:
    """Schedules of different chunks on one machine as one: each link is free for the next when the first is done."""
    demand = together([Tenant(str(number), part.demand) for number, part in enumerate(parts)])
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
        return settle(both, np.concatenate(order))
    return retime(both)


def _orders(tenants: Sequence[Tenant], alone: Sequence[Result]) -> list[tuple[int, ...]]:
    """Smith's rule, and for few tenants every order."""
    if len(tenants) <= _FEW:
        return list(permutations(range(len(tenants))))
    takes = [max(part.schedule.finish_ps, 1) for part in alone]
    return [tuple(sorted(range(len(tenants)), key=lambda n: (-tenants[n].weight / takes[n], n)))]


def _weighted_ps(schedule: Schedule, tenants: Sequence[Tenant]) -> tuple[float, int]:
    """What is to be least: the weighted sum of finishes, then the last finish."""
    ends = finishes_ps(schedule, tenants)
    return sum(tenant.weight * ps for tenant, ps in zip(tenants, ends, strict=True)), max(ends)
