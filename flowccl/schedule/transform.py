"""Transforms of schedules: prune, left-shift, subdivide, reverse, concatenate. Valid schedules stay valid."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.demand.demand import Demand
from flowccl.errors import ScheduleError
from flowccl.schedule.continuation import continuing
from flowccl.schedule.generation.precedence import (
    RowPairs,
    between_messages,
    deliveries,
    feeding,
    precedence_pairs,
    soonest_starts,
    stacked,
)
from flowccl.schedule.generation.serial import fits, generate_serial, sequence, within_limits
from flowccl.schedule.schedule import Schedule, stacked_messages
from flowccl.schedule.timing import Timing, spread
from flowccl.topology.routes import Routes


def prune(schedule: Schedule) -> Schedule:
    """Remove transfers that no destination needs (TE-CCL section 3), walking back from destinations to sources.

    A node keeps only the first delivery of a chunk (a node that cannot copy, one delivery per send), and only if a
    destination needs it. A multicast loses the branches that no destination needs. Chunks with several contributions
    stay as they are, and so do branches without which the other branches would be too fast for a limit or a later link.
    """
    demand, timing, nodes = schedule.demand, schedule.timing, len(schedule.topology.nodes)
    reduced = (np.diff(demand.source_ptr) > 1)[schedule.chunk]
    order, keys, _ = deliveries(schedule)
    first = np.ones(len(keys), dtype=np.bool_)
    first[1:] = keys[1:] != keys[:-1]
    wanted = np.sort(demand.destination_chunk.astype(np.int64) * nodes + demand.destination_rank)
    gives_away = ~schedule.topology.copies[timing.end_node[order]]
    is_wanted = wanted[np.minimum(np.searchsorted(wanted, keys), len(wanted) - 1)] == keys
    rows = order[is_wanted & (first | gives_away)]

    fed_by = np.full(len(schedule), -1, dtype=np.int64)  # the delivery that gave the root of each transfer its chunk
    root, end = feeding(schedule)
    fed_by[timing.root_transfer[root]] = end
    useful = reduced[timing.end_transfer]
    if schedule.has_messages:  # other transfers in the message of a reduction stay, which keeps its timing
        with_reduction = np.isin(schedule.leader, schedule.leader[reduced])
        rows = np.union1d(rows, np.flatnonzero(with_reduction[timing.end_transfer]))
    rows = rows[~useful[rows]]
    last = np.empty(len(useful), dtype=np.int64)
    while len(rows):
        useful[rows] = True
        rows = fed_by[timing.end_transfer[rows]]
        rows = rows[(rows >= 0) & ~useful[rows]]
        last[rows] = np.arange(len(rows))
        rows = rows[last[rows] == np.arange(len(rows))]  # each once
    return _only_ends(schedule, _same_ends(schedule, useful) if schedule.has_messages else useful)


def _same_ends(schedule: Schedule, useful: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Keep one route per message: an end that one of its chunks needs stays for all chunks that are needed."""
    end_transfer = schedule.timing.end_transfer
    place = np.arange(len(end_transfer)) - np.searchsorted(end_transfer, end_transfer)
    key = schedule.leader[end_transfer] * (int(place.max(initial=0)) + 1) + place
    needed = np.bincount(end_transfer[useful], minlength=len(schedule)) > 0
    return needed[end_transfer] & np.isin(key, key[useful])


def _only_ends(schedule: Schedule, useful: NDArray[np.bool_]) -> Schedule:
    """Return the schedule with only these (transfer, end) rows, in the order of `timing.end_transfer`."""
    shape, end_transfer = schedule.shape, schedule.timing.end_transfer
    ends = np.bincount(end_transfer, minlength=len(schedule))
    kept = np.bincount(end_transfer[useful], minlength=len(schedule))
    whole, part = np.flatnonzero((kept == ends) & (kept > 0)), np.flatnonzero((kept < ends) & (kept > 0))
    if not len(part):
        return schedule if len(whole) == len(schedule) else _subset(schedule, whole)
    first = pointers(ends)
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
    """Return the links of a route that lead to the chosen ends, given by their hops."""
    feeds = {schedule.topology.links[link].dst: link for link in links}
    chosen: set[int] = set()
    for hop in ends:
        link: int | None = links[hop]
        while link is not None and link not in chosen:
            chosen.add(link)
            link = feeds.get(schedule.topology.links[link].src)
    return [link for link in links if link in chosen]


def _subset(schedule: Schedule, keep: NDArray[np.int64]) -> Schedule:
    """Return the schedule with some of its transfers and the routes that they use."""
    used, route = np.unique(schedule.route[keep], return_inverse=True)
    return replace(
        schedule,
        routes=schedule.routes.only(used),
        chunk=schedule.chunk[keep],
        route=route.reshape(-1).astype(np.int32),
        start_ps=schedule.start_ps[keep],
        reduce=schedule.reduce[keep],
        message=schedule.message[keep],
    )


def left_shift(schedule: Schedule) -> Schedule:
    """Start every transfer as early as possible without changing the order on links and limits; none gets later.

    On machines whose links change their bandwidth the schedule stays as it is, because an earlier start may be slower.
    """
    if schedule.topology.changes or not len(schedule):
        return schedule
    return _earliest(schedule, precedence_pairs(schedule), schedule.start_ps)


def in_order_of(schedule: Schedule, other: Schedule) -> Schedule:
    """Start every transfer as early as possible in the order of another schedule, which is valid.

    Both have the same transfers, whose durations may differ. The result must be verified where transfers share links
    or limits.
    """
    if "precedence pairs" not in other.cache:
        other.cache["precedence pairs"] = precedence_pairs(other)
    timing = schedule.timing
    takes = int((timing.end_arrival_ps - schedule.start_ps[timing.end_transfer]).max(initial=0))
    latest = np.full(len(schedule), takes * len(schedule) + other.finish_ps, dtype=np.int64)  # never reached
    return _earliest(schedule, other.cache["precedence pairs"], latest)


def _earliest(schedule: Schedule, pairs: list[RowPairs], latest: NDArray[np.int64]) -> Schedule:
    """The schedule with the earliest starts that keep the order of its transfers."""
    from flowccl.schedule.generation.generation_kernels import earliest_starts

    before, after, lag = between_messages(schedule, stacked(schedule, pairs))
    soonest, leader = soonest_starts(schedule), schedule.leader
    np.maximum.at(soonest, leader, soonest.copy())  # all transfers of a message start with its leader
    by_after = np.argsort(after, kind="stable")
    ptr = np.searchsorted(after[by_after], np.arange(len(schedule) + 1)).astype(np.int64)
    order = np.argsort(schedule.start_ps, kind="stable").astype(np.int64)
    start = earliest_starts(order, ptr, before[by_after], lag[by_after], latest, soonest)
    return replace(schedule, start_ps=start[leader])


def subdivide(schedule: Schedule, demand: Demand) -> Schedule | None:
    """Return the schedule with every chunk in several smaller ones that follow each other, as early as possible.

    `demand` has the same blocks in a multiple of the chunks. A smaller chunk is forwarded as soon as it has arrived, so
    the finish does not get later, except by bytes that do not divide evenly. None if messages, links that change or
    store-and-forward switches make this impossible.
    """
    times, count = len(demand) // len(schedule.demand), len(schedule)
    if schedule.topology.changes or (pieces := chunk_by_chunk(schedule, demand)) is None:
        return None
    busy = _longest_busy_times(pieces).reshape(count, times)
    whole, together = _longest_busy_times(schedule), busy.sum(axis=1)
    more = together > whole  # bytes that do not divide evenly: all transfers start a little later
    longer = float(((together + 2) / whole)[more].max(initial=1.0))
    start = np.ceil(schedule.start_ps * longer).astype(np.int64)[:, None] + np.cumsum(busy, axis=1) - busy
    placed = replace(pieces, start_ps=start.reshape(-1))
    return left_shift(placed) if fits(placed) else None


def chunk_by_chunk(schedule: Schedule, demand: Demand) -> Schedule | None:
    """Return the schedule with every chunk in several smaller ones on the same route, all from the chunk's start.

    It is no valid schedule, but says what each transfer waits for. None where messages make this impossible.
    """
    times, count = len(demand) // len(schedule.demand), len(schedule)
    if schedule.has_messages or not _is_subdivision(demand, schedule.demand, times):
        return None
    return Schedule(
        schedule.topology,
        demand,
        schedule.routes,
        np.repeat(schedule.chunk, times) * times + np.tile(np.arange(times, dtype=np.int32), count),
        np.repeat(schedule.route, times),
        np.repeat(schedule.start_ps, times),
        np.repeat(schedule.reduce, times),
        schedule.method,
    )


def _is_subdivision(fine: Demand, coarse: Demand, times: int) -> bool:
    """Whether each chunk of the coarse demand is `times` consecutive chunks of the fine one."""
    of = np.repeat(np.arange(len(coarse), dtype=np.int32), times)
    return len(fine) == len(of) and all(
        np.array_equal(np.diff(pointer), np.diff(other)[of]) and np.array_equal(rank, other_rank[spread(other, of)[1]])
        for pointer, rank, other, other_rank in (
            (fine.source_ptr, fine.source_rank, coarse.source_ptr, coarse.source_rank),
            (fine.destination_ptr, fine.destination_rank, coarse.destination_ptr, coarse.destination_rank),
        )
    )


def _longest_busy_times(schedule: Schedule) -> NDArray[np.int64]:
    """The longest time that each transfer occupies a link."""
    timing = schedule.timing
    busy = np.zeros(len(schedule), dtype=np.int64)
    np.maximum.at(busy, timing.hop_transfer, timing.hop_to_ps - timing.hop_from_ps)
    return busy


def reverse(schedule: Schedule, demand: Demand, *, reduce: bool) -> Schedule:
    """Return the schedule run backwards on the reversed machine.

    `demand` is the reversed demand (for example reduce_scatter for an allgather), with the same chunks in the same
    order; `reduce` says whether destinations reduce what arrives. The finish is the same, unless links change or a
    limit has links of different latencies: then the transfers are generated serially in the reversed order.
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
    if reduce:  # a relay that cannot reduce, such as a memory, stores the data
        ends = ~schedule.topology.reversed.reduces[back.timing.end_node]
        back = replace(back, reduce=np.bincount(back.timing.end_transfer, ends, len(schedule)) == 0)
    if not len(schedule):
        return back
    if schedule.topology.changes:
        return generate_serial(back, sequence(schedule)[::-1])
    start = _reversed_starts(schedule.timing, back.timing, schedule.leader, schedule.topology.link_latency_ps)
    turned = replace(back, start_ps=start - min(start.min(), 0))
    return turned if not schedule.topology.limits or fits(turned) else within_limits(turned)


def as_distribution(schedule: Schedule) -> Schedule | None:
    """The distribution on the reversed machine that a reduction with one destination is, run backwards.

    Methods for distributions that continue what others found look for it there. None where links are shared by rate,
    which these methods do not do.
    """
    if (
        not (schedule.demand.reduces and schedule.demand.is_unicast)
        or schedule.rate_GBps.any()
        or schedule.has_messages
    ):
        return None
    return reverse(schedule, schedule.demand.backward, reduce=False)


def _reversed_starts(
    forward: Timing, back: Timing, leader: NDArray[np.int64], latency_ps: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Starts with which every hop of `back`, which starts at 0, occupies its link at the reversed time."""
    whole = forward.hop_to_ps + latency_ps[forward.hop_link]
    last = np.searchsorted(forward.hop_transfer, leader, side="right") - 1
    first = np.searchsorted(back.hop_transfer, leader, side="left")
    return np.asarray(whole.max() - whole[last] - back.hop_from_ps[first])


def concatenate(first: Schedule, second: Schedule, demand: Demand) -> Schedule:
    """Return the two schedules in sequence, chunk by chunk: chunk i continues in the second where the first ends.

    Both must be for the same machine and have the chunk sizes of `demand`. The second starts as early as its data and
    links allow, not when all of the first has finished.
    """
    if first.topology != second.topology:
        raise ScheduleError(f"concatenate: {first.topology.name} and {second.topology.name} are different machines")
    for part in (first, second):
        if len(part.demand) != len(demand) or np.any(part.demand.chunk_bytes != demand.chunk_bytes):
            raise ScheduleError("concatenate: both schedules must have the chunks of the demand, in the same order")
    first = replace(first, chunk=continuing(first, second, demand)[first.chunk].astype(np.int32))
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
    if both.topology.changes:  # links have other bandwidths later, so that durations change
        return generate_serial(both, np.concatenate((sequence(first), sequence(second) + len(first))))
    return left_shift(both)
