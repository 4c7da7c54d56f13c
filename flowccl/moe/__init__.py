"""Mixture of experts: alltoallv, dispatch and combine planned in milliseconds.

>>> from flowccl import machine
>>> from flowccl.moe import Planner
>>> plan = Planner(machine("dgx_h100:8")).plan(matrix)
>>> plan.finish_us, plan.lower_bound_us, plan.bound.witness

Its modules are loaded when they are used, since the planner needs numba.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowccl.moe.expert_parallel import CombinePlan, ExpertParallel
    from flowccl.moe.hot_experts import ExpertChange, expert_changes
    from flowccl.moe.plan import Plan, PlanTable
    from flowccl.moe.plan_params import PlanParams
    from flowccl.moe.planner import Planner
    from flowccl.moe.routing import ExpertPlacement, load_placement, load_routing

_MODULES = {
    "expert_parallel": "CombinePlan ExpertParallel",
    "hot_experts": "ExpertChange expert_changes",
    "plan": "Plan PlanTable",
    "plan_params": "PlanParams",
    "planner": "Planner",
    "routing": "ExpertPlacement load_placement load_routing",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

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


def __getattr__(name: str) -> object:
    """The public names, each imported when it is first asked for."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
