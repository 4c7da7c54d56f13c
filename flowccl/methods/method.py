"""What a method is."""

from collections.abc import Callable, Iterator

from flowccl.demand.demand import Demand
from flowccl.methods.clock import Clock
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology

Method = Callable[[Topology, Demand, Clock], Iterator[Schedule | None]]
"""A way to synthesize: yields after every step, the schedule if it is better than all before, else None."""
