"""The machine as SCCL sees it: edges between storing nodes, and how many chunks they carry per round.

An edge is a link, or the best route through switches from one storing node to another. In one round, the slowest edge
carries one chunk; a link, or a limit that links share, carries chunks in proportion to its bandwidth. These are the
sets of the paper's bandwidth relation.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.bounds.commodities import Commodities
from flowccl.bounds.cut_families import cut_families
from flowccl.demand.demand import Demand
from flowccl.topology.neighbours import Neighbours, neighbours
from flowccl.topology.topology import Topology

I64 = NDArray[np.int64]
_PRECISION = 10**6  # largest denominator of a ratio of bandwidths
_FAR = 1 << 30  # steps between nodes that no edges connect


@dataclass(frozen=True)
class LeastRounds:
    """A lower bound on rounds per chunk: `chunks` chunks of one per block cross a cut that carries `per_round`."""

    chunks: int
    per_round: Fraction
    where: str

    @property
    def ratio(self) -> Fraction:
        """Rounds per chunk."""
        return Fraction(self.chunks) / self.per_round

    def __str__(self) -> str:
        carries = f"which carries {self.per_round} per round"
        blocks = "1 block" if self.chunks == 1 else f"{self.chunks} blocks"
        return f"at least {self.ratio} rounds per chunk: {blocks} must cross {self.where}, {carries}"


class StepGraph:
    """Edges with `src` and `dst`; row i says that edge `row_edge[i]` uses set `row_set[i]`, of a `capacity`."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.edges: Neighbours = neighbours(topology, 1)
        self.src, self.dst = self.edges.src.astype(np.int64), self.edges.end.astype(np.int64)
        self.unit_GBps = float(self.edges.shape.segment_GBps.min(initial=np.inf))
        routes = self.edges.routes
        edge = np.repeat(np.arange(len(routes)), np.diff(routes.ptr))
        rows = [(edge, routes.link.astype(np.int64))]
        for at, limit in enumerate(topology.limits):
            inside = np.flatnonzero(np.isin(routes.link, list(limit.links)))
            rows.append((edge[inside], np.full(len(inside), len(topology.links) + at)))
        self.row_edge = np.concatenate([row[0] for row in rows]).astype(np.int64)
        self.row_set = np.concatenate([row[1] for row in rows]).astype(np.int64)
        GBps = [*topology.link_GBps.tolist(), *topology.limit_GBps.tolist()]
        self.capacity = [self.per_round(value) for value in GBps]

    def per_round(self, GBps: float) -> Fraction:
        """Chunks per round at a bandwidth."""
        return Fraction(GBps / self.unit_GBps).limit_denominator(_PRECISION)

    @cached_property
    def steps_between(self) -> I64:
        """The least number of steps from each node to each node."""
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import shortest_path

        count = len(self.topology.nodes)
        graph = csr_matrix((np.ones(len(self.src)), (self.src, self.dst)), (count, count))
        steps = shortest_path(graph, unweighted=True)
        return np.where(np.isfinite(steps), steps, _FAR).astype(np.int64)

    def least_steps(self, demand: Demand) -> tuple[int, str]:
        """The least number of steps of a demand whose chunks have one source each, and the pair that needs them."""
        source = demand.source[demand.destination_chunk]
        steps = self.steps_between[source, demand.destination_rank]
        worst = int(np.argmax(steps))
        nodes = self.topology.nodes
        names = nodes[int(source[worst])].name, nodes[int(demand.destination_rank[worst])].name
        return int(steps[worst]), f"{names[1]} is {steps[worst]} steps from {names[0]}"

    def least_rounds(self, demand: Demand) -> LeastRounds:
        """The best bound over families of cuts; the demand has one chunk per block."""
        best = LeastRounds(0, Fraction(1), "nothing")
        for cut in cut_families(self.topology, Commodities.of(demand, self.topology)):
            inside = cut.far[demand.destination_rank]
            wanted = np.bincount(demand.destination_chunk[inside], minlength=len(demand)) > 0
            chunks = int(np.count_nonzero(wanted & ~cut.far[demand.source]))
            found = LeastRounds(chunks, self.per_round(cut.GBps), cut.name)
            if found.ratio > best.ratio:
                best = found
        return best
