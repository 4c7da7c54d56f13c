"""Any method for machines whose links have setups."""

from collections.abc import Iterator
from dataclasses import replace

from flowccl.demand.demand import Demand
from flowccl.methods.clock import Clock
from flowccl.methods.method import Method
from flowccl.schedule.generation.serial import fits, generate_serial, sequence
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift
from flowccl.topology.topology import Topology
from flowccl.topology.variants import without_overheads


def with_message_overheads(method: Method) -> Method:
    """The method, made to take setups: it works on a machine where they are in the bandwidth, every chunk alone.

    For chunks of one size that is the same machine; where sizes differ, the larger ones get their time back after.
    """

    def run(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
        if not topology.has_overheads:
            yield from method(topology, demand, clock)
            return
        view = without_overheads(topology, int(demand.chunk_bytes.min(initial=2**60)))
        for found in method(view, demand, clock):
            yield None if found is None else _on(topology, found)

    return run


def _on(topology: Topology, found: Schedule) -> Schedule:
    """The schedule on the machine itself, where a chunk that is larger than the smallest runs at a higher rate."""
    moved = replace(found, topology=topology)
    return left_shift(moved) if fits(moved) else generate_serial(moved, sequence(found))
