"""One schedule after another on the same machine, both with rates: the second starts as early as nothing overlaps."""

from dataclasses import dataclass

import numpy as np

from flowccl.demand.demand import Demand
from flowccl.methods.rates.network import I64, PricedNetwork
from flowccl.schedule.continuation import in_order_of_use
from flowccl.schedule.schedule import Schedule
from flowccl.topology.routes import Routes, route_shape


def in_sequence(first: Schedule, second: Schedule, demand: Demand) -> Schedule:
    """Return both schedules, of which the second takes every chunk to its destinations from where the first left it.

    Both have the chunks of `demand`, in the same order. Of the second, no chunk starts before it has arrived in the
    first, and no link or limit is used before the first has finished with it.
    """
    first = in_order_of_use(first, second, demand)
    one, other = _Use.of(first), _Use.of(second)
    waits = np.concatenate((one.chunk_end - other.chunk_start, one.resource_end - other.resource_start))
    routes = Routes(
        np.concatenate((first.routes.ptr, first.routes.ptr[-1] + second.routes.ptr[1:])),
        np.concatenate((first.routes.link, second.routes.link)),
    )
    return Schedule(
        first.topology,
        demand,
        routes,
        np.concatenate((first.chunk, second.chunk)),
        np.concatenate((first.route, second.route + len(first.routes))).astype(np.int32),
        np.concatenate((first.start_ps, second.start_ps + int(waits.max()))),
        np.concatenate((first.reduce, second.reduce)),
        second.method,
        rate_GBps=np.concatenate((first.rate_GBps, second.rate_GBps)),
    )


@dataclass(frozen=True, eq=False)
class _Use:
    """When each chunk starts and has arrived, and from when to when each link and limit is used."""

    chunk_start: I64
    chunk_end: I64
    resource_start: I64
    resource_end: I64

    @classmethod
    def of(cls, schedule: Schedule) -> "_Use":
        """The use of a schedule without messages; what is not used starts late and ends at 0."""
        topology, routes, route = schedule.topology, schedule.routes, schedule.route
        network = PricedNetwork(topology)
        full = np.minimum.reduceat(topology.link_GBps[routes.link], routes.ptr[:-1])[route]
        rate = np.where(schedule.rate_GBps > 0, schedule.rate_GBps, full)
        takes = np.ceil(schedule.demand.chunk_bytes[schedule.chunk] * 1000.0 / rate).astype(np.int64)
        latency = topology.link_latency_ps[routes.link]
        total = np.add.reduceat(latency, routes.ptr[:-1])
        starts, ends = schedule.start_ps, schedule.start_ps + takes
        late = np.iinfo(np.int64).max // 4
        chunk_start, chunk_end = np.full(len(schedule.demand), late), np.zeros(len(schedule.demand), dtype=np.int64)
        np.minimum.at(chunk_start, schedule.chunk, starts)
        np.maximum.at(chunk_end, schedule.chunk, ends + total[route])
        route_start, route_end = np.full(len(routes), late), np.zeros(len(routes), dtype=np.int64)
        np.minimum.at(route_start, route, starts)
        np.maximum.at(route_end, route, ends)
        hop_route = np.repeat(np.arange(len(routes)), np.diff(routes.ptr))
        offset = route_shape(topology, routes).hop_offset_ps
        resource, hop = network.uses_of_hops(routes)
        resource_start, resource_end = np.full(len(network.capacity), late), np.zeros(len(network.capacity), np.int64)
        np.minimum.at(resource_start, resource, (route_start[hop_route] + offset)[hop])
        np.maximum.at(resource_end, resource, (route_end[hop_route] + offset)[hop])
        return cls(chunk_start, chunk_end, resource_start, resource_end)
