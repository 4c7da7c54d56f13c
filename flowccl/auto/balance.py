"""The last bytes: which piece of a block goes where.

A block whose bytes do not divide has pieces that differ by a byte. The searches do not mind which of them is on a full
link, and close to the floor that is all that is left. So pieces of late links change places with shorter ones of the
same block, one exchange after the other, as long as less is late.
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

_MOST = 20_000  # transfers
_WORK = 300_000  # transfers in all exchanges that are tried


def can_level(schedule: Schedule) -> bool:
    """Whether it has pieces of different lengths, and is small enough for that."""
    return 0 < len(schedule) <= _MOST and bool(np.ptp(schedule.demand.chunk_bytes)) and can_be_jobs(schedule)


def levelled(schedule: Schedule, context: SearchContext) -> Iterator[Schedule | None]:
    """The schedule with exchanged pieces, where it is earlier then; once."""
    found = level(schedule, context)
    if found is not None:
        context.incumbents.report(found)
    yield found


def level(schedule: Schedule, context: SearchContext) -> Schedule | None:
    """Exchange after exchange, as long as the finish is earlier, or fewer arrive that late."""
    shorter = _shorter(schedule.demand)
    best, jobs = schedule, jobs_from(schedule)
    exchanges = _exchanges(best, shorter)
    for _ in range(_WORK // len(schedule)):
        exchange = next(exchanges, None)
        if exchange is None or context.budget.over():
            break
        other = jobs.of_chunks(_exchanged(best, *exchange))
        found = other.dispatched(best.start_ps, best.finish_ps + 1)
        if found is not None and _late(found) < _late(best):
            best, jobs, exchanges = found, other, _exchanges(found, shorter)
    return left_shift(prune(best)) if best.finish_ps < schedule.finish_ps else None


def _shorter(demand: Demand) -> dict[int, list[int]]:
    """For chunks, those with fewer bytes that have the same source and destinations."""
    alike = defaultdict[tuple[int, ...], list[int]](list)
    for chunk in range(len(demand)):
        alike[int(demand.source[chunk]), *demand.destinations(chunk).tolist()].append(chunk)
    size = demand.chunk_bytes
    return {chunk: [o for o in block if size[o] < size[chunk]] for block in alike.values() for chunk in block}


def _exchanges(schedule: Schedule, shorter: dict[int, list[int]]) -> Iterator[tuple[int, int]]:
    """Chunks on the links of what arrives last, with shorter ones."""
    timing = schedule.timing
    last = timing.end_transfer[timing.end_arrival_ps == schedule.finish_ps]
    links = timing.hop_link[np.isin(timing.hop_transfer, last)]
    there = schedule.chunk[timing.hop_transfer[np.isin(timing.hop_link, links)]]
    return ((chunk, other) for chunk in np.unique(there).tolist() for other in shorter[chunk])


def _exchanged(schedule: Schedule, one: int, other: int) -> NDArray[np.int32]:
    """The chunk of each transfer, after two changed places."""
    chunk = schedule.chunk.copy()
    chunk[schedule.chunk == one], chunk[schedule.chunk == other] = other, one
    return chunk


def _late(schedule: Schedule) -> tuple[int, int]:
    """The finish, and how many arrive then."""
    return schedule.finish_ps, int(np.count_nonzero(schedule.timing.end_arrival_ps == schedule.finish_ps))
