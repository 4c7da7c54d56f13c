"""The choice among the schedules that were found: the leanest of those that are about as early as the best."""

from collections.abc import Callable, Sequence

from flowccl.schedule.schedule import Schedule
from flowccl.verifier.verify import verify


def slack(best: Schedule, lean: float, good_ps: float) -> float:
    """How much later than the best one a schedule may finish, as a fraction of its completion time.

    That is `lean`, but not later than `good_ps` where the best one is not: a gap that the search has reached is kept.
    """
    return min(lean, good_ps / best.finish_ps - 1) if 0 < best.finish_ps <= good_ps else lean


def leanest(found: Sequence[Schedule], best: Schedule, lean: float) -> Schedule:
    """Of all schedules within `lean` of the best one, the verified one with the fewest transfers."""
    near = [one for one in found if one.finish_ps <= best.finish_ps * (1 + lean)]
    for one in sorted(near, key=lambda one: (len(one), one.finish_ps)):
        if one is best or not verify(one):
            return one
    return best


def with_fewer_chunks(
    best: Schedule, lean: float, schedule_with: Callable[[Schedule, int], Schedule | None]
) -> list[Schedule]:
    """Return schedules like the best one with half as many chunks, a quarter, and so on, as long as each is as good.

    `schedule_with` returns a schedule like another one with a number of chunks, or None.
    """
    found: list[Schedule] = []
    count = best.demand.pieces
    while count % 2 == 0 and (fewer := schedule_with(best, count // 2)) is not None:
        if fewer.finish_ps > best.finish_ps * (1 + lean):
            break
        found.append(fewer)
        count //= 2
    return found
