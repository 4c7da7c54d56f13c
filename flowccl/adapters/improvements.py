"""What a method finds, made into something else: only what is then better than all before goes on."""

from collections.abc import Callable, Iterator

from flowccl.schedule.schedule import Schedule


def improvements(found: Iterator[Schedule | None], made: Callable[[Schedule], Schedule]) -> Iterator[Schedule | None]:
    """Each schedule as `made` makes it; None where there is none, or it is no earlier than one before."""
    best_ps: int | None = None
    for schedule in found:
        better = None if schedule is None else made(schedule)
        if better is None or (best_ps is not None and better.finish_ps >= best_ps):
            yield None
            continue
        best_ps = better.finish_ps
        yield better
