"""What sends occupy on a machine: the links of the fastest route, and the proxy of a GPU."""

from dataclasses import dataclass

import numpy as np

from flowccl.errors import InputError
from flowccl.export.proof.program import Operation
from flowccl.runtimes.costs import MessageCosts
from flowccl.topology.neighbours import neighbours
from flowccl.topology.topology import Topology
from flowccl.topology.trunks import lane_counts, with_merged_trunks
from flowccl.units import busy_ps


@dataclass(frozen=True, slots=True)
class _Hop:
    link: int
    offset_ps: int
    GBps: float
    segment: int
    overhead_ps: int
    link_GBps: float


@dataclass(frozen=True, slots=True)
class _Route:
    """A route between two GPUs: its hops, its latency, the bandwidth of each segment, and whether a proxy sends.

    `signal_ps` is the part of the latency after the data has arrived, until a signal is seen.
    """

    hops: tuple[_Hop, ...]
    latency_ps: int
    segment_GBps: tuple[float, ...]
    proxy: bool = False
    signal_ps: int = 0

    def busy_times_ps(self, size_bytes: int) -> list[int]:
        """Return the time for which each segment is busy."""
        busy = [busy_ps(size_bytes, rate) for rate in self.segment_GBps]
        for hop in self.hops:
            if hop.overhead_ps:
                busy[hop.segment] = max(busy[hop.segment], hop.overhead_ps + busy_ps(size_bytes, hop.link_GBps))
        return busy


@dataclass(frozen=True, slots=True)
class Occupation:
    """What one send occupies: (resource, from, to) and (limit, GB/s), with times relative to its start.

    Its bytes have left after `end_ps`, and its threadblock continues after `free_ps`.
    """

    uses: tuple[tuple[int, int, int], ...]
    rates: tuple[tuple[int, float], ...]
    end_ps: int
    free_ps: int


_MEASURED = {"copy": "copy", "re": "reduce", "upkt": "read packets", "repkt": "read packets"}
"""The names under which the costs of MSCCL++'s operations on one GPU are measured."""


@dataclass(frozen=True, slots=True)
class GroupUse:
    """What an operation of a switch occupies: (link, time) of all links, after an overhead of its threadblock.

    Operations of different GPUs run at the same time and share the links, so that each link is busy for its own bytes
    only. The data is at all GPUs `latency_ps` after the last link has moved it.
    """

    uses: tuple[tuple[int, int], ...]
    overhead_ps: int
    latency_ps: int


class SimulatedNetwork:
    """The routes of a machine, and what sends on them occupy.

    Resources are the links, then the proxies of the GPUs. Each serves as many sends at once as it has `lanes`: links
    side by side between switches count as one trunk, so that a send takes whichever of them is free.
    """

    def __init__(self, topology: Topology, costs: MessageCosts | None) -> None:
        self.topology = topology = with_merged_trunks(topology)
        self.routes = _routes(topology, costs)
        self.lanes = [*lane_counts(topology).tolist(), *[1] * topology.num_gpus]
        pointer, limits = topology.link_limits
        self.limits_of = [limits[pointer[k] : pointer[k + 1]].tolist() for k in range(len(topology.links))]
        self.made: dict[tuple[int, int, int], list[Occupation]] = {}
        self.groups: dict[tuple[int, int, int], GroupUse] = {}
        self.local = {} if costs is None else {cost.operation: cost for cost in costs.local}

    def local_ps(self, operation: Operation, chunk_bytes: int) -> int:
        """Return the time of an operation on one GPU: nothing, unless its cost was measured."""
        cost = self.local.get(_MEASURED.get(operation.name, ""))
        return 0 if cost is None else cost.time_ps(len(operation.assigns) * chunk_bytes)

    def latency_ps(self, src: int, dst: int, *, signals: bool = True) -> int:
        """Return the latency of a signal, which may travel against the direction of the only links, or of packets."""
        routes = self.routes.get((src, dst)) or self.routes.get((dst, src)) or self._between(src, dst)
        return routes[0].latency_ps - (0 if signals else routes[0].signal_ps)

    def _between(self, src: int, dst: int) -> list[_Route]:
        if (src, dst) not in self.routes:
            names = f"{self.topology.nodes[src].name} -> {self.topology.nodes[dst].name}"
            raise InputError(f"the file sends {names}, but {self.topology.name} has no link or switch between them")
        return self.routes[src, dst]

    def send(self, src: int, dst: int, size_bytes: int) -> list[Occupation]:
        """Return what a send occupies, for each of the fastest routes."""
        key = (src, dst, size_bytes)
        if key not in self.made:
            routes = self._between(src, dst)
            cost = [sum(route.busy_times_ps(size_bytes)) + route.latency_ps for route in routes]
            best = [route for route, time in zip(routes, cost, strict=True) if time == min(cost)]
            self.made[key] = [self._occupation(route, src, size_bytes) for route in best]
        return self.made[key]

    def _occupation(self, route: _Route, src: int, size_bytes: int) -> Occupation:
        """What a send occupies: every link while the bytes pass, and the first one for the overhead before that too."""
        busy = route.busy_times_ps(size_bytes)
        uses = []
        for hop in route.hops:
            end = hop.offset_ps + sum(busy[: hop.segment + 1])
            passing = busy[hop.segment] if hop.overhead_ps else busy_ps(size_bytes, route.segment_GBps[hop.segment])
            uses.append((hop.link, end - passing, end))
        rates: dict[int, float] = {}
        for hop in route.hops:
            for limit in self.limits_of[hop.link]:
                rates[limit] = rates.get(limit, 0.0) + hop.GBps
        end = free = sum(busy)
        if route.proxy:
            free = 0
            uses.append((len(self.topology.links) + src, 0, route.hops[0].overhead_ps))
        return Occupation(tuple(uses), tuple(rates.items()), end, free)

    def group(self, operation: Operation, size_bytes: int) -> GroupUse:
        """Return what an operation of a switch occupies: the links between the switch and the GPUs of its group.

        A store to all (gstore) of z bytes moves z bytes from the issuing GPU and to every GPU. A load with reduction
        (glres) of z bytes moves z bytes up and down on every link of the group, and again on those of the issuing GPU;
        its store follows its load by the latency of a route.
        """
        issuer, loads = operation.rank, operation.name == "glres"
        key = (issuer, -1 - loads, size_bytes)
        if key not in self.groups:
            others = [rank for rank in operation.group if rank != issuer]
            into = [self._between(other, issuer)[0] for other in others]
            out = [self._between(issuer, other)[0] for other in others]
            overhead = max(route.hops[0].overhead_ps for route in out)
            busy = busy_ps(size_bytes, min(route.segment_GBps[0] for route in (*into, *out)))
            own = 2 * busy if loads else busy
            times = dict.fromkeys((route.hops[-1].link for route in out), busy)
            if loads:
                times |= dict.fromkeys((route.hops[0].link for route in into), busy)
            times |= {into[0].hops[-1].link: own, out[0].hops[0].link: own}
            latency = out[0].latency_ps if loads else 0
            self.groups[key] = GroupUse(tuple(sorted(times.items())), overhead, latency)
        return self.groups[key]


def _routes(topology: Topology, costs: MessageCosts | None) -> dict[tuple[int, int], list[_Route]]:
    """Return the routes between all pairs of GPUs that a link or switches connect."""
    near = neighbours(topology)
    shape = near.shape
    kinds = topology.link_kinds
    first = np.searchsorted(shape.segment_route, np.arange(len(near.routes) + 1))
    result: dict[tuple[int, int], list[_Route]] = {}
    for pair, (src, end) in enumerate(zip(near.src.tolist(), near.end.tolist(), strict=True)):
        rows = []
        for r in range(int(near.pair_ptr[pair]), int(near.pair_ptr[pair + 1])):
            hops = range(int(near.routes.ptr[r]), int(near.routes.ptr[r + 1]))
            rates = shape.segment_GBps[first[r] : first[r + 1]].tolist()
            made = []
            for hop in hops:
                link, segment = int(near.routes.link[hop]), int(shape.hop_segment[hop] - first[r])
                own = (int(topology.link_overhead_ps[link]), float(topology.link_GBps[link]))
                made.append(_Hop(link, int(shape.hop_offset_ps[hop]), rates[segment], segment, *own))
            latency = made[-1].offset_ps + int(topology.link_latency_ps[made[-1].link])
            proxy = costs is not None and costs.of(kinds[made[0].link]).proxy
            signal = 0 if costs is None else min(costs.of(kinds[made[-1].link]).signal_ps, latency)
            rows.append(_Route(tuple(made), latency, tuple(rates), proxy, signal))
        result[src, end] = rows
    return result
