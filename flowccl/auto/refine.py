"""Refinement: a schedule with its chunks subdivided. It takes no search, and a pipeline fills earlier."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from flowccl.demand.demand import Demand
from flowccl.schedule.generation.job_shop import can_be_jobs, jobs_from
from flowccl.schedule.generation.list_scheduling import can_list_schedule, list_schedule
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import chunk_by_chunk, subdivide
from flowccl.search.context import SearchContext
from flowccl.verifier.verify import verify

Carry = Callable[[Schedule], Schedule | None]
SUFFIX = ", refined"  # after the name of the method that found the routes
_MOST_REORDERED = 100_000  # transfers, up to which another order is tried as well
_MOST_REORDERED_REDUCTIONS = 10_000


def refined(
    schedule: Schedule, demand: Demand, context: SearchContext, carry: Carry | None = None
) -> Iterator[Schedule | None]:
    """The schedule with the chunks of `demand`, in its own order or another one, whichever finishes earlier; once.

    `carry` carries out a schedule on the runtime for which the schedule was made.
    """
    named = replace(schedule, method=schedule.method.removesuffix(SUFFIX) + SUFFIX)
    if carry is not None:
        fine = chunk_by_chunk(named, demand)
        yield None if fine is None else carry(fine)
        return
    fine = subdivide(named, demand)
    if fine is not None and len(fine) <= _MOST_REORDERED:
        orders = sorted(filter(None, (fine, _reordered(fine))), key=lambda one: one.finish_ps)
        fine = next((one for one in orders if not verify(one)), None)  # smaller chunks may come too early in exchanges
        if fine is not None:  # others continue from it
            context.incumbents.report(fine)
    yield fine


def _reordered(fine: Schedule) -> Schedule | None:
    """The same transfers with idle times filled; for reductions, the longest remaining path first."""
    if can_be_jobs(fine):
        return jobs_from(fine).in_order(fine.start_ps, fine.finish_ps)
    return list_schedule(fine) if len(fine) <= _MOST_REORDERED_REDUCTIONS and can_list_schedule(fine) else None
