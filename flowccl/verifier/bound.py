"""The lower bound of the demand of a schedule, on the runtime that carries the schedule out."""

from flowccl.bounds.lower_bound import Bound, lower_bound
from flowccl.runtimes.machine import largest_group, least_costs
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology


def bound_of(schedule: Schedule, topology: Topology | None = None) -> Bound:
    """Return the lower bound of the demand of a schedule, in its clock; `topology` replaces its machine."""
    machine, runtime = topology or schedule.topology, schedule.runtime
    if runtime is None or runtime.is_ideal:
        return lower_bound(machine, schedule.demand)
    return lower_bound(least_costs(machine, runtime), schedule.demand, group=largest_group(machine, runtime))
