"""The tree of a chunk on a hierarchy, in compiled loops.

A tree goes from group to group between gateways, then on inside each group. The gateways of a chunk are the two GPUs
whose route between the groups has the least load, so that every network card carries what its bandwidth allows: a slow
card less, and what a lost one would carry goes over the others of its host.
"""

import numpy as np

from flowccl.compiled import F64, I64, inner
from flowccl.methods.hierarchical.route_kernels import (
    IN_CHAIN,
    MIXED,
    Growing,
    TreeTables,
    add_route,
    best_route,
    is_uneven,
    least_loaded,
    route_cost,
)

_ROUTES, _SUBTREE = range(2)  # what waits on the stack


@inner
def _add_edge(t: TreeTables, g: Growing, route: int) -> None:
    """An edge of the tree along a route."""
    edge, end, link = g.used[0], g.used[1], g.used[2]
    g.edges[edge, 0], g.edges[edge, 1], g.edges[edge, 2], g.edges[edge, 3] = t.src[route], end, 1, link
    g.ends[end] = t.end[route]
    for k in range(t.links.shape[1]):
        if t.links[route, k] < len(t.per_byte_ps) - 1:
            g.links[link] = t.links[route, k]
            link += 1
    g.edges[edge, 4] = link - g.used[2]
    g.used[0], g.used[1], g.used[2] = edge + 1, end + 1, link


@inner
def _add_path(t: TreeTables, load_ps: F64, g: Growing, a: int, b: int, size: float) -> int:
    """Append the routes of the quickest path between two nodes, from where it is reached on; return their number."""
    begin, node = g.used[5], b
    while node != a and not g.reached[node] and g.used[5] - begin < len(t.place):
        g.routes[g.used[5]] = node
        g.used[5] += 1
        node = t.before[a, node]
    last = node
    count = int(g.used[5] - begin)
    for k in range(count // 2):
        low, high = begin + k, begin + count - 1 - k
        g.routes[low], g.routes[high] = g.routes[high], g.routes[low]
    for k in range(begin, begin + count):
        route = least_loaded(t, load_ps, last, g.routes[k], size)
        add_route(t, load_ps, route, size)
        last = g.routes[k]
        g.routes[k] = route
    return count


@inner
def _push(g: Growing, kind: int, a: int, b: int, c: int, d: int) -> None:
    top = g.used[4]
    g.stack[top, 0], g.stack[top, 1], g.stack[top, 2], g.stack[top, 3], g.stack[top, 4] = kind, a, b, c, d
    g.used[4] = top + 1


@inner
def _divide(t: TreeTables, g: Growing, level: int, root: int, low: int, high: int) -> int:
    """Sort wanted GPUs by their group, that of the root first, then those after it; return the number of groups."""
    label, count = t.labels[level], t.groups[level]
    g.fill[:count] = -1
    g.fill[label[root]] = 0
    for at in range(low, high):
        g.fill[label[g.pool[at]]] = 0
    turns = 0
    for step in range(count):
        group = (label[root] + step) % count
        if g.fill[group] == 0:
            g.order[turns], g.start[group] = group, g.used[3]
            g.used[3] += t.size[t.base[level] + group]
            turns += 1
    for at in range(low, high):
        node = g.pool[at]
        group = label[node]
        g.pool[g.start[group] + g.fill[group]] = node
        g.fill[group] += 1
        g.wanted[node] = True
    return turns


@inner
def _split(
    t: TreeTables, load_ps: F64, g: Growing, level: int, root: int, low: int, high: int, arity: int, size: float
) -> bool:
    """Bring a chunk into each group with wanted GPUs, and leave the rest of each group for later.

    Return whether some group is reached by a detour, where no route joins two groups.
    """
    turns, detours = _divide(t, g, level, root, low, high), False
    g.gateway[g.order[0]] = root
    for turn in range(1, turns):
        group, source = g.order[turn], g.order[(turn - 1) // arity]
        holder, begin, stop = g.gateway[source], g.start[group], g.start[group] + g.fill[group]
        pair, route, first = t.pair_base[level] + source * t.groups[level] + group, -1, g.used[5]
        if t.pair_ptr[pair] == t.pair_ptr[pair + 1]:
            detours = _add_path(t, load_ps, g, holder, g.pool[begin], size) > 1 or detours
            g.gateway[group] = g.pool[begin]
        else:
            route = t.own[level, holder, group]
            if route < 0 or not g.wanted[t.end[route]]:
                route = best_route(t, load_ps, g, pair, holder, begin, stop, size)
            add_route(t, load_ps, route, size)
            g.routes[first], g.gateway[group] = route, t.end[route]
            g.used[5] = first + 1
            sender = t.src[route]
            if sender != holder and not g.wanted[sender]:
                g.pool[g.start[source] + g.fill[source]] = sender
                g.fill[source] += 1
                g.wanted[sender] = True
        g.crossing[group, 0], g.crossing[group, 1] = first, g.used[5]
    for turn in range(turns - 1, -1, -1):
        group = g.order[turn]
        begin, stop = g.start[group], g.start[group] + g.fill[group]
        for at in range(begin, stop):
            g.wanted[g.pool[at]] = False
        _push(g, _SUBTREE, g.gateway[group], begin, stop, level + 1)
        if turn > 0:
            _push(g, _ROUTES, g.crossing[group, 0], g.crossing[group, 1], 0, 0)
    return detours


@inner
def _sort_in_turn(t: TreeTables, g: Growing, root: int, low: int, high: int) -> None:
    """Sort a set of GPUs, those after the root first."""
    for at in range(low + 1, high):
        node, to = g.pool[at], at
        while to > low and (g.pool[to - 1] - root) % t.gpus > (node - root) % t.gpus:
            g.pool[to] = g.pool[to - 1]
            to -= 1
        g.pool[to] = node


@inner
def _multicast(t: TreeTables, load_ps: F64, g: Growing, root: int, low: int, high: int, size: float) -> bool:
    """Reach a set of GPUs through a switch that copies; False where none can."""
    for switch in range(len(t.into)):
        connected = t.into[switch, root] >= 0
        for at in range(low, high):
            connected = connected and t.out[switch, g.pool[at]] >= 0
        if connected:
            edge, end, link = g.used[0], g.used[1], g.used[2]
            g.edges[edge, 0], g.edges[edge, 1], g.edges[edge, 2], g.edges[edge, 3] = root, end, high - low, link
            g.edges[edge, 4] = high - low + 1
            g.links[link] = t.into[switch, root]
            for at in range(low, high):
                g.ends[end + at - low], g.links[link + 1 + at - low] = g.pool[at], t.out[switch, g.pool[at]]
            for k in range(link, link + g.edges[edge, 4]):
                load_ps[g.links[k]] += size * t.per_byte_ps[g.links[k]]
            g.used[0], g.used[1], g.used[2] = edge + 1, end + high - low, link + g.edges[edge, 4]
            return True
    return False


@inner
def _grow(t: TreeTables, load_ps: F64, g: Growing, root: int, low: int, high: int, size: float) -> None:
    """Add the route with the least cost again and again, where far from the root costs more.

    The fastest routes that join the whole group are enough where all of it is wanted; else those of all speeds count
    where no fast one is left.
    """
    group = t.labels[-1, root]
    for at in range(low, high):
        g.wanted[g.pool[at]] = True
    g.reached[root], g.hops[root] = True, 0
    for _ in range(high - low):
        best, least = -1, np.inf
        for part in range(2):
            for k in range(t.fast_ptr[2 * group + part], t.fast_ptr[2 * group + part + 1]):
                route = t.fast[k]
                src, end = t.src[route], t.end[route]
                if g.reached[src] and g.wanted[end] and not g.reached[end]:
                    cost = route_cost(t, load_ps, route, size) * (1 + g.hops[src])
                    if cost < least:
                        best, least = route, cost
            if best >= 0:
                break
        if best < 0:
            break
        g.reached[t.end[best]], g.hops[t.end[best]] = True, g.hops[t.src[best]] + 1
        add_route(t, load_ps, best, size)
        _add_edge(t, g, best)
    g.reached[root] = False
    for at in range(low, high):
        g.wanted[g.pool[at]] = g.reached[g.pool[at]] = False


@inner
def _one_by_one(t: TreeTables, load_ps: F64, g: Growing, root: int, low: int, high: int, size: float) -> None:
    """From the root to a set of GPUs along a star or a chain, over further GPUs where a GPU is no neighbour."""
    _sort_in_turn(t, g, root, low, high)
    holder = root
    g.reached[root] = True
    for at in range(low, high):
        rank = g.pool[at]
        if g.reached[rank]:
            continue
        begin = g.used[5]
        if t.alike[holder, rank] > 0:
            route = least_loaded(t, load_ps, holder, rank, size)
            add_route(t, load_ps, route, size)
            g.routes[begin] = route
            g.used[5] = begin + 1
        else:
            _add_path(t, load_ps, g, holder, rank, size)
        for k in range(begin, g.used[5]):
            g.reached[t.end[g.routes[k]]] = True
            _add_edge(t, g, g.routes[k])
        if t.inside == IN_CHAIN:
            holder = rank
    g.reached[:] = False


@inner
def _inside(t: TreeTables, load_ps: F64, g: Growing, turns: I64, root: int, low: int, high: int, size: float) -> None:
    """From the root to a set of GPUs of its innermost group: through a switch that copies, else one by one.

    In a mixed group of n GPUs, one tree of n takes single copies.
    """
    if low == high:
        return
    alone = False
    if t.inside == MIXED:
        group = t.labels[-1, root]
        alone = turns[group] % (high - low + 1) == high - low
        turns[group] += 1
    if not alone and high - low > 1 and _multicast(t, load_ps, g, root, low, high, size):
        return
    if is_uneven(t, g.pool, root, low, high):
        _grow(t, load_ps, g, root, low, high, size)
    else:
        _one_by_one(t, load_ps, g, root, low, high, size)


@inner
def _put_parents_first(g: Growing, root: int) -> None:
    """Order the edges so that every parent is reached before it sends; drop what a node would get twice."""
    g.reached[root] = True
    count, done, before = g.used[0], 0, -1
    while done > before:
        before = done
        for edge in range(count):
            if g.edges[edge, 0] >= 0 and g.reached[g.edges[edge, 0]]:
                _keep_new_ends(g, edge)
                if g.edges[edge, 2] > 0:
                    g.sequence[done] = edge
                    done += 1
                g.edges[edge, 0] = -1 - g.edges[edge, 0]
    for edge in range(count):
        g.edges[edge, 0] = max(g.edges[edge, 0], -1 - g.edges[edge, 0])
    g.used[0] = done
    g.reached[:] = False


@inner
def _keep_new_ends(g: Growing, edge: int) -> None:
    """Leave out ends of an edge that have the chunk already; the first link of a multicast leads into its switch."""
    first, link, ends = g.edges[edge, 1], g.edges[edge, 3], g.edges[edge, 2]
    kept = 0
    for k in range(ends):
        node = g.ends[first + k]
        if not g.reached[node]:
            g.reached[node] = True
            g.ends[first + kept] = node
            if ends > 1:
                g.links[link + 1 + kept] = g.links[link + 1 + k]
            kept += 1
    g.edges[edge, 2] = kept
    if ends > 1:
        g.edges[edge, 4] = kept + 1


@inner
def _is_reached_twice(g: Growing, root: int) -> bool:
    """Whether some GPU gets the chunk twice: where the way to one of its group leads through another group."""
    twice = False
    g.reached[root] = True
    for at in range(g.used[1]):
        twice = twice or g.reached[g.ends[at]]
        g.reached[g.ends[at]] = True
    g.reached[root] = False
    for at in range(g.used[1]):
        g.reached[g.ends[at]] = False
    return twice


@inner
def grow_tree(
    t: TreeTables, load_ps: F64, g: Growing, turns: I64, root: int, members: I64, level: int, arity: int, size: float
) -> None:
    """The edges of a tree from the root to all members, in `sequence`: parents first. Their load is counted.

    Each group sends to `arity` others.
    """
    g.used[:] = 0
    for at in range(len(members)):
        g.pool[at] = members[at]
    g.used[3] = len(members)
    _push(g, _SUBTREE, root, 0, len(members), level)
    detours = False
    while g.used[4] > 0:
        g.used[4] -= 1
        item = g.stack[g.used[4]]
        kind, a, b, c, d = item[0], item[1], item[2], item[3], item[4]
        if kind == _ROUTES:
            for k in range(a, b):
                _add_edge(t, g, g.routes[k])
            continue
        high = b
        for at in range(b, c):
            if g.pool[at] != a:
                g.pool[high] = g.pool[at]
                high += 1
        if d == len(t.groups):
            _inside(t, load_ps, g, turns, a, b, high, size)
        else:
            detours = _split(t, load_ps, g, d, a, b, high, arity, size) or detours
    if detours or _is_reached_twice(g, root):
        _put_parents_first(g, root)
    else:
        for edge in range(g.used[0]):
            g.sequence[edge] = edge
