"""The fluid optimum of a collective on a machine: the least time per byte, which schedules can approach.

    symmetry -> one source and its destinations per class -> linear program -> least time, then least cost

For collectives with copies, (3.13) gives a lower bound, since plain switches may mix what they forward. Duplicate
vertices give an achievable value. If the two agree, which is nearly always the case, the optimum is proved. Otherwise
the offending switches are duplicated in the program of the bound, on all routes and not only the shortest, until none
offends: the value is then a lower bound and achievable, unless that program is too large.

Duplicate vertices are exact on machines on which only GPUs copy: with the switches split off, all nodes are
destinations, and trees pack to the value of the smallest cut (Edmonds). Copying nodes that are not destinations (host
memory, multicast switches) may still mix flows; there the value is a lower bound that may not be achievable.

If the program with duplicate vertices is too large, the bound of an allgather is still achieved if only GPUs copy,
there are no limits, and every node has the same bandwidth in and out: then switches can be split off without loss
(Mader, Frank).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.collectives import ROOTED, collective_name
from flowccl.errors import DemandError
from flowccl.papers.fluid.arcs import Arcs, duplicated_arcs, plain_arcs
from flowccl.papers.fluid.offending import offending
from flowccl.papers.fluid.program import FluidPart, FluidProgram, fluid_program
from flowccl.papers.fluid.quotient import sources_of
from flowccl.solver import LinearProgram, RowFamily, Solution, SolverError, SolverOptions, Status, solve
from flowccl.topology.symmetry.automorphisms import known_symmetry
from flowccl.topology.symmetry.permutations import Symmetry
from flowccl.topology.topology import Topology

F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

_SAME = 1e-6  # relative tolerance at which bound and achievable value agree
_SLACK = 1e-9  # relative slack of the least time in the second program
_MOST_ARCS = 600_000  # of the network with duplicate vertices; beyond, only the shortest routes are used
_MOST_COLUMNS = 40_000  # of a program with duplicate vertices; beyond, only the bound is known
_LARGE = 5_000  # columns of the program of the bound, as on machines with little symmetry
_COPYING = ("allgather", "broadcast", "reduce_scatter", "reduce", "allreduce")
_BACKWARD = ("reduce_scatter", "reduce")


@dataclass(frozen=True, eq=False)
class FluidOptimum:
    """The least time for one GB per block (allreduce: for one GB in all), and the flow that achieves it.

    `seconds_per_GB` (inf if unknown) is achievable without copies in plain switches, and no schedule is below
    `bound_s_per_GB`. `cost` and `cost_bound` are the same for the cost, in GB, at the least time. `link_GB` is the load
    of each link. `link_price` is the dual price of each link: the seconds per GB saved by one more GB/s on this link
    alone; `limit_price` is the same for limits. `source_GB` is the load of each link with the data of one source of
    each class, and `group` maps it to the other sources. `only_gpus_copy`: trees pack exactly. `variables` is the size
    of the largest program.
    """

    topology: Topology
    collective: str
    seconds_per_GB: float
    bound_s_per_GB: float
    cost: float
    cost_bound: float
    link_GB: F64
    source_GB: dict[int, F64]
    group: Symmetry
    link_price: F64
    limit_price: dict[str, float]
    only_gpus_copy: bool
    variables: int

    @property
    def proved(self) -> bool:
        """Whether bound and flow agree in time."""
        return self.seconds_per_GB <= self.bound_s_per_GB * (1 + _SAME)

    @property
    def cost_proved(self) -> bool:
        """Whether they agree in cost as well."""
        return self.proved and self.cost <= self.cost_bound * (1 + 10 * _SAME)

    @property
    def proof(self) -> str:
        """The proof of the least time in words."""
        bound = f"no schedule is below {self.bound_s_per_GB:.6g} s/GB (duality)"
        if not self.proved:
            return f"{bound}; without copies in switches the flow takes {self.seconds_per_GB:.6g} s/GB"
        met = "trees achieve it" if self.only_gpus_copy else "a flow without copies in plain switches achieves it"
        return f"{bound}; {met}"


def gpu_traffic(topology: Topology) -> F64:
    """Return the default cost per link: bytes out of and into GPUs."""
    gpus = topology.num_gpus
    return (topology.link_src < gpus).astype(np.float64) + (topology.link_dst < gpus)


def fluid_optimum(
    topology: Topology,
    collective: str,
    *,
    root: int = 0,
    link_cost: F64 | None = None,
    group: Symmetry | None = None,
    options: SolverOptions | None = None,
) -> FluidOptimum:
    """Minimize the time, then the cost (`link_cost` per byte on each link; default: bytes out of and into GPUs).

    `group` is the symmetry to use; by default, all that is found. Of a changing bandwidth, the initial value counts.
    """
    name = collective_name(collective)
    if name in ("custom", "alltoallv"):
        raise DemandError(f"the fluid optimum is for collectives with one size for all ranks; got {name}")
    if not 0 <= root < topology.num_gpus:
        raise DemandError(f"{name}: root must be a rank, 0 to {topology.num_gpus - 1}, got {root}")
    known = known_symmetry(topology) if group is None else group
    known = known.stabilizer(root) if name in ROOTED else known
    cost = gpu_traffic(topology) if link_cost is None else np.asarray(link_cost, dtype=np.float64)
    task = _Task(topology, name, root, known, cost, options or SolverOptions())
    bound = task.solved(plain_arcs)
    assert bound is not None
    return task.optimum(bound, *task.without_copies(bound))


@dataclass(frozen=True, eq=False)
class _NetworkOptimum:
    """Least time and least cost on one network."""

    parts: tuple[FluidPart, ...]
    fluid: FluidProgram
    first: Solution
    second: Solution

    @property
    def time(self) -> float:
        return self.first.objective

    @property
    def cost(self) -> float:
        return self.second.objective

    def meets(self, bound: "_NetworkOptimum") -> bool:
        return self.time <= bound.time * (1 + _SAME) and self.cost <= bound.cost * (1 + 10 * _SAME)


@dataclass(frozen=True, eq=False)
class _Task:
    """One collective on one machine."""

    topology: Topology
    collective: str
    root: int
    group: Symmetry
    link_cost: F64
    options: SolverOptions

    def without_copies(self, bound: _NetworkOptimum) -> tuple[_NetworkOptimum | None, bool]:
        """Solve with duplicate vertices: on the shortest routes and, if these are not enough, on all.

        Return the optimum, and whether it was on all routes: then it is a lower bound too, since every schedule crosses
        switches on some of them. None if the program would be too large, or if only the cost would be gained from a
        large program: where switches can be split off without loss.
        """
        if self.collective not in _COPYING or all(np.all(machine.copies) for machine in self._machines):
            return bound, True
        if self._can_split_off and bound.fluid.program.num_columns > _LARGE:
            return None, False
        found = self.solved(duplicated_arcs, _MOST_COLUMNS)
        if found is None or found.meets(bound):
            return found, False
        better = self.strengthened(bound)
        return (found, False) if better is None else (better, True)

    def strengthened(self, bound: _NetworkOptimum) -> _NetworkOptimum | None:
        """Add duplicate vertices, on all routes, for offending switches to the program of the bound.

        Repeat until no switch offends: the value is a lower bound that a flow without copies achieves. None if the
        program would be too large.
        """
        solved, which = bound, np.zeros(len(self.topology.nodes), dtype=np.bool_)
        while True:
            more = self._offending(solved) & ~which
            if not more.any():
                return solved
            which = which | more
            every = [duplicated_arcs(machine, shortest=False, which=which) for machine in self._machines]
            if sum(len(arcs) for arcs in every) > _MOST_ARCS:
                return None
            stronger = self.solved(partial(_one_of, self._machines, every), _MOST_COLUMNS)
            if stronger is None:
                return None
            solved = stronger

    def _offending(self, solved: _NetworkOptimum) -> Bool:
        """The switches at which the solution mixes what it forwards."""
        assert solved.second.values is not None
        found = np.zeros(len(self.topology.nodes), dtype=np.bool_)
        traffic = iter(solved.fluid.traffic)
        for part in solved.parts:
            for _ in part.sources:
                found |= offending(part.arcs, next(traffic), solved.second.values, self.group)
        return found

    def solved(self, network: Callable[[Topology], Arcs], most_columns: float = float("inf")) -> _NetworkOptimum | None:
        """Minimize time, then cost, on a network; None if the program has too many columns."""
        parts = tuple(self._part(network(machine)) for machine in self._machines)
        fluid = fluid_program(self.topology, self.group.link_orbits, parts)
        if fluid.program.num_columns > most_columns:
            return None
        first = self._optimal(fluid.program)
        second = self._optimal(fluid.second(first.objective * (1 + _SLACK), self.link_cost))
        return _NetworkOptimum(parts, fluid, first, second)

    @cached_property
    def _machines(self) -> list[Topology]:
        """The machine, the reversed machine for reductions, or both."""
        if self.collective == "allreduce":
            return [self.topology.reversed, self.topology]
        return [self.topology.reversed if self.collective in _BACKWARD else self.topology]

    def _part(self, arcs: Arcs) -> FluidPart:
        gpus = np.arange(len(self.topology.nodes)) < self.topology.num_gpus
        only = np.arange(len(gpus)) == self.root
        sources = only if self.collective in ("broadcast", "reduce", "scatter") else gpus
        destinations = only if self.collective == "gather" else gpus
        if self.collective == "gather":
            sources = gpus & ~only
        return FluidPart(arcs, sources_of(arcs, self.group, sources, destinations), self.collective in _COPYING)

    def _optimal(self, program: LinearProgram) -> Solution:
        solution = solve(program, self.options)
        if solution.status is Status.INFEASIBLE:
            raise DemandError(f"{self.collective}: some GPU of {self.topology.name} cannot reach another")
        if solution.status is not Status.OPTIMAL:
            raise SolverError(f"the fluid program was not solved: {solution.status} {solution.message}".rstrip())
        return solution

    @property
    def _can_split_off(self) -> bool:
        """Whether switches can be split off: every node has equal bandwidth in and out, and there are no limits."""
        topology, count = self.topology, len(self.topology.nodes)
        inward = np.bincount(topology.link_dst, topology.link_GBps, count)
        outward = np.bincount(topology.link_src, topology.link_GBps, count)
        even = self.collective in ("allgather", "reduce_scatter") and not topology.limits
        return even and np.allclose(inward, outward) and self._only_gpus_copy

    @property
    def _only_gpus_copy(self) -> bool:
        return all(bool(np.all(~machine.copies[machine.num_gpus :])) for machine in self._machines)

    def optimum(self, bound: _NetworkOptimum, found: _NetworkOptimum | None, exact: bool) -> FluidOptimum:
        """Combine the results; an exact achievable value is a lower bound too."""
        time = bound.time if found is None and self._can_split_off else np.inf if found is None else found.time
        fluid, values = (found or bound).fluid, (found or bound).second.values
        assert values is not None
        orbit = self.group.link_orbits
        first, size = np.unique(orbit, return_index=True, return_counts=True)[1:]
        price = -_duals(bound, bound.fluid.links) * bound.time / self.topology.link_GBps[first] / size
        limits = -_duals(bound, bound.fluid.limits) * bound.time
        rows = zip(bound.fluid.limit_of_row.tolist(), limits.tolist(), strict=True)
        named = {self.topology.limits[at].name: dual / self.topology.limits[at].bandwidth_GBps for at, dual in rows}
        return FluidOptimum(
            self.topology,
            self.collective,
            time,
            time if exact else bound.time,
            np.inf if found is None else found.cost,
            found.cost if exact and found is not None else bound.cost,
            fluid.link_use(values, orbit),
            fluid.source_use(values, len(self.topology.links)),
            self.group,
            price[orbit],
            named,
            self._only_gpus_copy,
            max(bound.fluid.program.num_columns, fluid.program.num_columns),
        )


def _one_of(machines: list[Topology], networks: list[Arcs], machine: Topology) -> Arcs:
    """Return the network of a machine."""
    return networks[machines.index(machine)]


def _duals(solved: _NetworkOptimum, family: RowFamily) -> F64:
    rows = solved.fluid.program.rows_of(family)
    duals = solved.first.duals
    assert duals is not None
    return np.where(rows >= 0, duals[np.maximum(rows, 0)], 0.0)
