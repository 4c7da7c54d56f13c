"""Which switches mix what they forward: there no schedule can follow a solution of (3.13).

At a node that cannot copy every unit that comes in must leave by one link, with all the destinations that it is for. So
there must be amounts y(a, b) from links a into the node to links b out of it that add up to no more than the usage of
both and have room for the flow to each destination: a small program per node and source. With such amounts the node can
be split off, each pair of links becoming one. That leaves the links of the next switch as they are where all comes into
the one by a single link, or all leaves the other by a single link; elsewhere two switches in a row offend too. Nodes
that offend are duplicated (see arcs.py).
"""

import numpy as np
from numpy.typing import NDArray

from flowccl.methods.fluid.arcs import Arcs
from flowccl.methods.fluid.program import Traffic
from flowccl.solver import ProgramBuilder, SolverOptions, solve
from flowccl.topology.symmetry.permutations import Symmetry

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

_CLOSE = 1e-6  # of a unit: what may be lacking
_NOTHING = 1e-8


def offending(arcs: Arcs, traffic: Traffic, values: F64, group: Symmetry) -> Bool:
    """The nodes of the machine at which the data of this source is mixed, with all that are like them."""
    found = np.zeros(len(arcs.topology.nodes), dtype=np.bool_)
    around = group.stabilizer(traffic.rank)
    use, flows = _read(traffic.columns, values), _flow_to_each(arcs, traffic, values, around)
    single = arcs.must_balance & (arcs.node_label < 0)  # not duplicated, or no arc leads there
    in_a_row = _in_a_row(arcs, single, use)
    for node in np.flatnonzero(single).tolist():
        first_like_it = int(np.argmax(around.node_orbits == around.node_orbits[node]))
        if first_like_it == node and (in_a_row[node] or _mixes(arcs, node, use, flows)):
            found |= group.node_orbits == group.node_orbits[node]
    return found


def _in_a_row(arcs: Arcs, single: Bool, use: F64) -> Bool:
    """Nodes that get something from another switch, where splitting off the one would change the links of the other."""
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


def _flow_to_each(arcs: Arcs, traffic: Traffic, values: F64, around: Symmetry) -> F64:
    """What each arc carries for each destination, moved from those that stand for their classes to the others."""
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
    """Whether no amounts from link to link have room for all flows through this node."""
    into = np.flatnonzero((arcs.dst == node) & (use > _NOTHING))
    out = np.flatnonzero((arcs.src == node) & (use > _NOTHING))
    if min(len(into), len(out)) <= 1:  # all from one link, or all to one
        return False
    flows = flows[flows[:, into].sum(axis=1) > _CLOSE]
    pairs, count = (len(into), len(out)), len(flows)
    model = ProgramBuilder()
    amount = model.variables("amount", pairs)
    part = model.variables("part", (count, *pairs))
    short = model.variables("short", (count, len(out)), cost=1)
    model.rows("comes in", len(into), upper=use[into]).add(amount, sum_axis=1)
    model.rows("goes out", len(out), upper=use[out]).add(amount, sum_axis=0)
    for one in range(count):
        model.rows("room", pairs, upper=0).add(part[one]).add(amount, times=-1)
    model.rows("flow in", (count, len(into)), upper=flows[:, into]).add(part, sum_axis=2)
    model.rows("flow out", (count, len(out)), lower=flows[:, out]).add(part, sum_axis=1).add(short)
    return solve(model.build(), SolverOptions()).objective > _CLOSE * max(count, 1)
