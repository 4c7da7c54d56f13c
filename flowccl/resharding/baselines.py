"""What is done without a plan, on shortest paths, in the same clock.

direct            the first rank that has the bytes sends them to each target
ring              the first rank that has the bytes sends them to the first target, which passes them on to the next
broadcast         one rank per tensor, in turn, collects the tensor and broadcasts it whole to all targets, on a tree
gather-broadcast  the first source rank collects all tensors, and then broadcasts them whole to all targets, on a tree

Every message is divided into pieces, so that ranks that pass data on do so while more arrives. The broadcast of a
tensor follows its collection, and overlaps with the collection of other tensors.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER
from flowccl.resharding.layout import Layout, Mesh, Placement, TensorLayout
from flowccl.resharding.pieces import divided
from flowccl.resharding.routing import RoundTrees, SourceSets, repeated, source_sets
from flowccl.resharding.scheduling import schedules
from flowccl.resharding.traffic import Traffic, TrafficClass, traffic
from flowccl.schedule.generation.chunk_trees import ChunkTrees
from flowccl.topology.topology import Topology
from flowccl.units import ps_to_us

BASELINES = ("direct", "ring", "broadcast", "gather-broadcast")
"""The baselines of a resharding."""

_MOST_DELIVERIES = 10_000  # of the schedule of a baseline

Edge = tuple[int, int]


def baseline_us(topology: Topology, found: Traffic) -> dict[str, float | None]:
    """Return the completion time of each baseline in microseconds; None where a path is missing."""
    classes = [found.classes[number] for number in found.moved]
    times_ps = {shape: _finish_ps(topology, classes, shape) for shape in ("direct", "ring")}
    times_ps |= Broadcasts(topology, found).times_ps
    return {name: ps_to_us(ps) if ps < NEVER else None for name, ps in times_ps.items()}


@dataclass(frozen=True)
class Broadcasts:
    """The two baselines that move whole tensors; their times are computed when they are needed."""

    topology: Topology
    found: Traffic

    @cached_property
    def times_ps(self) -> dict[str, int]:
        """The completion time of each."""
        owners = self.found.source.ranks
        collected, sent = _collected(self.found, owners)
        gathered, copied = _collected(self.found, owners[:1])
        tensors = -(-len(self.found.target.tensors) // len(owners))
        gathered_ps = _finish_ps(self.topology, gathered, "direct")
        return {
            "broadcast": _in_turn_ps(self.topology, collected, sent, tensors),
            "gather-broadcast": _sum_ps(gathered_ps, _finish_ps(self.topology, copied, "tree")),
        }

    @cached_property
    def least_ps(self) -> float:
        """A time before which none of them ends, from the links into the targets alone."""
        into = np.bincount(self.topology.link_dst, self.topology.link_peak_GBps, len(self.topology.nodes))
        times = []
        for owners in (self.found.source.ranks, self.found.source.ranks[:1]):
            amount = _owned(self.found, owners)
            total = sum(amount.values())
            times.append(
                max((total - amount.get(rank, 0)) * 1000 / max(into[rank], 1e-9) for rank in self.found.target.ranks)
            )
        return float(min(times))

    def are_before(self, finish_ps: int) -> bool:
        """Whether one of them ends before this time."""
        return finish_ps > self.least_ps and finish_ps > min(self.times_ps.values())


def _in_turn_ps(topology: Topology, collected: list[TrafficClass], sent: list[TrafficClass], tensors: int) -> int:
    """The completion time where each owner collects and broadcasts this many tensors, one after the other.

    The first broadcast waits for one tensor; after the last collection, one tensor is still to be sent.
    """
    first, last = (
        [TrafficClass(one.sources, one.targets, -(-one.bytes // tensors)) for one in rows] for rows in (collected, sent)
    )
    all_sent = _sum_ps(_finish_ps(topology, first, "direct"), _finish_ps(topology, sent, "tree"))
    all_collected = _sum_ps(_finish_ps(topology, collected, "direct"), _finish_ps(topology, last, "tree"))
    return max(all_sent, all_collected)


def _sum_ps(one: int, other: int) -> int:
    return NEVER if NEVER in (one, other) else one + other


def baseline_round(topology: Topology, sets: SourceSets, classes: list[TrafficClass], shape: str) -> RoundTrees | None:
    """Return trees of one shape (direct, ring or tree) on shortest paths, one piece of each class in a round.

    None if a rank cannot reach another.
    """
    place = {real: number for number, real in enumerate(sets.link.tolist()) if real >= 0}
    paths = _ShortestPaths(topology, np.array(sorted(place), dtype=np.int64))
    pieces = divided(classes, 1, float(max(one.bytes for one in classes)))
    ptr, link, parent = [0], [], []
    for one in classes:
        rows = paths.tree(one.sources[0], _edges(one.sources[0], one.missing, shape))
        if rows is None:
            return None
        link += [place[hop] for hop, _ in rows]
        parent += [above for _, above in rows]
        ptr.append(len(link))
    trees = ChunkTrees(np.array(ptr, dtype=np.int64), np.array(link, dtype=np.int32), np.array(parent, dtype=np.int32))
    return RoundTrees(pieces, trees, 1, 0.0)


def _finish_ps(topology: Topology, classes: list[TrafficClass], shape: str) -> int:
    if not classes:
        return 0
    sets = source_sets(topology, classes)
    one = baseline_round(topology, sets, classes, shape)
    best = NEVER
    for rounds in round_counts(classes) if one is not None else ():
        assert one is not None
        pieces, on_trees = repeated(topology, sets, classes, one, rounds, 1)
        for schedule in schedules(topology, on_trees, pieces, np.random.default_rng(0)):
            best = best if schedule is None else min(best, schedule.finish_ps)
    return best


def round_counts(classes: list[TrafficClass]) -> list[int]:
    """The numbers of rounds that are tried for a baseline."""
    deliveries = sum(len(one.missing) for one in classes)
    return [n for n in (1, 4, 16, 64) if n == 1 or n * deliveries <= _MOST_DELIVERIES]


def _collected(found: Traffic, owners: tuple[int, ...]) -> tuple[list[TrafficClass], list[TrafficClass]]:
    """Each tensor whole on one of the owners, in turn: what moves until then, and what is broadcast afterwards."""
    tensors = []
    for number, tensor in enumerate(_wanted(found)):
        owner = owners[number % len(owners)]
        mesh, placement = Mesh((1,), (owner,)), (Placement(),)
        tensors.append(TensorLayout(tensor.name, tensor.shape, tensor.element_bytes, tensor.dtype, mesh, placement))
    moved = traffic(found.source, Layout(tuple(tensors)), partial=True)
    targets = found.target.ranks
    sent = [TrafficClass((owner,), targets, size) for owner, size in _owned(found, owners).items() if size]
    return [moved.classes[number] for number in moved.moved], [one for one in sent if one.missing]


def _wanted(found: Traffic) -> list[TensorLayout]:
    """The source tensors that the target layout has."""
    return [one for one in found.source.tensors if one.name in found.target.by_name]


def _owned(found: Traffic, owners: tuple[int, ...]) -> dict[int, int]:
    """The bytes of the tensors that each owner broadcasts, in turn."""
    amount = dict.fromkeys(owners, 0)
    for number, tensor in enumerate(_wanted(found)):
        amount[owners[number % len(owners)]] += tensor.bytes
    return amount


def _edges(source: int, targets: tuple[int, ...], shape: str) -> list[Edge]:
    """Which rank sends to which, each rank after the one that sends to it."""
    if shape == "direct":
        return [(source, rank) for rank in targets]
    ranks = (source, *targets)
    if shape == "ring":
        return list(pairwise(ranks))
    return [(ranks[(number - 1) // 2], ranks[number]) for number in range(1, len(ranks))]


class _ShortestPaths:
    """Shortest paths between GPUs by latency and time per byte; paths may lead through GPUs."""

    def __init__(self, topology: Topology, usable: NDArray[np.int64]) -> None:
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import dijkstra

        self.topology, count = topology, len(topology.nodes)
        cost = 1e6 * 1000.0 / topology.link_GBps + topology.link_latency_ps  # of a message of 1 MB
        order = usable[np.lexsort((cost[usable], topology.link_dst[usable], topology.link_src[usable]))[::-1]]
        self.link_of = np.full((count, count), -1, dtype=np.int64)
        self.link_of[topology.link_src[order], topology.link_dst[order]] = order  # of parallel links, the cheapest
        used = self.link_of[self.link_of >= 0]
        graph = csr_matrix((cost[used], (topology.link_src[used], topology.link_dst[used])), (count, count))
        found = dijkstra(graph, indices=np.arange(topology.num_gpus), return_predecessors=True)[1]
        self.before: NDArray[np.int32] = found

    def tree(self, source: int, edges: list[Edge]) -> list[tuple[int, int]] | None:
        """The hops (link, feeding hop) along the paths of all edges; a rank that has the data gets it only once."""
        feeder: dict[int, int] = {source: -1}
        rows: list[tuple[int, int]] = []
        for a, b in edges:
            path = [b]
            while path[-1] != a:
                if self.before[a, path[-1]] < 0:
                    return None
                path.append(int(self.before[a, path[-1]]))
            nodes = path[::-1]
            start = max(i for i, node in enumerate(nodes) if node in feeder)
            above = feeder[nodes[start]]
            for x, y in zip(nodes[start:], nodes[start + 1 :], strict=False):
                rows.append((int(self.link_of[x, y]), above))
                above = len(rows) - 1
                if self.topology.stores[y]:
                    feeder[y] = above
        return rows
