"""Cuts of a machine: the links from a near side to a far side, and what they can carry."""

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
        none = np.zeros((len(self.links), 1))
        return self.earliest_shared_ps(away_ps[:, None], none, size_bytes)

    def earliest_shared_ps(
        self, head_ps: NDArray[np.float64], tail_ps: NDArray[np.float64], size_bytes: float
    ) -> float:
        """The same where each link has several heads and tails, and works for an equal share of its bandwidth each.

        `head_ps[link, i]` is when it gets the i-th share, `tail_ps[link, j]` how long before the end it loses one.
        """
        pool, GBps = self.pools
        head, tail = (np.full((len(GBps), table.shape[1]), np.inf) for table in (head_ps, tail_ps))
        np.minimum.at(head, pool, head_ps)
        np.minimum.at(tail, pool, tail_ps)
        away = (head[:, :, None] + tail[:, None, :]).reshape(-1)
        share = np.repeat(GBps / (head.shape[1] * tail.shape[1]), head.shape[1] * tail.shape[1])
        order = np.argsort(away)
        rate, away = np.cumsum(share[order]), away[order]
        return float(((size_bytes * 1000 + np.cumsum(share[order] * away)) / rate).min())
