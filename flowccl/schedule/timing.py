"""Timing of transfers: from start times to the times when links are busy and transfers arrive."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.schedule.clock import MessageTimes
from flowccl.topology.routes import RouteShape
from flowccl.topology.topology import Topology
from flowccl.units import busy_ps, busy_times_ps


@dataclass(frozen=True, eq=False)
class Timing:
    """Times of all transfers, one row per hop (a transfer on a link), per root and per end.

    A hop occupies its link from `hop_from_ps` until `hop_to_ps`, at `hop_GBps`. The hops of a message are those of its
    first transfer, while every transfer has its own roots and ends. A root sends from `root_from_ps` until
    `root_to_ps`. The first byte reaches an end at `end_first_ps`, and the last one at `end_whole_ps`. If the end takes
    time to reduce the chunk, it is done at `end_arrival_ps`; the first transfer of a message stands for the whole
    message there.
    """

    hop_transfer: NDArray[np.int64]
    hop_link: NDArray[np.int32]
    hop_from_ps: NDArray[np.int64]
    hop_to_ps: NDArray[np.int64]
    hop_GBps: NDArray[np.float64]
    root_transfer: NDArray[np.int64]
    root_node: NDArray[np.int32]
    root_from_ps: NDArray[np.int64]
    root_to_ps: NDArray[np.int64]
    end_transfer: NDArray[np.int64]
    end_node: NDArray[np.int32]
    end_first_ps: NDArray[np.int64]
    end_whole_ps: NDArray[np.int64]
    end_arrival_ps: NDArray[np.int64]

    def shared_links(self, topology: Topology) -> NDArray[np.bool_]:
        """The links that some transfer crosses at less than their bandwidth: they may carry several transfers at once.

        Links with an overhead per message and links that change their bandwidth carry one transfer at a time. Links
        that do not exist are ignored.
        """
        shared = np.zeros(len(topology.links), dtype=np.bool_)
        if not topology.changes:
            known = np.flatnonzero(self.hop_link < len(topology.links))
            slower = self.hop_GBps[known] < topology.link_GBps[self.hop_link[known]] * (1 - 1e-9)
            shared[self.hop_link[known[slower]]] = True
            shared &= topology.link_overhead_ps == 0
        return shared

    @property
    def reducing(self) -> NDArray[np.int64]:
        """The ends that take time to reduce, from `end_whole_ps` to `end_arrival_ps`."""
        return np.flatnonzero(self.end_arrival_ps > self.end_whole_ps)


def replay(
    topology: Topology,
    shape: RouteShape,
    size_bytes: NDArray[np.int64],
    route: NDArray[np.int32],
    start_ps: NDArray[np.int64],
    leader: NDArray[np.int64] | None = None,
    adds: NDArray[np.bool_] | None = None,
    costs: MessageTimes | None = None,
    rate_GBps: NDArray[np.float64] | None = None,
) -> Timing:
    """Return the timing of transfers of `size_bytes` on `route` from `start_ps`; `adds` marks those that reduce.

    `leader` is the first transfer of each transfer's message, and `size_bytes` then is the size of the message; None if
    there are no messages. `costs` are those of a runtime, which know the rates that the schedule chose; without a
    runtime, `rate_GBps` are these rates, 0 where it chose none.
    """
    if costs is not None:
        rate_GBps = costs.rate_GBps
    elif rate_GBps is not None:
        rate_GBps = np.where(rate_GBps > 0, rate_GBps, np.inf)
    hop_transfer, hop = spread(shape.routes.ptr, route)
    hop_ptr = pointers(np.diff(shape.routes.ptr)[route])
    link = shape.routes.link[hop]
    first_segment, row, segment_GBps, duration, delay = _segments(topology, shape, size_bytes, route, rate_GBps)

    leave_ps = start_ps if costs is None else start_ps + costs.lead_ps
    begin = leave_ps[hop_transfer] + shape.hop_offset_ps[hop] + delay[row]
    GBps = segment_GBps[row] * shape.hop_weight[hop]
    if topology.has_overheads:
        GBps = size_bytes[hop_transfer] * 1000.0 / duration[row]
    if topology.changes:
        begin, duration, GBps = _with_changes(topology, shape, size_bytes, route, leave_ps, hop_ptr, first_segment)
    until = begin + duration[row]
    root_transfer, root, root_row = _rows_of(shape.root_ptr, shape.root_hop, shape, route, hop_ptr)
    end_transfer, end, end_row = _rows_of(shape.end_ptr, shape.end_hop, shape, route, hop_ptr)
    latency = topology.link_latency_ps[link[end_row]]
    kept = slice(None) if leader is None else np.flatnonzero(leader[hop_transfer] == hop_transfer)
    end_node = shape.end_node[end]
    whole = until[end_row] + latency
    if costs is None:
        whole, arrival = _reduced(topology, size_bytes, whole, end_transfer, end_node, leader, adds)
    else:
        whole, arrival = _worked(costs, whole, end_transfer)
    return Timing(
        hop_transfer[kept],
        link[kept],
        begin[kept],
        until[kept],
        GBps[kept],
        root_transfer,
        shape.root_node[root],
        begin[root_row] if costs is None else start_ps[root_transfer],
        until[root_row],
        end_transfer,
        end_node,
        begin[end_row] + latency,
        whole,
        arrival,
    )


def _rows_of(
    ptr: NDArray[np.int64],
    hop: NDArray[np.int64],
    shape: RouteShape,
    route: NDArray[np.int32],
    hop_ptr: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The roots or the ends of all transfers: their transfer, their number, and the row of their hop."""
    transfer, member = spread(ptr, route)
    return transfer, member, hop[member] - shape.routes.ptr[route[transfer]] + hop_ptr[transfer]


def _segments(
    topology: Topology,
    shape: RouteShape,
    size_bytes: NDArray[np.int64],
    route: NDArray[np.int32],
    rate_GBps: NDArray[np.float64] | None,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """The segments of all transfers, one row each: the first row of each transfer, and the row of each hop.

    Then, for each row, the rate, how long its links are busy, and the time from the start of its transfer to its own,
    without latency.
    """
    hop_transfer, hop = spread(shape.routes.ptr, route)
    segment_ptr = pointers(np.bincount(shape.segment_route, minlength=len(shape.routes)))
    transfer, segment = spread(segment_ptr, route)
    first = pointers(np.diff(segment_ptr)[route])
    row = shape.hop_segment[hop] - segment_ptr[route[hop_transfer]] + first[hop_transfer]
    GBps = shape.segment_GBps[segment]
    if rate_GBps is not None:
        GBps = np.minimum(GBps, rate_GBps[transfer])
    duration = busy_times_ps(size_bytes[transfer], GBps)
    if topology.has_overheads:
        link = shape.routes.link[hop]
        own = topology.link_overhead_ps[link] + busy_times_ps(size_bytes[hop_transfer], topology.link_GBps[link])
        np.maximum.at(duration, row, own)
    delay = np.zeros(len(segment), dtype=np.int64)
    parent = shape.segment_parent[segment]
    has = np.flatnonzero(parent >= 0)
    above = parent[has] - segment_ptr[route[transfer[has]]] + first[transfer[has]]
    for below, up in zip(has.tolist(), above.tolist(), strict=True):  # parents come first in a route
        delay[below] = delay[up] + duration[up]
    return first, row, GBps, duration, delay


def _worked(
    costs: MessageTimes, whole: NDArray[np.int64], end_transfer: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When transfers are whole at their ends, and when the work on them is done, with the costs of a runtime."""
    whole = whole + costs.signal_ps[end_transfer]
    work = costs.work_ps[end_transfer]
    return whole, np.where(work > 0, np.maximum(whole, costs.work_from_ps[end_transfer]) + work, whole)


def _reduced(
    topology: Topology,
    size_bytes: NDArray[np.int64],
    whole: NDArray[np.int64],
    end_transfer: NDArray[np.int64],
    end_node: NDArray[np.int32],
    leader: NDArray[np.int64] | None,
    adds: NDArray[np.bool_] | None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When transfers are whole at their ends, and when they are reduced there, at the rates of the nodes."""
    if adds is None or not topology.has_reduce_rate:
        return whole, whole
    busy = np.flatnonzero(adds[end_transfer] & np.isfinite(topology.reduce_GBps[end_node]))
    arrival = whole.copy()
    arrival[busy] += busy_times_ps(size_bytes[end_transfer[busy]], topology.reduce_GBps[end_node[busy]])
    if leader is not None:
        whole = np.where(leader[end_transfer] == end_transfer, whole, arrival)
    return whole, arrival


def spread(ptr: NDArray[np.int64], which: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, for all members of the listed groups `ptr[g]:ptr[g + 1]`, the position in the list and the member."""
    size = np.diff(ptr)[which]
    owner = np.repeat(np.arange(len(which), dtype=np.int64), size)
    inside = np.arange(len(owner), dtype=np.int64) - np.repeat(np.cumsum(size) - size, size)
    return owner, ptr[:-1][which][owner] + inside


def _with_changes(
    topology: Topology,
    shape: RouteShape,
    size_bytes: NDArray[np.int64],
    route: NDArray[np.int32],
    start_ps: NDArray[np.int64],
    hop_ptr: NDArray[np.int64],
    first_segment: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Starts of hops, durations of segments and rates of hops on machines whose links change their bandwidth."""
    begin = np.zeros(hop_ptr[-1], dtype=np.int64)
    rate = np.zeros(hop_ptr[-1], dtype=np.float64)
    duration = np.zeros(first_segment[-1], dtype=np.int64)
    segment_ptr = np.searchsorted(shape.segment_route, np.arange(len(shape.routes) + 1))
    for i, r in enumerate(route.tolist()):
        delay: dict[int, int] = {}
        base = int(segment_ptr[r])
        for s in range(base, int(segment_ptr[r + 1])):
            above = int(shape.segment_parent[s])
            delay[s] = delay[above] + int(duration[first_segment[i] + above - base]) if above >= 0 else 0
            hops = [
                h for h in range(int(shape.routes.ptr[r]), int(shape.routes.ptr[r + 1])) if shape.hop_segment[h] == s
            ]
            starts = [int(start_ps[i]) + int(shape.hop_offset_ps[h]) + delay[s] for h in hops]
            links = [int(shape.routes.link[h]) for h in hops]
            limit = shape.segment_GBps[s] if topology.limits else np.inf
            share = _limit_share(topology, links, limit)
            busy, slowest = _longest_busy(topology, links, starts, int(size_bytes[i]), share)
            duration[first_segment[i] + s - base] = busy
            rows = hop_ptr[i] + np.array(hops) - shape.routes.ptr[r]
            begin[rows], rate[rows] = starts, slowest if not topology.has_overheads else size_bytes[i] * 1000.0 / busy
    return begin, duration, rate


def _limit_share(topology: Topology, links: list[int], otherwise: float) -> float:
    """The rate that the limits allow one transfer on these links."""
    if not topology.limits:
        return otherwise
    uses = [len(set(limit.links) & set(links)) for limit in topology.limits]
    return min([limit.bandwidth_GBps / n for limit, n in zip(topology.limits, uses, strict=True) if n] or [np.inf])


def _longest_busy(
    topology: Topology, links: list[int], starts: list[int], size_bytes: int, rate: float
) -> tuple[int, float]:
    """How long a transfer occupies the links, and its rate: the slowest bandwidth during that time.

    A slower rate makes the time longer, which may include a still slower bandwidth, so this iterates to a fixed point.
    `rate` is the rate that limits allow.
    """
    pointer, since, GBps = topology.link_changes
    busy = busy_ps(size_bytes, rate) if np.isfinite(rate) else 1
    while True:
        longest = busy
        for link, start in zip(links, starts, strict=True):
            rows = slice(int(pointer[link]), int(pointer[link + 1]))
            now = max(int(np.searchsorted(since[rows], start, side="right")) - 1, 0)  # before time zero, as at zero
            last = max(int(np.searchsorted(since[rows], start + busy, side="left")), now + 1)
            slowest = float(GBps[rows][now:last].min())
            rate = min(rate, slowest)
            longest = max(longest, int(topology.link_overhead_ps[link]) + busy_ps(size_bytes, slowest))
        if longest <= busy:
            return busy, rate
        busy = longest
