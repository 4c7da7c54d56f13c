"""Cuts of a machine: the links from a near side to a far side, and which cuts are worth a look."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.check.needs import Needs
from flowccl.topology.topology import Topology

_MIN_CUTS = 64  # destinations whose minimum cut is sought
_BALLS = 64  # nodes whose neighbourhoods are tried
_LOOKS = 100_000_000  # (group, destination) entries that all cuts together may look at


@dataclass(frozen=True, eq=False)
class Cut:
    """The links from nodes that are not `far` to nodes that are."""

    topology: Topology
    name: str
    far: NDArray[np.bool_]

    @cached_property
    def links(self) -> NDArray[np.int64]:
        """The links that cross."""
        return np.flatnonzero(~self.far[self.topology.link_src] & self.far[self.topology.link_dst])

    @cached_property
    def pools(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Links that a limit binds together count as one pool: (pool of each link, bandwidth of each pool).

        No link is faster than any of its limits, and each is in one pool at most, so that nothing counts twice.
        """
        GBps = self.topology.link_peak_GBps[self.links]
        members = [np.flatnonzero(np.isin(self.links, limit.links)) for limit in self.topology.limits]
        for limit, inside in zip(self.topology.limits, members, strict=True):
            GBps[inside] = np.minimum(GBps[inside], limit.bandwidth_GBps)
        pool = np.arange(len(self.links))
        alone = np.ones(len(self.links), dtype=np.bool_)
        for limit, inside in zip(self.topology.limits, members, strict=True):
            bound = inside[alone[inside]]
            if len(bound) > 1 and GBps[bound].sum() > limit.bandwidth_GBps:
                pool[bound], alone[bound] = bound[0], False
                GBps[bound] = 0
                GBps[bound[0]] = limit.bandwidth_GBps
        kept, index = np.unique(pool, return_inverse=True)
        return index.reshape(-1), GBps[kept]

    @property
    def GBps(self) -> float:
        """What can cross at once."""
        return float(self.pools[1].sum())

    def earliest_ps(self, away_ps: NDArray[np.float64], size_bytes: float) -> float:
        """When so many bytes can have crossed, if each link works only while the time left is above `away_ps`."""
        pool, GBps = self.pools
        away = np.full(len(GBps), np.inf)
        np.minimum.at(away, pool, away_ps)
        order = np.argsort(away)
        rate, away = np.cumsum(GBps[order]), away[order]
        return float(((size_bytes * 1000 + np.cumsum(GBps[order] * away)) / rate).min())


def candidate_cuts(topology: Topology, needs: Needs) -> Iterator[Cut]:
    """Each cut once: into and out of every GPU and host, minimum cuts, neighbourhoods and runs of ranks.

    On large machines a part of them, the same number of each family.
    """
    seen: set[bytes] = set()
    budget = max(64, _LOOKS // len(needs.destination))
    for name, far in _sides(topology, needs, max(8, budget // 8)):
        if len(seen) >= budget:
            return
        key = np.packbits(far).tobytes()
        if key not in seen:
            seen.add(key)
            cut = Cut(topology, name, far)
            if len(cut.links):
                yield cut


def _sides(topology: Topology, needs: Needs, most: int) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    count = len(topology.nodes)
    for rank in _narrowest(needs.destination, needs, most, topology.link_dst):
        yield f"into {topology.nodes[rank].name}", np.arange(count) == rank
    for rank in _narrowest(needs.source, needs, most, topology.link_src):
        yield f"out of {topology.nodes[rank].name}", np.arange(count) != rank
    for host in topology.hosts[:most] if len(topology.hosts) > 1 else ():
        inside = np.array([node.host == host for node in topology.nodes])
        yield f"into {host}", inside
        yield f"out of {host}", ~inside
    yield from _halves(topology)
    if needs.copies:
        yield from _minimum_cuts(topology, needs, min(most, _MIN_CUTS))
    yield from _balls(topology, needs, min(most, _BALLS))


def _narrowest(ranks: NDArray[np.int32], needs: Needs, most: int, end: NDArray[np.int32]) -> list[int]:
    """Distinct ranks, those with the least bandwidth at this end of their links first."""
    topology = needs.topology
    GBps = np.bincount(end, topology.link_peak_GBps, len(topology.nodes))
    distinct = np.unique(ranks)
    chosen: list[int] = distinct[np.argsort(GBps[distinct], kind="stable")][:most].tolist()
    return chosen


def _halves(topology: Topology) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Hosts in two halves; ranks in runs of a half and a quarter (the slabs of meshes and tori)."""
    count = len(topology.nodes)
    half = set(topology.hosts[len(topology.hosts) // 2 :])
    if len(topology.hosts) > 2:
        inside = np.array([node.host in half for node in topology.nodes])
        yield "into the second half of the hosts", inside
        yield "out of the second half of the hosts", ~inside
    gpus = topology.num_gpus
    for size in {gpus // 2, gpus // 4} - {0}:
        for first in range(0, gpus - size + 1, max(1, gpus // 16)):
            inside = np.zeros(count, dtype=np.bool_)
            inside[first : first + size] = True
            names = f"{topology.nodes[first].name} ... {topology.nodes[first + size - 1].name}"
            yield f"into {names}", inside
            yield f"out of {names}", ~inside


def _balls(topology: Topology, needs: Needs, most: int) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Everything within k links of a GPU."""
    for rank in _spread(np.arange(topology.num_gpus), most).tolist():
        hops = needs.hops[:, rank]
        for k in np.unique(hops[np.isfinite(hops)])[:-1].tolist():
            inside = hops <= k
            words = f"the {int(inside.sum())} nodes within {int(k)} links of {topology.nodes[rank].name}"
            yield f"into {words}", inside
            yield f"out of {words}", ~inside


def _spread(values: NDArray[np.integer], most: int) -> NDArray[np.integer]:
    return values if len(values) <= most else values[np.linspace(0, len(values) - 1, most).astype(np.int64)]


def _minimum_cuts(topology: Topology, needs: Needs, most: int) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """For each destination, the cut with the most bytes per bandwidth, by maximum flows (Dinkelbach's iteration)."""
    demanded = np.unique(needs.destination)
    inward = np.bincount(topology.link_dst, topology.link_peak_GBps, len(topology.nodes))
    for rank in _spread(demanded[np.argsort(inward[demanded], kind="stable")], most).tolist():
        groups = np.unique(needs.destination_group[needs.destination == rank])
        rows = np.isin(needs.source_group, groups)
        share = needs.bytes / np.diff(needs.source_ptr)
        supply = np.bincount(needs.source[rows], share[needs.source_group[rows]], len(topology.nodes))
        supply[rank] = 0
        if not supply.any():
            continue
        rate = inward[rank] / supply.sum()
        for _ in range(8):
            far = _far_side(topology, supply * rate, rank)
            across = topology.link_peak_GBps[~far[topology.link_src] & far[topology.link_dst]].sum()
            if far.all() or across / supply[~far].sum() >= rate * (1 - 1e-6):
                break
            rate = across / supply[~far].sum()
            inside = np.flatnonzero(far[: topology.num_gpus])
            words = ", ".join(topology.nodes[i].name for i in inside[:4]) + (" ..." if len(inside) > 4 else "")
            yield f"into {{{words}}} ({len(inside)} gpus)", far


def _far_side(topology: Topology, supply_GBps: NDArray[np.float64], sink: int) -> NDArray[np.bool_]:
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
