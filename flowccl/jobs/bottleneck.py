"""The bottleneck that a lower bound names, in words: "NIC of gpu3: 50 GB/s"."""

import re

from flowccl.bounds.lower_bound import Bound
from flowccl.topology.topology import Topology

_CROSSES = re.compile(r"must cross (into|out of) ([^,{]+), ([\d.]+) GB/s \((\d+) links?\)")
_HOSTS = re.compile(r"must cross into each of (\d+) hosts.*: ([\d.]+) GB/s \((\d+) links?\)")
_SET = re.compile(r"must cross (into|out of) \{([^}]+)\} \((\d+) gpus\), ([\d.]+) GB/s \((\d+) links?\)")
_AWAY = re.compile(r"(\S+) needs data of (\S+), (.+) away by latency")
_KINDS = {"nic": "NIC", "nvlink": "NVLink", "pcie": "PCIe"}


def bottleneck_in_words(topology: Topology, bound: Bound) -> str:
    """Return the links that decide a bound."""
    if found := _CROSSES.search(bound.witness):
        side, name, rate, links = found.groups()
        return f"{_links(topology, name, side, int(links))} of {name}, {side.split()[0]}: {rate} GB/s"
    if found := _HOSTS.search(bound.witness):
        return f"NICs of all {found[1]} hosts together: {found[2]} GB/s"
    if found := _SET.search(bound.witness):
        side, names, _, rate, links = found.groups()
        some = "link" if links == "1" else f"{links} links"
        return f"{some} {side} {names}: {rate} GB/s"
    if found := _AWAY.search(bound.witness):
        return f"latency from {found[2]} to {found[1]}: {found[3]}"
    if bound.witness.startswith("what a GPU receives and passes on"):
        return "latency, then the links into every GPU"
    return bound.witness.split(":", 1)[0]


def _links(topology: Topology, name: str, side: str, count: int) -> str:
    """The kind of the links that cross into or out of a host or a node."""
    inside = [name in (node.host, node.name) for node in topology.nodes]
    ends = (topology.link_dst, topology.link_src) if side == "into" else (topology.link_src, topology.link_dst)
    kinds = {
        kind
        for kind, near, far in zip(topology.link_kinds, ends[0].tolist(), ends[1].tolist(), strict=True)
        if inside[near] and not inside[far]
    }
    word = _KINDS.get(next(iter(kinds)), "link") if len(kinds) == 1 else "link"
    return word if count == 1 else f"{count} {word}s"
