"""The lower bound of a resharding, for every choice of the replicas that send, and any number of chunks."""

import numpy as np

from flowccl.bounds.lower_bound import Bound, lower_bound
from flowccl.resharding.routing import SourceSets
from flowccl.resharding.traffic import TrafficClass
from flowccl.topology.topology import Topology
from flowccl.units import format_bytes, format_GBps, format_us


def reshard_bound(topology: Topology, sets: SourceSets, classes: list[TrafficClass]) -> Bound:
    """Return the better one of two bounds.

    The first is that of the machine in which each set of replicas is one more GPU. Its links are so fast that they
    delay nothing by more than one picosecond per gigabyte, which is subtracted. The second are cuts around GPUs and
    hosts: the bytes that no GPU inside has, over the bandwidth into the cut.
    """
    size = np.array([one.bytes for one in classes], dtype=np.int64)
    demand = sets.demand(classes, size, np.arange(len(classes)))
    found = lower_bound(sets.topology, demand)
    if len(sets.topology.nodes) > len(topology.nodes):
        slack = int(np.ceil(float(size.sum()) * 1e-6)) + 1  # the time of all bytes at 1e9 GB/s, in ps
        found = Bound(max(found.ps - slack, 0), found.kind, found.witness)
    return max(found, _cut_bound(topology, classes), key=lambda bound: bound.ps)


def _cut_bound(topology: Topology, classes: list[TrafficClass]) -> Bound:
    """The best cut around one GPU, one host, or all but one of them."""
    gpus = topology.num_gpus
    have = np.zeros((len(classes), gpus), dtype=np.bool_)
    want = np.zeros((len(classes), gpus), dtype=np.bool_)
    for number, one in enumerate(classes):
        have[number, list(one.sources)] = True
        want[number, list(one.missing)] = True
    size = np.array([one.bytes for one in classes], dtype=np.float64)
    hosts: dict[str, list[int]] = {}
    for node, what in enumerate(topology.nodes):
        if what.host:
            hosts.setdefault(what.host, []).append(node)
    sets = [(topology.nodes[rank].name, [rank]) for rank in range(gpus)]
    sets += [(name, nodes) for name, nodes in hosts.items() if len(nodes) < len(topology.nodes)]
    best = Bound(0, "cut", "no bytes must move")
    for name, members in sets:
        inside = np.zeros(len(topology.nodes), dtype=np.bool_)
        inside[members] = True
        for words, side in ((f"into {name}", inside), (f"out of {name}", ~inside)):
            crossing = size[(want[:, side[:gpus]].any(axis=1)) & ~have[:, side[:gpus]].any(axis=1)].sum()
            links = side[topology.link_dst] & ~side[topology.link_src]
            GBps = float(topology.link_peak_GBps[links].sum())
            if crossing == 0 or GBps == 0:
                continue
            ps = int(crossing * 1000 / (GBps * (1 + 1e-12)))
            if ps > best.ps:
                text = f"{format_bytes(crossing)} must cross {words}, {format_GBps(GBps)} ({int(links.sum())} links): "
                best = Bound(ps, "cut", text + f"{format_us(ps / 1e6)} to cross")
    return best
