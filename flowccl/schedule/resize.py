"""The same transfers in the same order for another size."""

from dataclasses import replace

from flowccl.demand.collectives import collective
from flowccl.demand.files import root_if_named
from flowccl.errors import InputError
from flowccl.schedule.generation.engine import in_same_order
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import in_order_of


def resized(schedule: Schedule, size_bytes: int) -> Schedule:
    """Return the schedule with chunks of another size: same routes, same order, earliest starts."""
    old, root = schedule.demand, root_if_named(schedule.demand, one_shot=True)
    if root is None:
        raise InputError(f"a {old.collective} demand given as chunks has a fixed size; it runs at that size only")
    demand = collective(old.collective, old.num_gpus, size_bytes, old.pieces, max(root, 0))
    if schedule.execution is not None:
        again = in_same_order(replace(schedule, demand=demand), schedule)
        assert again is not None  # the groups hold the same messages
        return again
    return in_order_of(replace(schedule, demand=demand), schedule)
