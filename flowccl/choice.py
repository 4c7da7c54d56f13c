"""The choice among the schedules that were found: the leanest in the model, or the earliest program on a runtime."""

from collections.abc import Callable, Iterable, Sequence

from flowccl.errors import InputError, NothingFoundError
from flowccl.lowered import Lowered, lower_for
from flowccl.runtimes.profiles import RuntimeProfile
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


def best_program(
    found: Sequence[Schedule],
    profile: RuntimeProfile,
    sms: int | None,
    lean: float,
    out_of_time: Callable[[], bool] = lambda: False,
    in_network: Iterable[Schedule] = (),
) -> tuple[Schedule, Lowered]:
    """Return the schedule whose program is earliest on a runtime, and the program.

    Of all programs within `lean` of the earliest, that of the schedule with the fewest transfers is returned; of those
    the schedule that loses least by lowering. The best schedule of every method is lowered first, then the others in
    the order of their completion times, as long as there is time; those that finish later than the best program are
    left out. Those that are `in_network` follow, while they are earlier than all others: operations of switches overlap
    on the runtime more than the model says.
    """
    programs: list[tuple[Schedule, Lowered]] = []
    problems: list[str] = []

    def program_ps(schedule: Schedule) -> float:
        try:
            programs.append((schedule, lower_for(schedule, profile, sms)))
        except InputError as error:
            problems.append(str(error))
            return float("inf")
        return programs[-1][1].program_ps

    best_ps = float("inf")
    for schedule in _best_of_methods_first(found):
        if programs and out_of_time():
            break
        if schedule.finish_ps <= best_ps * (1 + lean):
            best_ps = min(best_ps, program_ps(schedule))
    for count, schedule in enumerate(in_network):
        if (count and out_of_time()) or (ps := program_ps(schedule)) >= best_ps:
            break
        best_ps = ps
    if not programs:
        raise NothingFoundError(f"{profile.name} can run none of the schedules that were found: {problems[0]}")
    near = [row for row in programs if row[1].program_ps <= best_ps * (1 + lean)]
    return min(near, key=lambda row: (len(row[0]), row[1].program_ps / max(row[0].finish_ps, 1), row[1].program_ps))


def _best_of_methods_first(found: Sequence[Schedule]) -> list[Schedule]:
    """The best schedule of every method, then the others, each by completion time.

    What a schedule loses by lowering depends on its structure, which the schedules of a method have in common.
    """
    by_time = sorted(found, key=lambda one: (one.finish_ps, len(one)))
    first = {one.method: one for one in reversed(by_time)}
    return sorted(by_time, key=lambda one: first[one.method] is not one)
