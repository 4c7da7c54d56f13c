"""Which switches mix what they forward: no schedule can follow a solution of (3.13) there.

At a node that cannot copy, every incoming unit must leave by one link, with all its destinations. So there must be
amounts y(a, b) from incoming links a to outgoing links b that do not exceed the usage of either link and admit the flow
to each destination: a small linear program per node and source. Given such amounts, the node can be split off: each
pair of links becomes one. This leaves the links of a neighbouring switch unchanged if all data enters the first switch
by a single link, or leaves the second by a single link; otherwise two consecutive switches offend too. Offending nodes
are duplicated (see arcs.py).
"""

import numpy as np
from numpy.typing import NDArray

from flowccl.papers.fluid.arcs import Arcs
from flowccl.papers.fluid.program import SourceTraffic
from flowccl.solver import ProgramBuilder, SolverOptions, solve
from flowccl.topology.symmetry.permutations import Symmetry

F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

_CLOSE = 1e-6  # tolerated lack, as a fraction of a unit
_NOTHING = 1e-8


def offending(arcs: Arcs, traffic: SourceTraffic, values: F64, group: Symmetry) -> Bool:
    """The nodes of the machine at which the data of this source is mixed, with their orbits."""
    found = np.zeros(len(arcs.topology.nodes), dtype=np.bool_)
    around = group.stabilizer(traffic.rank)
    use, flows = _read(traffic.columns, values), _flow_to_each(arcs, traffic, values, around)
    single = arcs.must_balance & (arcs.node_label < 0)  # not duplicated, or not reached by any arc
    in_a_row = _consecutive(arcs, single, use)
    for node in np.flatnonzero(single).tolist():
        first_like_it = int(np.argmax(around.node_orbits == around.node_orbits[node]))
        if first_like_it == node and (in_a_row[node] or _mixes(arcs, node, use, flows)):
            found |= group.node_orbits == group.node_orbits[node]
    return found


def _consecutive(arcs: Arcs, single: Bool, use: F64) -> Bool:
    """Nodes that receive data from another switch, if splitting off one would change the links of the other."""
    used = use > _NOTHING
    into = np.bincount(arcs.dst[used], minlength=arcs.num_nodes)
    out = np.bincount(arcs.src[used], minlength=arcs.num_nodes)
    between = used & arcs.must_balance[arcs.src] & single[arcs.dst]
    harmless = (out[arcs.dst] <= 1) | (single[arcs.src] & (into[arcs.src] <= 1))
    found = np.zeros(arcs.num_nodes, dtype=np.bool_)
    found[arcs.dst[between & ~harmless]] = True
    return found


def _read(columns: NDArray[np.int32], values: F64) -> F64:
    return np.where(columns >= 0, values[np.maximum(columns, 0)], 0.0).clip(0.0)


def _flow_to_each(arcs: Arcs, traffic: SourceTraffic, values: F64, around: Symmetry) -> F64:
    """Flow on each arc to each destination, moved from the representatives to the rest of their classes."""
    by_arc, by_node = arcs.permuted(around)
    rows = []
    for rank, columns in traffic.flows.items():
        flow, moves = _read(columns, values), {rank: np.arange(len(arcs))}
        todo = [rank]
        for at in todo:
            for g in range(len(around)):
                end = int(by_node[g][at])
                if end not in moves:
                    moves[end] = by_arc[g][moves[at]]
                    todo.append(end)
        for moved in moves.values():
            there = np.zeros(len(arcs))
            there[moved] = flow
            rows.append(there)
    return np.array(rows)


def _mixes(arcs: Arcs, node: int, use: F64, flows: F64) -> bool:
    """Whether no amounts from link to link admit all flows through this node."""
    into = np.flatnonzero((arcs.dst == node) & (use > _NOTHING))
    out = np.flatnonzero((arcs.src == node) & (use > _NOTHING))
    if min(len(into), len(out)) <= 1:  # all data comes from, or goes to, a single link
        return False
    flows = flows[flows[:, into].sum(axis=1) > _CLOSE]
    pairs, count = (len(into), len(out)), len(flows)
    model = ProgramBuilder()
    amount = model.variables("amount", pairs)
    part = model.variables("part", (count, *pairs))
    short = model.variables("short", (count, len(out)), cost=1)
    model.rows("usage in", len(into), upper=use[into]).add(amount, sum_axis=1)
    model.rows("usage out", len(out), upper=use[out]).add(amount, sum_axis=0)
    for one in range(count):
        model.rows("capacity", pairs, upper=0).add(part[one]).add(amount, times=-1)
    model.rows("flow in", (count, len(into)), upper=flows[:, into]).add(part, sum_axis=2)
    model.rows("flow out", (count, len(out)), lower=flows[:, out]).add(part, sum_axis=1).add(short)
    return solve(model.build(), SolverOptions()).objective > _CLOSE * max(count, 1)
