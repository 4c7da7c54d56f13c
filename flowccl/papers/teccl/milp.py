"""The mixed-integer program with copies (TE-CCL section 3): fewest epochs, or the paper's objective.

Searches in continuous time provide a warm start; the bound on the grid is the smallest number of epochs that is not
refuted. If the two meet, the plan is optimal on the grid. Else the program is solved for numbers of epochs between
them.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.errors import InputError, NothingFoundError
from flowccl.papers.teccl.copies import ChunkState, CopyProgram
from flowccl.papers.teccl.epochs import Grid, check_buffers, chunk_size, make_grid
from flowccl.papers.teccl.grid_bound import Distances, grid_bound
from flowccl.papers.teccl.lp import whole_chunks
from flowccl.papers.teccl.options import TecclOptions
from flowccl.papers.teccl.plan import GridPlan, transfers_of
from flowccl.papers.teccl.readback import best_schedule, read_back
from flowccl.papers.teccl.search import EpochResult, EpochSearch, algorithm_one, check_epochs, solver_options
from flowccl.papers.teccl.start import WarmStart, find_warm_start
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.solver import Status, solve

_MOST_COLUMNS = 2_000_000  # larger programs are not solved: the result is the warm start and the bound


def milp(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Yield the schedule of a plan on the grid, read back in continuous time; the notes have its proof or gap."""
    topology, demand = problem.topology, problem.demand
    options = TecclOptions.of(context.options)
    if demand.is_unicast or not options.copy:
        yield from whole_chunks(problem, context, options)
        return
    grid = make_grid(topology, chunk_size(demand), options)
    check_buffers(grid, demand, grid.chunk_bytes)
    distances = Distances.of(grid)
    bound = grid_bound(grid, demand)
    check_epochs(options, bound)
    start = (
        find_warm_start(grid, demand, bound.epochs, context) if options.warm_start and options.buffers else WarmStart()
    )
    search = EpochSearch(
        bound,
        options,
        context,
        lambda epochs, seconds: _attempt(grid, demand, distances, context, options, epochs, seconds),
    )
    if start.plan is not None:
        search.best = start.plan
    if options.objective == "paper":
        plan, facts = _by_objective(grid, demand, distances, context, options, search)
    else:
        plan, facts = search.run(), {}
    if plan is None:
        raise NothingFoundError(
            f"no plan found in {context.budget.elapsed_s:.1f} s;"
            f" at least {search.low} epochs are needed because {search.reason}"
        )
    search.best = plan
    context.notes |= search.facts(grid.epoch_us) | facts
    yield best_schedule(context, start.schedules.get(plan) or read_back(plan, "milp"), start, "milp")


def _attempt(
    grid: Grid,
    demand: Demand,
    distances: Distances,
    context: SearchContext,
    options: TecclOptions,
    epochs: int,
    seconds: float,
) -> "EpochResult[GridPlan]":
    """Find any plan within this many epochs."""
    if len(demand) * grid.num_arcs * epochs > 20 * _MOST_COLUMNS:
        return EpochResult(Status.TIME_LIMIT, None, 0.0)
    began = context.budget.elapsed_s
    program = CopyProgram(
        grid, ChunkState.start(demand, grid.topology), distances, epochs, replace(options, objective="epochs")
    )
    if program.model.num_columns > _MOST_COLUMNS:
        return EpochResult(Status.TIME_LIMIT, None, context.budget.elapsed_s - began)
    solution = solve(program.model.build(), solver_options(context, options, seconds, first=True), options.solver)
    plan = plan_of(program, demand, solution.value(program.send)) if solution.has_point else None
    return EpochResult(solution.status, plan, context.budget.elapsed_s - began)


def plan_of(program: CopyProgram, demand: Demand, send: NDArray[np.float64]) -> GridPlan:
    """Return the plan of the values of `send`."""
    chunk, arc, epoch = np.nonzero(send > 0.5)
    rows = transfers_of(program.grid, program.num_epochs, chunk, arc, epoch)
    return GridPlan.of(program.grid, demand, rows)


def _by_objective(
    grid: Grid,
    demand: Demand,
    distances: Distances,
    context: SearchContext,
    options: TecclOptions,
    search: "EpochSearch[GridPlan]",
) -> tuple[GridPlan | None, dict[str, object]]:
    """Optimize the paper's objective over the given epochs, those of the warm start, or those of Algorithm 1."""
    search.low, search.reason = search.bound.epochs, search.bound.witness
    given = options.epochs if isinstance(options.epochs, int) else None
    epochs = given or (search.best.epochs if search.best is not None else 0)
    epochs = epochs or _enough_epochs(grid, demand, context, options, search)
    while True:
        program = CopyProgram(grid, ChunkState.start(demand, grid.topology), distances, epochs, options)
        program.reward_early()
        began = context.budget.elapsed_s
        settings = solver_options(context, options, max(context.budget.left_s, 0.1))
        if search.best is not None and search.best.epochs <= epochs:
            settings = replace(settings, start=_point(program, search.best))
        solution = solve(program.model.build(), settings, options.solver)
        search.solver_s += context.budget.elapsed_s - began
        search.solves += 1
        if solution.status is not Status.INFEASIBLE:
            break
        search.low, search.reason = epochs + 1, f"the program for {epochs} epochs has no solution"
        if given is not None:
            raise InputError(f"infeasible in {epochs} epochs; at least {search.low} are needed because {search.reason}")
        epochs += max(epochs // 8, 1)  # Algorithm 1 does not account for rounding to this grid
    if not solution.has_point:
        return search.best, {"grid_status": str(solution.status)}
    gap = solution.gap if math.isfinite(solution.gap) else None
    facts: dict[str, object] = {"objective": solution.objective, "objective_gap": gap}
    plan = plan_of(program, demand, solution.value(program.send))
    return plan, facts | {"grid_status": str(solution.status)}


def _enough_epochs(
    grid: Grid, demand: Demand, context: SearchContext, options: TecclOptions, search: "EpochSearch[GridPlan]"
) -> int:
    def feasible(epoch_us: float, epochs: int) -> bool:
        coarse = make_grid(grid.topology, grid.chunk_bytes, replace(options, epoch=f"{epoch_us:.6f}us"))
        if context.budget.left_s <= 0:
            raise NothingFoundError(f"no sufficient number of epochs found in {context.budget.elapsed_s:.1f} s")
        return (
            _attempt(coarse, demand, Distances.of(coarse), context, options, epochs, context.budget.left_s).plan
            is not None
        )

    return max(algorithm_one(search.low * grid.epoch_us, grid.epoch_us, feasible), search.low)


def _point(program: CopyProgram, plan: GridPlan) -> NDArray[np.float64]:
    """Return the plan as a starting point of the program."""
    built = program.model.build()
    chunk, arc, epoch = plan.sends
    send = np.zeros(program.send.shape)
    inside = program.send.exists[chunk, arc, epoch]
    send[chunk[inside], arc[inside], epoch[inside]] = 1
    have = np.zeros(program.have.shape)
    for c, a, k in zip(chunk[inside].tolist(), arc[inside].tolist(), epoch[inside].tolist(), strict=True):
        have[c, program.grid.head[a], k + int(program.delay[a, k]) :] = 1
    return built.point((program.send, send), (program.have, np.where(program.have.exists, have, 0)))
