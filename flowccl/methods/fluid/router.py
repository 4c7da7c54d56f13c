"""The cheapest routing of one source at given prices of links: the inner program of Dantzig-Wolfe (5.1).

(3.13) for one source, with a flow to every destination, has a variable per link and destination. By the theorem of
maximum flow and minimum cut the same usage w is allowed if and only if one unit enters every set of nodes that holds a
destination and not the source. So the program has one variable per link, and rows for the sets that were needed so far:

    minimize  sum of price(e) w(e)
    one unit enters every set             sum of w(e) over e into S >= 1
    nodes that cannot copy (3.12)         w in = w out

Sets that too little enters are found by maximum flows. They do not depend on prices, and hold for every source outside
of them: all routers share them.
"""

import numpy as np
from numpy.typing import NDArray

from flowccl.methods.fluid.max_flow_kernels import narrow_sets
from flowccl.solver import ProgramBuilder, Session, SolverOptions
from flowccl.topology.topology import Topology

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]

_LEAST = 1 - 1e-9  # what must enter a set
_AT_ONCE = 40  # sets that a program learns of between two solves: with all of them it grows too large


class Sets:
    """Sets of nodes that all routers know; of each, the nodes inside and the links into it."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.keys: set[bytes] = set()
        self.size = 0
        self.inside = np.zeros((64, len(topology.nodes)), dtype=np.bool_)
        self.into = np.zeros((64, len(topology.links)))  # 1.0 where it is
        gpus = np.eye(topology.num_gpus, len(topology.nodes), dtype=np.bool_)
        self.add(gpus)
        self.add(~gpus)

    def add(self, inside: Bool) -> None:
        """Those that are new."""
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

    def broken(self, source: int, use: F64, known: set[int]) -> I64:
        """Sets without the source that too little enters, of many those that least enters; none that is known."""
        enters = self.into[: self.size] @ use
        rows = np.flatnonzero((enters < _LEAST) & ~self.inside[: self.size, source])
        rows = rows[[row not in known for row in rows.tolist()]]  # the solver has its own idea of equal
        return rows[np.argsort(enters[rows], kind="stable")[:_AT_ONCE]]


class Router:
    """The program of one source; every solve starts where the last one ended."""

    def __init__(self, topology: Topology, source: int, sets: Sets) -> None:
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
        """From now on one unit enters these sets."""
        self.known.update(rows.tolist())
        self.session.add_rows(self.sets.into[rows][:, self.made], lower=1.0)

    def cheapest(self, price: F64) -> tuple[float, F64]:
        """The least cost, as proved by the program, and what each link carries then."""
        scale = max(float(price.max()), 1e-300)
        self.session.change_cost(self.columns[self.made], price[self.made] / scale)
        use = np.zeros(len(price))
        while True:
            solution = self.session.solve()
            assert solution.values is not None
            use[self.made] = np.maximum(solution.values, 0.0)
            broken = self.sets.broken(self.source, use, self.known)
            if not len(broken):
                weakest, found = narrow_sets(self.arc_ptr, self.arc, self.end, use, self.source, self.sinks, _LEAST)
                self.sets.add(found)
                broken = self.sets.broken(self.source, use, self.known)
                if not len(broken):
                    return solution.objective * scale, use / min(weakest, 1.0)
            self.require(broken)


def residual(topology: Topology) -> tuple[I64, I64, I64]:
    """Arcs 2k (link k) and 2k + 1 (its way back) by the node they leave: pointers, arcs; and where each arc goes."""
    start = np.stack((topology.link_src, topology.link_dst), axis=1).ravel()
    end = np.stack((topology.link_dst, topology.link_src), axis=1).ravel()
    arc = np.argsort(start, kind="stable")
    ptr = np.searchsorted(start[arc], np.arange(len(topology.nodes) + 1))
    return ptr.astype(np.int64), arc.astype(np.int64), end.astype(np.int64)
