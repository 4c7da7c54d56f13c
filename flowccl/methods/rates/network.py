"""What trees and paths load: links and limits of a machine, with the routes between GPUs for given prices."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import DemandError
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Path = tuple[int, ...]
"""The links of a path, in order."""


@dataclass(frozen=True, eq=False)
class PricedNetwork:
    """The links and limits of a machine as resources: a link or limit k has `capacity[k]` GB/s; limits come last."""

    topology: Topology

    @cached_property
    def capacity(self) -> F64:
        """Bandwidth of every resource."""
        return np.concatenate((self.topology.link_GBps, self.topology.limit_GBps))

    @cached_property
    def _tie_breaker(self) -> F64:
        """Tiny prices of links: of two equal paths, the one with less latency and fewer links."""
        latency = self.topology.link_latency_ps.astype(np.float64)
        return 1e-7 * (1 + latency / max(float(latency.mean()), 1.0)) / len(self.topology.links)

    def _prices_with_limits(self, price: F64) -> F64:
        """The price of each link with those of its limits, for prices of resources per unit."""
        topology = self.topology
        pointer, limit = topology.link_limits
        own = price[: len(topology.links)].copy()
        np.add.at(own, np.repeat(np.arange(len(topology.links)), np.diff(pointer)), price[len(topology.links) + limit])
        return own

    def link_prices(self, price: F64) -> F64:
        """The price of each link with those of its limits; of equal paths, those with less latency are cheaper."""
        own = self._prices_with_limits(price)
        return own + self._tie_breaker * max(float(own.max()), 1e-300)

    def routes(self, price: F64, *, through_gpus: bool = False) -> tuple[F64, I64]:
        """The least price from each GPU to every node, and the last link of a cheapest path there.

        Paths cross switches only, or GPUs too.
        """
        from flowccl.methods.rates.pricing_kernels import cheapest_routes

        topology = self.topology
        relays = ~topology.stores
        if through_gpus:
            relays[: topology.num_gpus] = True
        ptr, out = topology.out_links
        found, last = cheapest_routes(ptr, out, topology.link_dst, self.link_prices(price), relays, topology.num_gpus)
        return found, last

    def exact_prices(self, price: F64, *, through_gpus: bool) -> F64:
        """The least price between GPUs, for prices that are normalized here: bandwidth times price adds up to one."""
        price = price / max(float(price @ self.capacity), 1e-300)
        topology = self.topology
        relays = ~topology.stores
        if through_gpus:
            relays[: topology.num_gpus] = True
        from flowccl.methods.rates.pricing_kernels import cheapest_routes

        ptr, out = topology.out_links
        found, _ = cheapest_routes(
            ptr, out, topology.link_dst, self._prices_with_limits(price), relays, topology.num_gpus
        )
        return np.asarray(found[:, : topology.num_gpus])

    def check_connected(self) -> None:
        """Raise DemandError where a GPU cannot be reached over links, switches and other GPUs."""
        found, _ = self.routes(np.ones(len(self.capacity)), through_gpus=True)
        if not np.isfinite(found[:, : self.topology.num_gpus]).all():
            raise DemandError(f"some GPU of {self.topology.name} cannot be reached without a memory")

    def path(self, last: I64, source: int, end: int) -> Path:
        """The path from a GPU to a node, from the last links of its cheapest paths."""
        links = list[int]()
        while end != source:
            links.append(int(last[source, end]))
            end = int(self.topology.link_src[links[-1]])
        return tuple(reversed(links))

    def uses(self, routes: Routes) -> tuple[I64, I64]:
        """Pairs of a resource and a route that uses it."""
        resource, hop = self.uses_of_hops(routes)
        return resource, np.repeat(np.arange(len(routes)), np.diff(routes.ptr))[hop]

    def uses_of_hops(self, routes: Routes) -> tuple[I64, I64]:
        """Pairs of a resource and the place in `routes.link` where a route uses it."""
        topology, place = self.topology, np.arange(len(routes.link))
        link = routes.link.astype(np.int64)
        if not topology.limits:
            return link, place
        pointer, limit = topology.link_limits
        times = np.diff(pointer)[link]
        again = np.repeat(np.arange(len(link)), times)
        within = np.arange(len(again)) - np.repeat(np.cumsum(times) - times, times)
        which = limit[np.repeat(pointer[:-1][link], times) + within].astype(np.int64)
        return np.concatenate((link, len(topology.links) + which)), np.concatenate((place, again))

    def with_limits(self, uses: F64) -> F64:
        """Uses of links, in the last axis, followed by those of the limits."""
        if not self.topology.limits:
            return uses
        pointer, limit = self.topology.link_limits
        times = np.repeat(np.arange(len(self.topology.links)), np.diff(pointer))
        per_limit = np.zeros((*uses.shape[:-1], len(self.topology.limits)))
        np.add.at(np.moveaxis(per_limit, -1, 0), limit, np.moveaxis(uses[..., times], -1, 0))
        return np.concatenate((uses, per_limit), axis=-1)

    def load(self, links: I64) -> F64:
        """How often each resource is used by these links, for one unit of data on each."""
        return self.with_limits(np.bincount(links, minlength=len(self.topology.links)).astype(np.float64))
