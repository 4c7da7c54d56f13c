"""The fluid linear programs of the thesis, on classes of arcs.

with copies      allgather, broadcast: (3.10) and (4.2) without time; plain switches by (3.13) or duplicate vertices
without copies   alltoall, scatter, gather: (3.16)
two halves       allreduce (4.2): a reduce-scatter, which is an allgather on the reversed machine, and an allgather that
                 share the links; the fraction of the data that each GPU reduces is free

All minimize the time, then the cost in that time.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flowccl.papers.fluid.arcs import Arcs
from flowccl.papers.fluid.quotient import DestinationClass, SourceClass
from flowccl.solver import LinearProgram, ProgramBuilder, RowFamily, VariableBlock
from flowccl.topology.topology import Topology

F64 = NDArray[np.float64]
I32 = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class FluidPart:
    """The flows from each source to its destinations on a network; `copies`: all destinations get the same data."""

    arcs: Arcs
    sources: tuple[SourceClass, ...]
    copies: bool


@dataclass(frozen=True, eq=False)
class SourceTraffic:
    """Variables for the load of one source; it stands for `times` sources in total.

    The column (-1: none) and the link of each arc; with copies, also the columns of the flow to each representative
    destination.
    """

    rank: int
    times: float
    columns: I32
    link: NDArray[np.int64]
    flows: dict[int, I32]


@dataclass(frozen=True, eq=False)
class FluidProgram:
    """The program, and the positions of its variables and rows."""

    program: LinearProgram
    time: VariableBlock
    traffic: tuple[SourceTraffic, ...]
    links: RowFamily
    limits: RowFamily
    limit_of_row: NDArray[np.int64]

    def link_use(self, values: F64, orbit: I32) -> F64:
        """Return the load of each link, averaged over its orbit."""
        total = np.zeros(int(orbit.max(initial=-1)) + 1)
        for part in self.traffic:
            use = np.where(part.columns >= 0, values[np.maximum(part.columns, 0)], 0.0)
            total += part.times * np.bincount(orbit[part.link], use, len(total))
        return np.asarray((total / np.bincount(orbit))[orbit], dtype=np.float64)

    def source_use(self, values: F64, links: int) -> dict[int, F64]:
        """Return the load of each link with the data of one source of each class; of allreduce, both halves."""
        total: dict[int, F64] = {}
        for part in self.traffic:
            use = np.where(part.columns >= 0, values[np.maximum(part.columns, 0)], 0.0)
            there = np.bincount(part.link, use, links).astype(np.float64)
            total[part.rank] = total[part.rank] + there if part.rank in total else there
        return total

    def second(self, most_time: float, link_cost: F64) -> LinearProgram:
        """Return the program that minimizes the cost, per byte on each link, within this time."""
        cost = np.zeros(self.program.num_columns)
        for part in self.traffic:
            made = part.columns >= 0
            np.add.at(cost, part.columns[made], part.times * link_cost[part.link][made])
        upper = self.program.upper.copy()
        upper[np.asarray(self.time)] = most_time
        return replace(self.program, cost=cost, upper=upper)


def fluid_program(topology: Topology, link_orbit: I32, parts: tuple[FluidPart, ...]) -> FluidProgram:
    """Build the program. One part: a unit from every source. Two parts: one unit in total, split among sources."""
    model = ProgramBuilder()
    time = model.variables("time", cost=1)
    amount = _amounts(model, parts)
    traffic = tuple(row for part in parts for row in _traffic(model, part, amount))
    links = _links(model, topology, time, traffic, link_orbit)
    limits, limit_of_row = _limits(model, topology, time, traffic, link_orbit)
    return FluidProgram(model.build(), time, traffic, links, limits, limit_of_row)


def _amounts(model: ProgramBuilder, parts: tuple[FluidPart, ...]) -> VariableBlock:
    """Amount that each source of a class sends: one unit, or a fraction of one."""
    sources = parts[0].sources
    free = len(parts) > 1
    amount = model.variables("amount", len(sources), lower=0 if free else 1, upper=1)
    if free:
        model.rows("all the data", (), equals=1).add(amount, [source.count for source in sources], sum_axis=0)
    return amount


def _traffic(model: ProgramBuilder, part: FluidPart, amount: VariableBlock) -> list[SourceTraffic]:
    """Flows from one source of each class and, with copies, the usage that they need."""
    result = []
    for at, source in enumerate(part.sources):
        flows: list[VariableBlock] = []
        if part.copies:
            flows = [_flow(model, part.arcs, source, end, amount[at]) for end in source.destinations]
            carried = _usage(model, part.arcs, source, flows)
        else:
            carried = _flow_to_all(model, part.arcs, source, amount[at])
        each = zip(source.destinations, flows, strict=False)  # empty for alltoall
        single = {end.rank: flow.columns[end.classes.arc] for end, flow in each}
        carried_by = carried.columns[source.classes.arc]
        result.append(SourceTraffic(source.rank, source.count, carried_by, part.arcs.link, single))
    return result


def _flow_to_all(model: ProgramBuilder, arcs: Arcs, source: SourceClass, amount: VariableBlock) -> VariableBlock:
    """The flows of a source to all its destinations, a unit each, as one flow: (3.16) summed over destinations."""
    classes = source.classes
    useless = np.zeros(classes.num_arcs, dtype=np.bool_)
    useless[classes.arc[arcs.dst == source.rank]] = True
    flow = model.variables(f"flow {source.rank}", classes.num_arcs, where=~useless)
    first = classes.first_nodes()
    balance = model.rows("balance", len(first), equals=0, where=first != source.rank)
    _add_balance(balance, arcs, first, flow[classes.arc])
    ends = classes.node[[end.rank for end in source.destinations]]
    balance.add_at(ends, np.full(len(ends), amount.columns), times=-1)
    return flow


def _flow(
    model: ProgramBuilder, arcs: Arcs, source: SourceClass, end: DestinationClass, amount: VariableBlock
) -> VariableBlock:
    """One flow from source to destination (3.1 to 3.3); nothing returns to the source or leaves the destination."""
    classes = end.classes
    useless = np.zeros(classes.num_arcs, dtype=np.bool_)
    useless[classes.arc[(arcs.dst == source.rank) | (arcs.src == end.rank)]] = True
    flow = model.variables(f"flow {source.rank}-{end.rank}", classes.num_arcs, where=~useless)
    # Flow conservation at one node of each class; at the destination everything stays.
    first = classes.first_nodes()
    balance = model.rows("balance", len(first), equals=0, where=first != source.rank)
    _add_balance(balance, arcs, first, flow[classes.arc])
    balance.add_at(np.flatnonzero(first == end.rank), amount, times=-1)
    return flow


def _usage(model: ProgramBuilder, arcs: Arcs, source: SourceClass, flows: list[VariableBlock]) -> VariableBlock:
    """Usage of the arcs by a source: at least the flow to each destination (3.7)."""
    classes = source.classes
    useless = np.zeros(classes.num_arcs, dtype=np.bool_)
    useless[classes.arc[arcs.dst == source.rank]] = True
    use = model.variables(f"usage {source.rank}", classes.num_arcs, where=~useless)
    for end, flow in zip(source.destinations, flows, strict=True):
        one = np.unique(end.classes.arc, return_index=True)[1]
        rows = model.rows("usage", len(one), lower=0, where=flow.exists)
        rows.add(use[classes.arc[one]]).add(flow, times=-1)
    # A node that cannot copy sends on as much as it receives (3.12).
    first = classes.first_nodes()
    first = first[arcs.must_balance[first]]
    _add_balance(model.rows("no copies", len(first), equals=0), arcs, first, use[classes.arc])
    return use


def _add_balance(rows: RowFamily, arcs: Arcs, nodes: NDArray[np.int64], variables: VariableBlock) -> None:
    """Add inflow less outflow of these nodes, one row each."""
    row_of = np.full(arcs.num_nodes, -1, dtype=np.int64)
    row_of[nodes] = np.arange(len(nodes))
    for row, sign in ((row_of[arcs.dst], 1.0), (row_of[arcs.src], -1.0)):
        known = np.flatnonzero(row >= 0)
        rows.add_at(row[known], variables[known], times=sign)


def _links(
    model: ProgramBuilder, topology: Topology, time: VariableBlock, traffic: tuple[SourceTraffic, ...], link_orbit: I32
) -> RowFamily:
    """Link capacity within the time (4.1); one row per orbit, since its links are equivalent."""
    first, size = np.unique(link_orbit, return_index=True, return_counts=True)[1:]
    rows = model.rows("link", len(first), upper=0).add(time, times=-1)
    share = 1.0 / (size * topology.link_GBps[first])
    for part in traffic:
        made = np.flatnonzero(part.columns >= 0)
        orbit = link_orbit[part.link[made]]
        rows.add_at(orbit, part.columns[made], times=part.times * share[orbit])
    return rows


def _limits(
    model: ProgramBuilder, topology: Topology, time: VariableBlock, traffic: tuple[SourceTraffic, ...], link_orbit: I32
) -> tuple[RowFamily, NDArray[np.int64]]:
    """The same for limits: one row per kind, given by the number of links of each orbit and the bandwidth."""
    size = np.bincount(link_orbit)
    kinds: dict[bytes, int] = {}
    for at, limit in enumerate(topology.limits):
        inside = np.bincount(link_orbit[list(limit.links)], minlength=len(size))
        kinds.setdefault(inside.tobytes() + np.float64(limit.bandwidth_GBps).tobytes(), at)
    chosen = np.array(list(kinds.values()), dtype=np.int64)
    rows = model.rows("limit", len(chosen), upper=0).add(time, times=-1)
    for row, at in enumerate(chosen.tolist()):
        limit = topology.limits[at]
        share = np.bincount(link_orbit[list(limit.links)], minlength=len(size)) / size / limit.bandwidth_GBps
        for part in traffic:
            made = np.flatnonzero(part.columns >= 0)
            rate = part.times * share[link_orbit[part.link[made]]]
            rows.add_at(np.full(len(made), row), part.columns[made], times=rate)
    return rows, chosen
