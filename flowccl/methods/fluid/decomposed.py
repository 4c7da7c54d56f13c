"""Dantzig-Wolfe (5.1) and Mirrored Dantzig-Wolfe (5.2) for allgather: what orbits are measured against.

The master program mixes routings of each source so that no link is full; with its prices of links, a program per source
finds a cheaper routing, and so on. The mirrored form has one such program per class of sources, and one row per orbit
of links. Prices are smoothed (Wentges); every step gives a floor, since with prices that sum to one no routing of all
sources is cheaper than the cheapest of each.
"""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import DemandError
from flowccl.methods.fluid.router import Router, Sets
from flowccl.solver import ProgramBuilder, Session, SolverOptions
from flowccl.topology.symmetry.permutations import Symmetry, verified
from flowccl.topology.topology import Topology

F64 = NDArray[np.float64]

_CLOSE = 1e-7
_SMOOTH = 0.5  # how much of the prices of the best floor is kept
_STEPS = 10_000


@dataclass(frozen=True, slots=True)
class Decomposed:
    """The optimum between floor and what was found, and what it took."""

    seconds_per_GB: float
    bound_s_per_GB: float
    steps: int
    columns: int
    elapsed_s: float


def dantzig_wolfe(topology: Topology, group: Symmetry | None = None, time_limit_s: float = np.inf) -> Decomposed:
    """The least time of an allgather; with a group it is the mirrored form. Limits and cost are not looked at."""
    if topology.limits:
        raise DemandError("Dantzig-Wolfe is built for machines without limits; use fluid_optimum")
    began = time.monotonic()
    known = verified(topology, []) if group is None else group
    master = _Master(topology, known)
    dual_prices, center = np.full(master.rows, 1.0 / master.rows), np.full(master.rows, 1.0 / master.rows)
    best, floor, columns, steps = np.inf, 0.0, 0, 0
    while steps < _STEPS:
        steps += 1
        asked = _SMOOTH * center + (1 - _SMOOTH) * dual_prices
        found = master.routings(asked)
        value = float(sum(cost for cost, _ in found))
        if value > floor:
            floor, center = value, asked
        elif not master.any_helps(found, dual_prices):  # smoothing misled: ask at the prices themselves
            found = master.routings(dual_prices)
            floor = max(floor, float(sum(cost for cost, _ in found)))
            center = dual_prices
        columns += master.add(found)
        best, dual_prices = master.solved()
        if best - floor <= _CLOSE * best or time.monotonic() - began > time_limit_s:
            break
    return Decomposed(best, floor, steps, columns, time.monotonic() - began)


class _Master:
    """Weights of routings, one row per orbit of links and one per class of sources; and the programs that route."""

    def __init__(self, topology: Topology, group: Symmetry) -> None:
        self.orbit = group.link_orbits
        first, size = np.unique(self.orbit, return_index=True, return_counts=True)[1:]
        self.rows = len(first)
        self.share = 1.0 / (size * topology.link_GBps[first])
        classes, start, self.count = np.unique(
            group.node_orbits[: topology.num_gpus], return_index=True, return_counts=True
        )
        sets = Sets(topology)
        self.routers = [Router(topology, rank, sets) for rank in start.tolist()]
        model = ProgramBuilder()
        context = model.variables("time", cost=1)
        extra = model.variables("extra", len(classes), cost=1e6)  # no routing yet
        links = model.rows("link", self.rows, upper=0).add(context, times=-1)
        model.rows("one of each", len(classes), equals=1).add(extra)
        self.session = Session(model.build(), SolverOptions(method="simplex"))
        self.link_rows = np.asarray(links)
        self.duals: F64 = np.zeros(self.rows + len(classes))

    def routings(self, dual_prices: F64) -> list[tuple[float, F64]]:
        """The cheapest routing of each class at these prices: (what all of the class pay, load of each row)."""
        result = []
        per_link = dual_prices[self.orbit] * self.share[self.orbit]
        for router, count in zip(self.routers, self.count.tolist(), strict=True):
            cost, use = router.cheapest(per_link)
            result.append((count * cost, count * np.bincount(self.orbit, use, self.rows) * self.share))
        return result

    def any_helps(self, found: list[tuple[float, F64]], dual_prices: F64) -> bool:
        """Whether a routing is cheaper than what the master pays for its class."""
        pays = self.duals[self.rows :]
        return any(load @ dual_prices < pay - 1e-9 * abs(pay) for (_, load), pay in zip(found, pays, strict=True))

    def add(self, found: list[tuple[float, F64]]) -> int:
        """New columns."""
        classes = len(self.routers)
        entries = np.vstack([np.array([load for _, load in found]).T, np.eye(classes)])
        self.session.add_columns(np.zeros(classes), entries)
        return classes

    def solved(self) -> tuple[float, F64]:
        """The least time with the routings so far, and the prices of links."""
        solution = self.session.solve()
        assert solution.duals is not None
        self.duals = solution.duals
        dual_prices = np.maximum(-solution.duals[self.link_rows], 0.0)
        return solution.objective, dual_prices / max(dual_prices.sum(), 1e-300)
