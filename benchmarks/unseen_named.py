"""Machines that are easy to describe and that no rule was made for: with the collectives that were poor on them."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.unseen_machines import Cluster, Drawn
from flowccl.topology.builders import fat_tree
from flowccl.topology.faults import with_faults
from flowccl.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class Named:
    """A machine with a number for a seed, and its rows: collective and size."""

    number: int
    kind: str
    build: Callable[[], Topology]
    rows: tuple[tuple[str, str], ...]

    def drawn(self) -> Drawn:
        """The machine in the form of a drawn one."""
        return Drawn(self.number, self.kind, self.build())


def _sizes() -> Topology:
    """Hosts of 8, 4 and 2 GPUs below one switch; a NIC of 25 GB/s for each GPU."""
    cluster = Cluster()
    network = cluster.switch("network")
    for gpus in (8, 4, 2):
        for name in cluster.host(gpus, "A100", 300.0):
            cluster.connect(name, network, 25.0, 1.3)
    return cluster.build()


def _generations() -> Topology:
    """A host of eight H100 and one of eight A100 on eight rails."""
    cluster = Cluster()
    rails = [cluster.switch(f"rail{i}") for i in range(8)]
    for model, GBps, nic in (("H100", 450.0, 50.0), ("A100", 300.0, 25.0)):
        for name, rail in zip(cluster.host(8, model, GBps), rails, strict=True):
            cluster.connect(name, rail, nic, 1.3)
    return cluster.build()


def _pcie() -> Topology:
    """Two hosts of eight GPUs on two PCIe switches, with one NIC of 12.5 GB/s each."""
    cluster = Cluster()
    network = cluster.switch("network")
    for host in range(2):
        bridge = cluster.switch(f"bridge{host}", f"host{host}")
        for side in range(2):
            pcie = cluster.switch(f"pcie{host}.{side}", f"host{host}")
            cluster.connect(pcie, bridge, 24.0, 0.4)
            for name in cluster.plain_gpus(f"host{host}", 4, "A100"):
                cluster.connect(name, pcie, 24.0, 0.5)
            if side == 0:
                cluster.connect(pcie, network, 12.5, 1.5)
    return cluster.build()


def _lost_nic() -> Topology:
    """Eight hosts of eight H100 on rails; one NIC is lost."""
    cluster = Cluster()
    rails = [cluster.switch(f"rail{i}") for i in range(8)]
    for _ in range(8):
        for name, rail in zip(cluster.host(8, "H100", 450.0), rails, strict=True):
            cluster.connect(name, rail, 50.0, 1.3)
    return with_faults(cluster.build(), without=["gpu11 <-> rail3"])


def _forty() -> Topology:
    """Four hosts of eight H100, two of four A100 that share two NICs each; four leaves below a spine, 2:1."""
    cluster = Cluster()
    spine, leaves = cluster.switch("spine"), [cluster.switch(f"leaf{i}") for i in range(3)]
    for leaf in leaves[:2]:
        for _ in range(2):
            for name in cluster.host(8, "H100", 450.0):
                cluster.connect(name, leaf, 50.0, 1.0)
        cluster.connect(leaf, spine, 400.0, 0.5)
    for _ in range(2):
        names = cluster.host(4, "A100", 300.0)
        for name in names:
            cluster.connect(name, leaves[2], 25.0, 1.0)
        for i in (0, 2):
            cluster.share(f"nic {names[i]}", names[i : i + 2], leaves[2], 25.0)
    cluster.connect(leaves[2], spine, 50.0, 0.5)
    return cluster.build()


_ALLREDUCE = ("1MB", "16MB", "256MB")
NAMED = (
    Named(1, "fat tree", lambda: fat_tree(4), tuple(("alltoall", size) for size in _ALLREDUCE)),
    Named(2, "8, 4, 2 GPUs", _sizes, (("allreduce", "16MB"), ("allreduce", "256MB"))),
    Named(3, "generations", _generations, (("allreduce", "16MB"), ("allreduce", "256MB"))),
    Named(4, "PCIe", _pcie, tuple((name, size) for name in ("allgather", "reduce_scatter") for size in _ALLREDUCE)),
    Named(5, "lost NIC", _lost_nic, tuple(("allreduce", size) for size in _ALLREDUCE)),
    Named(6, "40 GPUs", _forty, tuple(("allreduce", size) for size in ("256KiB", "1MB", "16MB", "256MB"))),
)
"""The machines, in the order in which they are printed."""
