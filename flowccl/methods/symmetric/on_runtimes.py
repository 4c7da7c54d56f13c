"""Symmetric schedules for a runtime: GPU 0's data is carried out, and what it does stands for all other GPUs."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import numpy as np

from flowccl.adapters.runtime import planning_problem
from flowccl.demand.collectives import collective
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.symmetric import symmetric_routes
from flowccl.methods.symmetric.halves import reduced_by_halves
from flowccl.methods.symmetric.one_source import OneSource, deliver_one, spread_one
from flowccl.methods.symmetric.one_tree import tree_one
from flowccl.problem import Problem
from flowccl.schedule.compact import COMPACT, CompactSchedule
from flowccl.schedule.generation.carrying import Carrier
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.symmetry.regular_groups import regular_group

_NEVER = int(np.iinfo(np.int64).max // 4)
_FANS = (1.0, 1 / 2, 1 / 3)  # powers of the number of GPUs: to how many others one sends in a tree
_COLUMNS = ("chunk_bytes", "source_ptr", "source_rank", "destination_ptr", "destination_rank")


def symmetric_on_runtime(problem: Problem, context: SearchContext, carrier: Carrier) -> Iterator[Schedule | None]:
    """Run again and again; every better schedule, as the runtime carries it out, is expanded to all sources."""
    demand, machine = problem.demand, carrier.topology
    group = regular_group(machine)
    routes = symmetric_routes(planning_problem(problem, carrier.profile).topology)
    if routes is None or group is None or carrier.topology.has_extra_constraints or not _is_whole(demand):
        raise DemandError(
            "method symmetric needs a collective of all GPUs, and a machine that looks the same from each"
        )
    carry = replace(carrier, group=group, known={}, best_ps={})
    random, kinds, best = np.random.default_rng(context.seed), routes.kinds(int(demand.chunk_bytes.max())), None
    for number in count():
        if demand.collective == "alltoall":
            found: OneSource | None = deliver_one(routes, kinds, demand.pieces, random)
        elif number < len(_FANS):
            most = round(demand.num_gpus ** _FANS[number])
            found = tree_one(routes, kinds, demand.pieces, most)
        else:
            found = spread_one(routes, kinds, demand.pieces, random, _NEVER)
        if found is None:
            yield None
            continue
        one = replace(found.compact(demand.size_bytes // demand.num_gpus), topology=machine)
        if demand.reduces:
            one = reduced_by_halves(one, demand.collective)
        carried = carry(one)
        if carried is None or (best is not None and carried.finish_ps >= best):
            yield None
            continue
        best = carried.finish_ps
        yield CompactSchedule(demand.collective, demand.size_bytes, carried, group).expanded()


def _is_whole(demand: Demand) -> bool:
    """Whether a demand is a collective that has a compact form, with blocks of the same size."""
    if demand.collective not in COMPACT or demand.size_bytes % demand.num_gpus:
        return False
    plain = collective(demand.collective, demand.num_gpus, demand.size_bytes, demand.pieces)
    return all(np.array_equal(getattr(plain, name), getattr(demand, name)) for name in _COLUMNS)
