"""Which route a chunk takes, by the load that each link has so far, in compiled loops; and the tables for that."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I64, Bool, inner
from flowccl.topology.hierarchy import FASTER

_EQUAL = 1 + 1e-9  # costs that differ by less are equal
STAR, IN_CHAIN, MIXED = range(3)  # trees inside groups


class TreeTables(NamedTuple):
    """A machine, its levels and the shape of trees: what does not change while chunks are planned.

    Level l numbers its groups from `base[l]` on in `size`, and its pairs of groups from `pair_base[l]` on. The routes
    of pair p are `pair_route[pair_ptr[p]:pair_ptr[p + 1]]`. `own[l, gpu, group]` is the route along the rail of a GPU.
    Rows of `links` are filled up with a link that does not exist, whose load stays 0.
    """

    gpus: int
    inside: int
    labels: I64
    groups: I64
    base: I64
    size: I64
    pair_base: I64
    pair_ptr: I64
    pair_route: I64
    has_slow: Bool  # whether any route of a pair is overloaded
    own: I64
    place: I64  # of each GPU in its innermost group
    src: I64
    end: I64
    links: I64
    busy_ps: F64
    overloaded: Bool
    per_byte_ps: F64
    first: I64  # the first route between two nodes, and how many there are
    alike: I64
    into: I64  # the links between switches that copy and GPUs
    out: I64
    before: I64  # the node before each node on the quickest path from each GPU
    fast_ptr: I64  # of each innermost group: its fastest routes, and where those of all speeds begin
    fast: I64


class Growing(NamedTuple):
    """The edges of the tree that is being grown, and what the loops write down in between."""

    edges: I64  # parent, first end, ends, first link, links
    ends: I64
    links: I64
    sequence: I64  # the edges, parents first
    pool: I64  # sets of GPUs
    stack: I64
    routes: I64  # that bring the chunk into groups
    fill: I64
    start: I64
    order: I64
    gateway: I64
    crossing: I64
    wanted: Bool
    reached: Bool
    hops: I64
    times: I64
    touched: I64
    known: F64
    cost: F64
    used: I64  # edges, ends, links, places in the pool, items on the stack, routes


def new_growing(nodes: int, gpus: int, levels: int, groups: int, links: int, routes: int, width: int) -> Growing:
    """Space for one tree."""
    edges = 8 * nodes + 64
    fill, start, order, gateway = np.zeros((4, groups), np.int64)
    wanted, reached = np.zeros((2, nodes), np.bool_)
    times, touched = np.zeros((2, links + 1), np.int64)
    return Growing(
        np.zeros((edges, 5), np.int64),
        np.zeros(2 * edges, np.int64),
        np.zeros(edges * (width + 2), np.int64),
        np.zeros(edges, np.int64),
        np.zeros((levels + 3) * (gpus + 1), np.int64),
        np.zeros((2 * (levels + 1) * (groups + 1), 5), np.int64),
        np.zeros(edges, np.int64),
        fill,
        start,
        order,
        gateway,
        np.zeros((groups, 2), np.int64),
        wanted,
        reached,
        np.zeros(nodes, np.int64),
        times,
        touched,
        np.zeros(nodes),
        np.zeros(routes),
        np.zeros(6, np.int64),
    )


@inner
def _growth(load_ps: F64, link: int, added_ps: float) -> float:
    """What more load on a link costs: the growth of its fourth power, which sees all links, not only the busiest."""
    low = load_ps[link] * load_ps[link]
    high = (load_ps[link] + added_ps) * (load_ps[link] + added_ps)
    return float(high * high - low * low)


@inner
def route_cost(t: TreeTables, load_ps: F64, route: int, size: float) -> float:
    """What bytes more on a route cost."""
    total = 0.0
    for k in range(t.links.shape[1]):
        total += _growth(load_ps, t.links[route, k], size * t.busy_ps[route, k])
    return total


@inner
def add_route(t: TreeTables, load_ps: F64, route: int, size: float) -> None:
    """Count bytes on a route."""
    for k in range(t.links.shape[1]):
        load_ps[t.links[route, k]] += size * t.busy_ps[route, k]


@inner
def least_loaded(t: TreeTables, load_ps: F64, a: int, b: int, size: float) -> int:
    """The best route between neighbours."""
    best = int(t.first[a, b])
    if t.alike[a, b] > 1:
        least = np.inf
        for route in range(t.first[a, b], t.first[a, b] + t.alike[a, b]):
            cost = route_cost(t, load_ps, route, size)
            if cost < least:
                best, least = route, cost
    return best


@inner
def is_uneven(t: TreeTables, pool: I64, root: int, low: int, high: int) -> bool:
    """Whether the root has direct links to some GPUs and much slower routes to others: then GPUs forward chunks."""
    none, fastest, slowest, direct = len(t.per_byte_ps) - 1, np.inf, 0.0, False
    for at in range(low, high):
        route = t.first[root, pool[at]]
        if route < 0:
            return False
        slow, hops = 0.0, 0
        for k in range(t.links.shape[1]):
            slow = max(slow, t.per_byte_ps[t.links[route, k]])
            hops += t.links[route, k] < none
        if slow < fastest:
            fastest, direct = slow, hops == 1
        slowest = max(slowest, slow)
    return direct and slowest > FASTER * fastest


@inner
def _multicast_cost(t: TreeTables, load_ps: F64, g: Growing, gateway: int, low: int, high: int, size: float) -> float:
    """The cost of a multicast from a gateway to all others of a set of GPUs: inf without a link; -1: no switch can."""
    for switch in range(len(t.into)):
        total, connected = 0.0, True
        for at in range(low, high):
            link = t.out[switch, g.pool[at]]
            connected = connected and link >= 0
            if connected:
                total += _growth(load_ps, link, size * t.per_byte_ps[link])
        if connected:
            link, own = t.into[switch, gateway], t.out[switch, gateway]
            if link < 0:
                return np.inf
            total += _growth(load_ps, link, size * t.per_byte_ps[link])
            return total - (_growth(load_ps, own, size * t.per_byte_ps[own]) if own >= 0 else 0.0)
    return -1.0


@inner
def spread_cost(t: TreeTables, load_ps: F64, g: Growing, gateway: int, low: int, high: int, size: float) -> float:
    """What it costs that a gateway forwards a chunk to a set of GPUs, `pool[low:high]`; inf where one is not near.

    Chains, and trees of GPUs that forward, cost about the same from everywhere.
    """
    if high - low > 2:
        cost = _multicast_cost(t, load_ps, g, gateway, low, high, size)
        if cost >= 0:
            return cost
    if t.inside == IN_CHAIN or (high - low > 1 and is_uneven(t, g.pool, g.pool[low], low + 1, high)):
        return 0.0
    touched, near = 0, True
    for at in range(low, high):
        route = t.first[gateway, g.pool[at]]
        if g.pool[at] == gateway or route < 0:
            near = near and g.pool[at] == gateway
            continue
        for k in range(t.links.shape[1]):
            link = t.links[route, k]
            if g.times[link] == 0:
                g.touched[touched] = link
                touched += 1
            g.times[link] += 1
    total = 0.0
    for k in range(touched):
        link = g.touched[k]
        total += _growth(load_ps, link, size * g.times[link] * t.per_byte_ps[link])
        g.times[link] = 0
    return total if near else np.inf


@inner
def best_route(
    t: TreeTables, load_ps: F64, g: Growing, pair: int, holder: int, low: int, high: int, size: float
) -> int:
    """Of the routes into a group, the best one: fewest further hops, then along the rail, then the least load.

    The load is that of the route and of what it makes necessary: the hop to its sender, and what its end forwards.
    Chunks keep to the network card of their holder, unless it is overloaded: then the least cost decides.
    """
    own = -1 if t.has_slow[pair] else _along_rail(t, load_ps, g, pair, holder, low, high, size)
    if own >= 0:
        return own
    begin, stop = t.pair_ptr[pair], t.pair_ptr[pair + 1]
    nearest, alone, some = 1 << 40, 0, False
    for k in range(begin, stop):
        route = int(t.pair_route[k])
        place = _place(t, g, route, holder)
        some = some or bool(t.overloaded[route])
        g.known[t.end[route]] = -1.0
        if place < nearest:
            nearest, alone = place, 0
        alone += place == nearest
    least = np.inf
    for k in range(begin, stop):
        route = int(t.pair_route[k])
        place = _place(t, g, route, holder)
        if alone == 1 and place == nearest and not t.overloaded[route]:
            return route
        if some or place == nearest:
            g.cost[route] = _cost_of(t, load_ps, g, route, holder, low, high, size)
            least = min(least, g.cost[route])
    best, best_worse, best_place, best_cost = -1, True, 1 << 41, np.inf
    for k in range(begin, stop):
        route = int(t.pair_route[k])
        place = _place(t, g, route, holder)
        if not some and place > nearest:
            continue
        cost, worse = g.cost[route], bool(t.overloaded[route] and g.cost[route] > least * _EQUAL)
        if worse != best_worse:
            ahead = best_worse
        elif place != best_place:
            ahead = place < best_place
        elif cost < best_cost and cost * _EQUAL < best_cost:
            ahead = True
        else:
            ahead = best < 0 or (cost <= best_cost * _EQUAL and t.src[route] < t.src[best])
        if ahead:
            best, best_worse, best_place, best_cost = route, worse, place, cost
    return best


@inner
def _along_rail(
    t: TreeTables, load_ps: F64, g: Growing, pair: int, holder: int, low: int, high: int, size: float
) -> int:
    """Of the routes from the holder into a group, the best one along its rail to a wanted GPU; -1: there is none.

    The routes of a pair are sorted by their senders. No route has a better place than these.
    """
    first, last = t.pair_ptr[pair], t.pair_ptr[pair + 1]
    while first < last:
        middle = (first + last) // 2
        if t.src[t.pair_route[middle]] < holder:
            first = middle + 1
        else:
            last = middle
    stop, count, best, least = first, 0, -1, np.inf
    while stop < t.pair_ptr[pair + 1] and t.src[t.pair_route[stop]] == holder:
        g.known[t.end[t.pair_route[stop]]] = -1.0
        if _place(t, g, t.pair_route[stop], holder) == 0:
            count, best = count + 1, int(t.pair_route[stop])
        stop += 1
    if count == 1:
        return best
    best = -1
    for k in range(first, stop):
        route = int(t.pair_route[k])
        if _place(t, g, route, holder) == 0:
            cost = _cost_of(t, load_ps, g, route, holder, low, high, size)
            if best < 0 or cost * _EQUAL < least:
                best, least = route, cost
    return best


@inner
def _place(t: TreeTables, g: Growing, route: int, holder: int) -> int:
    """Twice the hops that a route makes necessary, and one more off the rail of its sender."""
    src, end = t.src[route], t.end[route]
    hops = 0 if src == holder else 1 + (not g.wanted[src])
    return int(2 * (hops + 2 * (not g.wanted[end])) + (t.place[end] != t.place[src]))


@inner
def _cost_of(
    t: TreeTables, load_ps: F64, g: Growing, route: int, holder: int, low: int, high: int, size: float
) -> float:
    """See `best_route`."""
    src, end = t.src[route], t.end[route]
    if g.known[end] < 0:
        g.known[end] = spread_cost(t, load_ps, g, end, low, high, size)
    cost = route_cost(t, load_ps, route, size) + float(g.known[end])
    if src != holder and not g.wanted[src]:
        hop = t.first[holder, src]
        cost += route_cost(t, load_ps, hop, size) if hop >= 0 else np.inf
    return cost
