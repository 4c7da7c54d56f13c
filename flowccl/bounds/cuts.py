"""Cuts of a machine: the links from a near side to a far side, and their bandwidth."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.topology.topology import Topology


@dataclass(frozen=True, eq=False)
class Cut:
    """The links from nodes that are not `far` to nodes that are."""

    topology: Topology
    name: str
    far: NDArray[np.bool_]

    @cached_property
    def links(self) -> NDArray[np.int64]:
        """The links that cross the cut."""
        return np.flatnonzero(~self.far[self.topology.link_src] & self.far[self.topology.link_dst])

    @cached_property
    def pools(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return (pool of each link, bandwidth of each pool); links that share a binding limit form one pool.

        No link is faster than any of its limits, and each link is in at most one pool, so that nothing counts twice.
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

    @cached_property
    def delay_ps(self) -> NDArray[np.int64]:
        """The latency of each link, and its overhead unless a limit is slower than the links of its pool.

        The rate of a message counts over all its time, overhead included, so that the overhead may be hidden behind a
        limit: the bandwidth of the limit is then in use all the time.
        """
        pool, GBps = self.pools
        limited = np.bincount(pool, self.topology.link_peak_GBps[self.links]) > GBps
        latency_ps, delay_ps = self.topology.link_latency_ps[self.links], self.topology.link_delay_ps[self.links]
        return np.where(limited[pool], latency_ps, delay_ps)

    @property
    def GBps(self) -> float:
        """The bandwidth of the cut."""
        return float(self.pools[1].sum())

    def earliest_ps(self, away_ps: NDArray[np.float64], size_bytes: float) -> float:
        """Return when `size_bytes` can have arrived, if `away_ps` is the latency before, on and behind each link."""
        none = np.zeros((len(self.links), 1))
        return self.earliest_partial_ps(away_ps[:, None], none, size_bytes)

    def earliest_partial_ps(
        self, head_ps: NDArray[np.float64], tail_ps: NDArray[np.float64], size_bytes: float
    ) -> float:
        """Return the same for links whose useful bandwidth grows and shrinks in equal steps.

        From `head_ps[link, i]` on, i + 1 steps are useful; from `tail_ps[link, j]` before the end on, j + 1 are lost.
        """
        pool, GBps = self.pools
        head, tail = (np.full((len(GBps), table.shape[1]), np.inf) for table in (head_ps, tail_ps))
        np.minimum.at(head, pool, head_ps)
        np.minimum.at(tail, pool, tail_ps)
        away = (head[:, :, None] + tail[:, None, :]).reshape(-1)
        step = np.repeat(GBps / (head.shape[1] * tail.shape[1]), head.shape[1] * tail.shape[1])
        order = np.argsort(away, kind="stable")
        rate, away = np.cumsum(step[order]), away[order]
        return float(((size_bytes * 1000 + np.cumsum(step[order] * away)) / rate).min())


def thresholds(values: NDArray[np.float64], most: int) -> list[float]:
    """The distinct values, or some of them, evenly spaced in their order."""
    distinct = np.unique(values)
    if len(distinct) > most:
        distinct = distinct[np.linspace(0, len(distinct) - 1, most).astype(int)]
    return [float(v) for v in distinct]
