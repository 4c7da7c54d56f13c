"""What messages cost on a runtime, where the cost occurs: in threadblocks, in the proxy of the NIC, at the receiver.

A message inside a host occupies a group of threadblocks of its sender for its overhead and its bytes. A message over a
NIC occupies the proxy thread of its sender for the overhead only. Its signal delays the receiver, where one or several
groups then reduce the data, read the packets, or copy chunks that are not adjacent to their places. What they begin to
reduce into the same chunks at the same time is one operation: it reads all sources and writes once.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flowccl.runtimes.costs import LocalCost
from flowccl.runtimes.execution import Execution
from flowccl.schedule.transfers import Transfers
from flowccl.topology.routes import RouteShape
from flowccl.topology.topology import Topology
from flowccl.units import busy_times_ps, us_to_ps

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MessageTimes:
    """Costs of the message of each transfer.

    A group of the sender first packs the chunks for `pack_ps`. The issuer (a group, or the proxy where `is_proxied`) is
    then busy for `overhead_ps`, and a group also while the bytes flow, at most at `rate_GBps`. `wire_bytes` is what
    crosses the links. The data is at the receiver `signal_ps` after the last byte. The receiver works on it for
    `work_ps`, not before `work_from_ps`, and it is usable after that. Where it is reduced together with others,
    `work_ps` is the time of all of them; each one after the first makes that longer by `further_ps`.
    """

    is_proxied: NDArray[np.bool_]
    pack_ps: I64
    overhead_ps: I64
    wire_bytes: I64
    rate_GBps: F64
    signal_ps: I64
    work_ps: I64
    further_ps: I64
    work_from_ps: I64

    @property
    def lead_ps(self) -> I64:
        """Time from the start of the message until its first byte leaves."""
        return self.pack_ps + self.overhead_ps


@dataclass(frozen=True, eq=False)
class RouteCosts:
    """Costs of a message on each route, before its bytes are known."""

    is_proxied: NDArray[np.bool_]
    overhead_ps: I64
    signal_ps: I64


def route_costs(topology: Topology, shape: RouteShape, execution: Execution) -> RouteCosts:
    """Return the costs of each route: those of a NIC where it crosses one, else those of its first link."""
    kinds, profile = np.array(topology.link_kinds), execution.profile
    count = len(shape.routes)
    hop_route = np.repeat(np.arange(count), np.diff(shape.routes.ptr))
    crosses = np.zeros(count, dtype=np.bool_)
    crosses[hop_route[kinds[shape.routes.link] == "nic"]] = True
    first = kinds[shape.routes.link[shape.routes.ptr[:-1]]] if count else kinds[:0]
    kind = np.where(crosses, "nic", first)
    overhead, signal = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    proxied = np.zeros(count, dtype=np.bool_)
    for name in ("nvlink", "pcie", "nic"):
        cost, rows = profile.costs.of(name), kind == name
        overhead[rows], proxied[rows] = cost.overhead_ps, cost.proxy
        signal[rows] = 0 if execution.packets and not cost.proxy else cost.signal_ps
    by_model = dict(profile.proxy_us)
    if by_model and proxied.any():
        models = [by_model.get(node.model, -1.0) for node in topology.nodes]
        known = np.array([us_to_ps(us) if us >= 0 else -1 for us in models], dtype=np.int64)
        own = known[topology.link_src[shape.routes.link[shape.routes.ptr[:-1]]]]
        overhead = np.where(proxied & (own >= 0), own, overhead)
    return RouteCosts(proxied, overhead, signal)


def message_times(schedule: Transfers, execution: Execution) -> MessageTimes:
    """Return what the message of each transfer costs."""
    costs = route_costs(schedule.topology, schedule.shape, execution)
    route, size, local = schedule.route, schedule.sent_bytes, execution.profile.costs.operation
    proxied = costs.is_proxied[route]
    packets = ~proxied & execution.packets
    put, packet = local("put").GBps or np.inf, local("put packets").GBps or np.inf
    own_GBps = np.where(packets, 2 * packet, put) * execution.width
    asked = np.where(schedule.rate_GBps > 0, schedule.rate_GBps, np.inf)
    asked = np.minimum(asked, _joint_GBps(schedule)[route])
    work, further = np.zeros((2, len(schedule)), dtype=np.int64)
    reduces = schedule.reduce & ~_in_network(schedule)
    for cost, rows in ((local("reduce"), reduces & ~packets), (local("read packets"), packets)):
        work[rows] = _time_ps(cost, size[rows], execution.slots)
        further[rows & reduces] = _further_ps(cost, size[rows & reduces], execution.slots)
    times = MessageTimes(
        proxied,
        np.zeros(len(schedule), dtype=np.int64),
        costs.overhead_ps[route],
        np.where(packets, 2 * size, size),
        np.minimum(np.where(proxied, np.inf, own_GBps), asked),
        costs.signal_ps[route],
        _work_together(schedule, work, further),
        further,
        schedule.work_from_ps,
    )
    several = proxied & (schedule.leader != np.arange(len(schedule)))
    return _with_copies(schedule, execution, times) if several.any() else times


def _with_copies(schedule: Transfers, execution: Execution, times: MessageTimes) -> MessageTimes:
    """Return the costs with the copies of chunks that are not adjacent, in messages over a NIC."""
    from flowccl.schedule.messages import messages_of
    from flowccl.schedule.placement import copied_bytes, places_of

    messages = messages_of(schedule, times.is_proxied)
    packed, unpacked = copied_bytes(schedule, messages, places_of(schedule, messages))
    copy = execution.profile.costs.operation("copy")
    return replace(
        times,
        pack_ps=_time_ps(copy, packed, execution.width),
        work_ps=times.work_ps + _time_ps(copy, unpacked, execution.slots),
    )


def _time_ps(cost: LocalCost, size_bytes: I64, width: int) -> I64:
    """The time of an operation of a group on some bytes; none for no bytes."""
    rate = np.full(len(size_bytes), (cost.GBps or np.inf) * width)
    return np.where(size_bytes > 0, us_to_ps(cost.overhead_us) + busy_times_ps(size_bytes, rate), 0)


def _further_ps(cost: LocalCost, size_bytes: I64, width: int) -> I64:
    """The time by which further sources of some bytes make an operation of a group longer."""
    return busy_times_ps(size_bytes, np.full(len(size_bytes), (cost.GBps or np.inf) * width / cost.further))


def reduced_together(schedule: Transfers) -> I64:
    """For each transfer, the first one of the first message that its receiver reduces in the same operation.

    Those are messages of the same chunks that the same group begins to reduce at the same time.
    """
    leader = schedule.leader
    known = np.flatnonzero(schedule.reduce & (schedule.receiver >= 0) & (schedule.work_from_ps >= 0))
    if not len(known):
        return leader
    node = schedule.shape.end_node[schedule.shape.end_ptr[:-1]][schedule.route[known]]
    columns = schedule.chunk[known], node, schedule.receiver[known], schedule.work_from_ps[known]
    order = np.lexsort((known, *columns))
    begins = np.append(True, np.any([column[order][1:] != column[order][:-1] for column in columns], axis=0))
    first = leader.copy()
    first[known[order]] = leader[known[order[begins]]][np.cumsum(begins) - 1]
    if not schedule.has_messages:
        return first
    least, most = first.copy(), first.copy()  # of a message: all of its chunks must be those of the first one
    np.minimum.at(least, leader, first)
    np.maximum.at(most, leader, first)
    chunks = np.bincount(leader, minlength=len(schedule))
    is_same = (least == most) & (chunks[least] == chunks)
    return np.asarray(np.where(is_same[leader], least[leader], leader))


def _work_together(schedule: Transfers, work: I64, further: I64) -> I64:
    """The time of what a receiver does with each message, together with all that it reduces at once."""
    first = reduced_together(schedule)
    more = np.flatnonzero((schedule.leader == np.arange(len(schedule))) & (first != schedule.leader))
    if not len(more):
        return work
    total = work.copy()
    np.add.at(total, first[more], further[more])
    return np.asarray(total[first])


def _joint_GBps(schedule: Transfers) -> F64:
    """For each route, the rate of an operation in which a switch reduces and copies: all its GPUs issue some at once.

    Each of n GPUs then moves the bytes of all of them once, and its own once more.
    """
    shape = schedule.shape
    roots = np.diff(shape.root_ptr)
    rate = np.full(len(shape.routes), np.inf)
    for route in np.flatnonzero((roots > 1) & (np.diff(shape.end_ptr) > 1)).tolist():
        links = shape.routes.link[shape.routes.ptr[route] : shape.routes.ptr[route + 1]]
        rate[route] = schedule.topology.link_GBps[links].min() / (int(roots[route]) + 1)
    return rate


def _in_network(schedule: Transfers) -> NDArray[np.bool_]:
    """Transfers that a switch reduces: they have several roots."""
    several: NDArray[np.bool_] = np.diff(schedule.shape.root_ptr)[schedule.route] > 1
    return several
