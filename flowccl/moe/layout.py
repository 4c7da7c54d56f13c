"""The machine as the planner sees it: hosts, rails between them, and the route of every pair of GPUs that it uses.

Data leaves a host through the GPUs that reach other hosts, and enters the other host through one of its GPUs. A *rail*
has at most one sending and one receiving GPU per host; a *lane* is the route of a rail from one host to another. On
machines with rail switches the rails are those of the machine; where every network card reaches every other one, the
k-th card of each host is on rail k. GPUs without a host, and the GPUs of a machine with one host, are hosts of their
own.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.errors import TopologyError
from flowccl.moe.table_kernels import PathTables
from flowccl.topology.neighbours import Neighbours, neighbours
from flowccl.topology.topology import Topology
from flowccl.topology.trunks import lane_counts

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Paths:
    """The routes of pairs of GPUs: pair p goes from `src[p]` to `dst[p]` over the routes of its path.

    The path is `path_route[path_ptr[p]:path_ptr[p + 1]]`: one route, or several with GPUs of the same host between
    them; a GPU and itself have none. The pair of GPUs a and b of one host is `slot[a] + place[b]`; behind these come
    the pairs of the lanes. Route r holds the resources
    `use_resource[use_ptr[r]:use_ptr[r + 1]]`, each later than the start by `use_offset_ps`, and for `use_more_ps`
    longer than the data flows. A resource is a link, or a limit that links share; it has `servers` places, each of
    which serves one message at a time.
    """

    src: Ints
    dst: Ints
    path_ptr: Ints
    path_route: Ints
    route_GBps: Floats
    route_latency_ps: Ints
    route_overhead_ps: Ints
    route_overhead_GBps: Floats  # of the slowest link with an overhead
    use_ptr: Ints
    use_resource: Ints
    use_offset_ps: Ints
    use_more_ps: Ints
    servers: Ints
    slot: Ints
    place: Ints
    quick: Floats  # [pair, 8]: see `PathTables`
    route_links: tuple[tuple[int, ...], ...]

    @cached_property
    def tables(self) -> PathTables:
        """What compiled loops need to place messages."""
        return PathTables(
            self.dst, self.path_ptr, self.path_route, self.route_GBps, self.route_latency_ps, self.route_overhead_ps,
            self.route_overhead_GBps, self.use_ptr, self.use_resource, self.use_offset_ps, self.use_more_ps,
            pointers(self.servers), self.quick,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class HostLayout:
    """Hosts, rails and lanes of a machine.

    Host h has the GPUs `host_gpu[host_ptr[h]:host_ptr[h + 1]]`. The lanes from host a to host b are those from
    `lane_ptr[a * hosts + b]` on. `lane_weight` is the share of a lane when all lanes are idle. `is_even` says that the
    lanes of every two hosts are equally fast and lie on the same rails, so that even shares are best.
    """

    topology: Topology
    host_of: Ints
    host_ptr: Ints
    host_gpu: Ints
    rails: int
    lane_ptr: Ints
    lane_rail: Ints
    lane_pair: Ints
    lane_weight: Floats
    is_even: bool
    has_trunks: bool
    paths: Paths

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return len(self.host_ptr) - 1


@lru_cache(maxsize=8)
def layout_of(topology: Topology) -> HostLayout:
    """Return the layout of a machine; raises TopologyError where its hosts are not connected by lanes."""
    if topology.changes:
        raise TopologyError(f"{topology.name}: the planner needs links whose bandwidth does not change over time")
    near = neighbours(topology, 1)
    gpus = topology.num_gpus
    keep = np.flatnonzero((near.src < gpus) & (near.end < gpus))
    src, end = near.src[keep].astype(np.int64), near.end[keep].astype(np.int64)
    host_of = _hosts(topology)
    hosts = int(host_of.max()) + 1
    across = host_of[src] != host_of[end]
    hops = np.diff(near.routes.ptr)[keep]
    rail_out, rail_in = _rails(topology, host_of, src[across], end[across], hops[across])
    route_of = np.full((gpus, gpus), -1, dtype=np.int64)
    route_of[src, end] = near.pair_ptr[:-1][keep]
    lanes = _lanes(host_of, rail_out, rail_in, route_of)
    _check_connected(topology, lanes, hosts, host_of)
    order = np.argsort(host_of, kind="stable").astype(np.int64)
    host_ptr = np.searchsorted(host_of[order], np.arange(hosts + 1)).astype(np.int64)
    inside = _inside(topology, near, host_of, route_of)
    paths = _paths(topology, near, inside, lanes, route_of, order, host_ptr)
    lane_pair = len(paths.src) - len(lanes) + np.arange(len(lanes))
    rate = paths.route_GBps[paths.path_route[paths.path_ptr[lane_pair]]]
    key, rail, weight = lanes[:, 0], lanes[:, 1], np.where(lanes[:, 4] > 0, rate, 0.0)
    lane_ptr = np.searchsorted(key, np.arange(hosts * hosts + 1)).astype(np.int64)
    total = np.bincount(key, weight, hosts * hosts)
    share = weight / np.maximum(total[key], 1e-300)
    count = np.diff(lane_ptr)
    is_even = bool(np.all(rate == rate[:1]) and np.all((count == len(rail_out)) | (count == 0)))
    trunks = bool(np.any(paths.servers[_used(paths, lane_pair)] > 1) or topology.limits)
    return HostLayout(
        topology, host_of, host_ptr, order, len(rail_out), lane_ptr, rail, lane_pair, share,
        is_even and not np.any(lanes[:, 4] == 0), trunks, paths,
    )  # fmt: skip


def _hosts(topology: Topology) -> Ints:
    """The host of every GPU, in order of appearance; every GPU its own where there are no two hosts."""
    names = [node.host or f" {rank}" for rank, node in enumerate(topology.nodes[: topology.num_gpus])]
    place = {name: index for index, name in enumerate(dict.fromkeys(names))}
    if len(place) == 1:
        return np.arange(topology.num_gpus, dtype=np.int64)
    return np.array([place[name] for name in names], dtype=np.int64)


def _rails(topology: Topology, host_of: Ints, src: Ints, end: Ints, hops: Ints) -> tuple[Ints, Ints]:
    """The sending and the receiving GPU of each rail on each host, -1 for none; few links join them."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    gpus, hosts = topology.num_gpus, int(host_of.max()) + 1
    key = host_of[src] * hosts + host_of[end]
    fewest = np.full(hosts * hosts, np.iinfo(np.int64).max)
    np.minimum.at(fewest, key, hops)
    close = hops == fewest[key]
    senders, receivers = np.unique(src[close]), np.unique(end[close])
    both = np.intersect1d(senders, receivers)
    rows, columns = np.concatenate((src[close], both)), np.concatenate((end[close], both)) + gpus
    graph = csr_matrix((np.ones(len(rows)), (rows, columns)), (2 * gpus, 2 * gpus))
    label = connected_components(graph, directed=False)[1]
    out: list[list[int]] = []
    into: list[list[int]] = []
    for part in dict.fromkeys(label[senders].tolist()):
        sending = [senders[(label[senders] == part) & (host_of[senders] == h)].tolist() for h in range(hosts)]
        receiving = [
            receivers[(label[receivers + gpus] == part) & (host_of[receivers] == h)].tolist() for h in range(hosts)
        ]
        for place in range(max(map(len, sending + receiving))):
            out.append([_member(one, place) for one in sending])
            into.append([_member(one, place) for one in receiving])
    return np.array(out, dtype=np.int64).reshape(-1, hosts), np.array(into, dtype=np.int64).reshape(-1, hosts)


def _member(members: list[int], place: int) -> int:
    """The GPU at a place; behind the last one, the first ones again, as -2 - rank; -1 if there are none."""
    if place < len(members):
        return members[place]
    return -2 - members[place % len(members)] if members else -1


def _lanes(host_of: Ints, rail_out: Ints, rail_in: Ints, route_of: Ints) -> Ints:
    """Rows (host pair, rail, sender, receiver, 1 or 0 where a GPU is on the rail a second time)."""
    rows: list[tuple[int, int, int, int, int]] = []
    hosts = int(host_of.max()) + 1
    for rail in range(len(rail_out)):
        for a in range(hosts):
            for b in range(hosts):
                u, v = int(rail_out[rail, a]), int(rail_in[rail, b])
                if a == b or u == -1 or v == -1:
                    continue
                again = u < 0 or v < 0
                u, v = (u if u >= 0 else -2 - u), (v if v >= 0 else -2 - v)
                if route_of[u, v] >= 0 and not (again and any(row[2:4] == (u, v) for row in rows[-1:])):
                    rows.append((a * hosts + b, rail, u, v, int(not again)))
    kept = {(row[2], row[3]): row for row in reversed(rows)}  # the first of equal pairs
    return np.array(sorted(kept.values()), dtype=np.int64).reshape(-1, 5)


def _check_connected(topology: Topology, lanes: Ints, hosts: int, host_of: Ints) -> None:
    connected = np.zeros(hosts * hosts, dtype=np.bool_)
    connected[lanes[:, 0]] = True
    connected[np.arange(hosts) * (hosts + 1)] = True
    if not connected.all():
        a, b = divmod(int(np.argmin(connected)), hosts)
        names = [topology.nodes[int(np.flatnonzero(host_of == h)[0])].host or f"gpu {h}" for h in (a, b)]
        raise TopologyError(
            f"{topology.name}: no GPU of {names[0]} reaches one of {names[1]} without crossing other hosts; the "
            "planner of alltoallv, dispatch and combine needs that, `flowccl synth --method auto` does not"
        )


def _inside(topology: Topology, near: Neighbours, host_of: Ints, route_of: Ints) -> dict[tuple[int, int], list[int]]:
    """The path of routes between every two GPUs of a host: the quickest one that stays inside."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import dijkstra

    result: dict[tuple[int, int], list[int]] = {}
    cost = np.maximum(near.route_cost_ps(1e6), 1.0)
    for host in range(int(host_of.max()) + 1):
        gpus = np.flatnonzero(host_of == host)
        route = route_of[np.ix_(gpus, gpus)]
        a, b = np.nonzero(route >= 0)
        graph = csr_matrix((cost[route[a, b]], (a, b)), route.shape)
        away, before = dijkstra(graph, return_predecessors=True)
        if not np.isfinite(away).all():
            names = [topology.nodes[gpus[k]].name for k in np.argwhere(~np.isfinite(away))[0].tolist()]
            raise TopologyError(f"{topology.name}: {names[0]} does not reach {names[1]} inside its host")
        for start, end in np.argwhere(~np.eye(len(gpus), dtype=np.bool_)).tolist():
            walk, at = list[int](), end
            while at != start:
                walk.insert(0, int(route[before[start, at], at]))
                at = int(before[start, at])
            result[int(gpus[start]), int(gpus[end])] = walk
    return result


def _paths(
    topology: Topology,
    near: Neighbours,
    inside: dict[tuple[int, int], list[int]],
    lanes: Ints,
    route_of: Ints,
    host_gpu: Ints,
    host_ptr: Ints,
) -> Paths:
    """The tables of all pairs: those inside hosts, then those of the lanes."""
    groups = [host_gpu[host_ptr[h] : host_ptr[h + 1]].tolist() for h in range(len(host_ptr) - 1)]
    pairs = [(a, b) for group in groups for a in group for b in group]
    slot, place = np.zeros(topology.num_gpus, dtype=np.int64), np.zeros(topology.num_gpus, dtype=np.int64)
    for group in groups:
        place[group] = np.arange(len(group))
    sizes = np.diff(host_ptr)[np.repeat(np.arange(len(groups)), np.diff(host_ptr))]
    slot[host_gpu] = np.cumsum(sizes) - sizes
    walks = [inside.get(pair, []) for pair in pairs] + [[int(route_of[u, v])] for u, v in lanes[:, 2:4]]
    pairs += [(int(u), int(v)) for u, v in lanes[:, 2:4]]
    flat = np.array([route for walk in walks for route in walk], dtype=np.int64)
    used, number = np.unique(flat, return_inverse=True)
    links = [near.routes.links(int(route)) for route in used]
    shape = near.shape
    rate = np.full(len(near.routes), np.inf)
    np.minimum.at(rate, shape.segment_route, shape.segment_GBps)
    if np.any(np.bincount(shape.segment_route, minlength=len(near.routes))[used] > 1):
        raise TopologyError(f"{topology.name}: the planner does not support store-and-forward switches")
    ptr, resource, offset, more = _resources(topology, links)
    paths = Paths(
        np.array([a for a, _ in pairs], dtype=np.int64),
        np.array([b for _, b in pairs], dtype=np.int64),
        pointers([len(walk) for walk in walks]),
        number.reshape(-1).astype(np.int64),
        rate[used],
        np.array([sum(int(topology.link_latency_ps[k]) for k in row) for row in links], dtype=np.int64),
        np.array([max(int(topology.link_overhead_ps[k]) for k in row) for row in links], dtype=np.int64),
        np.array([_overhead_GBps(topology, row) for row in links]),
        ptr,
        resource,
        offset,
        more,
        _servers(topology, links, rate[used]),
        slot,
        place,
        np.zeros((len(pairs), 8)),
        tuple(links),
    )
    _fill_quick(paths)
    return paths


def _resources(topology: Topology, links: list[tuple[int, ...]]) -> tuple[Ints, Ints, Ints, Ints]:
    """The links and limits of each route: pointer, resource, when its data gets there, how much longer it is there."""
    ptr, resource, offset, more = [0], list[int](), list[int](), list[int]()
    limit_ptr, limit_of = topology.link_limits
    for row in links:
        at, held = 0, dict[int, int]()
        for link in row:
            resource.append(link)
            offset.append(at)
            more.append(0)
            for limit in limit_of[limit_ptr[link] : limit_ptr[link + 1]].tolist():
                held[limit] = at
            at += int(topology.link_latency_ps[link])
        for limit, last in held.items():
            resource.append(len(topology.links) + limit)
            offset.append(0)
            more.append(last)
        ptr.append(len(resource))
    found = [np.array(column, dtype=np.int64) for column in (ptr, resource, offset, more)]
    return found[0], found[1], found[2], found[3]


def _fill_quick(paths: Paths) -> None:
    """Fill the table of pairs with one route that holds one or two resources with one place each; 0 for others."""
    for pair in np.flatnonzero(np.diff(paths.path_ptr) == 1).tolist():
        route = int(paths.path_route[paths.path_ptr[pair]])
        uses = range(int(paths.use_ptr[route]), int(paths.use_ptr[route + 1]))
        if len(uses) > 2 or any(paths.servers[paths.use_resource[k]] > 1 or paths.use_more_ps[k] for k in uses):
            continue
        row = [paths.route_GBps[route], paths.route_latency_ps[route], paths.route_overhead_ps[route]]
        row.append(paths.route_overhead_GBps[route])
        for use in (uses[0], uses[-1]):
            row += [paths.use_resource[use], paths.use_offset_ps[use]]
        paths.quick[pair] = row
    paths.quick.setflags(write=False)


def _overhead_GBps(topology: Topology, links: tuple[int, ...]) -> float:
    """The bandwidth of the slowest link of a route with an overhead per message; that of its slowest link if none."""
    held = [k for k in links if topology.link_overhead_ps[k] > 0] or list(links)
    return float(topology.link_GBps[held].min())


def _servers(topology: Topology, links: list[tuple[int, ...]], rate: Floats) -> Ints:
    """How many messages a link, or a limit, serves at once: as many of the fastest ones as fit."""
    count = np.ones(len(topology.links) + len(topology.limits), dtype=np.int64)
    count[: len(topology.links)] = lane_counts(topology)
    fastest = np.zeros(len(topology.limits))
    pointer, limit_of = topology.link_limits
    for row, GBps in zip(links, rate.tolist(), strict=True):
        for link in row:
            for limit in limit_of[pointer[link] : pointer[link + 1]].tolist():
                fastest[limit] = max(fastest[limit], GBps * len(row))
    for limit, GBps in enumerate(topology.limit_GBps.tolist()):
        count[len(topology.links) + limit] = max(1, int(GBps / max(fastest[limit], 1e-9) * (1 + 1e-9)))
    return count


def _used(paths: Paths, pairs: Ints) -> Ints:
    """The resources of the first route of some pairs."""
    routes = np.unique(paths.path_route[paths.path_ptr[:-1][pairs]])
    held = [paths.use_resource[paths.use_ptr[r] : paths.use_ptr[r + 1]] for r in routes.tolist()]
    return np.unique(np.concatenate(held)) if held else np.zeros(0, dtype=np.int64)
