"""Schedules from schedules: prune, retime, reverse, join. What goes in valid comes out valid."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.errors import ScheduleError
from flowccl.schedule.schedule import Schedule, stacked_messages
from flowccl.schedule.settle import fits, sequence, settle
from flowccl.schedule.timing import Timing, spread
from flowccl.topology.routes import Routes


def prune(schedule: Schedule) -> Schedule:
    """Drop what no destination needs (TE-CCL section 3): walk back from each destination to the source.

    A node keeps only the first delivery of a chunk (one that cannot copy, one for each time that it sends it), and only
    if somebody needs it; a multicast loses the branches that nobody needs. Left as they are: chunks that are sums of
    several contributions, and branches without which the rest would be too fast for a limit or a link further on.
    """
    demand, timing, nodes = schedule.demand, schedule.timing, len(schedule.topology.nodes)
    summed = (np.diff(demand.source_ptr) > 1)[schedule.chunk]
    order, keys, _ = _deliveries(schedule, timing)
    first = np.ones(len(keys), dtype=np.bool_)
    first[1:] = keys[1:] != keys[:-1]
    wanted = demand.destination_chunk.astype(np.int64) * nodes + demand.destination_rank
    gives_away = ~schedule.topology.copies[timing.end_node[order]]
    rows = order[np.isin(keys, wanted) & (first | gives_away)]

    fed_by = np.full(len(schedule), -1, dtype=np.int64)  # the row with which the root of each transfer got the chunk
    root, end = _feeding(schedule, timing)
    fed_by[timing.root_transfer[root]] = end
    useful = summed[timing.end_transfer]
    if schedule.has_messages:  # what travels with a sum stays, so that the sum comes when it came
        with_sum = np.isin(schedule.leader, schedule.leader[summed])
        rows = np.union1d(rows, np.flatnonzero(with_sum[timing.end_transfer]))
    rows = rows[~useful[rows]]
    while len(rows):
        useful[rows] = True
        rows = np.unique(fed_by[timing.end_transfer[rows]])
        rows = rows[(rows >= 0) & ~useful[rows]]
    return _only_ends(schedule, _same_ends(schedule, useful) if schedule.has_messages else useful)


def _same_ends(schedule: Schedule, useful: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """What is left of a message keeps one route: an end that one of its chunks needs, all get that need any."""
    end_transfer = schedule.timing.end_transfer
    place = np.arange(len(end_transfer)) - np.searchsorted(end_transfer, end_transfer)
    key = schedule.leader[end_transfer] * (int(place.max(initial=0)) + 1) + place
    needed = np.bincount(end_transfer[useful], minlength=len(schedule)) > 0
    return needed[end_transfer] & np.isin(key, key[useful])


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
    pruned = Schedule.from_links(
        schedule.topology,
        schedule.demand,
        schedule.chunk[keep],
        smaller,
        schedule.start_ps[keep],
        schedule.reduce[keep],
        schedule.method,
        schedule.message[keep],
    )
    return pruned if not schedule.topology.changes and fits(pruned) else _subset(schedule, keep)


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
        message=schedule.message[keep],
    )


def retime(schedule: Schedule) -> Schedule:
    """Start everything as early as it can: every link and limit keeps its order, so nothing gets later.

    Links whose bandwidth changes over time keep their starts: there, earlier may be slower.
    """
    from flowccl.schedule.kernels import earliest_starts

    if schedule.topology.changes or not len(schedule):
        return schedule
    before, after, lag = _precedences(schedule)
    soonest, leader = soonest_starts(schedule), schedule.leader
    if schedule.has_messages:  # all start with their leader
        np.maximum.at(soonest, leader, soonest.copy())
        before, after = leader[before], leader[after]
        other = before != after
        before, after, lag = before[other], after[other], lag[other]
    by_after = np.argsort(after, kind="stable")
    ptr = np.searchsorted(after[by_after], np.arange(len(schedule) + 1)).astype(np.int64)
    order = np.argsort(schedule.start_ps, kind="stable").astype(np.int64)
    start = earliest_starts(order, ptr, before[by_after], lag[by_after], schedule.start_ps, soonest)
    return replace(schedule, start_ps=start[leader])


def soonest_starts(schedule: Schedule) -> NDArray[np.int64]:
    """When each transfer can start at all: not before the data of its roots is there, if it waited for it."""
    soonest = np.zeros(len(schedule), dtype=np.int64)
    if schedule.demand.ready_ps is None:
        return soonest
    timing, demand, nodes = schedule.timing, schedule.demand, len(schedule.topology.nodes)
    owned = demand.source_chunk.astype(np.int64) * nodes + demand.source_rank
    order = np.argsort(owned)
    key = schedule.chunk[timing.root_transfer].astype(np.int64) * nodes + timing.root_node
    place = np.minimum(np.searchsorted(owned[order], key), len(owned) - 1)
    ready = np.where(owned[order][place] == key, demand.available_ps[order][place], 0)
    waited = ready <= timing.root_from_ps
    offset = timing.root_from_ps - schedule.start_ps[timing.root_transfer]
    np.maximum.at(soonest, timing.root_transfer[waited], (ready - offset)[waited])
    return soonest


def _precedences(schedule: Schedule) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Triples (before, after, lag): start[after] >= start[before] + lag."""
    timing = schedule.timing
    parts = [
        _order_on_links(schedule, timing),
        _order_of_adding(schedule, timing),
        *_order_on_limits(schedule, timing),
        *_order_in_buffers(schedule, timing),
        data_order(schedule),
    ]
    before, after, lag = (np.concatenate([part[i] for part in parts]) for i in range(3))
    return before, after, lag


def data_order(schedule: Schedule) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Triples (before, after, lag), only of what the data wants: a node sends what it has got, and sums stay sums."""
    timing = schedule.timing
    parts = [_hold_before_send(schedule, timing)]
    if schedule.demand.reduces or np.any(schedule.topology.stores & ~schedule.topology.copies):
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


def _order_of_adding(
    schedule: Schedule, timing: Timing
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """A node that takes time to add up adds one after the other, in the same order."""
    rows = timing.adding
    rows = rows[np.lexsort((timing.end_whole_ps[rows], timing.end_node[rows]))]
    same = timing.end_node[rows[1:]] == timing.end_node[rows[:-1]]
    x, y = rows[:-1][same], rows[1:][same]
    before, after = timing.end_transfer[x], timing.end_transfer[y]
    lag = timing.end_arrival_ps[x] - schedule.start_ps[before] - (timing.end_whole_ps[y] - schedule.start_ps[after])
    return before, after, lag


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
        x, y = _apart(timing.hop_from_ps[rows], timing.hop_to_ps[rows])
        result.append(_hop_edges(schedule, timing, rows[x], rows[y]))
    return result


def _apart(begin: NDArray[np.int64], end: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of stretches of time, the one over when the other begins, without those that have a third in between."""
    rows = np.argsort(end, kind="stable")
    begin, end = begin[rows], end[rows]
    done = np.searchsorted(end, begin, side="right")  # how many have ended when this one begins
    first = np.iinfo(np.int64).min
    latest = np.concatenate(([first], np.maximum.accumulate(begin)))
    low = np.searchsorted(end, latest[done], side="right")  # those before have another that fits in between
    size = np.maximum(done - low, 0)
    owner = np.repeat(np.arange(len(rows)), size)
    inside = np.arange(len(owner)) - np.repeat(np.cumsum(size) - size, size)
    return rows[low[owner] + inside], rows[owner]


def _order_in_buffers(
    schedule: Schedule, timing: Timing
) -> list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
    """Two chunks that a node did not keep for others at the same time stay so, as with limits."""
    demand, nodes, result = schedule.demand, len(schedule.topology.nodes), []
    own = np.concatenate((demand.source_chunk, demand.destination_chunk)).astype(np.int64) * nodes
    own += np.concatenate((demand.source_rank, demand.destination_rank))
    for node in [n for n, what in enumerate(schedule.topology.nodes) if what.buffer_bytes is not None]:
        came, left = np.flatnonzero(timing.end_node == node), np.flatnonzero(timing.root_node == node)
        chunk = np.concatenate((schedule.chunk[timing.end_transfer[came]], schedule.chunk[timing.root_transfer[left]]))
        transfer = np.concatenate((timing.end_transfer[came], timing.root_transfer[left]))
        since = np.concatenate((timing.end_first_ps[came], timing.root_from_ps[left]))
        until = np.concatenate((timing.end_arrival_ps[came], timing.root_to_ps[left]))
        kept, stay = np.unique(chunk, return_inverse=True)
        first, last = np.full(len(kept), np.iinfo(np.int64).max), np.zeros(len(kept), dtype=np.int64)
        np.minimum.at(first, stay, since)
        np.maximum.at(last, stay, until)
        for x, y in zip(*_apart(first, last), strict=True):
            if not np.isin([kept[x] * nodes + node, kept[y] * nodes + node], own).any():
                a = np.repeat(np.flatnonzero(stay == x), np.sum(stay == y))
                b = np.tile(np.flatnonzero(stay == y), np.sum(stay == x))
                lag = until[a] - schedule.start_ps[transfer[a]] - (since[b] - schedule.start_ps[transfer[b]])
                other = transfer[a] != transfer[b]
                result.append((transfer[a][other], transfer[b][other], lag[other]))
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
    """A root sends when it has what it sends."""
    root, end = _feeding(schedule, timing)
    before, after = timing.end_transfer[end], timing.root_transfer[root]
    lag = (
        timing.end_arrival_ps[end] - schedule.start_ps[before] - (timing.root_from_ps[root] - schedule.start_ps[after])
    )
    return before, after, lag


def _feeding(schedule: Schedule, timing: Timing) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs (root row, end row): which deliveries a root needs for what it sends.

    Of a sum, all that it had got before; else the first; a node that cannot copy, what it got first for what it sends
    first, and so on.
    """
    order, end_key, root_key = _deliveries(schedule, timing)
    low, high = np.searchsorted(end_key, root_key, side="left"), np.searchsorted(end_key, root_key, side="right")
    summed = (np.diff(schedule.demand.source_ptr) > 1)[schedule.chunk[timing.root_transfer]]
    source_key = (
        schedule.demand.source_chunk.astype(np.int64) * len(schedule.topology.nodes) + schedule.demand.source_rank
    )
    owned = np.isin(root_key, source_key) & ~summed
    gives_away = ~schedule.topology.copies[timing.root_node] & ~summed
    turn = np.where(gives_away, _turns(root_key, timing.root_from_ps), 0) - owned
    low = np.clip(low + turn, low, high)
    high = np.where(turn < 0, low, np.where(summed, high, np.minimum(high, low + 1)))
    size = high - low
    root = np.repeat(np.arange(len(root_key)), size)
    end = order[np.repeat(low, size) + np.arange(len(root)) - np.repeat(np.cumsum(size) - size, size)]
    in_time = timing.end_arrival_ps[end] <= timing.root_from_ps[root]
    return root[in_time], end[in_time]


def _turns(key: NDArray[np.int64], time: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many with the same key come before each."""
    order = np.lexsort((time, key))
    place = np.arange(len(key))
    turn = np.empty(len(key), dtype=np.int64)
    turn[order] = place - np.searchsorted(key[order], key[order], side="left")
    return turn


def _send_before_next_sum(
    schedule: Schedule, timing: Timing
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """What came after a partial sum or the only copy had left still does; sums and copies keep their order."""
    order, end_key, root_key = _deliveries(schedule, timing)
    low, high = np.searchsorted(end_key, root_key, side="left"), np.searchsorted(end_key, root_key, side="right")
    summed = (np.diff(schedule.demand.source_ptr) > 1)[schedule.chunk[timing.root_transfer]]
    size = np.where(summed | ~schedule.topology.copies[timing.root_node], high - low, 0)
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
    parts.append((before, after, lag + (x > y)))  # at one instant, the first row comes first
    first, second, third = (np.concatenate([part[i] for part in parts]) for i in range(3))
    other = first != second
    return first[other], second[other], third[other]


def reverse(schedule: Schedule, demand: Demand, *, reduce: bool) -> Schedule:
    """The schedule run backwards on the reversed machine: what was sent out comes back.

    `demand` is the reversed one (for example reduce_scatter for an allgather), with the same chunks in the same order;
    `reduce` says whether what arrives is added up. It takes as long as the schedule, unless links change or a limit is
    over links with several latencies, which it then meets at other times: there, what clashes is put later.
    """
    if len(demand) != len(schedule.demand) or np.any(demand.chunk_bytes != schedule.demand.chunk_bytes):
        raise ScheduleError("reverse: the reversed demand must have the same chunks in the same order")
    ptr = schedule.routes.ptr
    mirror = np.repeat(ptr[:-1] + ptr[1:] - 1, np.diff(ptr)) - np.arange(ptr[-1])
    flipped = Routes(ptr, schedule.routes.link[mirror])
    back = replace(
        schedule,
        topology=schedule.topology.reversed,
        demand=demand,
        routes=flipped,
        start_ps=np.zeros(len(schedule), dtype=np.int64),
        reduce=np.full(len(schedule), reduce),
    )
    if reduce:  # a node on the way that cannot reduce, such as a memory, keeps what comes until it has sent it on
        ends = ~schedule.topology.reversed.reduces[back.timing.end_node]
        back = replace(back, reduce=np.bincount(back.timing.end_transfer, ends, len(schedule)) == 0)
    if not len(schedule):
        return back
    if schedule.topology.changes:
        return settle(back, sequence(schedule)[::-1])
    start = _mirrored(schedule.timing, back.timing, schedule.leader, schedule.topology.link_latency_ps)
    mirrored = replace(back, start_ps=start - min(start.min(), 0))
    return mirrored if not schedule.topology.limits or fits(mirrored) else settle(back, sequence(schedule)[::-1])


def _mirrored(
    forward: Timing, back: Timing, leader: NDArray[np.int64], latency_ps: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Starts with which every hop, now from zero as in `back`, is held when its mirror image arrived."""
    whole = forward.hop_to_ps + latency_ps[forward.hop_link]
    last = np.searchsorted(forward.hop_transfer, leader, side="right") - 1
    first = np.searchsorted(back.hop_transfer, leader, side="left")
    return np.asarray(whole.max() - whole[last] - back.hop_from_ps[first])


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
        stacked_messages((first, second)),
    )
    if both.topology.changes:  # later, links have other bandwidths, and the second half takes other times
        return settle(both, np.concatenate((sequence(first), sequence(second) + len(first))))
    return retime(both)
