"""Dispatch and combine of a layer: plans from routed tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.bounds.lower_bound import Bound
from flowccl.demand.demand import Demand
from flowccl.moe.plan import Plan
from flowccl.moe.planner import Planner
from flowccl.moe.routing import ExpertPlacement, check_token_bytes, dispatch_blocks
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import reverse
from flowccl.topology.topology import Topology

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CombinePlan:
    """A plan of a combine: the mirror image of `reversed_plan`, a dispatch on the machine with all links reversed."""

    topology: Topology
    reversed_plan: Plan

    @property
    def finish_us(self) -> float:
        """The last arrival, in microseconds."""
        return self.reversed_plan.finish_us

    @property
    def bound(self) -> Bound:
        """A proved lower bound with its witness, which is that of the dispatch on the reversed machine."""
        return self.reversed_plan.bound

    @property
    def lower_bound_us(self) -> float:
        """No schedule finishes earlier, in microseconds."""
        return self.reversed_plan.lower_bound_us

    @property
    def gap(self) -> float:
        """How far the completion time is above the lower bound: 0.05 is 5 %."""
        return self.reversed_plan.gap

    @cached_property
    def demand(self) -> Demand:
        """Every chunk is the reduction of the contributions of the GPUs with experts, wanted by the token's GPU."""
        there = self.reversed_plan.demand
        return replace(
            there,
            source_ptr=there.destination_ptr,
            source_rank=there.destination_rank,
            destination_ptr=there.source_ptr,
            destination_rank=there.source_rank,
        )

    def schedule(self) -> Schedule:
        """Return the plan as a schedule, for the verifier, pictures and `explain`."""
        back = reverse(self.reversed_plan.schedule(), self.demand, reduce=True)
        return replace(back, topology=self.topology)


class ExpertParallel:
    """Plans the dispatch and the combine of a mixture-of-experts layer on one machine.

    `token_bytes` are the bytes of a token on the way to the experts, including scales beside FP8 data, and
    `combine_bytes` those on the way back (the same unless given).
    """

    def __init__(
        self,
        topology: Topology,
        placement: ExpertPlacement,
        token_bytes: int,
        *,
        combine_bytes: int | None = None,
        runtime: str = "ideal",
    ) -> None:
        placement.check(topology.num_gpus)
        for size in (token_bytes, token_bytes if combine_bytes is None else combine_bytes):
            check_token_bytes(size)
        self.placement, self.token_bytes = placement, token_bytes
        self.combine_bytes = token_bytes if combine_bytes is None else combine_bytes
        self.topology, self.runtime = topology, runtime
        self._planner = Planner(topology, runtime=runtime, unit_bytes=token_bytes)

    @cached_property
    def _back(self) -> Planner:
        return Planner(self._planner.topology.reversed, unit_bytes=self.combine_bytes)

    def dispatch(self, routing: Sequence[Ints]) -> Plan:
        """Return a plan that brings every token to the GPUs of its experts, to each host once."""
        blocks = dispatch_blocks(self._planner.layout, routing, self.placement, self.token_bytes)
        return self._planner.plan_blocks(blocks, "dispatch")

    def combine(self, routing: Sequence[Ints]) -> CombinePlan:
        """Return a plan that reduces the results of a token in each host, then at the token's GPU."""
        blocks = dispatch_blocks(self._back.layout, routing, self.placement, self.combine_bytes)
        plan = self._back.plan_blocks(blocks, "combine")
        return CombinePlan(self._planner.topology, replace(plan, runtime=self._planner.runtime))
