"""Clusters as people build them, drawn from a seed: 8 to 64 GPUs, some with two kinds of hosts or with faults."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from flowccl.errors import InputError
from flowccl.topology.builders import both, dragonfly, fat_tree, torus
from flowccl.topology.faults import with_faults
from flowccl.topology.topology import Limit, Link, Node, Topology

_LEAST, _MOST = 8, 64  # GPUs
_FAULTY = 0.35  # part of the machines of one kind of hosts that get two faults
_NVLINK = (
    ("A100", 300.0, 25.0),
    ("H100", 450.0, 50.0),
    ("B200", 900.0, 50.0),
    ("V100", 150.0, 12.5),
)  # model, GB/s, NIC
_FACTORS = (0.0, 0.5, 0.25)  # what a fault leaves of a link


@dataclass(frozen=True, slots=True)
class Drawn:
    """A machine with its seed, its kind, the number of kinds of hosts in it, and its faults."""

    seed: int
    kind: str
    topology: Topology
    host_kinds: int = 1
    faults: tuple[str, ...] = ()

    @property
    def is_uneven(self) -> bool:
        """Whether it has two kinds of hosts, or two faults."""
        return self.host_kinds > 1 or len(self.faults) > 1


def draw(seed: int) -> Drawn:
    """Return the machine of a seed."""
    random = Random(seed)
    kind = random.choice(list(KINDS))
    topology, host_kinds = KINDS[kind](random)
    faults: tuple[str, ...] = ()
    if host_kinds == 1 and random.random() < _FAULTY:
        topology, faults = _with_two_faults(topology, random)
    topology = Topology(f"unseen-{seed}", topology.nodes, topology.links, topology.limits)
    return Drawn(seed, kind, topology, host_kinds, faults)


def _with_two_faults(topology: Topology, random: Random) -> tuple[Topology, tuple[str, ...]]:
    """Two links that are lost or slow, in one direction or in both; none that cuts off a GPU."""
    faults: list[str] = []
    while len(faults) < 2:
        link = topology.links[random.randrange(len(topology.links))]
        arrow = random.choice(("->", "<->"))
        name = f"{topology.nodes[link.src].name} {arrow} {topology.nodes[link.dst].name}"
        factor = random.choice(_FACTORS)
        rate = f"{name}={link.bandwidth_GBps * factor:g}GB/s"
        try:
            topology = with_faults(topology, **({"slow": [rate]} if factor else {"without": [name]}))
        except InputError:  # a GPU would be cut off, or the link is slow already
            continue
        faults.append(rate if factor else f"without {name}")
    return topology, tuple(faults)


# -- machines of hosts ----------------------------------------------------------------------------------------------


@dataclass
class Cluster:
    """A cluster that is being built from hosts and switches."""

    gpus: list[Node] = field(default_factory=list)
    switches: list[Node] = field(default_factory=list)
    links: list[tuple[str, str, float, float]] = field(default_factory=list)
    limits: list[tuple[str, tuple[str, ...], str, float]] = field(default_factory=list)  # name, nodes, other end, rate

    def host(self, gpus: int, model: str, GBps: float, latency_us: float = 0.7) -> list[str]:
        """Add a host of GPUs on one NVSwitch; return their names."""
        name = f"host{len({node.host for node in self.gpus})}"
        new = self.plain_gpus(name, gpus, model)
        if gpus > 1:
            self.switches.append(Node(name=f"nvswitch-{name}", kind="switch", host=name))
            self.links += [(one, f"nvswitch-{name}", GBps, latency_us) for one in new]
        return new

    def plain_gpus(self, host: str, gpus: int, model: str) -> list[str]:
        """Add GPUs of a host, without links; return their names."""
        new = [Node(name=f"gpu{len(self.gpus) + i}", host=host, model=model) for i in range(gpus)]
        self.gpus += new
        return [node.name for node in new]

    def switch(self, name: str, host: str = "") -> str:
        """Add a plain switch; return its name."""
        self.switches.append(Node(name=name, kind="switch", host=host))
        return name

    def connect(self, a: str, b: str, GBps: float, latency_us: float) -> None:
        """Add a link in both directions."""
        self.links.append((a, b, GBps, latency_us))

    def share(self, name: str, nodes: list[str], switch: str, GBps: float) -> None:
        """Let the links between some nodes and a switch share a bandwidth, once in each direction."""
        self.limits.append((name, tuple(nodes), switch, GBps))

    def build(self) -> Topology:
        """Return the machine."""
        nodes = (*self.gpus, *self.switches)
        index = {node.name: i for i, node in enumerate(nodes)}
        links: list[Link] = []
        for a, b, GBps, latency_us in self.links:
            links += both(index[a], index[b], GBps, latency_us)
        place = {(link.src, link.dst): i for i, link in enumerate(links)}
        limits = []
        for name, members, switch, GBps in self.limits:
            out = tuple(place[index[node], index[switch]] for node in members)
            limits.append(Limit(name=f"{name} out", links=out, bandwidth_GBps=GBps))
            limits.append(Limit(name=f"{name} in", links=tuple(k ^ 1 for k in out), bandwidth_GBps=GBps))
        return Topology("cluster", nodes, tuple(links), tuple(limits))


def _hosts(random: Random, per_host: tuple[int, ...], counts: tuple[int, ...]) -> tuple[int, int]:
    """Hosts and GPUs of a host, so that there are not too few and not too many GPUs."""
    while True:
        hosts, gpus = random.choice(counts), random.choice(per_host)
        if _LEAST <= hosts * gpus <= _MOST:
            return hosts, gpus


def _rails(random: Random) -> tuple[Topology, int]:
    """Every GPU has a NIC on the rail switch of its place in the host."""
    hosts, gpus = _hosts(random, (4, 8), (2, 3, 4, 6, 8))
    model, GBps, nic = random.choice(_NVLINK)
    cluster, latency_us = Cluster(), random.choice((1.0, 1.3, 2.5))
    rails = [cluster.switch(f"rail{i}") for i in range(gpus)]
    for _ in range(hosts):
        for name, rail in zip(cluster.host(gpus, model, GBps), rails, strict=True):
            cluster.connect(name, rail, nic, latency_us)
    return cluster.build(), 1


def _leaf_and_spine(random: Random) -> tuple[Topology, int]:
    """Hosts below leaf switches below one or two spines, with oversubscription; a NIC for each GPU or for two."""
    hosts, gpus = _hosts(random, (2, 4, 8), (4, 6, 8))
    model, GBps, nic = random.choice(_NVLINK)
    per_leaf, spines, over = random.choice((2, 2, 3)), random.choice((1, 2)), random.choice((1.0, 2.0, 4.0))
    shared = random.random() < 0.4
    cluster, latency_us = Cluster(), random.choice((1.0, 1.8))
    tops = [cluster.switch(f"spine{i}") for i in range(spines)]
    for first in range(0, hosts, per_leaf):
        leaf = cluster.switch(f"leaf{first // per_leaf}")
        below = 0.0
        for _ in range(min(per_leaf, hosts - first)):
            below += _nics(cluster, cluster.host(gpus, model, GBps), leaf, nic, latency_us, shared=shared)
        for top in tops:
            cluster.connect(leaf, top, below / over / spines, latency_us / 2)
    return cluster.build(), 1


def _nics(cluster: Cluster, names: list[str], leaf: str, nic: float, latency_us: float, *, shared: bool) -> float:
    """Connect the GPUs of a host with a leaf; where NICs are shared, two GPUs have one. Return the total bandwidth."""
    for name in names:
        cluster.connect(name, leaf, nic, latency_us)
    if not shared:
        return nic * len(names)
    for i in range(0, len(names), 2):
        cluster.share(f"nic {names[i]}", names[i : i + 2], leaf, nic)
    return nic * ((len(names) + 1) // 2)


def _fat_tree(random: Random) -> tuple[Topology, int]:
    """A fat tree of GPUs, or of hosts of 2 or 4 GPUs in the place of GPUs."""
    GBps, latency_us = random.choice((12.5, 25.0, 50.0)), random.choice((0.5, 0.7, 1.0))
    plain = fat_tree(4, bandwidth_GBps=GBps, latency_us=latency_us)
    gpus = random.choice((1, 2, 4))
    if gpus == 1:
        return plain, 1
    model, inside, _ = random.choice(_NVLINK)
    cluster = Cluster()
    for node in plain.nodes[plain.num_gpus :]:
        cluster.switch(node.name)
    ports = {}
    for rank in range(plain.num_gpus):
        names = cluster.host(gpus, model, inside)
        ports[rank] = cluster.switch(f"nic{rank}", host=f"host{rank}")
        for name in names:
            cluster.connect(name, ports[rank], GBps, 0.5)
    for link in plain.links[::2]:
        ends = [ports.get(end, plain.nodes[end].name) for end in (link.src, link.dst)]
        cluster.connect(ends[0], ends[1], GBps, latency_us)
    return cluster.build(), 1


def _pcie_hosts(random: Random) -> tuple[Topology, int]:
    """GPUs on PCIe switches below a host bridge; one or two NICs in a host, no NVLink."""
    hosts, gpus = _hosts(random, (4, 8), (2, 3, 4))
    pcie, nic = random.choice((12.0, 24.0, 50.0)), random.choice((3.0, 12.5, 25.0))
    nics, latency_us = random.choice((1, 2)), random.choice((1.5, 2.5))
    cluster = Cluster()
    network = cluster.switch("network")
    for host in range(hosts):
        label = f"host{host}"
        names = cluster.plain_gpus(label, gpus, "A100")
        bridge = cluster.switch(f"bridge{host}", label)
        half = gpus // 2
        for side in range(2):
            pcie_switch = cluster.switch(f"pcie{host}.{side}", label)
            cluster.connect(pcie_switch, bridge, pcie, 0.4)
            for name in names[side * half : (side + 1) * half]:
                cluster.connect(name, pcie_switch, pcie, 0.5)
            if side < nics:
                cluster.connect(pcie_switch, network, nic, latency_us)
    return cluster.build(), 1


def _torus(random: Random) -> tuple[Topology, int]:
    """A torus of two or three dimensions."""
    sizes = random.choice(((3, 3), (2, 4), (4, 4), (3, 5), (4, 6), (5, 5), (2, 2, 3), (2, 3, 3), (3, 3, 3), (4, 4, 4)))
    GBps, latency_us = random.choice((25.0, 50.0, 100.0)), random.choice((0.5, 0.7, 1.5))
    return torus(*sizes, bandwidth_GBps=GBps, latency_us=latency_us), 1


def _dragonfly(random: Random) -> tuple[Topology, int]:
    """A dragonfly of plain switches."""
    sizes = random.choice(((2, 2, 1), (2, 2, 2), (3, 1, 1), (3, 2, 1), (4, 1, 1), (4, 2, 1), (2, 3, 2)))
    return dragonfly(*sizes, bandwidth_GBps=random.choice((12.5, 25.0, 50.0)), latency_us=0.7), 1


def _mixed_hosts(random: Random) -> tuple[Topology, int]:
    """Hosts of two generations or two sizes, on rails or below one network switch."""
    old, new = random.sample(_NVLINK, 2)
    sizes = random.choice(((8, 8), (8, 4), (4, 2), (4, 4)))
    counts = [random.choice((1, 2, 3)), random.choice((1, 2, 3))]
    while not _LEAST <= counts[0] * sizes[0] + counts[1] * sizes[1] <= _MOST:
        counts[random.randrange(2)] += 1
    cluster, on_rails, latency_us = Cluster(), random.random() < 0.5, random.choice((1.0, 1.8))
    network = [cluster.switch(f"rail{i}") for i in range(max(sizes))] if on_rails else [cluster.switch("network")]
    for (model, GBps, nic), gpus, count in zip((new, old), sizes, counts, strict=True):
        for _ in range(count):
            for i, name in enumerate(cluster.host(gpus, model, GBps)):
                cluster.connect(name, network[i % len(network)], nic, latency_us)
    return cluster.build(), 2


def _racks(random: Random) -> tuple[Topology, int]:
    """Racks with one NVLink domain each, whose GPUs have a NIC each; the racks may differ in size."""
    racks, gpus = _hosts(random, (8, 12, 16, 18), (2, 3, 4))
    fewer = random.choice((0, 0, 2, 4))
    GBps, nic = random.choice((450.0, 900.0)), random.choice((25.0, 50.0, 100.0))
    cluster = Cluster()
    spine = cluster.switch("spine")
    for rack in range(racks):
        names = cluster.host(gpus - (fewer if rack == 0 else 0), "B200", GBps, 1.0)
        leaf = cluster.switch(f"leaf{rack}")
        for name in names:
            cluster.connect(name, leaf, nic, 1.3)
        cluster.connect(leaf, spine, nic * len(names) / random.choice((1, 2)), 1.0)
    return cluster.build(), 2 if fewer else 1


KINDS: dict[str, Callable[[Random], tuple[Topology, int]]] = {
    "rails": _rails,
    "leaf and spine": _leaf_and_spine,
    "fat tree": _fat_tree,
    "PCIe hosts": _pcie_hosts,
    "torus": _torus,
    "dragonfly": _dragonfly,
    "mixed hosts": _mixed_hosts,
    "racks": _racks,
}
"""Name -> function that draws a machine of this kind, and the number of kinds of hosts in it."""
