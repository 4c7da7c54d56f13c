"""flowccl synthesizes collective communication schedules: verified, and with a proved lower bound.

Data goes from left to right:
topology -> demand -> methods (+ solver) -> schedule -> check -> export / run / plot

>>> from flowccl import machine, synthesize
>>> result = synthesize(machine("ndv2:2"), "allgather", 1_000_000)
>>> print(result.schedule.finish_us, result.bound.us, result.gap)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowccl.bounds.lower_bound import Bound, lower_bound
    from flowccl.demand.collectives import collective
    from flowccl.demand.demand import Chunk, Demand
    from flowccl.demand.files import load_demand
    from flowccl.errors import FlowcclError
    from flowccl.resharding.layout import Layout
    from flowccl.resharding.layout_files import load_layout, save_layout
    from flowccl.resharding.plan import ReshardPlan
    from flowccl.resharding.plan_files import load_plan, save_plan
    from flowccl.resharding.planning import ReshardResult, reshard
    from flowccl.result import Progress, Result
    from flowccl.schedule.files import load_schedule, save_schedule
    from flowccl.schedule.metrics import Metrics, measure
    from flowccl.schedule.schedule import Schedule
    from flowccl.schedule.transform import concatenate, left_shift, prune, reverse
    from flowccl.synthesis import synthesize
    from flowccl.synthesis.options import SearchOptions
    from flowccl.topology.faults import with_faults
    from flowccl.topology.files import load_topology, read_machine, save_topology
    from flowccl.topology.machines import machine
    from flowccl.topology.topology import Limit, Link, Node, Topology
    from flowccl.verifier.verify import Violation, verify
    from flowccl.version import VERSION

    __version__: str

_MODULES = {
    "bounds.lower_bound": "Bound lower_bound",
    "schedule.metrics": "Metrics measure",
    "verifier.verify": "Violation verify",
    "demand.collectives": "collective",
    "demand.demand": "Chunk Demand",
    "demand.files": "load_demand",
    "errors": "FlowcclError",
    "resharding.layout": "Layout",
    "resharding.layout_files": "load_layout save_layout",
    "resharding.plan": "ReshardPlan",
    "resharding.plan_files": "load_plan save_plan",
    "resharding.planning": "ReshardResult reshard",
    "result": "Progress Result",
    "schedule.files": "load_schedule save_schedule",
    "schedule.schedule": "Schedule",
    "schedule.transform": "concatenate left_shift prune reverse",
    "synthesis": "synthesize",
    "synthesis.options": "SearchOptions",
    "topology.faults": "with_faults",
    "topology.files": "load_topology read_machine save_topology",
    "topology.machines": "machine",
    "topology.topology": "Limit Link Node Topology",
    "version": "VERSION",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "VERSION",
    "Bound",
    "Chunk",
    "Demand",
    "FlowcclError",
    "Layout",
    "Limit",
    "Link",
    "Metrics",
    "Node",
    "Progress",
    "ReshardPlan",
    "ReshardResult",
    "Result",
    "Schedule",
    "SearchOptions",
    "Topology",
    "Violation",
    "collective",
    "concatenate",
    "left_shift",
    "load_demand",
    "load_layout",
    "load_plan",
    "load_schedule",
    "load_topology",
    "lower_bound",
    "machine",
    "measure",
    "prune",
    "read_machine",
    "reshard",
    "reverse",
    "save_layout",
    "save_plan",
    "save_schedule",
    "save_topology",
    "synthesize",
    "verify",
    "with_faults",
]


def __getattr__(name: str) -> object:
    """The public names, each imported when it is first asked for: `import flowccl` itself is immediate."""
    if name == "__version__":
        from flowccl.version import VERSION

        return VERSION
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
