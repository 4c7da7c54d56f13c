"""The filter behind every method: it passes only schedules that are better than all before."""

from collections.abc import Iterable, Iterator

from flowccl.schedule.schedule import Schedule


def only_improvements(found: Iterable[Schedule | None]) -> Iterator[Schedule | None]:
    """Yield each schedule that finishes earlier than all before it, and None in place of every other one."""
    best_ps: int | None = None
    for schedule in found:
        if schedule is None or (best_ps is not None and schedule.finish_ps >= best_ps):
            yield None
            continue
        best_ps = schedule.finish_ps
        yield schedule
