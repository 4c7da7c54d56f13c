"""One schedule after another on the same machine, both with rates: the second starts as early as nothing overlaps."""

from dataclasses import dataclass

import numpy as np

from flowccl.arrays import NEVER
from flowccl.demand.demand import Demand
from flowccl.methods.rates.network import I64, PricedNetwork
from flowccl.schedule.continuation import ChunkEnds, in_order_of_use
from flowccl.schedule.schedule import Schedule
from flowccl.topology.routes import Routes, route_shape


def in_sequence(first: Schedule, second: Schedule, demand: Demand) -> Schedule:
    """Return both schedules, of which the second takes every chunk to its destinations from where the first left it.

    Both have the chunks of `demand`, in the same order; chunks of the first may become equal chunks of the second. Of
    the second, no chunk starts before it has arrived in the first, and no link or limit is used before the first has
    finished with it.
    """
    one, other = _Use.of(first), _Use.of(second)
    becomes = in_order_of_use(one.arrival, other.begin, demand)
    chunk_waits = one.arrival.time_ps - other.begin.time_ps[becomes]
    waits = np.concatenate((chunk_waits, one.resource_end - other.resource_start))
    routes = Routes(
        np.concatenate((first.routes.ptr, first.routes.ptr[-1] + second.routes.ptr[1:])),
        np.concatenate((first.routes.link, second.routes.link)),
    )
    return Schedule(
        first.topology,
        demand,
        routes,
        np.concatenate((becomes[first.chunk].astype(np.int32), second.chunk)),
        np.concatenate((first.route, second.route + len(first.routes))).astype(np.int32),
        np.concatenate((first.start_ps, second.start_ps + int(waits.max()))),
        np.concatenate((first.reduce, second.reduce)),
        second.method,
        rate_GBps=np.concatenate((first.rate_GBps, second.rate_GBps)),
    )


@dataclass(frozen=True, eq=False)
class _Use:
    """When each chunk starts and has arrived, and from when to when each link and limit is used."""

    begin: ChunkEnds
    arrival: ChunkEnds
    resource_start: I64
    resource_end: I64

    @classmethod
    def of(cls, schedule: Schedule) -> "_Use":
        """The use of a schedule of paths without messages; what is not used starts late and ends at 0."""
        topology, routes, route = schedule.topology, schedule.routes, schedule.route
        network, chunks = PricedNetwork(topology), len(schedule.demand)
        full = np.minimum.reduceat(topology.link_GBps[routes.link], routes.ptr[:-1])[route]
        rate = np.where(schedule.rate_GBps > 0, schedule.rate_GBps, full)
        takes = np.ceil(schedule.demand.chunk_bytes[schedule.chunk] * 1000.0 / rate).astype(np.int64)
        total = np.add.reduceat(topology.link_latency_ps[routes.link], routes.ptr[:-1])
        starts, ends = schedule.start_ps, schedule.start_ps + takes
        root = topology.link_src[routes.link[routes.ptr[:-1]]][route]
        end = topology.link_dst[routes.link[routes.ptr[1:] - 1]][route]
        begin = ChunkEnds.first(chunks, schedule.chunk, starts, root)
        arrival = ChunkEnds.last(chunks, schedule.chunk, ends + total[route], end)
        late = NEVER // 4
        route_start, route_end = np.full(len(routes), late), np.zeros(len(routes), dtype=np.int64)
        np.minimum.at(route_start, route, starts)
        np.maximum.at(route_end, route, ends)
        hop_route = np.repeat(np.arange(len(routes)), np.diff(routes.ptr))
        offset = route_shape(topology, routes).hop_offset_ps
        resource, hop = network.uses_of_hops(routes)
        resource_start, resource_end = np.full(len(network.capacity), late), np.zeros(len(network.capacity), np.int64)
        np.minimum.at(resource_start, resource, (route_start[hop_route] + offset)[hop])
        np.maximum.at(resource_end, resource, (route_end[hop_route] + offset)[hop])
        return cls(begin, arrival, resource_start, resource_end)
