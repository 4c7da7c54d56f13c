"""The fluid optimum of a collective on a machine: the least time per byte that any schedule can approach.

    symmetry -> one source and its destinations per class -> linear program -> least time, then least cost

For collectives that copy, (3.13) gives a floor, since there a plain switch may mix what it forwards; duplicate vertices
give what can be done. Where both agree, which is nearly always, the optimum is proved.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.collectives import ROOTED, collective_name
from flowccl.errors import DemandError
from flowccl.methods.fluid.arcs import Arcs, duplicated_arcs, plain_arcs
from flowccl.methods.fluid.program import FluidProgram, Part, fluid_program
from flowccl.methods.fluid.quotient import sources_of
from flowccl.solver import Solution, SolverError, SolverOptions, Status, solve
from flowccl.topology.symmetry import Symmetry, symmetry
from flowccl.topology.topology import Topology

F64 = NDArray[np.float64]

_SAME = 1e-6  # relative: floor and what can be done agree
_MOST_ARCS = 600_000  # of the network with duplicate vertices; beyond, only the floor is found
_COPYING = ("allgather", "broadcast", "reduce_scatter", "reduce", "allreduce")
_BACKWARD = ("reduce_scatter", "reduce")


@dataclass(frozen=True, eq=False)
class FluidOptimum:
    """The least time for one GB per block (allreduce: for one GB in all), and what it takes.

    `seconds_per_GB` can be approached, none is below `floor_s_per_GB`; `cost` and `cost_floor` likewise, in GB, among all
    that take this time. `link_GB` is what each link carries, `link_price` how much less time each GB/s more on this link
    would need (in s per GB, at first); `limit_price` the same for limits, by name.
    """

    topology: Topology
    collective: str
    seconds_per_GB: float
    floor_s_per_GB: float
    cost: float
    cost_floor: float
    link_GB: F64
    link_price: F64
    limit_price: dict[str, float]
    variables: int

    @property
    def proved(self) -> bool:
        """Whether the least time is certain."""
        return self.seconds_per_GB <= self.floor_s_per_GB * (1 + _SAME)

    @property
    def cost_proved(self) -> bool:
        """Whether the least cost is certain too."""
        return self.proved and self.cost <= self.cost_floor * (1 + 10 * _SAME)

    @property
    def proof(self) -> str:
        """Why the optimum is one, in words."""
        if self.proved:
            return f"floor {self.floor_s_per_GB:.6g} s/GB by linear programming duality, met by a flow without copies in switches"
        return f"between {self.floor_s_per_GB:.6g} (relaxation 3.13) and {self.seconds_per_GB:.6g} s/GB (duplicate vertices)"


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

    `group` is the symmetry to use; by default all that is found. Machines whose bandwidth changes count with what it is
    at the start.
    """
    name = collective_name(collective)
    if name in ("custom", "alltoallv"):
        raise DemandError(f"fluid optima are for the named collectives, not for {name}")
    known = symmetry(topology) if group is None else group
    known = known.stabilizer(root) if name in ROOTED else known
    cost = gpu_traffic(topology) if link_cost is None else np.asarray(link_cost, dtype=np.float64)
    task = _Task(topology, name, root, known, cost, options or SolverOptions())
    floor = task.solved(plain_arcs)
    if name not in _COPYING or bool(np.all(topology.copies & topology.reduces)):
        return task.optimum(floor, floor)
    found = task.solved(duplicated_arcs)
    if found is None or found.cost > floor.cost * (1 + 10 * _SAME) or found.time > floor.time * (1 + _SAME):
        found = task.solved(lambda machine: duplicated_arcs(machine, shortest=False)) or found
    return task.optimum(floor, found or floor)


@dataclass(frozen=True, eq=False)
class _Solved:
    """Least time and least cost on one network."""

    program: FluidProgram
    first: Solution
    second: Solution

    @property
    def time(self) -> float:
        return self.first.objective

    @property
    def cost(self) -> float:
        return self.second.objective


@dataclass(frozen=True, eq=False)
class _Task:
    topology: Topology
    collective: str
    root: int
    group: Symmetry
    link_cost: F64
    options: SolverOptions

    def solved(self, network: "type[Arcs] | object") -> _Solved: ...
