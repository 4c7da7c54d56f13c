"""A lower bound of every matrix, with its witness: cuts around GPUs, hosts and groups of hosts, and distances.

The links of a cut carry the bytes that must leave, or enter, a set of nodes. A link is of use from the time at which
data can be there until the time from which it still reaches a destination: the bytes fit into the sum of all links'
shares of the completion time.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flowccl.bounds.commodities import heads_of
from flowccl.bounds.lower_bound import Bound
from flowccl.moe.blocks import Blocks
from flowccl.moe.layout import HostLayout
from flowccl.topology.topology import Topology
from flowccl.units import format_bytes, format_GBps, format_us, ps_to_us

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Cuts:
    """Cuts out of and into sets of GPUs: `name`, total `GBps`, and the latencies `away_ps` of links with `link_GBps`.

    Row c of `inside` says which hosts are in set c; of the first cuts the sets are single GPUs.
    """

    names: tuple[str, ...]
    inside: NDArray[np.bool_]
    links: tuple[tuple[Floats, Floats], ...]


@dataclass(frozen=True, eq=False)
class _Facts:
    """What the bounds of a machine have in common."""

    latency_ps: Floats
    gpu_out: tuple[tuple[Floats, Floats], ...]
    gpu_in: tuple[tuple[Floats, Floats], ...]
    out: _Cuts
    into: _Cuts


def plan_bound(layout: HostLayout, blocks: Blocks) -> Bound:
    """Return the best bound of some blocks on a machine."""
    facts = _facts(layout)
    if not len(blocks.source):
        return Bound(0, "distance", "no data must move")
    gpus, hosts = layout.topology.num_gpus, layout.hosts
    count = np.diff(blocks.to_ptr)
    block = np.repeat(np.arange(len(blocks.source)), count)
    sent: Floats = np.asarray(np.bincount(blocks.source, blocks.bytes, gpus), dtype=np.float64)
    got: Floats = np.asarray(np.bincount(blocks.to, blocks.bytes[block], gpus), dtype=np.float64)
    before = np.concatenate(([0], np.cumsum(blocks.bytes)))
    demand = (before[blocks.ptr[1:]] - before[blocks.ptr[:-1]]).reshape(hosts, hosts).astype(np.float64)
    rows = [_distance(layout.topology, facts, blocks, block)]
    names = [node.name for node in layout.topology.nodes[:gpus]]
    rows.append(_best([f"out of {name}" for name in names], sent, facts.gpu_out))
    rows.append(_best([f"into {name}" for name in names], got, facts.gpu_in))
    for cuts, matrix in ((facts.out, demand), (facts.into, demand.T)):
        if cuts.names:
            inside = cuts.inside.astype(np.float64)
            crossing = np.einsum("ca,ab,cb->c", inside, matrix, 1 - inside)
            rows.append(_best(list(cuts.names), crossing, cuts.links))
    return max(rows, key=lambda bound: bound.ps)


def _distance(topology: Topology, facts: _Facts, blocks: Blocks, block: Ints) -> Bound:
    away = facts.latency_ps[blocks.source[block], blocks.to]
    at = int(np.argmax(away))
    names = [topology.nodes[int(k)].name for k in (blocks.source[block[at]], blocks.to[at])]
    far = format_us(ps_to_us(away[at]))
    return Bound(int(away[at]), "distance", f"{names[1]} needs data of {names[0]}, {far} away by latency")


def _best(names: list[str], crossing: Floats, links: tuple[tuple[Floats, Floats], ...]) -> Bound:
    """The best bound of some cuts."""
    rows = [_earliest(float(size), *row) for size, row in zip(crossing, links, strict=True)]
    at = int(np.argmax(rows))
    rate, away = links[at]
    least = float(away.min()) if len(away) else 0.0
    total = float(rate.sum())
    words = (
        f"{format_bytes(float(crossing[at]))} must cross {names[at]}, {format_GBps(total)}"
        f" ({len(rate)} link{'s' if len(rate) > 1 else ''}): {format_us(float(crossing[at]) / total / 1e3)} to cross,"
        f" {format_us(ps_to_us(least))} by latency"
    )
    return Bound(int(rows[at] * (1 - 1e-9)), "cut", words)


def _earliest(size: float, rate: Floats, away: Floats) -> float:
    """The least time at which links, each of use from `away` picoseconds on, have carried `size` bytes."""
    if size <= 0 or not len(rate):
        return 0.0
    total, volume, best = 0.0, 0.0, np.inf
    for k in np.argsort(away, kind="stable").tolist():
        if away[k] >= best:
            break
        total += rate[k]
        volume += rate[k] * away[k]
        best = (size * 1000.0 + volume) / total
    return float(best)


@lru_cache(maxsize=8)
def _facts(layout: HostLayout) -> _Facts:
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import dijkstra

    topology, gpus = layout.topology, layout.topology.num_gpus
    count = len(topology.nodes)
    weight = topology.link_delay_ps + 1e-3  # dijkstra treats zeros as missing links
    best: dict[tuple[int, int], float] = {}
    for a, b, ps in zip(topology.link_src.tolist(), topology.link_dst.tolist(), weight.tolist(), strict=True):
        best[a, b] = min(best.get((a, b), np.inf), ps)
    rows, columns = np.array(list(best)).T
    graph = csr_matrix((np.array(list(best.values())), (rows, columns)), (count, count))
    away = np.floor(dijkstra(graph))
    begin = heads_of(topology, away)
    host = [set(np.flatnonzero(layout.host_of == h).tolist()) for h in range(layout.hosts)]
    out = [_links(topology, begin, away, {gpu}, True) for gpu in range(gpus)]
    into = [_links(topology, begin, away, {gpu}, False) for gpu in range(gpus)]
    sets = _sets(layout, host)
    inside = np.array([[h in hosts for h in range(layout.hosts)] for _, hosts, _ in sets]).reshape(-1, layout.hosts)
    nodes = [members for _, _, members in sets]
    return _Facts(
        away[:gpus, :gpus],
        tuple(out),
        tuple(into),
        _Cuts(
            tuple(f"out of {n}" for n, _, _ in sets),
            inside,
            tuple(_links(topology, begin, away, m, True) for m in nodes),
        ),
        _Cuts(
            tuple(f"into {n}" for n, _, _ in sets),
            inside,
            tuple(_links(topology, begin, away, m, False) for m in nodes),
        ),
    )


def _sets(layout: HostLayout, host: list[set[int]]) -> list[tuple[str, set[int], set[int]]]:
    """The sets of hosts around which cuts are laid: single hosts, and all hosts below one switch, with their nodes."""
    topology, gpus = layout.topology, layout.topology.num_gpus
    owner = np.full(len(topology.nodes), -1)
    owner[:gpus] = layout.host_of
    names = {topology.nodes[next(iter(ranks))].host: h for h, ranks in enumerate(host) if len(ranks) > 1}
    for index, node in enumerate(topology.nodes[gpus:], start=gpus):
        owner[index] = names.get(node.host, -1) if node.host else -1
    result: list[tuple[str, set[int], set[int]]] = []
    for h in range(layout.hosts):
        members = set(np.flatnonzero(owner == h).tolist())
        if len(members) > 1:
            result.append((topology.nodes[next(iter(host[h]))].host, {h}, members))
    below: dict[int, set[int]] = {}  # switch outside hosts: its hosts
    beside: dict[int, set[int]] = {h: set() for h in range(layout.hosts)}
    for a, b in zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True):
        for x, y in ((a, b), (b, a)):
            if owner[x] >= 0 and owner[y] < 0 and not topology.stores[y]:
                below.setdefault(y, set()).add(int(owner[x]))
                beside[int(owner[x])].add(y)
    for switch, hosts in sorted(below.items()):
        only = {h for h in hosts if beside[h] == {switch}}
        if only and len(only) < layout.hosts:
            members = {switch} | {int(n) for h in only for n in np.flatnonzero(owner == h)}
            result.append((f"the hosts below {topology.nodes[switch].name}", only, members))
    return result


def _links(topology: Topology, begin: Floats, away: Floats, inside: set[int], out: bool) -> tuple[Floats, Floats]:
    """Rates of the links that leave, or enter, a set of nodes, and the least latency of a path over each of them."""
    member = np.zeros(len(topology.nodes), dtype=np.bool_)
    member[list(inside)] = True
    near, far = (topology.link_src, topology.link_dst) if out else (topology.link_dst, topology.link_src)
    cut = np.flatnonzero(member[near] & ~member[far])
    gpus = np.arange(topology.num_gpus)
    senders, receivers = gpus[member[gpus] == out], gpus[member[gpus] != out]
    if not len(cut) or not len(senders) or not len(receivers):
        return np.zeros(0), np.zeros(0)
    head = begin[np.ix_(senders, topology.link_src[cut])].min(axis=0)
    tail = away[np.ix_(topology.link_dst[cut], receivers)].min(axis=1)
    least = head + topology.link_delay_ps[cut] + tail
    useful = np.isfinite(least)
    return topology.link_peak_GBps[cut][useful], least[useful]
