"""The current transfer: the links of a route, and branches at copying switches that serve other nodes."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I32, I64, inlined, inner, maker
from flowccl.methods.greedy.inputs import GreedyDemand, GreedyNetwork, GreedyParams
from flowccl.methods.greedy.link_kernels import Hops, changes
from flowccl.methods.greedy.score_kernels import lower_remaining, score


class OpenTransfer(NamedTuple):
    """One transfer: its links in order, and its end nodes."""

    hops: I64  # one number
    link: I32
    mark: I64  # of each link: the number of the last transfer that used it
    begin: I64  # of each link
    until: I64
    GBps: F64
    ends: I64  # one number
    end: I32
    end_at: I64


@maker
def new_transfer(nodes: int, links: int, longest: int) -> OpenTransfer:
    """Space for the largest possible transfer."""
    return OpenTransfer(
        np.zeros(1, dtype=np.int64),
        np.empty(links + longest, dtype=np.int32),
        np.full(links, -1, dtype=np.int64),
        np.zeros(links, dtype=np.int64),
        np.zeros(links, dtype=np.int64),
        np.zeros(links),
        np.zeros(1, dtype=np.int64),
        np.empty(nodes, dtype=np.int32),
        np.empty(nodes, dtype=np.int64),
    )


@inner
def take_route(net: GreedyNetwork, transfer: OpenTransfer, hops: Hops, route: int, number: int) -> None:
    """Start the transfer with this number, with the links of a route."""
    transfer.hops[0], transfer.ends[0] = 0, 0
    for h in range(net.hop_ptr[route], net.hop_ptr[route + 1]):
        i = h - net.hop_ptr[route]
        _take_link(transfer, net.hop_link[h], number, hops.begin[i], hops.until[i], hops.GBps[i])


@inlined
def _take_link(transfer: OpenTransfer, link: int, number: int, begin: int, until: int, rate: float) -> None:
    transfer.mark[link] = number
    transfer.begin[link], transfer.until[link], transfer.GBps[link] = begin, until, rate
    transfer.link[transfer.hops[0]] = link
    transfer.hops[0] += 1


@inlined
def reach(transfer: OpenTransfer, node: int, at: int) -> None:
    """Add an end node to the transfer."""
    transfer.end[transfer.ends[0]], transfer.end_at[transfer.ends[0]] = node, at
    transfer.ends[0] += 1


@inner
def can_fork(net: GreedyNetwork, route: int) -> bool:
    """Whether a route passes a node that copies."""
    forks = False
    for h in range(net.hop_ptr[route] + 1, net.hop_ptr[route + 1]):
        forks = forks or net.copies[net.link_src[net.hop_link[h]]]
    return forks


@inner
def fork(
    net: GreedyNetwork,
    demand: GreedyDemand,
    params: GreedyParams,
    remaining: F64,
    free_at: I64,
    transfer: OpenTransfer,
    hops: Hops,
    pair: int,
    chunk: int,
    number: int,
) -> None:
    """Add branches at copying switches to all neighbours of the source for which the chunk has a positive score."""
    src = net.pair_src[pair]
    lower_remaining(net, demand, remaining, chunk, net.pair_end[pair], True)
    for other in range(net.node_ptr[src], net.node_ptr[src + 1]):
        end = net.pair_end[other]
        if other == pair or net.buffer[end] >= 0 or score(net, demand, params, remaining, other, chunk) <= 0:
            continue
        for route in range(net.route_ptr[other], net.route_ptr[other + 1]):
            at = _branch(net, free_at, transfer, hops, route, demand.chunk_bytes[chunk], number)
            if at >= 0:
                reach(transfer, end, at)
                lower_remaining(net, demand, remaining, chunk, end, False)
                break


@inlined
def _branch(
    net: GreedyNetwork,
    free_at: I64,
    transfer: OpenTransfer,
    hops: Hops,
    route: int,
    size: int,
    number: int,
) -> int:
    """Add the links of a route that the transfer lacks, if all are free; return the arrival at its end, or -1."""
    first = net.hop_ptr[route]
    leaves = _leaves_at(net, transfer, route, number)
    if leaves <= first:
        return -1
    before, switch = net.hop_link[leaves - 1], net.link_src[net.hop_link[leaves]]
    if not net.copies[switch] or not net.cuts_through[switch]:
        return -1
    at, busy = transfer.begin[before] + net.link_latency[before], transfer.until[before] - transfer.begin[before]
    for h in range(leaves, net.hop_ptr[route + 1]):
        link = net.hop_link[h]
        same = net.hop_segment[h] == net.hop_segment[leaves - 1]
        slow = np.int64(np.ceil(size * 1000.0 / net.link_GBps[link])) > busy
        if changes(net, link) or slow or not same or free_at[link] > at or transfer.mark[link] == number:
            return -1
        hops.begin[h - first] = at
        at += net.link_latency[link]
    for h in range(leaves, net.hop_ptr[route + 1]):
        begin = hops.begin[h - first]
        _take_link(transfer, net.hop_link[h], number, begin, begin + busy, transfer.GBps[before])
    return int(at + busy)


@inlined
def _leaves_at(net: GreedyNetwork, transfer: OpenTransfer, route: int, number: int) -> int:
    """The first hop of a route that is not in the transfer, or -1."""
    for h in range(net.hop_ptr[route], net.hop_ptr[route + 1]):
        if transfer.mark[net.hop_link[h]] != number:
            return int(h)
    return -1
