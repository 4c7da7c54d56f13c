"""Builder of a host from its GPUs, switches and links, with or without PCIe."""

from dataclasses import dataclass, field

import numpy as np

from flowccl.arrays import components
from flowccl.topology.builders import gpu_nodes
from flowccl.topology.topology import Link, LinkKind, Node, Topology

PCIE = ("pcie", "cpu")  # prefixes of the names of PCIe switches


@dataclass
class Fabric:
    """A host under construction: GPUs, switches by name, and links by the names of their ends."""

    gpus: int
    model: str = ""
    host: str = "host0"
    switches: dict[str, Node] = field(default_factory=dict)
    links: list[tuple[str, str, float, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def switch(self, name: str, *, sharp: bool = False) -> str:
        """Add a switch unless it exists, and return its name; a `sharp` switch copies and reduces."""
        node = Node(name=name, kind="switch", host=self.host, copies=sharp, reduces=sharp)
        self.switches.setdefault(name, node)
        return name

    def link(self, a: str, b: str, bandwidth_GBps: float, latency_us: float) -> None:
        """Add a link from a to b."""
        self.links.append((a, b, bandwidth_GBps, latency_us))

    def both(self, a: str, b: str, bandwidth_GBps: float, latency_us: float) -> None:
        """Add links in both directions."""
        self.link(a, b, bandwidth_GBps, latency_us)
        self.link(b, a, bandwidth_GBps, latency_us)

    def topology(self, name: str, keep_pcie: bool) -> Topology:
        """Return the machine. PCIe is omitted if other links connect all GPUs, unless `keep_pcie` is set."""
        pcie = {switch for switch in self.switches if switch.startswith(PCIE)}
        fast = [link for link in self.links if link[0] not in pcie and link[1] not in pcie]
        if pcie and not keep_pcie and self._connects_all(fast):
            self.notes.append("PCIe is omitted because faster links connect all GPUs; --pcie keeps it")
            return self._build(name, [s for s in self.switches if s not in pcie], fast)
        return self._build(name, list(self.switches), self.links)

    def _connects_all(self, links: list[tuple[str, str, float, float]]) -> bool:
        """Return whether these links connect all GPUs in both directions."""
        index = self._index(list(self.switches))
        rows, columns = [index[a] for a, *_ in links], [index[b] for _, b, *_ in links]
        label = components(len(index), rows, columns, strong=True)
        return bool(np.all(label[: self.gpus] == label[0]))

    def _index(self, switches: list[str]) -> dict[str, int]:
        return {name: i for i, name in enumerate([f"gpu{i}" for i in range(self.gpus)] + switches)}

    def _build(self, name: str, switches: list[str], links: list[tuple[str, str, float, float]]) -> Topology:
        index = self._index(switches)
        built = []
        for a, b, GBps, us in links:
            kind: LinkKind | None = "pcie" if a.startswith(PCIE) or b.startswith(PCIE) else None
            built.append(Link(src=index[a], dst=index[b], bandwidth_GBps=GBps, latency_us=us, kind=kind))
        nodes = [*gpu_nodes(self.gpus, self.gpus, self.model), *(self.switches[switch] for switch in switches)]
        return Topology(name, tuple(nodes), tuple(built))
