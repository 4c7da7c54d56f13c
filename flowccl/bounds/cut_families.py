"""Families of cuts: into and out of GPUs and hosts, minimum cuts, spectral sweeps, balls and runs of ranks."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from flowccl.bounds.commodities import Commodities
from flowccl.bounds.cuts import Cut
from flowccl.bounds.rounding import on_grid
from flowccl.topology.topology import Topology

_MIN_CUTS = 64  # destinations whose minimum cut is computed
_BALLS = 64  # GPUs whose neighbourhoods are tried
_MAX_ENTRIES = 100_000_000  # (commodity, destination) entries of all cuts together
_LARGEST_SPECTRUM = 600  # nodes of a machine whose eigenvectors are computed
_PERTURBATION = 1e-3  # of the mean node bandwidth, on the Laplacian's diagonal
_SIMPLE = 1e-7  # of the largest eigenvalue: the least distance of an eigenvalue that counts as simple


def cut_families(topology: Topology, commodities: Commodities) -> Iterator[Cut]:
    """Yield the cuts of all families, each cut once.

    Large machines get a part of each family, about the same number of cuts from each.
    """
    seen: set[bytes] = set()
    budget = max(64, _MAX_ENTRIES // len(commodities.destination))
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
        yield from _both_directions(host, inside)
    for name, gpus in _runs(topology, most):
        yield from _placed(topology, name, gpus)
    if commodities.copies:
        yield from _minimum_cuts(topology, commodities, min(most, _MIN_CUTS))
    yield from _sweeps(topology, most)
    yield from _balls(topology, commodities, min(most, _BALLS))


def _both_directions(name: str, inside: NDArray[np.bool_]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    yield f"into {name}", inside
    yield f"out of {name}", ~inside


def _placed(topology: Topology, name: str, gpus: NDArray[np.bool_]) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """A set of GPUs in both directions, with each switch and memory on the side of most of its bandwidth."""
    count = len(topology.nodes)
    fixed = np.arange(count) < topology.num_gpus
    side = np.zeros(count)
    side[: topology.num_gpus] = np.where(gpus, 1.0, -1.0)
    ends = np.concatenate((topology.link_src, topology.link_dst))
    others = np.concatenate((topology.link_dst, topology.link_src))
    weight = np.tile(topology.link_peak_GBps, 2)
    total = np.maximum(np.bincount(ends, weight, count), 1e-9)
    for _ in range(0 if fixed.all() else 12):  # a switch gets the weighted mean of its neighbours
        side = np.where(fixed, side, np.bincount(ends, weight * side[others], count) / total)
    yield from _both_directions(name, side > 1e-9)  # not 0: a balanced switch is outside on every CPU


def _narrowest(ranks: NDArray[np.int32], commodities: Commodities, most: int, end: NDArray[np.int32]) -> list[int]:
    """Distinct ranks, in order of the bandwidth at this end of their links, the least first."""
    topology = commodities.topology
    GBps = on_grid(np.bincount(end, topology.link_peak_GBps, len(topology.nodes)))
    distinct = np.unique(ranks)
    chosen: list[int] = distinct[np.argsort(GBps[distinct], kind="stable")][:most].tolist()
    return chosen


def _runs(topology: Topology, most: int) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Consecutive ranks: blocks whose size divides the number of GPUs, halves and quarters from several starts."""
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
    """Sweep cuts: all prefixes of the GPUs in the order of an eigenvector of the machine's Laplacian."""
    for order in _spectral_orders(topology):
        for size in _spread(np.arange(1, topology.num_gpus), most).tolist():
            inside = np.zeros(topology.num_gpus, dtype=np.bool_)
            inside[order[:size]] = True
            yield from _placed(topology, _set_name(topology, inside), inside)


def _spectral_orders(topology: Topology) -> list[NDArray[np.int64]]:
    """The GPUs in the order of the second and the third eigenvector of the machine's Laplacian.

    The orders do not depend on the linear algebra library. Symmetric machines have repeated eigenvalues, whose
    eigenvectors are arbitrary; a small perturbation of the diagonal separates them, and eigenvalues that it does not
    separate are skipped. Entries are rounded, the first one that is not 0 is positive, and ties go to the lower rank.
    """
    count = len(topology.nodes)
    if not 4 <= count <= _LARGEST_SPECTRUM:
        return []
    weight = np.zeros((count, count))
    np.add.at(weight, (topology.link_src, topology.link_dst), topology.link_peak_GBps)
    weight += weight.T
    total = weight.sum(axis=1)
    place = np.arange(count) / count
    total_and_more = total + _PERTURBATION * total.mean() * (place + place**2)  # place alone keeps some symmetries
    values, vectors = np.linalg.eigh(np.diag(total_and_more) - weight)
    simple = np.diff(values) > _SIMPLE * values[-1]
    result = []
    for column in (1, 2):
        if simple[column - 1] and simple[column]:
            entries = np.rint(vectors[:, column] * 1e6).astype(np.int64)
            entries *= np.sign(entries[np.flatnonzero(entries)[0]])
            result.append(np.argsort(entries[: topology.num_gpus], kind="stable"))
    return result


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
            yield from _both_directions(words, inside)


def _spread(values: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    return values if len(values) <= most else values[np.linspace(0, len(values) - 1, most).astype(np.int64)]


def _minimum_cuts(topology: Topology, commodities: Commodities, most: int) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """For each destination, the cut with most bytes per bandwidth, by maximum flows (Dinkelbach's iteration)."""
    demanded = np.unique(commodities.destination).astype(np.int64)
    inward = np.bincount(topology.link_dst, topology.link_peak_GBps, len(topology.nodes))
    for rank in _spread(demanded[np.argsort(on_grid(inward[demanded]), kind="stable")], most).tolist():
        groups = np.unique(commodities.destination_group[commodities.destination == rank])
        rows = np.isin(commodities.source_group, groups)
        each = commodities.bytes / np.diff(commodities.source_ptr)
        supply = np.bincount(commodities.source[rows], each[commodities.source_group[rows]], len(topology.nodes))
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
    """Return the sink's side of a minimum cut between the supplies and the sink."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    count = len(topology.nodes)
    scale = 2.0**30 / max(topology.link_peak_GBps.sum(), supply_GBps.sum())
    sources = np.flatnonzero(supply_GBps)
    src = np.concatenate((topology.link_src, np.full(len(sources), count))).astype(np.int32)
    dst = np.concatenate((topology.link_dst, sources)).astype(np.int32)
    capacity = np.concatenate((topology.link_peak_GBps, supply_GBps[sources])) * (scale * (1 - 1e-12))
    graph = csr_array((np.ceil(capacity).astype(np.int32), (src, dst)), shape=(count + 1, count + 1))
    left = graph - maximum_flow(graph, count, sink).flow
    left.data = np.maximum(left.data, 0)
    left.eliminate_zeros()
    reached = breadth_first_order(left, count, return_predecessors=False)
    far = np.ones(count + 1, dtype=np.bool_)
    far[reached] = False
    return far[:count]
