"""The linear program for demands without copies (TE-CCL section 4.1), and the same program with whole chunks.

To turn rates into whole chunks, the flows are decomposed into paths, and the blocks are divided into enough pieces that
each path carries whole pieces. The pieces are then sent in the order of their epochs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from flowccl.arrays import pointers
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError, InputError, NothingFoundError
from flowccl.papers.teccl.epochs import Grid, check_buffers, chunk_size, make_grid
from flowccl.papers.teccl.flows import FlowProgram, GridCommodities
from flowccl.papers.teccl.grid_bound import Distances, GridBound, grid_bound
from flowccl.papers.teccl.options import TecclOptions
from flowccl.papers.teccl.paths import EpochPath, epoch_paths
from flowccl.papers.teccl.plan import GridPlan
from flowccl.papers.teccl.readback import best_schedule, read_back
from flowccl.papers.teccl.search import EpochResult, EpochSearch, check_epochs, solver_options
from flowccl.papers.teccl.start import WarmStart, find_warm_start
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.solver import Status, solve

_MOST_COLUMNS = 1_500_000
_ALWAYS_TRIED = 30_000
_COLUMNS_PER_S = 3000  # larger programs, per second left, are not started
_PIECES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
_MOST_TRANSFERS = 60_000
_MOST_IN_PIECES = 4000  # largest number of chunks for warm starts in pieces
_QUICK_S = 2.5  # time limit of lp-quick
_FROM_NOTHING = {"warm_start": False}  # options of lp-quick: no warm start
_MOST_TO_GENERATE = 300  # transfers; limits and changing bandwidth make serial generation slow


@dataclass(frozen=True, eq=False)
class FlowPlan:
    """Paths on a grid; with `whole`, every path carries whole chunks."""

    grid: Grid
    demand: Demand
    paths: tuple[EpochPath, ...]
    epochs: int
    whole: bool


def lp(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Yield the schedule of the rates, read back in continuous time; the notes have their proof or gap."""
    demand = problem.demand
    options = TecclOptions.of(context.options)
    if not demand.is_unicast and options.copy:
        raise DemandError(
            f"{demand.collective}: method lp does not copy chunks, and some chunks have several destinations;"
            " use milp or --no-copy"
        )
    yield from _synthesize(problem, context, options, whole=False)


def lp_quick(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Run `lp` without warm start in 2.5 seconds, for `auto`; DemandError if it finds nothing in that time."""
    if context.budget.steps is not None:
        raise DemandError(
            "method lp-quick does not support counted steps: its result depends on the speed of the computer"
        )
    budget = context.budget
    budget = replace(budget, time_limit_s=min(budget.elapsed_s + _QUICK_S, budget.time_limit_s))
    try:
        yield from lp(problem, replace(context, budget=budget, options=_FROM_NOTHING, notes={}))
    except NothingFoundError as nothing:
        raise DemandError(str(nothing)) from None


def whole_chunks(problem: Problem, context: SearchContext, options: TecclOptions) -> Iterator[Schedule | None]:
    """Run the same program with whole chunks: `milp` without copies."""
    yield from _synthesize(problem, context, options, whole=True)


def _synthesize(
    problem: Problem, context: SearchContext, options: TecclOptions, *, whole: bool
) -> Iterator[Schedule | None]:
    topology, demand = problem.topology, problem.demand
    method = "milp" if whole else "lp"
    grid = make_grid(topology, chunk_size(demand), options)
    check_buffers(grid, demand, grid.chunk_bytes if whole else 1)
    bound = _rates_bound(grid, demand, whole)
    check_epochs(options, bound)
    copies = not demand.is_unicast
    start = WarmStart()
    if options.warm_start and options.buffers and options.objective == "epochs" and not copies:
        start = find_warm_start(grid, demand, bound.epochs, context)
        if not whole:
            bound = _in_pieces(grid, demand, context, options, start, bound)
    distances = Distances.of(grid, rates=not whole)
    search: EpochSearch[FlowPlan | GridPlan] = EpochSearch(
        bound,
        options,
        context,
        lambda epochs, seconds: _attempt(grid, demand, distances, context, options, epochs, seconds, whole),
        best=start.plan,
    )
    plan = search.run()
    if plan is None:
        raise NothingFoundError(
            f"no plan found in {context.budget.elapsed_s:.1f} s;"
            f" at least {search.low} epochs are needed because {search.reason}"
        )
    context.notes |= search.facts(grid.epoch_us)
    yield best_schedule(context, _schedule(plan, start, method, copies), start, method)


def _in_pieces(
    grid: Grid, demand: Demand, context: SearchContext, options: TecclOptions, start: WarmStart, bound: GridBound
) -> GridBound:
    """Improve the warm start with chunks in 2, 3, ... pieces, which rates allow; return the bound for these too."""
    for pieces in (2, 3, 4, 6, 8):
        good = start.schedule is not None and start.schedule.finish_ps <= context.budget.good_ps
        met = start.plan is not None and start.plan.epochs <= bound.epochs
        small = pieces * len(demand) <= _MOST_IN_PIECES and pieces <= demand.chunk_bytes.min()
        if (good and met) or not small or context.budget.left_s <= 0 or context.budget.should_stop():
            break
        parts = split(demand, pieces)
        fine_grid = replace(grid, chunk_bytes=grid.chunk_bytes / pieces)
        least = grid_bound(fine_grid, parts, copy=False)
        other = find_warm_start(fine_grid, parts, least.epochs, context, share=0.15)
        if other.schedule is not None and (
            start.schedule is None or other.schedule.finish_ps < start.schedule.finish_ps
        ):
            start.schedule = other.schedule
        if other.plan is not None and (start.plan is None or other.plan.epochs < start.plan.epochs):
            start.plan = other.plan
            start.schedules |= other.schedules
        bound = min(bound, least, key=lambda one: one.epochs)
    return bound


def _rates_bound(grid: Grid, demand: Demand, whole: bool) -> GridBound:
    """The lower one of the bounds for rates and for whole chunks, since a plan of whole chunks is accepted as well."""
    bounds = [grid_bound(grid, demand, copy=False)]
    if not whole:
        bounds.append(grid_bound(grid, demand, copy=False, rates=True))
    return min(bounds, key=lambda one: one.epochs)


def _attempt(
    grid: Grid,
    demand: Demand,
    distances: Distances,
    context: SearchContext,
    options: TecclOptions,
    epochs: int,
    seconds: float,
    whole: bool,
) -> "EpochResult[FlowPlan | GridPlan]":
    """Find any flows within this many epochs; with the paper's objective, the best in its sense."""
    began = context.budget.elapsed_s
    size = demand.num_gpus * grid.num_arcs * epochs
    if size > max(_ALWAYS_TRIED, min(_COLUMNS_PER_S * seconds, 4 * _MOST_COLUMNS)):
        return EpochResult(Status.TIME_LIMIT, None, 0.0)
    program = FlowProgram(grid, GridCommodities.of(grid, demand, whole=whole), distances, epochs, options, whole=whole)
    if program.model.num_columns > _MOST_COLUMNS:
        return EpochResult(Status.TIME_LIMIT, None, 0.0)
    if options.objective == "paper":
        program.reward_early()
    settings = solver_options(context, options, seconds, first=whole and options.objective == "epochs")
    solution = solve(program.model.build(), settings, options.solver)
    if not solution.has_point:
        return EpochResult(solution.status, None, context.budget.elapsed_s - began)
    values = [solution.value(block) for block in (program.flow, program.keep, program.take)]
    paths = tuple(epoch_paths(program, *values))
    done = max(k + int(program.delay[a, k]) for path in paths for a, k in path.sends[-1:])
    return EpochResult(solution.status, FlowPlan(grid, demand, paths, done, whole), context.budget.elapsed_s - began)


# -- read the schedule ------------------------------------------------------------------------------------------------


def _schedule(plan: FlowPlan | GridPlan, start: WarmStart, method: str, copies: bool) -> Schedule:
    if isinstance(plan, GridPlan):
        return start.schedules.get(plan) or read_back(plan, method, drop_useless=not copies)
    if plan.whole:
        return read_back(_to_grid_plan(plan, 1), method, drop_useless=not copies)
    best: Schedule | None = None
    for pieces in _piece_counts(plan):
        schedule = read_back(_to_grid_plan(plan, pieces), method, drop_useless=not copies)
        if best is None or schedule.finish_ps < best.finish_ps:
            best = schedule
        if best.finish_ps <= plan.epochs * plan.grid.epoch_ps and _is_exact(plan, pieces):
            break
    if best is None:
        raise InputError(
            f"{method}: chunks of {int(plan.demand.chunk_bytes.min())} bytes are too small to be divided into pieces"
        )
    return best


def _piece_counts(plan: FlowPlan) -> list[int]:
    """The smallest number of pieces without rounding; if there is none, a few numbers to choose from."""
    least = int(plan.demand.chunk_bytes.min())
    sends = sum(len(path.sends) for path in plan.paths) / max(len(plan.paths), 1) * len(plan.demand.destination_rank)
    most = _MOST_TO_GENERATE if plan.grid.topology.has_limits_or_changes else _MOST_TRANSFERS
    possible = [n for n in _PIECES if n <= least and (n == 1 or n * sends <= most)]
    exact = [n for n in possible if _is_exact(plan, n)]
    return exact[:1] + ([n for n in (1, 2, 4, 8, 16) if n in possible] if not exact else [])


def _is_exact(plan: FlowPlan, pieces: int) -> bool:
    parts = np.array([path.amount * pieces for path in plan.paths])
    return bool(np.abs(parts - np.round(parts)).max(initial=0.0) < 1e-4)


def _to_grid_plan(plan: FlowPlan, pieces: int) -> GridPlan:
    """Return the transfers of whole pieces of chunks along the paths.

    Pieces are distributed over the paths of each pair by largest remainder.
    """
    demand, grid = split(plan.demand, pieces), plan.grid
    members: dict[tuple[int, int], list[int]] = {}
    for entry, (chunk, rank) in enumerate(zip(demand.destination_chunk.tolist(), demand.destination_rank, strict=True)):
        members.setdefault((int(demand.source[chunk]), int(rank)), []).append(int(demand.destination_chunk[entry]))
    by_pair: dict[tuple[int, int], list[EpochPath]] = {}
    for path in plan.paths:
        by_pair.setdefault((path.source, path.destination), []).append(path)
    rows: list[tuple[int, tuple[int, ...], int]] = []
    for pair, chunks in members.items():
        paths = sorted(by_pair[pair], key=lambda path: path.sends[-1][1])
        amount = np.array([path.amount for path in paths])
        ideal = amount / amount.sum() * len(chunks)
        count = np.floor(ideal + 1e-6).astype(int)
        for extra in np.argsort(count - ideal, kind="stable")[: len(chunks) - int(count.sum())].tolist():
            count[extra] += 1
        owner = np.repeat(np.arange(len(paths)), count)
        for chunk, which in zip(chunks, owner.tolist(), strict=True):
            rows += [(chunk, links, epoch) for links, epoch in _transfers(grid, paths[which])]
    return replace(GridPlan.of(grid, demand, rows), epochs=plan.epochs)


def _transfers(grid: Grid, path: EpochPath) -> list[tuple[tuple[int, ...], int]]:
    """(links, epoch) of a path: sends that meet in a switch become one transfer."""
    stores, sends = grid.topology.stores, _without_loops(grid, path)
    starts = [i for i, (arc, _) in enumerate(sends) if stores[grid.tail[arc]]] + [len(sends)]
    return [
        (tuple(link for arc, _ in sends[a:b] for link in grid.routes.links(arc)), sends[a][1])
        for a, b in pairwise(starts)
    ]


def _without_loops(grid: Grid, path: EpochPath) -> list[tuple[int, int]]:
    """The sends of a path without cycles."""
    sends: list[tuple[int, int]] = []
    been = [path.source]
    for arc, epoch in path.sends:
        node = int(grid.head[arc])
        if node in been:
            place = been.index(node)
            been, sends = been[: place + 1], sends[:place]
        else:
            been.append(node)
            sends.append((arc, epoch))
    return sends


def split(demand: Demand, pieces: int) -> Demand:
    """Divide every chunk into pieces whose sizes differ by at most one byte."""
    if pieces == 1:
        return demand
    size = demand.chunk_bytes[:, None] // pieces + (np.arange(pieces) < (demand.chunk_bytes % pieces)[:, None])
    return replace(
        demand,
        chunk_bytes=size.reshape(-1),
        source_ptr=np.arange(len(demand) * pieces + 1),
        source_rank=np.repeat(demand.source, pieces),
        destination_ptr=pointers(np.repeat(np.diff(demand.destination_ptr), pieces)),
        destination_rank=np.concatenate([np.tile(demand.destinations(c), pieces) for c in range(len(demand))]),
        pieces=demand.pieces * pieces,
    )
