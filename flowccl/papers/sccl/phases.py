"""Phases: a collective as one or two demands whose chunks have one source each (SCCL, section 3.5).

A reduction is the inversion of a distribution on the reversed machine; an allreduce is the composition of a reduction
and a distribution, each with half of the steps and half of the rounds.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.papers.sccl.graph import StepGraph
from flowccl.papers.sccl.program import StepPlan
from flowccl.schedule.generation.serial import generate_serial
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import concatenate, prune, reverse
from flowccl.topology.topology import Topology


@dataclass(frozen=True, eq=False)
class Phase:
    """A distribution on the machine, or on the reversed machine (`inverted`), of these chunks of the whole demand."""

    graph: StepGraph
    demand: Demand
    chunks: NDArray[np.int64]
    inverted: Demand | None = None


def phases_of(topology: Topology, demand: Demand) -> list[Phase]:
    """The phases of a demand, one after the other."""
    every = np.arange(len(demand), dtype=np.int64)
    if not demand.reduces:
        return [Phase(StepGraph(topology), demand, every)]
    back = StepGraph(topology.reversed)
    if demand.is_unicast:
        return [Phase(back, demand.backward, every, demand)]
    (reduction, first), (distribution, second) = demand.halves
    return [Phase(back, reduction.backward, first, reduction), Phase(StepGraph(topology), distribution, second)]


def schedule_of(topology: Topology, demand: Demand, phases: list[Phase], plans: list[StepPlan]) -> Schedule:
    """The schedule of the plans of all phases, every transfer as early as the order of the steps allows."""
    parts = [_part(topology, demand, phase, plan) for phase, plan in zip(phases, plans, strict=True)]
    return parts[0] if len(parts) == 1 else concatenate(parts[0], parts[1], demand)


def _part(topology: Topology, demand: Demand, phase: Phase, plan: StepPlan) -> Schedule:
    order = np.lexsort((plan.edge, plan.chunk, plan.step))
    none = np.zeros(len(order), dtype=np.int64)
    machine, routes = phase.graph.topology, phase.graph.edges.routes
    rough = Schedule(
        machine,
        phase.demand,
        routes,
        plan.chunk[order].astype(np.int32),
        plan.edge[order].astype(np.int32),
        none,
        none.astype(np.bool_),
        "sccl",
    )
    found = prune(generate_serial(rough, np.arange(len(order), dtype=np.int64)))
    if phase.inverted is not None:
        found = replace(reverse(found, phase.inverted, reduce=True), topology=topology)
    return replace(found, demand=demand, chunk=phase.chunks[found.chunk].astype(np.int32))
