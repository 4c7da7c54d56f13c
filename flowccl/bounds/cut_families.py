"""Which cuts are worth a look: into and out of GPUs and hosts, minimum cuts, parts that hang together."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flowccl.bounds.commodities import Commodities
from flowccl.bounds.cuts import Cut
from flowccl.topology.topology import Topology

_MIN_CUTS = 64  # destinations whose minimum cut is sought
_BALLS = 64  # nodes whose neighbourhoods are tried
_LOOKS = 100_000_000  # (group, destination) entries that all cuts together may look at
_LARGEST_SPECTRUM = 600  # nodes of a machine whose eigenvectors are computed


def cut_families(topology: Topology, commodities: Commodities) -> Iterator[Cut]:
    """Each cut once: into and out of every GPU and host, minimum cuts, neighbourhoods and runs of ranks.

    On large machines a part of them, the same number of each family.
    """
    seen: set[bytes] = set()
    budget = max(64, _LOOKS // len(commodities.destination))
    for name, far in _sides(topology, commodities, max(8, budget // 8)):
        if len(seen) >= budget:
            return
        key = np.packbits(far).tobytes()
        if key not in seen:
            seen.add(key)
            cut = Cut(topology, name, far)
            if len(cut.links):
                yield cut


def _sides(topology: Topology, commodities: Commodities, most: int) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    count = len(topology.nodes)
    for rank in _narrowest(commodities.destination, commodities, most, topology.link_dst):
        yield f"into {topology.nodes[rank].name}", np.arange(count) == rank
    for rank in _narrowest(commodities.source, commodities, most, topology.link_src):
        yield f"out of {topology.nodes[rank].name}", np.arange(count) != rank
    for host in topology.hosts[:most] if len(topology.hosts) > 1 else ():
        inside = np.array([node.host == host for node in topology.nodes])
        yield from _both_ways(host, inside)
    for name, gpus in _runs(topology, most):
        yield from _placed(topology, name, gpus)
    if commodities.copies:
        yield from _minimum_cuts(topology, commodities, min(most, _MIN_CUTS))
    yield from _sweeps(topology, most)
    yield from _balls(topology, commodities, min(most, _BALLS))


def _both_ways(name: str, inside: NDArray[np.bool_]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    yield f"into {name}", inside
    yield f"out of {name}", ~inside


def _placed(topology: Topology, name: str, gpus: NDArray[np.bool_]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """A set of GPUs, both ways, with switches and memories beside the GPUs they hang on."""
    count = len(topology.nodes)
    fixed = np.arange(count) < topology.num_gpus
    side = np.zeros(count)
    side[: topology.num_gpus] = np.where(gpus, 1.0, -1.0)
    ends = np.concatenate((topology.link_src, topology.link_dst))
    others = np.concatenate((topology.link_dst, topology.link_src))
    weight = np.tile(topology.link_peak_GBps, 2)
    total = np.maximum(np.bincount(ends, weight, count), 1e-9)
    for _ in range(0 if fixed.all() else 12):  # a switch takes the average of its neighbours
        side = np.where(fixed, side, np.bincount(ends, weight * side[others], count) / total)
    yield from _both_ways(name, side > 0)


def _narrowest(ranks: NDArray[np.int32], commodities: Commodities, most: int, end: NDArray[np.int32]) -> list[int]:
    """Distinct ranks, those with the least bandwidth at this end of their links first."""
    topology = commodities.topology
    GBps = np.bincount(end, topology.link_peak_GBps, len(topology.nodes))
    distinct = np.unique(ranks)
    chosen: list[int] = distinct[np.argsort(GBps[distinct], kind="stable")][:most].tolist()
    return chosen


def _runs(topology: Topology, most: int) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Ranks in a row: blocks of every size that divides their number, halves and quarters from several starts."""
    gpus = topology.num_gpus
    starts = {(first, gpus // part) for part in (2, 4) for first in range(0, gpus, max(1, gpus // 16))}
    starts |= {
        (k * size, size) for size in range(2, gpus // 2 + 1) if gpus % size == 0 for k in range(min(gpus // size, 8))
    }
    chosen = sorted((first, size) for first, size in starts if size > 1 and first + size <= gpus)
    for first, size in _spread(np.array(chosen).reshape(-1, 2), most).tolist():
        inside = (np.arange(gpus) >= first) & (np.arange(gpus) < first + size)
        yield f"{topology.nodes[first].name} ... {topology.nodes[first + size - 1].name}", inside


def _sweeps(topology: Topology, most: int) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Parts that hang together: GPUs in the order of an eigenvector of the machine's Laplacian, cut anywhere."""
    count = len(topology.nodes)
    if not 4 <= count <= _LARGEST_SPECTRUM:
        return
    weight = np.zeros((count, count))
    np.add.at(weight, (topology.link_src, topology.link_dst), topology.link_peak_GBps)
    weight += weight.T
    vectors = np.linalg.eigh(np.diag(weight.sum(axis=1)) - weight)[1]
    for column in (1, 2):
        order = np.argsort(vectors[: topology.num_gpus, column], kind="stable")
        for size in _spread(np.arange(1, topology.num_gpus), most).tolist():
            inside = np.zeros(topology.num_gpus, dtype=np.bool_)
            inside[order[:size]] = True
            yield from _placed(topology, _set_name(topology, inside), inside)


def _set_name(topology: Topology, inside: NDArray[np.bool_]) -> str:
    ranks = np.flatnonzero(inside)
    words = ", ".join(topology.nodes[i].name for i in ranks[:4]) + (" ..." if len(ranks) > 4 else "")
    return f"{{{words}}} ({len(ranks)} gpus)"


def _balls(topology: Topology, commodities: Commodities, most: int) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Everything within k links of a GPU."""
    for rank in _spread(np.arange(topology.num_gpus), most).tolist():
        hops = commodities.hops[:, rank]
        for k in np.unique(hops[np.isfinite(hops)])[:-1].tolist():
            inside = hops <= k
            words = f"the {int(inside.sum())} nodes within {int(k)} links of {topology.nodes[rank].name}"
            yield from _both_ways(words, inside)


def _spread(values: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    return values if len(values) <= most else values[np.linspace(0, len(values) - 1, most).astype(np.int64)]


def _minimum_cuts(topology: Topology, commodities: Commodities, most: int) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """For each destination, the cut with the most bytes per bandwidth, by maximum flows (Dinkelbach's iteration)."""
    demanded = np.unique(commodities.destination).astype(np.int64)
    inward = np.bincount(topology.link_dst, topology.link_peak_GBps, len(topology.nodes))
    for rank in _spread(demanded[np.argsort(inward[demanded], kind="stable")], most).tolist():
        groups = np.unique(commodities.destination_group[commodities.destination == rank])
        rows = np.isin(commodities.source_group, groups)
        share = commodities.bytes / np.diff(commodities.source_ptr)
        supply = np.bincount(commodities.source[rows], share[commodities.source_group[rows]], len(topology.nodes))
        supply[rank] = 0
        if not supply.any():
            continue
        rate = inward[rank] / supply.sum()
        for _ in range(8):
            far = far_side(topology, supply * rate, rank)
            across = topology.link_peak_GBps[~far[topology.link_src] & far[topology.link_dst]].sum()
            if far.all() or across / supply[~far].sum() >= rate * (1 - 1e-6):
                break
            rate = across / supply[~far].sum()
            yield f"into {_set_name(topology, far[: topology.num_gpus])}", far


def far_side(topology: Topology, supply_GBps: NDArray[np.float64], sink: int) -> NDArray[np.bool_]:
    """The side of the sink in a minimum cut between the supplies and the sink."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    count = len(topology.nodes)
    scale = 2.0**30 / max(topology.link_peak_GBps.sum(), supply_GBps.sum())
    sources = np.flatnonzero(supply_GBps)
    src = np.concatenate((topology.link_src, np.full(len(sources), count))).astype(np.int32)
    dst = np.concatenate((topology.link_dst, sources)).astype(np.int32)
    room = np.concatenate((topology.link_peak_GBps, supply_GBps[sources])) * scale
    graph = csr_array((np.ceil(room).astype(np.int32), (src, dst)), shape=(count + 1, count + 1))
    left = graph - maximum_flow(graph, count, sink).flow
    left.data = np.maximum(left.data, 0)
    left.eliminate_zeros()
    reached = breadth_first_order(left, count, return_predecessors=False)
    far = np.ones(count + 1, dtype=np.bool_)
    far[reached] = False
    return far[:count]
