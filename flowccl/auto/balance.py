"""Balance links by single bytes: swap chunks of one block that differ in size.

A block whose size is not a multiple of the chunk count has chunks that differ by one byte. Methods do not care which
of them uses a bottleneck link; close to the lower bound, only this difference is left. Chunks on the links that
finish last are swapped with smaller chunks of the same block, as long as that reduces the completion time.
"""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.schedule.generation.job_shop import can_be_jobs, jobs_from
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift, prune
from flowccl.search.context import SearchContext

_MAX_TRANSFERS = 20_000  # larger schedules are not balanced
_MAX_WORK = 300_000  # transfers over all swaps that are tried


def can_balance(schedule: Schedule) -> bool:
    """Return whether the schedule has chunks of different sizes and is small enough."""
    return 0 < len(schedule) <= _MAX_TRANSFERS and bool(np.ptp(schedule.demand.chunk_bytes)) and can_be_jobs(schedule)


def balanced_once(schedule: Schedule, context: SearchContext) -> Iterator[Schedule | None]:
    """Yield the balanced schedule, or None if balancing does not help; once."""
    found = balance(schedule, context)
    if found is not None:
        context.incumbents.report(found)
    yield found


def balance(schedule: Schedule, context: SearchContext) -> Schedule | None:
    """Swap chunks as long as the completion time, or the number of transfers that arrive then, decreases."""
    shorter = _shorter(schedule.demand)
    best, jobs = schedule, jobs_from(schedule)
    swaps = _swaps(best, shorter)
    for _ in range(_MAX_WORK // len(schedule)):
        swap = next(swaps, None)
        if swap is None or context.budget.over():
            break
        other = jobs.of_chunks(_swapped(best, *swap))
        found = other.dispatched(best.start_ps, best.finish_ps + 1)
        if found is not None and _lateness(found) < _lateness(best):
            best, jobs, swaps = found, other, _swaps(found, shorter)
    return left_shift(prune(best)) if best.finish_ps < schedule.finish_ps else None


def _shorter(demand: Demand) -> dict[int, list[int]]:
    """For each chunk, the smaller chunks with the same source and destinations."""
    alike = defaultdict[tuple[int, ...], list[int]](list)
    for chunk in range(len(demand)):
        alike[int(demand.source[chunk]), *demand.destinations(chunk).tolist()].append(chunk)
    size = demand.chunk_bytes
    return {chunk: [o for o in block if size[o] < size[chunk]] for block in alike.values() for chunk in block}


def _swaps(schedule: Schedule, shorter: dict[int, list[int]]) -> Iterator[tuple[int, int]]:
    """Pairs of a chunk on the links of the last arrivals and a smaller chunk."""
    timing = schedule.timing
    last = timing.end_transfer[timing.end_arrival_ps == schedule.finish_ps]
    links = timing.hop_link[np.isin(timing.hop_transfer, last)]
    there = schedule.chunk[timing.hop_transfer[np.isin(timing.hop_link, links)]]
    return ((chunk, other) for chunk in np.unique(there).tolist() for other in shorter[chunk])


def _swapped(schedule: Schedule, one: int, other: int) -> NDArray[np.int32]:
    """The chunk of each transfer after two chunks are swapped."""
    chunk = schedule.chunk.copy()
    chunk[schedule.chunk == one], chunk[schedule.chunk == other] = other, one
    return chunk


def _lateness(schedule: Schedule) -> tuple[int, int]:
    """Completion time, and the number of transfers that arrive then."""
    return schedule.finish_ps, int(np.count_nonzero(schedule.timing.end_arrival_ps == schedule.finish_ps))
