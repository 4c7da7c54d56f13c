"""Mixture of experts: alltoallv, dispatch and combine planned in milliseconds.

>>> from flowccl import machine
>>> from flowccl.moe import Planner
>>> plan = Planner(machine("dgx_h100:8")).plan(matrix)
>>> plan.finish_us, plan.lower_bound_us, plan.bound.witness
"""

from flowccl.moe.expert_parallel import CombinePlan, ExpertParallel
from flowccl.moe.hot_experts import ExpertChange, expert_changes
from flowccl.moe.plan import Plan, PlanTable
from flowccl.moe.planner import Planner, PlanParams
from flowccl.moe.routing import ExpertPlacement, load_placement, load_routing

__all__ = [
    "CombinePlan",
    "ExpertChange",
    "ExpertParallel",
    "ExpertPlacement",
    "Plan",
    "PlanParams",
    "PlanTable",
    "Planner",
    "expert_changes",
    "load_placement",
    "load_routing",
]
