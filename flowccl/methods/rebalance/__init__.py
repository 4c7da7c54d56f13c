"""Method `rebalance`: on a machine that is regular but for a few faults, start from the schedule of the whole machine.

1. The symmetric schedule of the whole machine gives a tree for every chunk, for reductions and for copies.
2. Branches behind lost links are joined by other links, and branches on loaded or slow links move to others, until the
   loads of all links are nearly equal. Reductions and copies count together: a GPU with fewer links receives all
   copies like the others, and has fewer children in the trees of reductions.
3. List scheduling in several orders: chunks one after the other, so that the copies of the first chunks run beside the
   reductions of the last ones, and those with the longest tail first.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flowccl.adapters.reduction import with_reductions
from flowccl.errors import DemandError
from flowccl.methods.rebalance.balance import ParentTables, TreeBalance
from flowccl.methods.symmetric import symmetric
from flowccl.portable import power_of_ten
from flowccl.problem import Problem
from flowccl.schedule.generation.list_scheduling import ListScheduler
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.routes import Routes
from flowccl.topology.symmetry.whole_machine import whole_machine

_SYMMETRIC_STEPS = 16  # of the search on the whole machine, before its trees are taken
_POSITION_WEIGHTS = (0.0, 0.1, 0.2, 0.3)  # weights of the positions of chunks in the priority
_RUNS_PER_TREES = 6  # without improvement, before new trees are taken


def rebalance(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Schedules from the trees of better and better schedules of the whole machine."""
    demand = problem.demand
    if not problem.is_allreduce:
        return with_reductions(_rebalanced)(problem, context)
    return _rebalanced(Problem(problem.topology, demand), context)


def _rebalanced(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    whole = whole_machine(problem.topology)
    if whole is None:
        name = problem.topology.name
        raise DemandError(f"method rebalance needs a machine that is regular but for a few faults; {name} is not")
    own = replace(context, incumbents=replace(context.incumbents, schedules={}, reported=[], reported_hints=[]))
    search = _RebalanceSearch(problem, with_reductions(symmetric)(Problem(whole, problem.demand), own), context.seed)
    while True:
        yield search.step()


@dataclass
class _RebalanceSearch:
    """The search on the whole machine, and the orders of its last trees that are being tried."""

    problem: Problem
    wholes: Iterator[Schedule | None]
    seed: int

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        self.scheduler: ListScheduler | None = None
        self.best_ps: float = float("inf")
        self.idle = 0

    def step(self) -> Schedule | None:
        """New trees in several orders, or one more order of the last trees; the schedule if it is the best so far."""
        if self.scheduler is None or self.idle >= _RUNS_PER_TREES:
            self.scheduler, self.idle = self._new_scheduler() or self.scheduler, 0
            runs = [self._run(weight, 0.0) for weight in _POSITION_WEIGHTS]
        else:
            noise = power_of_ten(float(self.random.uniform(-2.5, -0.5)))
            runs = [self._run(float(self.random.choice(_POSITION_WEIGHTS)), noise)]
        found = min((run for run in runs if run is not None), key=lambda run: run.finish_ps, default=None)
        self.idle += 1
        if found is None or found.finish_ps >= self.best_ps:
            return None
        self.best_ps, self.idle = found.finish_ps, 1
        return found

    def _new_scheduler(self) -> ListScheduler | None:
        """The trees of the next better schedule of the whole machine, moved to the links of this one."""
        found = [next(self.wholes) for _ in range(_SYMMETRIC_STEPS)]
        whole = min((one for one in found if one is not None), key=lambda one: one.finish_ps, default=None)
        trees = None if whole is None else ParentTables.of(whole)
        if trees is None:
            return None
        balance = TreeBalance(self.problem.topology, trees, self.problem.demand.chunk_bytes)
        if not balance.run():
            return None
        made = _in_order_of_depth(self.problem, trees, balance.link)
        return ListScheduler(made)

    def _run(self, position_weight: float, noise: float) -> Schedule | None:
        """The longest tail first, with noise; `position_weight` weighs the position of the chunk."""
        if self.scheduler is None:
            return None
        demand, scheduler = self.problem.demand, self.scheduler
        block, piece = np.divmod(np.arange(len(demand)), demand.pieces)
        turn = np.argsort(np.lexsort((block, piece)))
        step_ps = scheduler.busiest_ps * position_weight / len(demand)
        tail = scheduler.tail_ps * (1 + noise * self.random.uniform(-1, 1, len(scheduler.tail_ps)))
        return scheduler.in_order_of(turn[scheduler.schedule.chunk] * step_ps - tail)


def _in_order_of_depth(problem: Problem, trees: ParentTables, link: NDArray[np.int64]) -> Schedule:
    """The transfers of all trees one after the other: reductions, the deepest first, then copies, the deepest last."""
    depth = trees.depths()
    row, child = np.nonzero(trees.parent >= 0)
    up = trees.reduces[row]
    order = np.lexsort((child, row, np.where(up, -depth[row, child], depth[row, child]), ~up))
    row, child, up = row[order], child[order], up[order]
    parent = trees.parent[row, child]
    links = link[np.where(up, child, parent), np.where(up, parent, child)].astype(np.int32)
    topology, demand = problem.topology, problem.demand
    chunk = trees.chunk[row].astype(np.int32)
    longest = int(demand.chunk_bytes.max() * 1000 / topology.link_GBps.min()) + int(topology.link_delay_ps.max()) + 1
    start = np.arange(len(row), dtype=np.int64) * longest
    routes = Routes(np.arange(len(topology.links) + 1, dtype=np.int64), np.arange(len(topology.links), dtype=np.int32))
    return Schedule(topology, demand, routes, chunk, links, start, up, "rebalance")
