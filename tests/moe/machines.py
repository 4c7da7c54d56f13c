"""Hosts with unequal network cards, random clusters with unequal hosts and faults, and random byte matrices."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.topology.builders import both
from flowccl.topology.faults import with_faults
from flowccl.topology.machines import machine
from flowccl.topology.topology import Link, Node, Topology


def four_hosts() -> Topology:
    """Hosts 0 and 2 have network cards on two rails, hosts 1 and 3 on the first rail only; 12.5 GB/s each."""
    return with_faults(machine("rail:4x2"), without=["gpu3 <-> rail1", "gpu7 <-> rail1"])


def random_cluster(rng: np.random.Generator) -> Topology:
    """Hosts with 1 to 4 GPUs on a switch or a mesh; one NIC per GPU on rails or on one switch; some lost or slow."""
    hosts = int(rng.integers(2, 5))
    sizes = rng.integers(1, 5, hosts).tolist()
    rails = int(max(sizes))
    gpus = [Node(name=f"gpu{k}", host=f"host{h}") for k, h in enumerate(np.repeat(range(hosts), sizes).tolist())]
    meshed, one_switch = bool(rng.random() < 0.4), bool(rng.random() < 0.4)
    switches = [Node(name=f"nvswitch{h}", kind="switch", host=f"host{h}") for h in range(0 if meshed else hosts)]
    network = [Node(name=f"rail{i}", kind="switch") for i in range(1 if one_switch else rails)]
    links, first = list[Link](), 0
    for host, size in enumerate(sizes):
        inside = float(rng.choice([50, 200, 450]))
        for place in range(size):
            if meshed:
                for other in range(place):
                    links += both(first + place, first + other, inside, 0.5)
            elif size > 1:
                links += both(first + place, len(gpus) + host, inside, 0.35)
            if place > 0 and rng.random() < 0.2:
                continue  # a lost NIC; every host keeps its first one
            rate = 50.0 if rng.random() < 0.7 else 25.0
            links += both(first + place, len(gpus) + len(switches) + (0 if one_switch else place), rate, 1.3)
        first += size
    nodes = (*gpus, *switches, *network)
    used = {link.src for link in links} | {link.dst for link in links}
    keep = [k for k, node in enumerate(nodes) if node.kind == "gpu" or k in used]
    number = {k: n for n, k in enumerate(keep)}
    moved = tuple(replace(link, src=number[link.src], dst=number[link.dst]) for link in links)
    return Topology("random cluster", tuple(nodes[k] for k in keep), moved)


def random_matrix(rng: np.random.Generator, gpus: int) -> NDArray[np.int64]:
    """Sizes between bytes and megabytes, many of them zero; at least one entry off the diagonal."""
    size = 10.0 ** rng.uniform(0, 6.5)
    matrix = (rng.exponential(1.0, (gpus, gpus)) ** float(rng.choice([0.0, 1.0, 3.0])) * size).astype(np.int64)
    matrix[rng.random((gpus, gpus)) < float(rng.choice([0.0, 0.5, 0.9]))] = 0
    matrix[0, gpus - 1] += 1
    return np.asarray(matrix)
