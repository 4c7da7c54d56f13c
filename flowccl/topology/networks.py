"""Networks between hosts with one NIC per GPU: rails alone, rails below a spine, or leaves below a spine."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from flowccl.errors import TopologyError
from flowccl.topology.builders import both, check_whole, rail_nodes
from flowccl.topology.topology import Link, Node, Topology

NetworkKind = Literal["rail-only", "rail-optimized", "fat-tree"]

LEAF_HOSTS = 4  # vendor: a Quantum-2 switch has 64 ports; half of them lead down, to the NICs of 4 hosts of 8 GPUs
SPINE_LATENCY_US = 0.3  # no source; crossing a switch and a cable


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The network of a cluster: how its switches are connected, and the cost of its links.

    rail-only        NIC i of every host is on switch rail{i}; rails are not connected with each other
    rail-optimized   the same, and every rail has one link pair with the switch `spine`
    fat-tree         the NICs of `leaf_hosts` hosts are on one switch leaf{j}; every leaf has one link pair with `spine`

    The link from a rail or leaf to the spine has the bandwidth of all its NICs, divided by `oversubscription`. It is
    divided among several switches spine0, spine1, ... where `spines` is above 1.
    """

    kind: NetworkKind
    nic_bandwidth_GBps: float
    nic_latency_us: float
    leaf_hosts: int = LEAF_HOSTS
    oversubscription: float = 1.0
    spines: int = 1
    spine_latency_us: float = SPINE_LATENCY_US

    def check(self, machine: str) -> None:
        """Refuse values that have no meaning; messages start with the name of the machine."""
        kinds = get_args(NetworkKind)
        if self.kind not in kinds:
            raise TopologyError(f"{machine}: network must be {', '.join(kinds[:-1])} or {kinds[-1]}, got {self.kind!r}")
        check_whole(machine, "leaf_hosts", self.leaf_hosts, 1)
        if self.kind != "fat-tree" and self.leaf_hosts != LEAF_HOSTS:
            raise TopologyError(
                f"{machine}: leaf_hosts needs network=fat-tree; a network {self.kind} has no such leaves"
            )
        check_whole(machine, "spines", self.spines, 1)
        if not 1 <= self.oversubscription <= 1e6:
            raise TopologyError(f"{machine}: oversubscription must be at least 1, got {self.oversubscription:g}")
        for option, value in (("oversubscription", self.oversubscription), ("spines", self.spines)):
            if self.kind == "rail-only" and value != 1:
                raise TopologyError(
                    f"{machine}: {option} needs network=rail-optimized or fat-tree; rail-only has no spine"
                )


def connect_hosts(
    name: str, hosts: int, nodes: Sequence[Node], links: Sequence[Link], nics: Sequence[int], network: Network
) -> Topology:
    """Return the cluster of `hosts` equal hosts with a network; `nics` are the nodes with a NIC, by host and index.

    The links of the network come after `links`: for each rail or leaf the links with its NICs, then each rail or leaf
    with the spine. One host has no network.
    """
    if hosts == 1:
        return Topology(name, tuple(nodes), tuple(links))
    per_host = len(nics) // hosts
    if network.kind == "fat-tree":
        size = network.leaf_hosts * per_host
        groups = [nics[first : first + size] for first in range(0, len(nics), size)]
        switches = [Node(name=f"leaf{i}", kind="switch") for i in range(len(groups))]
    else:
        groups = [nics[index::per_host] for index in range(per_host)]
        switches = rail_nodes(per_host)
    every, first = list(links), len(nodes)
    for number, group in enumerate(groups):
        for nic in group:
            every += both(nic, first + number, network.nic_bandwidth_GBps, network.nic_latency_us)
    if network.kind != "rail-only" and len(groups) > 1:
        names = ["spine"] if network.spines == 1 else [f"spine{at}" for at in range(network.spines)]
        switches += [Node(name=name, kind="switch") for name in names]
        for number, group in enumerate(groups):
            GBps = network.nic_bandwidth_GBps * len(group) / network.oversubscription / network.spines
            for spine in range(first + len(groups), first + len(groups) + network.spines):
                every += both(first + number, spine, GBps, network.spine_latency_us, kind="nic")
    return Topology(name, (*nodes, *switches), tuple(every))
