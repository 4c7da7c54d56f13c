"""Methods `milp` and `lp`: the fewest epochs, or the paper's objective, then a schedule in continuous time.

`milp` sends whole chunks, by the program with copies (section 3) or, where nothing is copied, that of section 4.1 with
integers; `lp` is that of section 4.1 with rates. Searches in continuous time provide a warm start; the bound on the
grid is the smallest number of epochs that is not refuted. If the two meet, the plan is optimal on the grid. Else the
program is solved for numbers of epochs between them.
"""

from collections.abc import Iterator
from dataclasses import replace

from flowccl.demand.division import divided
from flowccl.errors import DemandError, NothingFoundError
from flowccl.papers.teccl.epochs import check_buffers
from flowccl.papers.teccl.grid_bound import GridBound, grid_bound
from flowccl.papers.teccl.objective import by_objective
from flowccl.papers.teccl.pieces import most_pieces
from flowccl.papers.teccl.readback import best_schedule
from flowccl.papers.teccl.search import EpochSearch
from flowccl.papers.teccl.start import WarmStart, find_warm_start
from flowccl.papers.teccl.task import EpochTask
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext

_MOST_IN_PIECES = 4000  # largest number of chunks for warm starts in pieces


def milp(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Yield the schedule of a plan on the grid, read back in continuous time; the notes have its proof or gap."""
    yield from _synthesize(EpochTask.of(problem, context, whole=True))


def lp(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Yield the schedule of the rates, read back in continuous time; the notes have their proof or gap."""
    task = EpochTask.of(problem, context, whole=False)
    if not problem.demand.is_unicast and task.options.copy:
        raise DemandError(
            f"{problem.demand.collective}: method lp does not copy chunks, and some chunks have several destinations;"
            " use milp or --no-copy"
        )
    yield from _synthesize(task)


def _synthesize(task: EpochTask) -> Iterator[Schedule | None]:
    options, context, grid = task.options, task.context, task.grid
    check_buffers(grid, task.demand, grid.chunk_bytes if task.whole else 1)
    search = EpochSearch(task.bound, options, context, task.attempt)
    start = WarmStart()
    if options.warm_start and options.buffers and (task.copies or _starts_from_plans(task)):
        start = find_warm_start(grid, task.demand, task.bound.epochs, context)
        bound = task.bound if task.whole else _in_pieces(task, start)
        search = replace(search, bound=bound, best=start.plan)
    facts: dict[str, object] = {}
    if task.copies and options.objective == "paper":
        search.best, facts = by_objective(task, search)
    else:
        search.run()
    if search.best is None:
        needed = f"at least {search.low} epochs are needed because {search.reason}"
        raise NothingFoundError(f"no plan found in {context.budget.elapsed_s:.1f} s; {needed}")
    context.notes |= search.facts(grid.epoch_us) | facts
    yield best_schedule(context, task.schedule(search.best, start), start, task.method)


def _starts_from_plans(task: EpochTask) -> bool:
    """Whether a program without copies starts from plans: of chunks with one destination, for the fewest epochs."""
    return task.options.objective == "epochs" and task.demand.is_unicast


def _in_pieces(task: EpochTask, start: WarmStart) -> GridBound:
    """Improve the warm start with chunks in 2, 3, ... pieces, which rates allow; return the bound for these too."""
    grid, demand, context, bound = task.grid, task.demand, task.context, task.bound
    for pieces in (2, 3, 4, 6, 8):
        good = start.schedule is not None and start.schedule.finish_ps <= context.budget.good_ps
        met = start.plan is not None and start.plan.epochs <= bound.epochs
        small = pieces * len(demand) <= _MOST_IN_PIECES and pieces <= most_pieces(demand)
        if (good and met) or not small or context.budget.left_s <= 0 or context.budget.should_stop():
            break
        fine_grid, parts = replace(grid, chunk_bytes=grid.chunk_bytes / pieces), divided(demand, pieces)
        least = grid_bound(fine_grid, parts, copy=False)
        start.add(find_warm_start(fine_grid, parts, least.epochs, context, share=0.15))
        bound = min(bound, least, key=lambda one: one.epochs)
    return bound
