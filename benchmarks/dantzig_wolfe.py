"""Dantzig-Wolfe (5.1) and Mirrored Dantzig-Wolfe (5.2) for allgather, as a comparison for the program on orbits.

The master program combines routings of each source to minimize the load of the links. A subproblem per source finds a
routing of lower cost for the dual prices of the master; it becomes a new column. The mirrored form has one subproblem
per class of sources, and one row per orbit of links. The dual prices are smoothed (Wentges). Every step gives a lower
bound: for prices that sum to one, no routing of all sources costs less than the cheapest routing of each.
"""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.dantzig_wolfe_routing import CutSets, Router
from flowccl.errors import DemandError
from flowccl.solver import ProgramBuilder, Session, SolverOptions
from flowccl.topology.symmetry.permutations import Symmetry, verified
from flowccl.topology.topology import Topology

F64 = NDArray[np.float64]

_CLOSE = 1e-7
_SMOOTH = 0.5  # weight of the dual prices of the best bound
_STEPS = 10_000


@dataclass(frozen=True, slots=True)
class DecompositionResult:
    """The best time found, its lower bound, and the effort."""

    seconds_per_GB: float
    bound_s_per_GB: float
    steps: int
    columns: int
    elapsed_s: float


def dantzig_wolfe(
    topology: Topology, group: Symmetry | None = None, time_limit_s: float = np.inf
) -> DecompositionResult:
    """Return the least time of an allgather; with a group, by the mirrored form. Cost is not considered."""
    if topology.limits:
        raise DemandError("dantzig_wolfe does not support limits; use fluid_optimum")
    began = time.monotonic()
    known = verified(topology, []) if group is None else group
    master = _MasterProgram(topology, known)
    dual_prices, center = np.full(master.rows, 1.0 / master.rows), np.full(master.rows, 1.0 / master.rows)
    best, bound, columns, steps = np.inf, 0.0, 0, 0
    while steps < _STEPS:
        steps += 1
        asked = _SMOOTH * center + (1 - _SMOOTH) * dual_prices
        found = master.routings(asked)
        value = float(sum(cost for cost, _ in found))
        if value > bound:
            bound, center = value, asked
        elif not master.any_helps(found, dual_prices):  # smoothing gave no improving column: use the prices themselves
            found = master.routings(dual_prices)
            bound = max(bound, float(sum(cost for cost, _ in found)))
            center = dual_prices
        columns += master.add(found)
        best, dual_prices = master.solved()
        if best - bound <= _CLOSE * best or time.monotonic() - began > time_limit_s:
            break
    return DecompositionResult(best, bound, steps, columns, time.monotonic() - began)


class _MasterProgram:
    """The master program: weights of routings, a row per orbit of links and per class of sources; and the routers."""

    def __init__(self, topology: Topology, group: Symmetry) -> None:
        self.orbit = group.link_orbits
        first, size = np.unique(self.orbit, return_index=True, return_counts=True)[1:]
        self.rows = len(first)
        self.share = 1.0 / (size * topology.link_GBps[first])
        classes, start, self.count = np.unique(
            group.node_orbits[: topology.num_gpus], return_index=True, return_counts=True
        )
        sets = CutSets(topology)
        self.routers = [Router(topology, rank, sets) for rank in start.tolist()]
        model = ProgramBuilder()
        total_time = model.variables("time", cost=1)
        extra = model.variables("extra", len(classes), cost=1e6)  # artificial variables, for classes without columns
        links = model.rows("link", self.rows, upper=0).add(total_time, times=-1)
        model.rows("one of each", len(classes), equals=1).add(extra)
        self.session = Session(model.build(), SolverOptions(method="simplex"))
        self.link_rows = np.asarray(links)
        self.duals: F64 = np.zeros(self.rows + len(classes))

    def routings(self, dual_prices: F64) -> list[tuple[float, F64]]:
        """The cheapest routing of each class for these prices: (cost of the whole class, load of each row)."""
        result = []
        per_link = dual_prices[self.orbit] * self.share[self.orbit]
        for router, count in zip(self.routers, self.count.tolist(), strict=True):
            cost, use = router.cheapest(per_link)
            result.append((count * cost, count * np.bincount(self.orbit, use, self.rows) * self.share))
        return result

    def any_helps(self, found: list[tuple[float, F64]], dual_prices: F64) -> bool:
        """Whether any routing has negative reduced cost."""
        pays = self.duals[self.rows :]
        return any(load @ dual_prices < pay - 1e-9 * abs(pay) for (_, load), pay in zip(found, pays, strict=True))

    def add(self, found: list[tuple[float, F64]]) -> int:
        """Add the routings as columns; return their number."""
        classes = len(self.routers)
        entries = np.vstack([np.array([load for _, load in found]).T, np.eye(classes)])
        self.session.add_columns(np.zeros(classes), entries)
        return classes

    def solved(self) -> tuple[float, F64]:
        """Return the least time with the routings so far, and the dual prices of links."""
        solution = self.session.solve()
        assert solution.duals is not None
        self.duals = solution.duals
        dual_prices = np.maximum(-solution.duals[self.link_rows], 0.0)
        return solution.objective, dual_prices / max(dual_prices.sum(), 1e-300)
