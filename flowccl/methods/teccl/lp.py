"""The linear program for demands without copies (TE-CCL section 4.1), and the same with whole chunks.

Rates become the ways of whole chunks: the flows are followed back from destinations, the blocks are cut into so many
pieces that every part of a rate is whole pieces, and those are sent in the order of their epochs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from flowccl.demand.demand import Demand
from flowccl.errors import DemandError, InputError, NothingFoundError
from flowccl.methods.teccl.epochs import Grid, check_buffers, chunk_size, make_grid
from flowccl.methods.teccl.flows import FlowProgram, Wanted
from flowccl.methods.teccl.grid_bound import Distances, GridBound, grid_bound
from flowccl.methods.teccl.options import TecclOptions
from flowccl.methods.teccl.paths import Way, ways_of
from flowccl.methods.teccl.plan import GridPlan
from flowccl.methods.teccl.readback import best_schedule, read_back
from flowccl.methods.teccl.search import Answer, EpochSearch, refuse_too_few, solver_options
from flowccl.methods.teccl.start import Start, greedy_start
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.solver import Status, solve

_MOST_COLUMNS = 1_500_000
_ALWAYS_TRIED = 30_000
_COLUMNS_PER_S = 3000  # a program of more columns than that for each second left is not begun
_PIECES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
_MOST_TRANSFERS = 60_000
_MOST_IN_PIECES = 4000  # chunks that the searches still get at once
_QUICK_S = 2.5  # time limit of lp-quick
_FROM_NOTHING = {"warm_start": False}  # in auto
_MOST_TO_GENERATE = 300  # where limits or changing bandwidths make placing slow


@dataclass(frozen=True, eq=False)
class FlowPlan:
    """Ways on a grid; `whole` says that every way is of whole chunks."""

    grid: Grid
    demand: Demand
    ways: tuple[Way, ...]
    epochs: int
    whole: bool


def lp(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Rates on the grid with their proof or gap, read back in continuous time."""
    demand = problem.demand
    options = TecclOptions.of(context.options)
    if not demand.is_unicast and options.copy:
        raise DemandError(
            f"{demand.collective}: chunks have several destinations, and lp makes no copies; use milp, or --no-copy"
        )
    yield from _synthesize(problem, context, options, whole=False)


def lp_quick(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """The same in little time, from nothing: what auto takes beside its searches. No plan in that time is no answer."""
    if context.budget.steps is not None:
        raise DemandError("lp-quick is for a time limit: with a number of steps it would depend on the computer")
    budget = context.budget
    budget = replace(budget, time_limit_s=min(budget.elapsed_s + _QUICK_S, budget.time_limit_s))
    try:
        yield from lp(problem, replace(context, budget=budget, options=_FROM_NOTHING, notes={}))
    except NothingFoundError as nothing:
        raise DemandError(str(nothing)) from None


def whole_chunks(problem: Problem, context: SearchContext, options: TecclOptions) -> Iterator[Schedule | None]:
    """The same with whole chunks: what milp does where nothing is copied."""
    yield from _synthesize(problem, context, options, whole=True)


def _synthesize(
    problem: Problem, context: SearchContext, options: TecclOptions, *, whole: bool
) -> Iterator[Schedule | None]:
    topology, demand = problem.topology, problem.demand
    method = "milp" if whole else "lp"
    grid = make_grid(topology, chunk_size(demand), options)
    check_buffers(grid, demand, grid.chunk_bytes if whole else 1)
    floor = _floor(grid, demand, whole)
    refuse_too_few(options, floor)
    copies = not demand.is_unicast
    start = Start()
    if options.warm_start and options.buffers and options.objective == "epochs" and not copies:
        start = greedy_start(grid, demand, floor.epochs, context)
        if not whole:
            floor = _in_pieces(grid, demand, context, options, start, floor)
    distances = Distances.of(grid, rates=not whole)
    search: EpochSearch[FlowPlan | GridPlan] = EpochSearch(
        floor,
        options,
        context,
        lambda epochs, seconds: _attempt(grid, demand, distances, context, options, epochs, seconds, whole),
        best=start.plan,
    )
    plan = search.run()
    if plan is None:
        raise NothingFoundError(
            f"no plan found in {context.budget.elapsed_s:.1f} s; at least {search.low} epochs are needed because {search.reason}"
        )
    context.notes |= search.facts(grid.epoch_us)
    yield best_schedule(context, _schedule(plan, start, method, copies), start, method)


def _in_pieces(
    grid: Grid, demand: Demand, context: SearchContext, options: TecclOptions, start: Start, floor: GridBound
) -> GridBound:
    """Better starts with every chunk in 2, 3, ... pieces, which rates may be; the floor then counts for them too."""
    for pieces in (2, 3, 4, 6, 8):
        good = start.schedule is not None and start.schedule.finish_ps <= context.budget.good_ps
        met = start.plan is not None and start.plan.epochs <= floor.epochs
        small = pieces * len(demand) <= _MOST_IN_PIECES and pieces <= demand.chunk_bytes.min()
        if (good and met) or not small or context.budget.left_s <= 0 or context.budget.should_stop():
            break
        parts = split(demand, pieces)
        subdivide = replace(grid, chunk_bytes=grid.chunk_bytes / pieces)
        least = grid_bound(subdivide, parts, copy=False)
        other = greedy_start(subdivide, parts, least.epochs, context, share=0.15)
        if other.schedule is not None and (
            start.schedule is None or other.schedule.finish_ps < start.schedule.finish_ps
        ):
            start.schedule = other.schedule
        if other.plan is not None and (start.plan is None or other.plan.epochs < start.plan.epochs):
            start.plan = other.plan
            start.schedules |= other.schedules
        floor = min(floor, least, key=lambda bound: bound.epochs)
    return floor


def _floor(grid: Grid, demand: Demand, whole: bool) -> GridBound:
    """For rates, a plan of whole chunks counts as well, so it is the lower of both."""
    bounds = [grid_bound(grid, demand, copy=False)]
    if not whole:
        bounds.append(grid_bound(grid, demand, copy=False, rates=True))
    return min(bounds, key=lambda floor: floor.epochs)


def _attempt(
    grid: Grid,
    demand: Demand,
    distances: Distances,
    context: SearchContext,
    options: TecclOptions,
    epochs: int,
    seconds: float,
    whole: bool,
) -> "Answer[FlowPlan | GridPlan]":
    """Any flows of so many epochs; with the paper's objective, the earliest in its sense."""
    began = context.budget.elapsed_s
    size = demand.num_gpus * grid.num_arcs * epochs
    if size > max(_ALWAYS_TRIED, min(_COLUMNS_PER_S * seconds, 4 * _MOST_COLUMNS)):
        return Answer(Status.TIME_LIMIT, None, 0.0)
    program = FlowProgram(grid, Wanted.of(grid, demand, whole=whole), distances, epochs, options, whole=whole)
    if program.model.num_columns > _MOST_COLUMNS:
        return Answer(Status.TIME_LIMIT, None, 0.0)
    if options.objective == "paper":
        program.reward_early()
    settings = solver_options(context, options, seconds, first=whole and options.objective == "epochs")
    solution = solve(program.model.build(), settings, options.solver)
    if not solution.has_point:
        return Answer(solution.status, None, context.budget.elapsed_s - began)
    values = [solution.value(block) for block in (program.flow, program.keep, program.take)]
    ways = tuple(ways_of(program, *values))
    done = max(k + int(program.delay[a, k]) for way in ways for a, k in way.sends[-1:])
    return Answer(solution.status, FlowPlan(grid, demand, ways, done, whole), context.budget.elapsed_s - began)


# -- read the schedule ------------------------------------------------------------------------------------------------


def _schedule(plan: FlowPlan | GridPlan, start: Start, method: str, copies: bool) -> Schedule:
    if isinstance(plan, GridPlan):
        return start.schedules.get(plan) or read_back(plan, method, drop_useless=not copies)
    if plan.whole:
        return read_back(_cut(plan, 1), method, drop_useless=not copies)
    best: Schedule | None = None
    for pieces in _piece_counts(plan):
        schedule = read_back(_cut(plan, pieces), method, drop_useless=not copies)
        if best is None or schedule.finish_ps < best.finish_ps:
            best = schedule
        if best.finish_ps <= plan.epochs * plan.grid.epoch_ps and _is_exact(plan, pieces):
            break
    if best is None:
        raise InputError(f"{method}: chunks of {int(plan.demand.chunk_bytes.min())} bytes cannot be cut into pieces")
    return best


def _piece_counts(plan: FlowPlan) -> list[int]:
    """The fewest pieces that lose nothing, or a few to choose from."""
    least = int(plan.demand.chunk_bytes.min())
    sends = sum(len(way.sends) for way in plan.ways) / max(len(plan.ways), 1) * len(plan.demand.destination_rank)
    most = _MOST_TO_GENERATE if plan.grid.topology.has_limits_or_changes else _MOST_TRANSFERS
    possible = [n for n in _PIECES if n <= least and (n == 1 or n * sends <= most)]
    exact = [n for n in possible if _is_exact(plan, n)]
    return exact[:1] + ([n for n in (1, 2, 4, 8, 16) if n in possible] if not exact else [])


def _is_exact(plan: FlowPlan, pieces: int) -> bool:
    parts = np.array([way.amount * pieces for way in plan.ways])
    return bool(np.abs(parts - np.round(parts)).max(initial=0.0) < 1e-4)


def _cut(plan: FlowPlan, pieces: int) -> GridPlan:
    """Every way as transfers of whole pieces of chunks; ways get pieces by their shares, the largest rests first."""
    demand, grid = split(plan.demand, pieces), plan.grid
    members: dict[tuple[int, int], list[int]] = {}
    for entry, (chunk, rank) in enumerate(zip(demand.destination_chunk.tolist(), demand.destination_rank, strict=True)):
        members.setdefault((int(demand.source[chunk]), int(rank)), []).append(int(demand.destination_chunk[entry]))
    by_pair: dict[tuple[int, int], list[Way]] = {}
    for way in plan.ways:
        by_pair.setdefault((way.source, way.destination), []).append(way)
    rows: list[tuple[int, tuple[int, ...], int]] = []
    for pair, chunks in members.items():
        ways = sorted(by_pair[pair], key=lambda way: way.sends[-1][1])
        amount = np.array([way.amount for way in ways])
        ideal = amount / amount.sum() * len(chunks)
        count = np.floor(ideal + 1e-6).astype(int)
        for extra in np.argsort(count - ideal, kind="stable")[: len(chunks) - int(count.sum())].tolist():
            count[extra] += 1
        owner = np.repeat(np.arange(len(ways)), count)
        for chunk, which in zip(chunks, owner.tolist(), strict=True):
            rows += [(chunk, links, epoch) for links, epoch in _transfers(grid, ways[which])]
    return replace(GridPlan.of(grid, demand, rows), epochs=plan.epochs)


def _transfers(grid: Grid, way: Way) -> list[tuple[tuple[int, ...], int]]:
    """(links, epoch): sends joined where they meet in a switch."""
    stores, sends = grid.topology.stores, _without_loops(grid, way)
    starts = [i for i, (arc, _) in enumerate(sends) if stores[grid.tail[arc]]] + [len(sends)]
    return [
        (tuple(link for arc, _ in sends[a:b] for link in grid.routes.links(arc)), sends[a][1])
        for a, b in pairwise(starts)
    ]


def _without_loops(grid: Grid, way: Way) -> list[tuple[int, int]]:
    """The sends of a way, less those that lead back to where it has been."""
    sends: list[tuple[int, int]] = []
    been = [way.source]
    for arc, epoch in way.sends:
        node = int(grid.head[arc])
        if node in been:
            place = been.index(node)
            been, sends = been[: place + 1], sends[:place]
        else:
            been.append(node)
            sends.append((arc, epoch))
    return sends


def split(demand: Demand, pieces: int) -> Demand:
    """Every chunk in so many pieces that differ by at most a byte."""
    if pieces == 1:
        return demand
    size = demand.chunk_bytes[:, None] // pieces + (np.arange(pieces) < (demand.chunk_bytes % pieces)[:, None])
    return replace(
        demand,
        chunk_bytes=size.reshape(-1),
        source_ptr=np.arange(len(demand) * pieces + 1),
        source_rank=np.repeat(demand.source, pieces),
        destination_ptr=np.concatenate(([0], np.cumsum(np.repeat(np.diff(demand.destination_ptr), pieces)))),
        destination_rank=np.concatenate([np.tile(demand.destinations(c), pieces) for c in range(len(demand))]),
        pieces=demand.pieces * pieces,
    )
