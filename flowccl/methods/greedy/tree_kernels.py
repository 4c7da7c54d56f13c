"""The transfer in hand: the links of a path, and branches at copying switches that serve others on the way."""

from typing import NamedTuple

import numpy as np

from flowccl.compiled import F64, I32, I64, inlined, inner, maker
from flowccl.methods.greedy.link_kernels import Hops, Shares, changes, count_own, limit_wait
from flowccl.methods.greedy.problem import Knobs, Net, Work
from flowccl.methods.greedy.score_kernels import come_nearer, score


class Tree(NamedTuple):
    """One transfer: its links in order, and the nodes it ends at."""

    hops: I64  # one number
    link: I32
    mark: I64  # of each link: the number of the last transfer that it was in
    begin: I64  # of each link
    until: I64
    GBps: F64
    ends: I64  # one number
    end: I32
    end_at: I64


@maker
def new_tree(nodes: int, links: int, longest: int) -> Tree:
    """Space for any transfer."""
    return Tree(
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
def take_path(net: Net, tree: Tree, hops: Hops, path: int, number: int) -> None:
    """Begin a transfer, the one with this number, with the links of a path."""
    tree.hops[0], tree.ends[0] = 0, 0
    for h in range(net.hop_ptr[path], net.hop_ptr[path + 1]):
        i = h - net.hop_ptr[path]
        _take_link(tree, net.hop_link[h], number, hops.begin[i], hops.until[i], hops.GBps[i])


@inlined
def _take_link(tree: Tree, link: int, number: int, begin: int, until: int, rate: float) -> None:
    tree.mark[link] = number
    tree.begin[link], tree.until[link], tree.GBps[link] = begin, until, rate
    tree.link[tree.hops[0]] = link
    tree.hops[0] += 1


@inlined
def reach(tree: Tree, node: int, at: int) -> None:
    """The transfer ends at this node too."""
    tree.end[tree.ends[0]], tree.end_at[tree.ends[0]] = node, at
    tree.ends[0] += 1


@inner
def can_fork(net: Net, path: int) -> bool:
    """Whether a path goes through a node that copies."""
    forks = False
    for h in range(net.hop_ptr[path] + 1, net.hop_ptr[path + 1]):
        forks = forks or net.copies[net.link_src[net.hop_link[h]]]
    return forks


@inner
def fork(
    net: Net,
    work: Work,
    knobs: Knobs,
    left: F64,
    free_at: I64,
    shares: Shares,
    tree: Tree,
    hops: Hops,
    pair: int,
    chunk: int,
    number: int,
) -> None:
    """Let copying switches on the way of a pair serve all neighbours of its source that the chunk helps."""
    src = net.pair_src[pair]
    come_nearer(net, work, left, chunk, net.pair_end[pair], True)
    for other in range(net.node_ptr[src], net.node_ptr[src + 1]):
        end = net.pair_end[other]
        if other == pair or net.buffer[end] >= 0 or score(net, work, knobs, left, other, chunk) <= 0:
            continue
        for path in range(net.path_ptr[other], net.path_ptr[other + 1]):
            at = _branch(net, free_at, shares, tree, hops, path, work.chunk_bytes[chunk], number)
            if at >= 0:
                reach(tree, end, at)
                come_nearer(net, work, left, chunk, end, False)
                break


@inlined
def _branch(net: Net, free_at: I64, shares: Shares, tree: Tree, hops: Hops, path: int, size: int, number: int) -> int:
    """Add what a path has beyond the tree, if all of it is free; returns the arrival at its end, or -1."""
    first = net.hop_ptr[path]
    leaves = _leaves_at(net, tree, path, number)
    if leaves <= first:
        return -1
    before, switch = net.hop_link[leaves - 1], net.link_src[net.hop_link[leaves]]
    if not net.copies[switch] or not net.cuts_through[switch]:
        return -1
    at, hold = tree.begin[before] + net.link_latency[before], tree.until[before] - tree.begin[before]
    for h in range(leaves, net.hop_ptr[path + 1]):
        link = net.hop_link[h]
        same = net.hop_segment[h] == net.hop_segment[leaves - 1]
        slow = np.int64(np.ceil(size * 1000.0 / net.link_GBps[link])) > hold
        if changes(net, link) or slow or not same or free_at[link] > at or tree.mark[link] == number:
            return -1
        if len(shares.own) > 0 and limit_wait(net, shares, link, at, at + hold, tree.GBps[before]):
            return -1
        hops.begin[h - first] = at
        at += net.link_latency[link]
    for h in range(leaves, net.hop_ptr[path + 1]):
        begin = hops.begin[h - first]
        _take_link(tree, net.hop_link[h], number, begin, begin + hold, tree.GBps[before])
        count_own(net, shares, net.hop_link[h])
    return int(at + hold)


@inlined
def _leaves_at(net: Net, tree: Tree, path: int, number: int) -> int:
    """The first hop of a path that is not in the tree, or -1."""
    for h in range(net.hop_ptr[path], net.hop_ptr[path + 1]):
        if tree.mark[net.hop_link[h]] != number:
            return int(h)
    return -1
