"""The predicted time of the library's own algorithm: what a plan has to beat.

The model is that of NCCL's tuning: hops times the latency of a hop, plus bytes over the bandwidth of the ring or tree,
for each of its protocols; the fastest one counts. Rings use all NICs of a host. Like the times of programs, it contains
no kernel launch. In-network algorithms (NVLS, SHARP) are not part of it.
"""

from dataclasses import dataclass

import numpy as np

from flowccl.topology.neighbours import neighbours
from flowccl.topology.topology import Topology
from flowccl.units import ps_to_us, us_to_ps


@dataclass(frozen=True, slots=True)
class Protocol:
    """Latencies of one hop inside a host and between hosts, and the part of the bandwidth that carries data."""

    name: str
    inside_us: float
    ring_us: float
    tree_us: float
    efficiency: float


# Hops inside a host and of rings: NCCL's tuning tables. The tree latencies are assumptions without a checked source.
_PROTOCOLS = (  # LL carries 4 bytes of data in 8, LL128 120 in 128
    Protocol("ll", 0.6, 2.7, 5.0, 0.5),
    Protocol("ll128", 1.9, 4.0, 8.5, 120 / 128),
    Protocol("simple", 3.4, 14.0, 14.0, 1.0),
)
_POST_US = 1.0  # NCCL getNetOverhead: one message in the CPU proxy of a GPU


@dataclass(frozen=True, slots=True)
class Shape:
    """A machine as the model sees it.

    `gpu_GBps` is the bandwidth of a GPU inside its host, `nics_GBps` that of all NICs of a host; `inside_us` and
    `between_us` are the latencies to the nearest GPU of the same host and of another one. A hop takes at least these.
    """

    hosts: int
    ranks: int
    gpu_GBps: float
    nics_GBps: float
    inside_us: float = 0.0
    between_us: float = 0.0


def shape_of(topology: Topology) -> Shape:
    """Return the shape of a machine; of uneven machines, that of the slowest GPU and host."""
    ranks = topology.num_gpus
    hosts = [node.host for node in topology.nodes[:ranks]]
    is_nic = np.array([kind == "nic" for kind in topology.link_kinds], dtype=np.bool_)
    from_gpu = topology.link_src < ranks
    inside, nics = (
        np.bincount(topology.link_src[mask], topology.link_GBps[mask], len(topology.nodes))[:ranks]
        for mask in (from_gpu & ~is_nic, from_gpu & is_nic)
    )
    by_host = {host: sum(float(nics[n]) for n in range(ranks) if hosts[n] == host) for host in hosts}
    away = neighbours(topology, 1).distance_ps(1.0)[:ranks, :ranks] + np.where(np.eye(ranks), np.inf, 0.0)
    same = np.array([[a == b for b in hosts] for a in hosts])
    latencies_us = []
    for mask in (same, ~same):
        nearest = np.where(mask, away, np.inf).min(axis=1)
        latencies_us.append(ps_to_us(float(nearest[np.isfinite(nearest)].max(initial=0.0))))
    return Shape(len(by_host), ranks, float(inside.min()), min(by_host.values()), *latencies_us)


@dataclass(frozen=True, slots=True, order=True)
class LibraryChoice:
    """The predicted time of an algorithm of the library, with its name and protocol."""

    time_us: float
    algorithm: str
    protocol: str


def library_ps(shape: Shape, collective: str, size_bytes: int) -> int | None:
    """Return the predicted time of the library's algorithm; None where the model does not know the collective."""
    choice = library_choice(shape, collective, size_bytes)
    return None if choice is None else us_to_ps(choice.time_us)


def library_choice(shape: Shape, collective: str, size_bytes: int) -> LibraryChoice | None:
    """Return the fastest algorithm and protocol of the library; None where the model does not know the collective."""
    rates = [rate for rate in (shape.gpu_GBps, shape.nics_GBps if shape.hosts > 1 else 0.0) if rate]
    if not rates:
        return None
    if collective == "alltoall":
        return LibraryChoice(_alltoall_us(shape, size_bytes), "direct", "simple")
    rounds = {"allreduce": 2, "allgather": 1, "reduce_scatter": 1}.get(collective)
    if rounds is None:
        return None
    found = []
    for protocol in _PROTOCOLS:
        byte_us = size_bytes / (1000 * min(rates) * protocol.efficiency)
        found.append(LibraryChoice(_ring_us(shape, protocol, rounds, byte_us), "ring", protocol.name))
        if rounds == 2:  # the library has trees for allreduce only
            found.append(LibraryChoice(_tree_us(shape, protocol, byte_us), "tree", protocol.name))
    return min(found)


def _ring_us(shape: Shape, protocol: Protocol, rounds: int, byte_us: float) -> float:
    hops = rounds * (shape.ranks - 1)
    between = min(rounds * shape.hosts, hops) if shape.hosts > 1 else 0
    inside_us, between_us = max(protocol.inside_us, shape.inside_us), max(protocol.ring_us, shape.between_us)
    return (hops - between) * inside_us + between * between_us + byte_us * hops / shape.ranks


def _tree_us(shape: Shape, protocol: Protocol, byte_us: float) -> float:
    """A chain in every host and a binary tree of hosts, up and down."""
    inside_us, between_us = max(protocol.inside_us, shape.inside_us), max(protocol.tree_us, shape.between_us)
    depth = (shape.hosts - 1).bit_length()
    return 2 * ((shape.ranks // shape.hosts - 1) * inside_us + depth * between_us) + 2 * byte_us


def _alltoall_us(shape: Shape, size_bytes: int) -> float:
    """Every GPU sends a block to every other one; the messages of a GPU leave its proxy one after the other."""
    per_host = shape.ranks // shape.hosts
    block_us = size_bytes / shape.ranks / 1000
    hop_us, between_us = max(_PROTOCOLS[2].inside_us, shape.inside_us), max(_PROTOCOLS[2].ring_us, shape.between_us)
    inside = hop_us + block_us * (per_host - 1) / shape.gpu_GBps if shape.gpu_GBps else 0.0
    if shape.hosts == 1 or not shape.nics_GBps:
        return inside
    others = shape.ranks - per_host
    return max(inside, between_us + max(others * _POST_US, block_us * others * per_host / shape.nics_GBps))
