"""Several copies of a host, connected by rails or by one switch."""

from dataclasses import replace

from flowccl.errors import InputError
from flowccl.topology.builders import rail_nodes
from flowccl.topology.hardware import NIC_LATENCY_US
from flowccl.topology.importers.imported import Imported, Nic
from flowccl.topology.topology import Limit, Link, Node, Topology
from flowccl.units import format_GBps, parse_GBps

MAX_HOSTS = 10_000


def parse_network(text: str) -> tuple[str, float | None]:
    """Return kind and bandwidth of "rail:50GBps" or "switch:400Gb/s"; the bandwidth is optional."""
    kind, _, bandwidth = text.partition(":")
    if kind not in ("rail", "switch"):
        raise InputError(f"--network must be rail or switch, as in rail:50GBps, got {text!r}")
    return kind, parse_GBps(bandwidth, "--network bandwidth") if bandwidth else None


def join_hosts(imported: Imported, hosts: int, network: str) -> Imported:
    """Return `hosts` copies of a one-host machine, connected by one rail switch per NIC or by one switch for all NICs.

    GPU i of host h becomes rank h * gpus + i. GPUs that share a NIC share its bandwidth, as one limit per direction.
    """
    kind, given = parse_network(network)
    host = imported.topology
    if not 1 <= hosts <= MAX_HOSTS:
        raise InputError(f"--hosts must be 1 to {MAX_HOSTS}, got {hosts}")
    if len(host.hosts) > 1:
        raise InputError(f"the file already has {len(host.hosts)} hosts; omit --hosts")
    nics, notes = _nics(imported, given)
    nodes, links, limits = _copies(host, hosts)
    if hosts > 1:
        first = len(nodes)
        nodes += rail_nodes(len(nics)) if kind == "rail" else [Node(name="network", kind="switch")]
        for number, nic in enumerate(nics):
            switch = first + (number if kind == "rail" else 0)
            for h in range(hosts):
                _connect_nic(nic, h, host.num_gpus, switch, links, limits)
    notes.append(f"{hosts} copies of the host in the file; GPU i of host h is rank {host.num_gpus} h + i")
    return Imported(
        Topology(f"{host.name} x{hosts}", tuple(nodes), tuple(links), tuple(limits)), (*imported.notes, *notes), nics
    )


def _nics(imported: Imported, given: float | None) -> tuple[tuple[Nic, ...], list[str]]:
    """Return the NICs in use, each with a bandwidth, and the assumptions about them."""
    notes = []
    nics = tuple(nic for nic in imported.nics if nic.gpus)
    if not nics:
        notes.append(f"the file has no NIC: assuming one NIC per GPU with latency {NIC_LATENCY_US:g} us")
        nics = tuple(
            Nic(name=f"nic{rank}", gpus=(rank,), bandwidth_GBps=None, latency_us=NIC_LATENCY_US)
            for rank in range(imported.topology.num_gpus)
        )
    lacking = [nic.name for nic in nics if nic.bandwidth_GBps is None]
    if given is None and lacking:
        raise InputError(f"the file has no bandwidth for {lacking[0]}; give it, as in --network rail:50GBps")
    if given is not None:
        notes.append(f"every NIC has {format_GBps(given)} per direction, as given by --network")
        nics = tuple(replace(nic, bandwidth_GBps=given) for nic in nics)
    shared = next((nic for nic in nics if len(nic.gpus) > 1), None)
    if shared is not None:
        notes.append(f"{len(shared.gpus)} GPUs share {shared.name} and its bandwidth")
    notes.append("GPUs reach their NIC directly (GPUDirect); the network switches are plain and never the bottleneck")
    return nics, notes


def _copies(host: Topology, hosts: int) -> tuple[list[Node], list[Link], list[Limit]]:
    gpus, others = host.num_gpus, len(host.nodes) - host.num_gpus
    model = host.nodes[0].model
    nodes = [Node(name=f"gpu{h * gpus + i}", host=f"host{h}", model=model) for h in range(hosts) for i in range(gpus)]
    for h in range(hosts):
        nodes += [replace(node, name=f"{node.name}.{h}", host=f"host{h}") for node in host.nodes[gpus:]]
    links: list[Link] = []
    limits: list[Limit] = []
    for h in range(hosts):
        place = [h * gpus + i for i in range(gpus)] + [hosts * gpus + h * others + i for i in range(others)]
        limits += [
            replace(limit, name=f"{limit.name}.{h}", links=tuple(k + len(links) for k in limit.links))
            for limit in host.limits
        ]
        links += [replace(link, src=place[link.src], dst=place[link.dst]) for link in host.links]
    return nodes, links, limits


def _connect_nic(nic: Nic, h: int, gpus: int, switch: int, links: list[Link], limits: list[Limit]) -> None:
    """Add the links between the GPUs of one NIC and its switch."""
    assert nic.bandwidth_GBps is not None
    ranks = [h * gpus + rank for rank in nic.gpus]
    for direction, ends in (("out", [(rank, switch) for rank in ranks]), ("in", [(switch, rank) for rank in ranks])):
        first = len(links)
        links += [Link(src=a, dst=b, bandwidth_GBps=nic.bandwidth_GBps, latency_us=nic.latency_us) for a, b in ends]
        if len(ranks) > 1:
            members = tuple(range(first, len(links)))
            limits.append(Limit(name=f"{nic.name}.{h} {direction}", links=members, bandwidth_GBps=nic.bandwidth_GBps))
