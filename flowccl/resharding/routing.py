"""Trees for pieces that balance the load of the links; every replica may send.

A set of ranks that all have the data is one more GPU, with links to them that cost nothing. Then every piece has one
source, and the routing of the project's methods also chooses which replica sends. Where a tree leaves several
replicas, the piece becomes several chunks, each with its own source and targets.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.demand.demand import Chunk, Demand
from flowccl.errors import DemandError, InvalidScheduleError
from flowccl.methods.reroute import balanced_trees
from flowccl.resharding.pieces import Pieces, divided
from flowccl.resharding.traffic import TrafficClass
from flowccl.schedule.generation.chunk_trees import ChunkTrees
from flowccl.topology.topology import Link, Node, Topology

I64 = NDArray[np.int64]
_FREE_GBps = 1e9  # of the links of a set of replicas: the largest bandwidth that a machine may have


@dataclass(frozen=True, eq=False)
class SourceSets:
    """The machine with one more GPU for each set of replicas; `link[k]` is the real link of its link k, or -1."""

    topology: Topology
    link: I64
    source: dict[tuple[int, ...], int]

    def demand(self, classes: list[TrafficClass], size: I64, cls: I64) -> Demand:
        """The demand of pieces of these sizes and classes, each with one source."""
        chunks = [
            Chunk(
                bytes=int(amount),
                sources=(self.source[classes[number].sources],),
                destinations=classes[number].missing,  # the GPUs of the machine keep their ranks
            )
            for amount, number in zip(size.tolist(), cls.tolist(), strict=True)
        ]
        return Demand.from_chunks("custom", self.topology.num_gpus, chunks)


def check_reach(sets: SourceSets, classes: list[TrafficClass]) -> None:
    """Raise DemandError if a target cannot be reached from any of its sources."""
    demand = sets.demand(classes, np.ones(len(classes), dtype=np.int64), np.arange(len(classes)))
    try:
        demand.check_fits(sets.topology)
    except DemandError as error:
        raise DemandError(str(error).replace("or drop these gpus", "or helpers")) from None


def source_sets(topology: Topology, classes: list[TrafficClass], forbidden: frozenset[int] = frozenset()) -> SourceSets:
    """Return the machine with a GPU for each set of replicas; `forbidden` ranks neither send, relay nor receive."""
    sets = sorted({one.sources for one in classes if len(one.sources) > 1})
    gpus, more = topology.num_gpus, len(sets)
    nodes = [
        *topology.nodes[:gpus],
        *(Node(name=_set_name(topology, ranks, n), host=_host(topology, ranks)) for n, ranks in enumerate(sets)),
        *topology.nodes[gpus:],
    ]
    kept = [
        number for number, link in enumerate(topology.links) if link.src not in forbidden and link.dst not in forbidden
    ]

    def moved(node: int) -> int:
        return node if node < gpus else node + more

    links = [
        replace(topology.links[k], src=moved(topology.links[k].src), dst=moved(topology.links[k].dst)) for k in kept
    ]
    place = {link: number for number, link in enumerate(kept)}
    limits = [replace(one, links=tuple(place[k] for k in one.links if k in place)) for one in topology.limits]
    free = [
        Link(src=gpus + number, dst=rank, bandwidth_GBps=_FREE_GBps)
        for number, ranks in enumerate(sets)
        for rank in ranks
    ]
    source = {one.sources: one.sources[0] for one in classes}
    source |= {ranks: gpus + number for number, ranks in enumerate(sets)}
    usable = tuple(one for one in limits if one.links)
    machine = Topology(topology.name, tuple(nodes), (*links, *free), usable)
    return SourceSets(machine, np.array(kept + [-1] * len(free), dtype=np.int64), source)


def _set_name(topology: Topology, ranks: tuple[int, ...], number: int) -> str:
    return f"{topology.nodes[ranks[0]].name} or another one of {len(ranks)} replicas (set {number})"


def _host(topology: Topology, ranks: tuple[int, ...]) -> str:
    """The host of all ranks, or "" if there are several."""
    hosts = {topology.nodes[rank].host for rank in ranks}
    return hosts.pop() if len(hosts) == 1 else ""


@dataclass(frozen=True, eq=False)
class PieceTrees:
    """Chunks with one source each, and their trees: chunk c carries piece `piece[c]`."""

    demand: Demand
    piece: I64
    trees: ChunkTrees


@dataclass(frozen=True, eq=False)
class RoundTrees:
    """The trees of one round, on the machine with sets of replicas; all rounds use the same."""

    pieces: Pieces
    trees: ChunkTrees
    per_round: int
    busiest_ps: float

    @property
    def depth(self) -> int:
        """The largest number of links on the path to a target."""
        parent, steps = self.trees.parent, np.zeros(len(self.trees.link), dtype=np.int64)
        first = np.repeat(self.trees.ptr[:-1], np.diff(self.trees.ptr))
        above = np.where(parent < 0, -1, parent + first)
        at, count = above, 1
        while np.any(at >= 0):
            count += 1
            at = np.where(at < 0, -1, above[np.maximum(at, 0)])
        return count if len(steps) else 0


def route_round(
    sets: SourceSets,
    classes: list[TrafficClass],
    per_round: int,
    random: np.random.Generator,
    depth_weight: float,
) -> RoundTrees:
    """Route one round, with `per_round` pieces of the largest class.

    `depth_weight` weighs the path from the source: 0 aims at trees of least cost, 1 at shortest paths.
    """
    pieces = divided(classes, 1, max(one.bytes for one in classes) / per_round)
    demand = sets.demand(classes, pieces.bytes, pieces.cls)
    trees = balanced_trees(sets.topology, demand, random, depth_weight)
    carried = np.bincount(trees.link, np.repeat(pieces.bytes, np.diff(trees.ptr)), len(sets.topology.links))
    return RoundTrees(pieces, trees, per_round, float((carried * 1000.0 / sets.topology.link_GBps).max()))


def repeated(
    topology: Topology, sets: SourceSets, classes: list[TrafficClass], one: RoundTrees, rounds: int, size_bytes: int
) -> tuple[Pieces, PieceTrees]:
    """Return the pieces of this many rounds on the trees of one, and their chunks."""
    pieces = divided(classes, rounds, max(c.bytes for c in classes) / (rounds * one.per_round))
    first = np.flatnonzero(pieces.round_number == 0)
    place = np.searchsorted(first, pieces.template)
    found = one.trees
    count = np.diff(found.ptr)[place]
    begin = np.repeat(np.cumsum(count) - count, count)
    hop = np.repeat(found.ptr[:-1][place], count) + np.arange(count.sum()) - begin
    parent = np.where(found.parent[hop] < 0, -1, found.parent[hop] + begin)
    piece = np.repeat(np.arange(len(pieces)), count)
    return pieces, _from_replicas(topology, sets, classes, pieces, size_bytes, found.link[hop], parent, piece)


def _from_replicas(
    topology: Topology,
    sets: SourceSets,
    classes: list[TrafficClass],
    pieces: Pieces,
    size_bytes: int,
    link: NDArray[np.int32],
    parent: I64,
    piece: I64,
) -> PieceTrees:
    """Hops of trees from sets of replicas, as trees from the replicas: a chunk for each piece and each sender."""
    real = sets.link[link]
    above = np.where(parent < 0, -1, np.where(real[np.maximum(parent, 0)] < 0, -1, parent))
    kept = np.flatnonzero(real >= 0)
    number = np.cumsum(real >= 0) - 1
    real, piece = real[kept], piece[kept]
    above = np.where(above[kept] < 0, -1, number[np.maximum(above[kept], 0)])
    root = np.where(above < 0, np.arange(len(kept)), above)
    while np.any(above[root] >= 0):
        root = np.where(above[root] >= 0, above[root], root)
    sender = topology.link_src[real[root]].astype(np.int64)
    keys, chunk = np.unique(piece * topology.num_gpus + sender, return_inverse=True)
    chunk = chunk.reshape(-1)
    order = np.argsort(chunk, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    ptr = pointers(np.bincount(chunk, minlength=len(keys)))
    within = np.where(above < 0, -1, place[np.maximum(above, 0)] - ptr[chunk])[order]
    trees = ChunkTrees(ptr, real[order].astype(np.int32), within.astype(np.int32))
    of_chunk, source = np.divmod(keys, topology.num_gpus)
    demand = _demand(topology, classes, pieces, size_bytes, trees, of_chunk, source)
    return PieceTrees(demand, of_chunk, trees)


def _demand(
    topology: Topology,
    classes: list[TrafficClass],
    pieces: Pieces,
    size_bytes: int,
    trees: ChunkTrees,
    piece: I64,
    source: I64,
) -> Demand:
    """The demand of the chunks: each goes to the targets that its tree reaches."""
    wanted = np.zeros((len(classes), len(topology.nodes)), dtype=np.bool_)
    for number, one in enumerate(classes):
        wanted[number, list(one.missing)] = True
    chunk = np.repeat(np.arange(len(piece)), np.diff(trees.ptr))
    end = topology.link_dst[trees.link]
    reached = wanted[pieces.cls[piece[chunk]], end]
    counts = np.bincount(chunk[reached], minlength=len(piece))
    found = np.bincount(pieces.cls[piece], counts, len(classes)).astype(np.int64)
    asked = np.bincount(pieces.cls, minlength=len(classes)) * wanted.sum(axis=1)
    if np.any(found != asked):
        lost = classes[int(np.argmax(found != asked))]
        raise InvalidScheduleError(f"the trees of ranks {lost.sources} do not reach all of {lost.missing}")
    order = np.lexsort((end[reached], chunk[reached]))
    return Demand(
        "custom",
        topology.num_gpus,
        size_bytes,
        pieces.bytes[piece],
        np.arange(len(piece) + 1),
        source.astype(np.int32),
        pointers(counts),
        end[reached][order].astype(np.int32),
    )
