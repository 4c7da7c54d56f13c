"""Baselines for clusters: multi-rail rings and double binary trees, as communication libraries use them.

Both work on any machine. Hosts are those of the machine; a machine without hosts is one host.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.methods.baselines import QuickestPaths, lay_out, once, ring_order
from flowccl.schedule.schedule import Schedule
from flowccl.topology.neighbours import Neighbours, neighbours
from flowccl.topology.topology import Topology

Hop = tuple[int, int, int]  # step, from rank, to rank


@once
def multi_ring(topology: Topology, demand: Demand) -> Schedule:
    """Chunks travel around as many rings as there are rails, half of them in each direction.

    A ring enters a host on one rail and leaves it on the next one, so that every NIC carries one ring out and one ring
    in. Inside one host, rings avoid the links of the rings before them.
    """
    near = neighbours(topology, 1)
    hosts = hosts_of(topology, demand.num_gpus)
    rings = _rail_rings(near, hosts) if len(hosts) > 1 else _separate_rings(near, demand)

    def hops(source: int, variant: int) -> Iterator[Hop]:
        order = rings[variant % len(rings)]
        order = order if variant < len(rings) else order[::-1]
        for step, (a, b) in enumerate(pairwise(_rotated(order, order.index(source)))):
            yield step, a, b

    return lay_out(topology, demand, _sends(demand, 2 * len(rings), hops), "multi-ring")


@once
def double_binary_tree(topology: Topology, demand: Demand) -> Schedule:
    """Every chunk goes down one of two binary trees of hosts, and along a chain in each host (Sanders et al. 2009).

    The inner nodes of one tree are leaves of the other, so every NIC sends and receives about the same. A chunk stays
    on the rail of its source.
    """
    hosts = hosts_of(topology, demand.num_gpus)
    if len(hosts) == 1:
        hosts = [[rank] for rank in hosts[0]]
    host_of = {rank: number for number, host in enumerate(hosts) for rank in host}

    def hops(source: int, variant: int) -> Iterator[Hop]:
        first = host_of[source]
        rail = hosts[first].index(source)
        chains = [_rotated(hosts[(first + i) % len(hosts)], rail) for i in range(len(hosts))]
        depth = [0] * len(chains)
        for parent, child in two_trees(len(chains))[variant]:
            depth[child] = depth[parent] + 1
            yield depth[parent], chains[parent][0], chains[child][0]
        for level, chain in zip(depth, chains, strict=True):
            for place, (a, b) in enumerate(pairwise(chain)):
                yield level + place, a, b

    return lay_out(topology, demand, _sends(demand, 2, hops), "double-binary-tree")


def hosts_of(topology: Topology, ranks: int) -> list[list[int]]:
    """The first `ranks` GPUs by host; one group where a GPU has no host."""
    groups: dict[str, list[int]] = {}
    for rank, node in enumerate(topology.nodes[:ranks]):
        groups.setdefault(node.host, []).append(rank)
    return [list(range(ranks))] if "" in groups else list(groups.values())


def two_trees(count: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Two trees over 0 to count - 1 with root 0, each as (parent, child) from the root down.

    Below the root are the nodes 1 to count - 1 in a binary tree in symmetric order, and the same tree with every node
    shifted by one, so that inner nodes (even places) become leaves (odd places).
    """
    size = count - 1
    first = [(0, 1 + place) if above is None else (1 + above, 1 + place) for above, place in _symmetric_order(0, size)]
    second = [(a if a == 0 else a % size + 1, b % size + 1) for a, b in first] if size else []
    return first, second


def _symmetric_order(low: int, high: int, above: int | None = None) -> Iterator[tuple[int | None, int]]:
    """The binary tree over low to high - 1 whose leaves are the even places, as (parent or None, node) downwards."""
    size = high - low
    if size <= 0:
        return
    half = 1 << max(size.bit_length() - 1, 0)
    root = low + half - 1  # a place whose number of trailing ones is the largest: below it are full subtrees
    yield above, root
    yield from _symmetric_order(low, root, root)
    yield from _symmetric_order(root + 1, high, root)


def _rotated(chain: list[int], first: int) -> list[int]:
    place = first % len(chain)
    return chain[place:] + chain[:place]


def _sends(demand: Demand, variants: int, hops: Callable[[int, int], Iterator[Hop]]) -> NDArray[np.int64]:
    """Sends (step, chunk, from, to) of all chunks; chunks of a source take turns with the variants of its hops.

    A chunk passes only the ranks on its way to its destinations.
    """
    known: dict[tuple[int, int], list[Hop]] = {}
    parts = []
    for chunk, source in enumerate(demand.source.tolist()):
        variant = (chunk // demand.pieces + chunk % demand.pieces) % variants
        if (source, variant) not in known:
            known[source, variant] = list(hops(source, variant))
        needed, rows = set(demand.destinations(chunk).tolist()), []
        for step, a, b in sorted(known[source, variant], reverse=True):  # from the leaves to the source
            if b in needed:
                rows.append((step, chunk, a, b))
                needed.add(a)
        parts.append(np.array(rows[::-1], dtype=np.int64).reshape(-1, 4))
    return np.concatenate(parts)


def _rail_rings(near: Neighbours, hosts: list[list[int]]) -> list[list[int]]:
    """One ring per rail: it visits the hosts in order, and changes to the next rail in every host.

    A rail counts only where every host reaches the next one on it without other GPUs: a lost NIC costs its rail.
    """
    pairs = set(zip(near.src.tolist(), near.end.tolist(), strict=True))
    width = min(len(host) for host in hosts)
    following = list(zip(hosts, [*hosts[1:], hosts[0]], strict=True))
    rails = [i for i in range(width) if all((a[i], b[i]) in pairs for a, b in following)] or [0]
    rings = []
    for number, rail in enumerate(rails):
        ends = (rail, rails[(number + 1) % len(rails)])
        order: list[int] = []
        for turn, host in enumerate(hosts):
            enter, leave = ends if turn % 2 == 0 else ends[::-1]
            middle = [rank for i, rank in enumerate(host) if i not in ends]
            order += [host[enter], *middle, *([host[leave]] if leave != enter else [])]
        rings.append(order)
    return rings


def _separate_rings(near: Neighbours, demand: Demand) -> list[list[int]]:
    """Rings of all ranks, as many as half the links of a GPU; links of earlier rings count as longer."""
    n = demand.num_gpus
    ends = set(zip(near.src.tolist(), near.end.tolist(), strict=True))
    links = near.topology.out_links[0]
    rings = max(int(np.diff(links)[:n].min()) // 2, 1)
    distance = QuickestPaths(near, float(demand.chunk_bytes.mean())).distance[:n, :n].copy()
    found: list[list[int]] = []
    for _ in range(rings):
        order = ring_order(distance)
        found.append(order)
        for a, b in zip(order, [*order[1:], order[0]], strict=True):
            if (a, b) in ends:
                distance[a, b] *= n
                distance[b, a] *= n
    return found
