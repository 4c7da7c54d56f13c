"""The choice among the schedules that were found: the leanest of those that are about as early as the best."""

import logging
from collections.abc import Callable, Sequence
from math import inf

from flowccl.adapters.trunks import on_trunks
from flowccl.bounds.lower_bound import Bound
from flowccl.errors import InputError, InvalidScheduleError, NothingFoundError
from flowccl.lowered import Lowered, lower_spread_out, lowering_s, proving_s
from flowccl.runtimes.profiles import RuntimeProfile
from flowccl.schedule.schedule import Schedule
from flowccl.search.budget import Budget
from flowccl.synthesis.mirror import Mirror
from flowccl.synthesis.searching import TaskSearch
from flowccl.units import format_us
from flowccl.verifier.compact import verify_found

log = logging.getLogger(__name__)

_MOST_LATE = 3  # programs that are later than their schedules before the best of them is taken
_PROGRAM_WORTH = 1.05  # times a schedule for whose program there is no time: one with a program is no later than that
_MOST_PROVED = 10_000  # transfers: programs of larger schedules are proved when they are exported


def chosen(searching: TaskSearch, best: Schedule, bound: Bound) -> tuple[Schedule, Lowered | None, list[Schedule]]:
    """The schedule that is returned, its program on the runtime, and all schedules among which it was chosen.

    There is no program where the time limit does not suffice for it; the notes of the search say so.
    """
    task, portfolio, budget = searching.task, searching.portfolio, searching.context.budget
    found, later = searching.found(), slack(best, task.options.lean, bound.ps * (1 + task.options.gap))
    repeats = best.execution is not None and best.execution.loops > 1  # what is repeated already has few operations
    if not searching.interrupted and not repeats:
        found += with_fewer_chunks(leanest(found, best, later), later, portfolio.schedule_with)
    if task.lanes is not None:
        whole = _verified(on_trunks(best, task.lanes))
        found, best = [whole if one is best else on_trunks(one, task.lanes) for one in found], whole
    best = leanest(found, best, later)
    if task.mirror is not None:
        return _verified(task.mirror.reduction(best)), None, _reductions(found, task.mirror, budget)
    if task.target.is_ideal:
        return best, None, found
    ordered = [best, *sorted((one for one in found if one is not best), key=lambda one: one.finish_ps)]
    best, lowered = with_program(ordered, task.target, task.sms, lambda: budget.after_s)
    if lowered is None:
        reason = f"it takes about {lowering_s(best):.1f} s, and the time limit does not leave that"
        searching.context.notes["program"] = f"left out: {reason}; flowccl export writes it"
    elif lowered.program_ps > ordered[0].finish_ps and best is not ordered[0]:
        words = f"the program of one that ends after {format_us(ordered[0].finish_us)} takes about"
        searching.context.notes["left out"] = f"{words} {lowering_s(ordered[0]):.1f} s to make, or is later"
    return best, lowered, found


def slack(best: Schedule, lean: float, good_ps: float) -> float:
    """How much later than the best one a schedule may finish, as a fraction of its completion time.

    That is `lean`, but not later than `good_ps` where the best one is not: a gap that the search has reached is kept.
    """
    return min(lean, good_ps / best.finish_ps - 1) if 0 < best.finish_ps <= good_ps else lean


def leanest(found: Sequence[Schedule], best: Schedule, lean: float) -> Schedule:
    """Of all schedules within `lean` of the best one, the verified one with the fewest transfers."""
    near = [one for one in found if one.finish_ps <= best.finish_ps * (1 + lean)]
    for one in sorted(near, key=lambda one: (len(one), one.finish_ps)):
        if one is best or not verify_found(one):
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


def with_program(
    found: list[Schedule], target: RuntimeProfile, sms: int | None, left_s: Callable[[], float] = lambda: inf
) -> tuple[Schedule, Lowered | None]:
    """The schedule with the earliest program that the runtime can run, and that program, which is proved.

    A program is later than its schedule where threadblocks wait for each other; then others are tried, the best first.
    Those whose programs would take longer than `left_s` says are left out. The first of them is returned, without its
    program, where the others are much later, or there are none. Programs are proved where there is time: they are when
    they are exported.
    """
    problem, best, late, too_long = "", None, 0, None
    for schedule in found:
        if best is not None and (schedule.finish_ps >= best[1].program_ps or late == _MOST_LATE):
            break
        if too_long is not None and schedule.finish_ps > _PROGRAM_WORTH * too_long.finish_ps:
            break
        if lowering_s(schedule) > left_s():
            too_long = too_long or schedule
            continue
        try:
            made, lowered = lower_spread_out(schedule, target, sms, left_s)
            made = made if made is schedule else _verified(made)
        except (InputError, InvalidScheduleError) as error:
            log.debug("%s: no program: %s", schedule.method, error)
            problem = problem or str(error)
            continue
        is_small = lowered.program is not None and len(schedule) <= _MOST_PROVED
        if is_small and proving_s(lowered) <= left_s() and lowered.program and lowered.program.findings:
            problem = problem or f"the program would be wrong: {lowered.program.findings[0]}"
            continue
        if best is None or lowered.program_ps < best[1].program_ps:
            best = made, lowered
        late += 1
    if best is None and too_long is not None:
        return too_long, None
    if best is None:
        raise NothingFoundError(f"{target.name} can run none of the schedules that were found: {problem}")
    return best


def _reductions(found: Sequence[Schedule], mirror: Mirror, budget: Budget) -> list[Schedule]:
    """The reductions that distributions are, run backwards: of all, or of the smallest for which there is time."""
    return [mirror.reduction(one) for one in sorted(found, key=len) if budget.after_s > 0]


def _verified(schedule: Schedule) -> Schedule:
    """The schedule; an error where it is invalid, which would be a mistake of ours."""
    violations = verify_found(schedule)
    if violations:
        raise InvalidScheduleError(f"{schedule.method} made an invalid schedule: {violations[0]}")
    return schedule
