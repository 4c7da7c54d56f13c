"""The fluid optimum of a collective on a machine: the least time per byte that any schedule can approach.

    symmetry -> one source and its destinations per class -> linear program -> least time, then least cost

For collectives that copy, (3.13) gives a floor, since there a plain switch may mix what it forwards; duplicate vertices
give what can be done. Where both agree, which is nearly always, the optimum is proved. Where they do not, the switches
that offend are duplicated in the floor's program, on all ways and not only the shortest, until none does: that is a
floor and can be done. Or (3.14) is a better floor.

Duplicate vertices are exact on machines where only GPUs copy: with the switches split off, all nodes are destinations,
and trees pack to the value of the smallest cut (Edmonds). Copying nodes that are no destinations (host memory,
multicast switches) may still mix flows; there the value is a floor that a schedule may or may not reach.

Where the program with duplicate vertices is too large, the floor of an allgather is still met if only GPUs copy,
nothing is limited, and every node has as much bandwidth in as out: then switches can be split off without loss (Mader,
Frank).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.collectives import ROOTED, collective_name
from flowccl.errors import DemandError
from flowccl.methods.fluid.arcs import Arcs, duplicated_arcs, plain_arcs
from flowccl.methods.fluid.offending import offending
from flowccl.methods.fluid.program import FluidProgram, Part, fluid_program
from flowccl.methods.fluid.quotient import sources_of
from flowccl.solver import LinearProgram, RowFamily, Solution, SolverError, SolverOptions, Status, solve
from flowccl.topology.symmetry.automorphisms import known_symmetry
from flowccl.topology.symmetry.permutations import Symmetry
from flowccl.topology.topology import Topology

F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

_SAME = 1e-6  # relative: floor and what can be done agree
_SLACK = 1e-9  # of the least time, for the second program
_MOST_ARCS = 600_000  # of the network with duplicate vertices; beyond, only the shortest ways are used
_MOST_COLUMNS = 40_000  # of a program with duplicate vertices; beyond, only the floor is known
_LARGE = 5_000  # columns of the floor's program, as on machines with little symmetry
_COPYING = ("allgather", "broadcast", "reduce_scatter", "reduce", "allreduce")
_BACKWARD = ("reduce_scatter", "reduce")


@dataclass(frozen=True, eq=False)
class FluidOptimum:
    """The least time for one GB per block (allreduce: for one GB in all), and what it takes.

    `seconds_per_GB` (inf where it is not known) holds for switches that cannot copy, and no schedule is below
    `floor_s_per_GB`; `cost` and `cost_floor` are the same for the cost, in GB, of what takes no longer. `link_GB` is
    what each link carries, `link_price` how many seconds per GB would be saved by each GB/s more on this link alone,
    `limit_price` by each GB/s more of a limit. `source_GB` is what each link carries of the data of one source of each
    class, and `group` takes it to the others. `only_gpus_copy`: trees pack exactly. `variables` is the size of the
    largest program.
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
        """Whether floor and flow agree in time."""
        return self.seconds_per_GB <= self.bound_s_per_GB * (1 + _SAME)

    @property
    def cost_proved(self) -> bool:
        """Whether they agree in cost too."""
        return self.proved and self.cost <= self.cost_bound * (1 + 10 * _SAME)

    @property
    def proof(self) -> str:
        """What is known of the least time, in words."""
        floor = f"no schedule is below {self.bound_s_per_GB:.6g} s/GB (duality)"
        if not self.proved:
            return f"{floor}; without copies in switches the flow takes {self.seconds_per_GB:.6g} s/GB"
        met = "trees pack to it" if self.only_gpus_copy else "met by a flow without copies in plain switches"
        return f"{floor}; {met}"


def gpu_traffic(topology: Topology) -> F64:
    """The usual cost: bytes out of and into GPUs, per link."""
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
    """Least time, then least cost (`link_cost` per byte on each link; by default bytes out of and into GPUs).

    `group` is the symmetry to use; by default all that is found. A bandwidth that changes counts as it is at the start.
    """
    name = collective_name(collective)
    if name in ("custom", "alltoallv"):
        raise DemandError(f"fluid optima are for the named collectives, not for {name}")
    if not 0 <= root < topology.num_gpus:
        raise DemandError(f"{name}: root must be a rank, 0 to {topology.num_gpus - 1}, got {root}")
    known = known_symmetry(topology) if group is None else group
    known = known.stabilizer(root) if name in ROOTED else known
    cost = gpu_traffic(topology) if link_cost is None else np.asarray(link_cost, dtype=np.float64)
    task = _Task(topology, name, root, known, cost, options or SolverOptions())
    floor = task.solved(plain_arcs)
    assert floor is not None
    found, exact = task.without_copies(floor)
    if found is not None and not exact and not found.meets(floor):
        floor = task.solved(plain_arcs, _MOST_COLUMNS, strong=True) or floor
    return task.optimum(floor, found, exact)


@dataclass(frozen=True, eq=False)
class _Solved:
    """Least time and least cost on one network."""

    parts: tuple[Part, ...]
    fluid: FluidProgram
    first: Solution
    second: Solution

    @property
    def time(self) -> float:
        return self.first.objective

    @property
    def cost(self) -> float:
        return self.second.objective

    def meets(self, floor: "_Solved") -> bool:
        return self.time <= floor.time * (1 + _SAME) and self.cost <= floor.cost * (1 + 10 * _SAME)


@dataclass(frozen=True, eq=False)
class _Task:
    """One collective on one machine."""

    topology: Topology
    collective: str
    root: int
    group: Symmetry
    link_cost: F64
    options: SolverOptions

    def without_copies(self, floor: _Solved) -> tuple[_Solved | None, bool]:
        """The same with duplicate vertices: on the shortest ways and, where they are not enough, on all.

        And whether it was on all: then it is a floor itself, since every schedule crosses switches on some of them.
        None where the program would be too large, or large for nothing: where switches can be split off without loss
        only the cost would come from it.
        """
        if self.collective not in _COPYING or all(np.all(machine.copies) for machine in self._machines):
            return floor, True
        if self._splits and floor.fluid.program.num_columns > _LARGE:
            return None, False
        found = self.solved(duplicated_arcs, _MOST_COLUMNS)
        if found is None or found.meets(floor):
            return found, False
        better = self.strengthened(floor)
        return (found, False) if better is None else (better, True)

    def strengthened(self, floor: _Solved) -> _Solved | None:
        """The floor's program with duplicate vertices, on all ways, for the switches that offend, until none does.

        What is left is a floor that a flow without copies meets. None where the program would be too large.
        """
        solved, which = floor, np.zeros(len(self.topology.nodes), dtype=np.bool_)
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

    def _offending(self, solved: _Solved) -> Bool:
        """The switches at which the solution mixes what it forwards."""
        assert solved.second.values is not None
        found = np.zeros(len(self.topology.nodes), dtype=np.bool_)
        traffic = iter(solved.fluid.traffic)
        for part in solved.parts:
            for _ in part.sources:
                found |= offending(part.arcs, next(traffic), solved.second.values, self.group)
        return found

    def solved(
        self, network: Callable[[Topology], Arcs], most_columns: float = float("inf"), *, strong: bool = False
    ) -> _Solved | None:
        """Least time, then least cost on a network; None where the program has too many columns."""
        parts = tuple(replace(self._part(network(machine)), strong=strong) for machine in self._machines)
        fluid = fluid_program(self.topology, self.group.link_orbits, parts)
        if fluid.program.num_columns > most_columns:
            return None
        first = self._optimal(fluid.program)
        second = self._optimal(fluid.second(first.objective * (1 + _SLACK), self.link_cost))
        return _Solved(parts, fluid, first, second)

    @cached_property
    def _machines(self) -> list[Topology]:
        """The machine, the reversed one for reductions, or both."""
        if self.collective == "allreduce":
            return [self.topology.reversed, self.topology]
        return [self.topology.reversed if self.collective in _BACKWARD else self.topology]

    def _part(self, arcs: Arcs) -> Part:
        gpus = np.arange(len(self.topology.nodes)) < self.topology.num_gpus
        only = np.arange(len(gpus)) == self.root
        sources = only if self.collective in ("broadcast", "reduce", "scatter") else gpus
        destinations = only if self.collective == "gather" else gpus
        if self.collective == "gather":
            sources = gpus & ~only
        return Part(arcs, sources_of(arcs, self.group, sources, destinations), self.collective in _COPYING)

    def _optimal(self, program: LinearProgram) -> Solution:
        solution = solve(program, self.options)
        if solution.status is Status.INFEASIBLE:
            raise DemandError(f"{self.collective}: some GPU of {self.topology.name} cannot reach another")
        if solution.status is not Status.OPTIMAL:
            raise SolverError(f"the fluid program was not solved: {solution.status} {solution.message}".rstrip())
        return solution

    @property
    def _splits(self) -> bool:
        """Whether switches can be split off: as much bandwidth into every node as out of it, and no limits."""
        topology, count = self.topology, len(self.topology.nodes)
        inward = np.bincount(topology.link_dst, topology.link_GBps, count)
        outward = np.bincount(topology.link_src, topology.link_GBps, count)
        even = self.collective in ("allgather", "reduce_scatter") and not topology.limits
        return even and np.allclose(inward, outward) and self._only_gpus_copy

    @property
    def _only_gpus_copy(self) -> bool:
        return all(bool(np.all(~machine.copies[machine.num_gpus :])) for machine in self._machines)

    def optimum(self, floor: _Solved, found: _Solved | None, exact: bool) -> FluidOptimum:
        """Put together what is known; where what was found is exact it is a floor too."""
        time = floor.time if found is None and self._splits else np.inf if found is None else found.time
        fluid, values = (found or floor).fluid, (found or floor).second.values
        assert values is not None
        orbit = self.group.link_orbits
        first, size = np.unique(orbit, return_index=True, return_counts=True)[1:]
        price = -_duals(floor, floor.fluid.links) * floor.time / self.topology.link_GBps[first] / size
        limits = -_duals(floor, floor.fluid.limits) * floor.time
        rows = zip(floor.fluid.limit_of_row.tolist(), limits.tolist(), strict=True)
        named = {self.topology.limits[at].name: dual / self.topology.limits[at].bandwidth_GBps for at, dual in rows}
        return FluidOptimum(
            self.topology,
            self.collective,
            time,
            time if exact else floor.time,
            np.inf if found is None else found.cost,
            found.cost if exact and found is not None else floor.cost,
            fluid.link_use(values, orbit),
            fluid.source_use(values, len(self.topology.links)),
            self.group,
            price[orbit],
            named,
            self._only_gpus_copy,
            max(floor.fluid.program.num_columns, fluid.program.num_columns),
        )


def _one_of(machines: list[Topology], networks: list[Arcs], machine: Topology) -> Arcs:
    """The network of a machine."""
    return networks[machines.index(machine)]


def _duals(solved: _Solved, family: RowFamily) -> F64:
    rows = solved.fluid.program.rows_of(family)
    duals = solved.first.duals
    assert duals is not None
    return np.where(rows >= 0, duals[np.maximum(rows, 0)], 0.0)
