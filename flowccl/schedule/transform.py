"""Schedules from schedules: prune, retime, reverse, join. What goes in valid comes out valid."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.errors import ScheduleError
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.timing import Timing, spread
from flowccl.topology.routes import Routes


def prune(schedule: Schedule) -> Schedule:
    """Drop what no destination needs (TE-CCL section 3): walk back from each destination to the source.

    A node keeps only the first delivery of a chunk, and only if somebody needs it; a multicast loses the branches
    that nobody needs. Chunks that are sums of several contributions are left as they are.
    """
    demand, timing, nodes = schedule.demand, schedule.timing, len(schedule.topology.nodes)
    summed = (np.diff(demand.source_ptr) > 1)[schedule.chunk]
    key = schedule.chunk[timing.end_transfer].astype(np.int64) * nodes + timing.end_node
    order = np.lexsort((timing.end_arrival_ps, key))
    keys, first = np.unique(key[order], return_index=True)
    delivery = order[first]  # the first delivery of each (chunk, node)
    root_of = np.full(len(schedule), -1, dtype=np.int64)
    root_of[timing.root_transfer] = timing.root_node

    useful = np.zeros(len(key), dtype=np.bool_)
    useful[summed[timing.end_transfer]] = True
    source_key = demand.source_chunk.astype(np.int64) * nodes + demand.source_rank
    wanted = demand.destination_chunk.astype(np.int64) * nodes + demand.destination_rank
    while len(wanted):
        wanted = np.unique(wanted[~np.isin(wanted, source_key)])
        place = np.searchsorted(keys, wanted)
        found = (place < len(keys)) & (keys[np.minimum(place, len(keys) - 1)] == wanted) if len(keys) else place < 0
        rows = delivery[place[found]]
        rows = rows[~useful[rows]]
        useful[rows] = True
        transfer = timing.end_transfer[rows]
        wanted = schedule.chunk[transfer].astype(np.int64) * nodes + root_of[transfer]
    return _only_ends(schedule, useful)


def _only_ends(schedule: Schedule, useful: NDArray[np.bool_]) -> Schedule:
    """The same schedule with only these (transfer, end) rows, in the order of `timing.end_transfer`."""
    shape, end_transfer = schedule.shape, schedule.timing.end_transfer
    ends = np.bincount(end_transfer, minlength=len(schedule))
    kept = np.bincount(end_transfer[useful], minlength=len(schedule))
    whole, part = np.flatnonzero((kept == ends) & (kept > 0)), np.flatnonzero((kept < ends) & (kept > 0))
    if not len(part):
        return _subset(schedule, whole)
    first = np.concatenate(([0], np.cumsum(ends)))
    links: dict[int, list[int]] = {}
    for i in part.tolist():
        r = int(schedule.route[i])
        hops = schedule.routes.links(r)
        end_hops = shape.end_hop[shape.end_ptr[r] : shape.end_ptr[r + 1]] - schedule.routes.ptr[r]
        links[i] = _branches(schedule, hops, end_hops[useful[first[i] : first[i + 1]]].tolist())
    keep = np.flatnonzero(kept > 0)
    lists = [links.get(i) or list(schedule.routes.links(int(schedule.route[i]))) for i in keep.tolist()]
    smaller = Routes.from_lists(lists)
    return Schedule.from_links(
        schedule.topology,
        schedule.demand,
        schedule.chunk[keep],
        smaller,
        schedule.start_ps[keep],
        schedule.reduce[keep],
        schedule.method,
    )


def _branches(schedule: Schedule, links: tuple[int, ...], ends: list[int]) -> list[int]:
    """The links of a route that lead to the chosen ends (given by their hops)."""
    feeds = {schedule.topology.links[link].dst: link for link in links}
    chosen: set[int] = set()
    for hop in ends:
        link: int | None = links[hop]
        while link is not None and link not in chosen:
            chosen.add(link)
            link = feeds.get(schedule.topology.links[link].src)
    return [link for link in links if link in chosen]


def _subset(schedule: Schedule, keep: NDArray[np.int64]) -> Schedule:
    """Some of the transfers, and only the routes that they use."""
    used, route = np.unique(schedule.route[keep], return_inverse=True)
    _, hops = spread(schedule.routes.ptr, used.astype(np.int32))
    ptr = np.concatenate(([0], np.cumsum(np.diff(schedule.routes.ptr)[used]))).astype(np.int64)
    return replace(
        schedule,
        routes=Routes(ptr, schedule.routes.link[hops]),
        chunk=schedule.chunk[keep],
        route=route.reshape(-1).astype(np.int32),
        start_ps=schedule.start_ps[keep],
        reduce=schedule.reduce[keep],
    )


def retime(schedule: Schedule) -> Schedule:
    """Start everything as early as it can: every link and limit keeps its order, so nothing gets later.

    Links whose bandwidth changes over time keep their starts: there, earlier may be slower.
    """
    from flowccl.schedule.kernels import earliest_starts

    if schedule.topology.changes or not len(schedule):
        return schedule
    before, after, lag = _precedences(schedule)
    by_after = np.argsort(after, kind="stable")
    ptr = np.searchsorted(after[by_after], np.arange(len(schedule) + 1)).astype(np.int64)
    order = np.argsort(schedule.start_ps, kind="stable").astype(np.int64)
    start = earliest_starts(order, ptr, before[by_after], lag[by_after], schedule.start_ps)
    return replace(schedule, start_ps=start)


def _precedences(schedule: Schedule) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Triples (before, after, lag): start[after] >= start[before] + lag."""
    timing = schedule.timing
    parts = [
        _order_on_links(schedule, timing),
        *_order_on_limits(schedule, timing),
        _hold_before_send(schedule, timing),
    ]
    if schedule.demand.reduces:
        parts.append(_send_before_next_sum(schedule, timing))
    before, after, lag = (np.concatenate([part[i] for part in parts]) for i in range(3))
    return before, after, lag


def _hop_edges(
    schedule: Schedule, timing: Timing, x: NDArray[np.int64], y: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Hop y starts when hop x has ended."""
    before, after = timing.hop_transfer[x], timing.hop_transfer[y]
    lag = timing.hop_to_ps[x] - schedule.start_ps[before] - (timing.hop_from_ps[y] - schedule.start_ps[after])
    other = before != after
    return before[other], after[other], lag[other]


def _order_on_links(
    schedule: Schedule, timing: Timing
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    order = np.lexsort((timing.hop_from_ps, timing.hop_link))
    same = timing.hop_link[order[1:]] == timing.hop_link[order[:-1]]
    return _hop_edges(schedule, timing, order[:-1][same], order[1:][same])


def _order_on_limits(
    schedule: Schedule, timing: Timing
) -> list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
    """Two transfers that did not overlap on a limit stay so, in their order.

    Then any set that overlaps now overlapped pairwise before, and intervals that meet pairwise share an instant:
    the limit held there, so it holds now.
    """
    result = []
    for limit in schedule.topology.limits:
        rows = np.flatnonzero(np.isin(timing.hop_link, limit.links))
        rows = rows[np.argsort(timing.hop_to_ps[rows], kind="stable")]
        begin, end = timing.hop_from_ps[rows], timing.hop_to_ps[rows]
        done = np.searchsorted(end, begin, side="right")  # how many have ended when this one begins
        latest = np.concatenate(([np.int64(-1)], np.maximum.accumulate(begin))) if len(rows) else np.zeros(1, np.int64)
        low = np.searchsorted(
            end, latest[done], side="right"
        )  # those followed by another that fits between need no edge
        owner = np.repeat(np.arange(len(rows)), np.maximum(done - low, 0))
        inside = np.arange(len(owner)) - np.repeat(
            np.cumsum(np.maximum(done - low, 0)) - np.maximum(done - low, 0), np.maximum(done - low, 0)
        )
        result.append(_hop_edges(schedule, timing, rows[low[owner] + inside], rows[owner]))
    return result


def _deliveries(schedule: Schedule, timing: Timing) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """End rows in order of (chunk, node, arrival), their keys, and the keys of root rows."""
    nodes = len(schedule.topology.nodes)
    end_key = schedule.chunk[timing.end_transfer].astype(np.int64) * nodes + timing.end_node
    order = np.lexsort((timing.end_arrival_ps, end_key))
    root_key = schedule.chunk[timing.root_transfer].astype(np.int64) * nodes + timing.root_node
    return order, end_key[order], root_key


def _hold_before_send(
    schedule: Schedule, timing: Timing
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """A root sends after its first delivery; a sum is sent after all deliveries that it had got before."""
    order, end_key, root_key = _deliveries(schedule, timing)
    low, high = np.searchsorted(end_key, root_key, side="left"), np.searchsorted(end_key, root_key, side="right")
    summed = (np.diff(schedule.demand.source_ptr) > 1)[schedule.chunk[timing.root_transfer]]
    source_key = (
        schedule.demand.source_chunk.astype(np.int64) * len(schedule.topology.nodes) + schedule.demand.source_rank
    )
    owned = np.isin(root_key, source_key) & ~summed
    high = np.where(owned, low, np.where(summed, high, np.minimum(high, low + 1)))
    size = high - low
    root = np.repeat(np.arange(len(root_key)), size)
    end = order[np.repeat(low, size) + np.arange(len(root)) - np.repeat(np.cumsum(size) - size, size)]
    in_time = timing.end_arrival_ps[end] <= timing.root_from_ps[root]
    root, end = root[in_time], end[in_time]
    before, after = timing.end_transfer[end], timing.root_transfer[root]
    lag = (
        timing.end_arrival_ps[end] - schedule.start_ps[before] - (timing.root_from_ps[root] - schedule.start_ps[after])
    )
    return before, after, lag


def _send_before_next_sum(
    schedule: Schedule, timing: Timing
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """What came after a partial sum was sent still comes after it, and sums and copies at a node keep their order."""
    order, end_key, root_key = _deliveries(schedule, timing)
    low, high = np.searchsorted(end_key, root_key, side="left"), np.searchsorted(end_key, root_key, side="right")
    summed = (np.diff(schedule.demand.source_ptr) > 1)[schedule.chunk[timing.root_transfer]]
    size = np.where(summed, high - low, 0)
    root = np.repeat(np.arange(len(root_key)), size)
    end = order[np.repeat(low, size) + np.arange(len(root)) - np.repeat(np.cumsum(size) - size, size)]
    later = timing.end_arrival_ps[end] > timing.root_from_ps[root]
    root, end = root[later], end[later]
    before, after = timing.root_transfer[root], timing.end_transfer[end]
    sent, came = (
        timing.root_from_ps[root] - schedule.start_ps[before],
        timing.end_arrival_ps[end] - schedule.start_ps[after],
    )
    parts = [(before, after, sent + 1 - came)]
    chain = np.flatnonzero(end_key[1:] == end_key[:-1])  # neighbours in the order of deliveries at one node
    x, y = order[chain], order[chain + 1]
    mixed = ~(schedule.reduce[timing.end_transfer[x]] & schedule.reduce[timing.end_transfer[y]])
    x, y = x[mixed], y[mixed]
    before, after = timing.end_transfer[x], timing.end_transfer[y]
    lag = timing.end_arrival_ps[x] - schedule.start_ps[before] - (timing.end_arrival_ps[y] - schedule.start_ps[after])
    parts.append((before, after, lag))
    first, second, third = (np.concatenate([part[i] for part in parts]) for i in range(3))
    other = first != second
    return first[other], second[other], third[other]


def reverse(schedule: Schedule, demand: Demand, *, reduce: bool) -> Schedule:
    """The schedule run backwards on the reversed machine: what was sent out comes back.

    `demand` is the reversed one (for example reduce_scatter for an allgather), with the same chunks in the same order;
    `reduce` says whether what arrives is added up.
    """
    if len(demand) != len(schedule.demand) or np.any(demand.chunk_bytes != schedule.demand.chunk_bytes):
        raise ScheduleError("reverse: the reversed demand must have the same chunks in the same order")
    timing, topology = schedule.timing, schedule.topology
    whole = timing.hop_to_ps + topology.link_latency_ps[timing.hop_link]
    last = np.full(len(schedule), 0, dtype=np.int64)
    np.maximum.at(last, timing.hop_transfer, whole)
    flipped = Routes.from_lists([schedule.routes.links(r)[::-1] for r in range(len(schedule.routes))])
    return replace(
        schedule,
        topology=topology.reversed,
        demand=demand,
        routes=flipped,
        start_ps=last.max(initial=0) - last,
        reduce=np.full(len(schedule), reduce),
    )


def join(first: Schedule, second: Schedule, demand: Demand) -> Schedule:
    """Two schedules, one after the other chunk by chunk: chunk i of the second goes on where the first leaves it.

    Both must be for the same machine and the same chunk sizes as `demand`. The second starts as early as its data
    and links allow, not when all of the first is over.
    """
    if first.topology != second.topology:
        raise ScheduleError(f"join: {first.topology.name} and {second.topology.name} are different machines")
    for part in (first, second):
        if len(part.demand) != len(demand) or np.any(part.demand.chunk_bytes != demand.chunk_bytes):
            raise ScheduleError("join: both schedules must have the chunks of the joined demand, in the same order")
    routes = Routes(
        np.concatenate((first.routes.ptr, first.routes.ptr[-1] + second.routes.ptr[1:])),
        np.concatenate((first.routes.link, second.routes.link)),
    )
    both = Schedule(
        first.topology,
        demand,
        routes,
        np.concatenate((first.chunk, second.chunk)),
        np.concatenate((first.route, second.route + len(first.routes))).astype(np.int32),
        np.concatenate((first.start_ps, second.start_ps + first.finish_ps)),
        np.concatenate((first.reduce, second.reduce)),
        first.method if first.method == second.method else f"{first.method}, {second.method}",
    )
    return retime(both)
