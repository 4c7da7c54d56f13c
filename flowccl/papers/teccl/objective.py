"""The paper's objective for programs with copies: the sum of 1 / (k + 1) over all deliveries by the end of epoch k."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import InputError, NothingFoundError
from flowccl.papers.teccl.copies import CopyProgram
from flowccl.papers.teccl.epochs import make_grid
from flowccl.papers.teccl.plan import GridPlan
from flowccl.papers.teccl.search import EpochSearch, Plan
from flowccl.papers.teccl.task import EpochTask
from flowccl.solver import Status


def by_objective(task: EpochTask, search: EpochSearch) -> tuple[Plan | None, dict[str, object]]:
    """Optimize the objective over the given epochs, those of the warm start, or those of Algorithm 1."""
    budget, given = task.context.budget, task.options.epochs
    epochs = given if isinstance(given, int) else search.best.epochs if search.best is not None else 0
    epochs = epochs or _enough_epochs(task, search)
    while True:
        program = task.copy_program(epochs, task.options)
        program.reward_early()
        began = budget.elapsed_s
        settings = task.settings(max(budget.left_s, 0.1))
        if isinstance(search.best, GridPlan) and search.best.epochs <= epochs:
            settings = replace(settings, start=_point(program, search.best))
        solution = task.solve(program, settings)
        search.solver_s += budget.elapsed_s - began
        search.solves += 1
        if solution.status is not Status.INFEASIBLE:
            break
        search.refute(epochs)
        if isinstance(given, int):
            raise InputError(f"infeasible in {epochs} epochs; {search.needed}")
        epochs += max(epochs // 8, 1)  # Algorithm 1 does not account for rounding to this grid
    facts: dict[str, object] = {"grid_status": str(solution.status)}
    if not solution.has_point:
        return search.best, facts
    gap = solution.gap if math.isfinite(solution.gap) else None
    return task.plan(program, solution), {"objective": solution.objective, "objective_gap": gap} | facts


def _enough_epochs(task: EpochTask, search: EpochSearch) -> int:
    def feasible(epoch_us: float, epochs: int) -> bool:
        options = replace(task.options, epoch=f"{epoch_us:.6f}us")
        coarse = replace(task, grid=make_grid(task.grid.topology, task.grid.chunk_bytes, options))
        left_s = task.context.budget.left_s
        if left_s <= 0:
            elapsed_s = task.context.budget.elapsed_s
            raise NothingFoundError(f"no sufficient number of epochs found in {elapsed_s:.1f} s")
        return coarse.attempt(epochs, left_s)[1] is not None

    return max(algorithm_one(search.low * task.grid.epoch_us, task.grid.epoch_us, feasible), search.low)


def algorithm_one(bound_us: float, epoch_us: float, feasible: Callable[[float, int], bool]) -> int:
    """Return a sufficient number of epochs (appendix E): from the first total time that a coarse grid can meet.

    `feasible(epoch_us, epochs)` solves the program on a coarse grid.
    """
    total = bound_us
    while True:
        for epochs in (4, 8, 12):
            if feasible(total / epochs, epochs):
                return int(-(-total // epoch_us))
        total *= 1.5


def _point(program: CopyProgram, plan: GridPlan) -> NDArray[np.float64]:
    """Return the plan as a starting point of the program."""
    chunk, arc, epoch = plan.sends
    inside = program.send.exists[chunk, arc, epoch]
    chunk, arc, epoch = chunk[inside], arc[inside], epoch[inside]
    send, have = np.zeros(program.send.shape), np.zeros(program.have.shape)
    send[chunk, arc, epoch] = 1
    for c, a, k in zip(chunk.tolist(), arc.tolist(), epoch.tolist(), strict=True):
        have[c, program.grid.head[a], k + int(program.delay[a]) :] = 1
    return program.model.build().point((program.send, send), (program.have, np.where(program.have.exists, have, 0)))
