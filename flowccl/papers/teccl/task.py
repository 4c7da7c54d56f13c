"""A demand on a grid: its bound, its programs, and the plans and schedules of their solutions."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from flowccl.demand.demand import Demand
from flowccl.papers.teccl.copies import ChunkState, CopyProgram
from flowccl.papers.teccl.epochs import Grid, chunk_size, make_grid
from flowccl.papers.teccl.flows import FlowProgram, GridCommodities
from flowccl.papers.teccl.grid_bound import Distances, GridBound, grid_bound
from flowccl.papers.teccl.options import TecclOptions
from flowccl.papers.teccl.paths import epoch_paths
from flowccl.papers.teccl.pieces import FlowPlan
from flowccl.papers.teccl.plan import GridPlan, transfers_of
from flowccl.papers.teccl.readback import read_back
from flowccl.papers.teccl.search import Plan
from flowccl.papers.teccl.start import WarmStart
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.solver import Solution, SolverOptions, Status, solve

_MOST_COLUMNS = 2_000_000  # larger programs are not solved: the result is the warm start and the bound
_ALWAYS_TRIED = 30_000  # columns of a program without copies
_COLUMNS_PER_S = 3000  # larger programs without copies, per second left, are not started


@dataclass(frozen=True, eq=False)
class EpochTask:
    """A demand on a grid, with whole chunks or with rates, with copies or without."""

    grid: Grid
    demand: Demand
    options: TecclOptions
    context: SearchContext
    whole: bool
    copies: bool

    @classmethod
    def of(cls, problem: Problem, context: SearchContext, *, whole: bool) -> "EpochTask":
        """The task of a method with its options."""
        options, demand = TecclOptions.of(context.options), problem.demand
        grid = make_grid(problem.topology, chunk_size(demand), options)
        return cls(grid, demand, options, context, whole, whole and options.copy and not demand.is_unicast)

    @cached_property
    def distances(self) -> Distances:
        """Distances on the grid."""
        return Distances.of(self.grid, rates=not self.whole)

    @cached_property
    def bound(self) -> GridBound:
        """The lower bound; for rates that for whole chunks if it is lower, since such a plan is accepted as well."""
        kinds = (False,) if self.whole else (False, True)
        bounds = [grid_bound(self.grid, self.demand, copy=self.copies, rates=rates) for rates in kinds]
        return min(bounds, key=lambda bound: bound.epochs)

    def copy_program(self, epochs: int, options: TecclOptions) -> CopyProgram:
        """The program with copies for this many epochs."""
        state = ChunkState.start(self.demand, self.grid.topology)
        return CopyProgram(self.grid, state, self.distances, epochs, options)

    def program(self, epochs: int, options: TecclOptions) -> CopyProgram | FlowProgram:
        """The program for this many epochs, with copies or without."""
        if self.copies:
            return self.copy_program(epochs, options)
        commodities = GridCommodities.of(self.grid, self.demand, whole=self.whole)
        return FlowProgram(self.grid, commodities, self.distances, epochs, options, whole=self.whole)

    def attempt(self, epochs: int, seconds: float) -> tuple[Status, Plan | None]:
        """Find any plan within this many epochs; without copies and with the paper's objective, the best."""
        size = (len(self.demand) if self.copies else self.demand.num_gpus) * self.grid.num_arcs * epochs
        most = 20 * _MOST_COLUMNS if self.copies else max(_ALWAYS_TRIED, _COLUMNS_PER_S * seconds)
        if size > most:
            return Status.TIME_LIMIT, None
        by_objective = self.options.objective == "paper" and not self.copies
        program = self.program(epochs, self.options if by_objective else replace(self.options, objective="epochs"))
        if program.model.num_columns > _MOST_COLUMNS:
            return Status.TIME_LIMIT, None
        if by_objective:
            program.reward_early()
        solution = self.solve(program, self.settings(seconds, first=self.whole and not by_objective))
        return solution.status, self.plan(program, solution)

    def settings(self, seconds: float, *, first: bool = False) -> SolverOptions:
        """The options of a solve."""
        return self.options.of_solve(self.context, seconds, gap=max(self.options.early_stop, 1e-6), first=first)

    def solve(self, program: CopyProgram | FlowProgram, settings: SolverOptions) -> Solution:
        """Solve a program."""
        return solve(program.model.build(), settings, self.options.solver)

    def plan(self, program: CopyProgram | FlowProgram, solution: Solution) -> Plan | None:
        """The plan of a solution; None if it has none."""
        if not solution.has_point:
            return None
        if isinstance(program, CopyProgram):
            sends = np.nonzero(solution.value(program.send) > 0.5)
            return GridPlan.of(self.grid, self.demand, transfers_of(self.grid, *sends))
        paths = tuple(epoch_paths(program, *map(solution.value, (program.send, program.keep, program.take))))
        done = max(epoch + int(program.delay[arc]) for path in paths for arc, epoch in path.sends[-1:])
        return FlowPlan(self.grid, self.demand, paths, done, self.whole)

    def schedule(self, plan: Plan, start: WarmStart) -> Schedule:
        """The schedule of a plan in continuous time; of rates, the earliest over several numbers of pieces."""
        if isinstance(plan, GridPlan) and plan in start.schedules:
            return start.schedules[plan]
        best: Schedule | None = None
        for in_pieces, is_exact in [(plan, True)] if isinstance(plan, GridPlan) else plan.in_pieces():
            found = read_back(in_pieces, self.method, drop_useless=self.copies or self.demand.is_unicast)
            best = found if best is None or found.finish_ps < best.finish_ps else best
            if is_exact and best.finish_ps <= plan.epochs * self.grid.epoch_ps:
                break
        assert best is not None
        return best

    @property
    def method(self) -> str:
        """The name of the method."""
        return "milp" if self.whole else "lp"
