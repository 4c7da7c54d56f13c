"""The routes from GPU 0 to other GPUs, classified by kind; their images under a regular group are all routes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.methods.symmetric.spread_kernels import RouteKinds
from flowccl.topology.neighbours import routes_from
from flowccl.topology.routes import Routes, RouteShape, route_shape
from flowccl.topology.symmetry.regular_groups import RegularGroup
from flowccl.units import busy_times_ps

_ROUTES_PER_PAIR = 2


@dataclass(frozen=True, eq=False)
class SourceRoutes:
    """Routes from GPU 0: their links, and the GPU at the end of each."""

    group: RegularGroup
    routes: Routes
    end: NDArray[np.int32]
    shape: RouteShape

    @classmethod
    def of(cls, group: RegularGroup) -> "SourceRoutes | None":
        """The routes over links that no element fixes, each orbit at most once; None if a GPU is unreachable."""
        topology = group.topology
        found = routes_from(topology, 0, _ROUTES_PER_PAIR)
        rows = [(end, links) for end in sorted(found) for links in found[end] if end < topology.num_gpus]
        kept = [row for row in rows if _is_free(group, row[1])]
        if not kept:
            return None
        routes = Routes.from_lists([links for _, links in kept])
        shape = route_shape(topology, routes)
        single = np.bincount(shape.segment_route, minlength=len(routes)) == 1  # no store-and-forward switches
        chosen = np.flatnonzero(single).tolist()
        if len(chosen) < len(kept):
            routes = Routes.from_lists([kept[i][1] for i in chosen])
            shape = route_shape(topology, routes)
        end = np.array([kept[i][0] for i in chosen], dtype=np.int32)
        source_routes = cls(group, routes, end, shape)
        return source_routes if source_routes._reach_all() else None

    def _reach_all(self) -> bool:
        reached = np.zeros(len(self.group), dtype=np.bool_)
        reached[0], front = True, np.zeros(1, dtype=np.int32)
        while len(front):
            ends = np.unique(self.group.image(self.end[:, None], front[None, :]))
            front = ends[~reached[ends]]
            reached[front] = True
        return bool(reached.all())

    def kinds(self, size_bytes: int) -> RouteKinds:
        """The kinds of the routes for chunks of this size, as input of the compiled loops."""
        group, shape, routes = self.group, self.shape, self.routes
        latency = group.topology.link_latency_ps[routes.link]
        busy = busy_times_ps(np.full(len(routes), size_bytes, dtype=np.int64), shape.segment_GBps)
        arrive = busy + np.maximum.reduceat(shape.hop_offset_ps + latency, routes.ptr[:-1])
        number: dict[tuple[object, ...], int] = {}
        hops: list[tuple[int, int]] = []
        route_kind, starts = [], [0]
        busy_ps, arrives = [], []
        for w in range(len(routes)):
            rows = slice(int(routes.ptr[w]), int(routes.ptr[w + 1]))
            orbit = group.link_orbits[routes.link[rows]].tolist()
            offset = shape.hop_offset_ps[rows].tolist()
            pairs = tuple(sorted(zip(orbit, offset, strict=True)))
            key = (pairs, int(busy[w]), int(arrive[w]))
            if key not in number:
                number[key] = len(number)
                hops += pairs
                starts.append(len(hops))
                busy_ps.append(int(busy[w]))
                arrives.append(int(arrive[w]))
            route_kind.append(number[key])
        end = group.image(self.end[:, None], np.arange(len(group), dtype=np.int32)[None, :])
        return RouteKinds(
            np.array(route_kind, dtype=np.int64),
            np.ascontiguousarray(end),
            np.array(starts, dtype=np.int64),
            np.array([orbit for orbit, _ in hops], dtype=np.int64),
            np.array([offset for _, offset in hops], dtype=np.int64),
            np.array(busy_ps, dtype=np.int64),
            np.array(arrives, dtype=np.int64),
            int(group.link_orbits.max()) + 1,
        )


def _is_free(group: RegularGroup, links: tuple[int, ...]) -> bool:
    orbit = group.link_orbits[list(links)]
    return bool(group.free_links[list(links)].all()) and len(set(orbit.tolist())) == len(links)
