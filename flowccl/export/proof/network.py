"""The machine of an event simulation: routes between GPUs with their costs."""

from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from flowccl.errors import InputError
from flowccl.runtimes.costs import FREE
from flowccl.runtimes.execution import Execution
from flowccl.runtimes.profiles import PROFILES, RuntimeProfile
from flowccl.schedule.clock import route_costs
from flowccl.topology.neighbours import ROUTES_PER_PAIR, routes_from
from flowccl.topology.routes import Routes, route_shape
from flowccl.topology.topology import Topology
from flowccl.units import busy_ps

_LOCAL = {"copy": "copy", "re": "reduce", "upkt": "read packets", "repkt": "read packets"}
"""The names under which profiles have the costs of MSCCL++'s operations on one GPU."""


@dataclass(frozen=True, slots=True)
class SimulatedRoute:
    """A route between two GPUs: (link, latency before it, segment) of its hops, and the bandwidth of each segment.

    A message occupies its sender, or the proxy of the NIC where `is_proxied`, for `overhead_ps` before its bytes flow;
    `link_overhead_ps` is that of the link itself. The receiver sees it `signal_ps` after its last byte.
    """

    hops: tuple[tuple[int, int, int], ...]
    segment_GBps: tuple[float, ...]
    latency_ps: int
    overhead_ps: int
    link_overhead_ps: int
    signal_ps: int
    is_proxied: bool
    is_limited: bool = True  # by the limits of its links

    @property
    def GBps(self) -> float:
        """Bandwidth of the slowest segment."""
        return min(self.segment_GBps)

    def durations_ps(self, size_bytes: int, rate_GBps: float) -> list[int]:
        """Return the time that some bytes take on each segment, at most at a rate."""
        return [busy_ps(size_bytes, min(rate, rate_GBps)) for rate in self.segment_GBps]


class SimulatedNetwork:
    """The routes of a machine with the costs of a runtime, and its links."""

    def __init__(self, topology: Topology, profile: RuntimeProfile | None) -> None:
        self.topology, self.profile = topology, profile
        self.costs = FREE if profile is None else profile.costs
        self.routes: dict[int, dict[int, list[SimulatedRoute]]] = {}  # of the GPUs that send
        self.best: dict[tuple[int, int, int, bool | None], list[SimulatedRoute]] = {}
        self.by_links: dict[tuple[int, ...], list[SimulatedRoute]] = {(): []}

    def between(self, src: int, dst: int, size_bytes: int = 0, is_proxied: bool | None = None) -> list[SimulatedRoute]:
        """Return the fastest routes between two GPUs for a message of some bytes.

        `is_proxied` says whether it goes through the proxy of a NIC, if there is such a route; None: either way.
        """
        key = (src, dst, size_bytes, is_proxied)
        if key not in self.best:
            routes = self._routes_from(src).get(dst)
            if routes is None:
                names = f"{self.topology.nodes[src].name} -> {self.topology.nodes[dst].name}"
                raise InputError(f"the file sends {names}, but {self.topology.name} has no link or switch between them")
            routes = [route for route in routes if is_proxied in (None, route.is_proxied)] or routes
            time = [
                sum(route.durations_ps(size_bytes, np.inf)) + route.overhead_ps + route.latency_ps + route.signal_ps
                for route in routes
            ]
            self.best[key] = [route for route, ps in zip(routes, time, strict=True) if ps == min(time)]
        return self.best[key]

    def with_links(self, src: int, dst: int, links: tuple[int, ...]) -> list[SimulatedRoute]:
        """Return the route between two GPUs over these links; none where they are no path between the two."""
        if links not in self.by_links:
            known = self.topology.links
            ends = [src, *(known[k].dst for k in links if k < len(known))]
            starts = [*(known[k].src for k in links if k < len(known)), dst]
            is_path = len(ends) == len(links) + 1 and ends == starts and self._only_switches(ends[1:-1])
            self.by_links[links] = self._made(links) if is_path else []
        return self.by_links[links]

    def _routes_from(self, src: int) -> dict[int, list[SimulatedRoute]]:
        """The routes from a GPU to all that a link or switches connect it with."""
        if src not in self.routes:
            found = routes_from(self.topology, src, ROUTES_PER_PAIR)
            routes = Routes.from_lists([links for several in found.values() for links in several])
            made = _simulated(self.topology, routes, self.profile) if found else []
            ptr = [0, *accumulate(len(several) for several in found.values())]
            self.routes[src] = {end: made[low:high] for end, low, high in zip(found, ptr, ptr[1:], strict=False)}
        return self.routes[src]

    def _only_switches(self, nodes: list[int]) -> bool:
        return all(node >= self.topology.num_gpus for node in nodes)

    def _made(self, links: tuple[int, ...]) -> list[SimulatedRoute]:
        return _simulated(self.topology, Routes.from_lists([list(links)]), self.profile)

    def signal_route(self, src: int, dst: int, is_proxied: bool | None = None) -> SimulatedRoute:
        """Return the route of a signal, which may travel against the direction of the only links."""
        ends = (src, dst) if dst in self._routes_from(src) else (dst, src)
        return self.between(*ends, is_proxied=is_proxied)[0]

    def local_ps(self, name: str, size_bytes: int, sources: int, *, first: bool) -> int:
        """Return the time of an operation on one GPU; only the `first` operation of a message has the fixed part."""
        cost = self.costs.operation(_LOCAL.get(name, ""))
        cost = cost if first else replace(cost, overhead_us=0.0)
        return cost.time_ps(size_bytes, max(sources - 2, 0))

    def threadblock_GBps(self, *, packets: bool) -> float:
        """Return the rate at which one threadblock puts bytes on a link; packets are twice their data."""
        found = self.costs.operation("put packets" if packets else "put").GBps or np.inf
        return 2 * found if packets else found


def _simulated(topology: Topology, routes: Routes, profile: RuntimeProfile | None) -> list[SimulatedRoute]:
    """Return routes with their costs."""
    shape = route_shape(topology, routes)
    costs = route_costs(topology, shape, Execution(profile or PROFILES["ideal"], 1))
    overheads = topology.link_overhead_ps if profile is None else np.zeros(len(topology.links), dtype=np.int64)
    first = np.searchsorted(shape.segment_route, np.arange(len(routes) + 1))
    result = []
    for r in range(len(routes)):
        hops = range(int(routes.ptr[r]), int(routes.ptr[r + 1]))
        made = [(int(routes.link[h]), int(shape.hop_offset_ps[h]), int(shape.hop_segment[h] - first[r])) for h in hops]
        rates = tuple(shape.segment_GBps[first[r] : first[r + 1]].tolist())
        latency = made[-1][1] + int(topology.link_latency_ps[made[-1][0]])
        own = max(int(overheads[link]) for link, _, _ in made)
        cost = int(costs.overhead_ps[r]), own, int(costs.signal_ps[r]), bool(costs.is_proxied[r])
        result.append(SimulatedRoute(tuple(made), rates, latency, *cost))
    return result
