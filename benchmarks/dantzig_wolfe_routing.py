"""The cheapest routing of one source for given dual prices of links: the subproblem of Dantzig-Wolfe (5.1).

(3.13) for one source, with a flow to every destination, has a variable per link and destination. By max-flow min-cut, a
usage w is feasible if and only if one unit enters every set of nodes that contains a destination and not the source. So
the program has one variable per link, and rows are generated for violated sets:

    minimize  sum of price(e) w(e)
    one unit enters every set             sum of w(e) over e into S >= 1
    nodes that cannot copy (3.12)         w in = w out

Maximum flows find the violated sets. The sets do not depend on prices and are valid for every source outside of them,
so all routers share them.
"""

import numpy as np
from numpy.typing import NDArray

from benchmarks.max_flow_kernels import narrow_sets
from flowccl.solver import ProgramBuilder, Session, SolverOptions
from flowccl.topology.topology import Topology

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

_LEAST = 1 - 1e-9  # flow that must enter a set
_MAX_NEW_SETS = 40  # sets added between two solves; with all of them the program grows too large


class CutSets:
    """Sets of nodes that all routers share: the nodes inside and the links into each."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.keys: set[bytes] = set()
        self.size = 0
        self.inside = np.zeros((64, len(topology.nodes)), dtype=np.bool_)
        self.into = np.zeros((64, len(topology.links)))  # 1.0 for links into the set
        gpus = np.eye(topology.num_gpus, len(topology.nodes), dtype=np.bool_)
        self.add(gpus)
        self.add(~gpus)

    def add(self, inside: Bool) -> None:
        """Add the sets that are new."""
        for row in inside:
            key = np.packbits(row).tobytes()
            if key in self.keys:
                continue
            self.keys.add(key)
            if self.size == len(self.inside):
                self.inside = np.concatenate((self.inside, np.zeros_like(self.inside)))
                self.into = np.concatenate((self.into, np.zeros_like(self.into)))
            self.inside[self.size] = row
            self.into[self.size] = ~row[self.topology.link_src] & row[self.topology.link_dst]
            self.size += 1

    def violated(self, source: int, use: F64, known: set[int]) -> I64:
        """Return sets without the source that too little flow enters, most violated first; no known ones."""
        enters = self.into[: self.size] @ use
        rows = np.flatnonzero((enters < _LEAST) & ~self.inside[: self.size, source])
        rows = rows[[row not in known for row in rows.tolist()]]  # known sets may be violated within the tolerance
        return rows[np.argsort(enters[rows], kind="stable")[:_MAX_NEW_SETS]]


class Router:
    """The program of one source; every solve starts from the last basis."""

    def __init__(self, topology: Topology, source: int, sets: CutSets) -> None:
        self.source, self.sets, self.known = source, sets, set[int]()
        self.sinks = np.delete(np.arange(topology.num_gpus), source)
        self.arc_ptr, self.arc, self.end = residual(topology)
        model = ProgramBuilder()
        self.columns = np.asarray(model.variables("usage", len(topology.links), where=topology.link_dst != source))
        self.made = np.flatnonzero(self.columns >= 0)
        plain = np.flatnonzero(~topology.copies)
        row_of = np.full(len(topology.nodes), -1, dtype=np.int64)
        row_of[plain] = np.arange(len(plain))
        balance = model.rows("no copies", len(plain), equals=0)
        for row, sign in ((row_of[topology.link_dst], 1.0), (row_of[topology.link_src], -1.0)):
            known = np.flatnonzero((row >= 0) & (self.columns >= 0))
            balance.add_at(row[known], self.columns[known], times=sign)
        self.session = Session(model.build(), SolverOptions(method="simplex"))
        self.require(np.flatnonzero(~sets.inside[: sets.size, source]))

    def require(self, rows: I64) -> None:
        """Add the rows of these sets: one unit enters each."""
        self.known.update(rows.tolist())
        self.session.add_rows(self.sets.into[rows][:, self.made], lower=1.0)

    def cheapest(self, price: F64) -> tuple[float, F64]:
        """Return the least cost, as proved by the program, and the usage of each link."""
        scale = max(float(price.max()), 1e-300)
        self.session.change_cost(self.columns[self.made], price[self.made] / scale)
        use = np.zeros(len(price))
        while True:
            solution = self.session.solve()
            assert solution.values is not None
            use[self.made] = np.maximum(solution.values, 0.0)
            violated = self.sets.violated(self.source, use, self.known)
            if not len(violated):
                weakest, found = narrow_sets(self.arc_ptr, self.arc, self.end, use, self.source, self.sinks, _LEAST)
                self.sets.add(found)
                violated = self.sets.violated(self.source, use, self.known)
                if not len(violated):
                    return solution.objective * scale, use / min(weakest, 1.0)
            self.require(violated)


def residual(topology: Topology) -> tuple[I64, I64, I64]:
    """Return the arcs 2k (link k) and 2k + 1 (its reverse) by the node they leave: pointers, arcs, and heads."""
    start = np.stack((topology.link_src, topology.link_dst), axis=1).ravel()
    end = np.stack((topology.link_dst, topology.link_src), axis=1).ravel()
    arc = np.argsort(start, kind="stable")
    ptr = np.searchsorted(start[arc], np.arange(len(topology.nodes) + 1))
    return ptr.astype(np.int64), arc.astype(np.int64), end.astype(np.int64)
