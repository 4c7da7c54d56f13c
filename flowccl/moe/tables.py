"""Tables of the planner: what is the same for all plans of a machine."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.moe.layout import HostLayout, Paths
from flowccl.moe.table_kernels import PairTables

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PlannerTables:
    """What is the same for all plans of a machine."""

    lane_out: Ints
    lane_in: Ints
    lane_ps: Floats
    lane_key: Ints
    inside: Ints
    rail_ps: float
    one_class: Ints
    no_stages: Ints
    latency_ps: float
    numbers: Ints
    over_trunk: NDArray[np.bool_]
    trunk_lane: Ints
    trunk_use: Ints
    trunk_places: Ints
    slowest_ps: float
    leg_ptr: Ints
    leg_resource: Ints
    leg_ps: Floats
    pairs: PairTables

    def upto(self, count: int) -> Ints:
        """The numbers from 0 to `count`."""
        return self.numbers[: count + 1]


def tables_of(layout: HostLayout) -> PlannerTables:
    """Return the tables of a machine."""
    paths, hosts = layout.paths, layout.hosts
    lane_key = np.repeat(np.arange(hosts * hosts), np.diff(layout.lane_ptr))
    rate = np.zeros(len(paths.src))
    has = np.flatnonzero(np.diff(paths.path_ptr))
    trunks = np.flatnonzero(paths.servers > 1)
    route = paths.path_route[paths.path_ptr[layout.lane_pair]]
    uses = [paths.use_resource[paths.use_ptr[r] : paths.use_ptr[r + 1]] for r in route.tolist()]
    shared = [(lane, int(np.searchsorted(trunks, k))) for lane, row in enumerate(uses) for k in row if k in trunks]
    lane, use = np.array(shared, dtype=np.int64).reshape(-1, 2).T
    over = np.zeros(hosts * hosts, dtype=np.bool_)
    over[lane_key[lane]] = True
    rate[has] = paths.route_GBps[paths.path_route[paths.path_ptr[has]]]
    return PlannerTables(
        paths.src[layout.lane_pair],
        paths.dst[layout.lane_pair],
        1000.0 / rate[layout.lane_pair],
        lane_key,
        np.arange(hosts) * (hosts + 1),
        1000.0 / float(rate[layout.lane_pair].min(initial=np.inf)) / max(layout.rails, 1),
        np.zeros(layout.rails, dtype=np.int64),
        np.zeros((0, hosts), dtype=np.int64),
        float(paths.route_latency_ps.max(initial=0) + paths.route_overhead_ps.max(initial=0)),
        np.arange(layout.topology.num_gpus**2 + 1),
        over.reshape(hosts, hosts),
        lane,
        use,
        paths.servers[trunks],
        1000.0 / float(paths.route_GBps.min(initial=np.inf)),
        *_legs(paths),
        _pair_tables(layout, lane_key, rate),
    )


def _pair_tables(layout: HostLayout, lane_key: Ints, rate: Floats) -> PairTables:
    lane_at = np.full((layout.rails, layout.hosts**2), -1, dtype=np.int64)
    lane_at[layout.lane_rail, lane_key] = np.arange(len(lane_key))
    return PairTables(
        layout.paths.slot,
        layout.paths.place,
        rate[: len(rate) - len(lane_key)],
        _turns(layout),
        lane_at,
        layout.paths.dst[layout.lane_pair],
        layout.lane_pair.astype(np.int32),
        int(np.diff(layout.host_ptr).max()),
    )


def _turns(layout: HostLayout) -> Ints:
    """How many places the receiver of each pair inside a host is behind the sender, in a circle."""
    paths, size = layout.paths, np.diff(layout.host_ptr)
    inside = slice(0, len(paths.src) - len(layout.lane_pair))
    src, dst = paths.src[inside], paths.dst[inside]
    return (paths.place[dst] - paths.place[src]) % size[layout.host_of[src]]


def _legs(paths: Paths) -> tuple[Ints, Ints, Floats]:
    """The resources that each pair loads: pointer per pair, resource, and picoseconds per byte."""
    count = np.diff(paths.use_ptr)[paths.path_route]
    route = np.repeat(paths.path_route, count)
    use = np.arange(len(route)) - np.repeat(np.cumsum(count) - count, count) + paths.use_ptr[route]
    resource = paths.use_resource[use]
    leg_ptr = np.concatenate(([0], np.cumsum(count)))[paths.path_ptr].astype(np.int64)
    return leg_ptr, resource, 1000.0 / paths.route_GBps[route] / paths.servers[resource]
