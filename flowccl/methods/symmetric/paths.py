"""The ways from GPU 0 to other GPUs, sorted into kinds; a regular group makes of them all ways of the machine."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.methods.symmetric.spread_kernels import Kinds
from flowccl.topology.neighbours import routes_from
from flowccl.topology.routes import Routes, RouteShape, route_shape
from flowccl.topology.symmetry.regular_groups import RegularGroup
from flowccl.units import busy_times_ps

_ROUTES_PER_PAIR = 2


@dataclass(frozen=True, eq=False)
class Ways:
    """Ways from GPU 0: `routes` as links, and the GPU at the end of each."""

    group: RegularGroup
    routes: Routes
    end: NDArray[np.int32]
    shape: RouteShape

    @classmethod
    def of(cls, group: RegularGroup) -> "Ways | None":
        """Ways on links without fixed points that use each orbit of links once; None where they do not reach all."""
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
        ways = cls(group, routes, end, shape)
        return ways if ways._reach_all() else None

    def _reach_all(self) -> bool:
        reached = np.zeros(len(self.group), dtype=np.bool_)
        reached[0], front = True, np.zeros(1, dtype=np.int32)
        while len(front):
            ends = np.unique(self.group.image(self.end[:, None], front[None, :]))
            front = ends[~reached[ends]]
            reached[front] = True
        return bool(reached.all())

    def kinds(self, size_bytes: int) -> Kinds:
        """The ways as the compiled loop wants them, for chunks of this size."""
        group, shape, routes = self.group, self.shape, self.routes
        latency = group.topology.link_latency_ps[routes.link]
        hold = busy_times_ps(np.full(len(routes), size_bytes, dtype=np.int64), shape.segment_GBps)
        arrive = hold + np.maximum.reduceat(shape.hop_offset_ps + latency, routes.ptr[:-1])
        number: dict[tuple[object, ...], int] = {}
        hops: list[tuple[int, int]] = []
        way_kind, starts = [], [0]
        held, arrives = [], []
        for w in range(len(routes)):
            rows = slice(int(routes.ptr[w]), int(routes.ptr[w + 1]))
            orbit = group.link_orbits[routes.link[rows]].tolist()
            offset = shape.hop_offset_ps[rows].tolist()
            pairs = tuple(sorted(zip(orbit, offset, strict=True)))
            key = (pairs, int(hold[w]), int(arrive[w]))
            if key not in number:
                number[key] = len(number)
                hops += pairs
                starts.append(len(hops))
                held.append(int(hold[w]))
                arrives.append(int(arrive[w]))
            way_kind.append(number[key])
        end = group.image(self.end[:, None], np.arange(len(group), dtype=np.int32)[None, :])
        return Kinds(
            np.array(way_kind, dtype=np.int64),
            np.ascontiguousarray(end),
            np.array(starts, dtype=np.int64),
            np.array([orbit for orbit, _ in hops], dtype=np.int64),
            np.array([offset for _, offset in hops], dtype=np.int64),
            np.array(held, dtype=np.int64),
            np.array(arrives, dtype=np.int64),
            int(group.link_orbits.max()) + 1,
        )


def _is_free(group: RegularGroup, links: tuple[int, ...]) -> bool:
    orbit = group.link_orbits[list(links)]
    return bool(group.free_links[list(links)].all()) and len(set(orbit.tolist())) == len(links)
