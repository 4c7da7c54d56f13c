"""Regular machines of any size: ring, line, full, star, mesh, torus, hypercube, fat tree, dragonfly, rail.

Every function returns a `Topology`. Links come in pairs, one per direction, with `a -> b` directly before `b -> a`. All
links have the same bandwidth, latency and overhead unless the function says otherwise. The order of the links is the
order in which the docstring names them. GPUs are gpu0, gpu1, ...; switches come after them.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from math import prod
from typing import Any

from flowccl.errors import TopologyError
from flowccl.topology.topology import Crossing, Link, LinkKind, Node, Topology

MAX_GPUS = 1_000_000
MAX_LINKS = 10_000_000


def ring(gpus: int, *, bandwidth_GBps: float = 25.0, latency_us: float = 0.7, overhead_us: float = 0.0) -> Topology:
    """Return a ring: gpu i with gpu i + 1, the last GPU with the first. Two GPUs have one pair of links, not two."""
    check_whole("ring", "gpus", gpus, 2)
    count = gpus if gpus > 2 else 1
    links = [k for i in range(count) for k in both(i, (i + 1) % gpus, bandwidth_GBps, latency_us, overhead_us)]
    name = machine_name(ring, f"ring:{gpus}", locals())
    return Topology(name, tuple(gpu_nodes(gpus)), tuple(links))


def line(gpus: int, *, bandwidth_GBps: float = 25.0, latency_us: float = 0.7, overhead_us: float = 0.0) -> Topology:
    """Return a line: gpu i with gpu i + 1."""
    check_whole("line", "gpus", gpus, 2)
    links = [k for i in range(gpus - 1) for k in both(i, i + 1, bandwidth_GBps, latency_us, overhead_us)]
    name = machine_name(line, f"line:{gpus}", locals())
    return Topology(name, tuple(gpu_nodes(gpus)), tuple(links))


def full(gpus: int, *, bandwidth_GBps: float = 25.0, latency_us: float = 0.7, overhead_us: float = 0.0) -> Topology:
    """Return a full mesh, with links between all pairs of GPUs: (0, 1), (0, 2), ... (1, 2), ..."""
    check_whole("full", "gpus", gpus, 2)
    _check_links("full", gpus * (gpus - 1))
    links = [k for a, b in combinations(range(gpus), 2) for k in both(a, b, bandwidth_GBps, latency_us, overhead_us)]
    name = machine_name(full, f"full:{gpus}", locals())
    return Topology(name, tuple(gpu_nodes(gpus)), tuple(links))


def star(
    gpus: int,
    *,
    bandwidth_GBps: float = 25.0,
    latency_us: float = 0.7,
    overhead_us: float = 0.0,
    copies: bool = False,
    reduces: bool = False,
    crossing: Crossing = "cut-through",
) -> Topology:
    """Return a star: every GPU is linked with one switch, in rank order.

    `copies` lets the switch multicast, `reduces` lets it reduce; `crossing` is cut-through or store-and-forward.
    """
    check_whole("star", "gpus", gpus, 2)
    switch = Node(name="switch", kind="switch", copies=copies, reduces=reduces, crossing=crossing)
    links = [k for i in range(gpus) for k in both(i, gpus, bandwidth_GBps, latency_us, overhead_us)]
    name = machine_name(star, f"star:{gpus}", locals())
    return Topology(name, (*gpu_nodes(gpus), switch), tuple(links))


def mesh(*sizes: int, bandwidth_GBps: float = 25.0, latency_us: float = 0.7, overhead_us: float = 0.0) -> Topology:
    """Return a grid A x B or A x B x C; ranks count the last dimension first.

    For each GPU in rank order and each dimension in order: the link with the next GPU in that dimension, if any.
    """
    _check_grid("mesh", sizes)
    links = _grid_links(sizes, False, bandwidth_GBps, latency_us, overhead_us)
    name = machine_name(mesh, f"mesh:{'x'.join(map(str, sizes))}", locals())
    return Topology(name, tuple(gpu_nodes(prod(sizes))), tuple(links))


def torus(*sizes: int, bandwidth_GBps: float = 25.0, latency_us: float = 0.7, overhead_us: float = 0.0) -> Topology:
    """Return a grid A x B or A x B x C that wraps around in every dimension; ranks count the last dimension first.

    For each GPU in rank order and each dimension in order: the link with the next GPU in that dimension, where the
    first follows the last. In a dimension of size 2 the forward and the wrap-around link connect the same two GPUs;
    they are merged into one pair of links with the normal bandwidth. A dimension of size 1 adds no links.
    """
    _check_grid("torus", sizes)
    links = _grid_links(sizes, True, bandwidth_GBps, latency_us, overhead_us)
    name = machine_name(torus, f"torus:{'x'.join(map(str, sizes))}", locals())
    return Topology(name, tuple(gpu_nodes(prod(sizes))), tuple(links))


def hypercube(
    dimensions: int, *, bandwidth_GBps: float = 25.0, latency_us: float = 0.7, overhead_us: float = 0.0
) -> Topology:
    """Return a hypercube: 2^dimensions GPUs; GPUs whose ranks differ in one bit are linked.

    For each GPU in rank order and each 0 bit of its rank, lowest first: the link with the GPU that has a 1 there.
    """
    check_whole("hypercube", "dimensions", dimensions, 1)
    if dimensions > 19:
        raise TopologyError(f"hypercube: dimensions must be at most 19 (524,288 gpus), got {dimensions}")
    gpus = 2**dimensions
    links = [
        k
        for rank in range(gpus)
        for bit in range(dimensions)
        if not rank >> bit & 1
        for k in both(rank, rank | 1 << bit, bandwidth_GBps, latency_us, overhead_us)
    ]
    name = machine_name(hypercube, f"hypercube:{dimensions}", locals())
    return Topology(name, tuple(gpu_nodes(gpus)), tuple(links))


def fat_tree(
    ports: int, *, bandwidth_GBps: float = 25.0, latency_us: float = 0.7, overhead_us: float = 0.0
) -> Topology:
    """Return a three-level fat tree of switches with `ports` ports each (even): ports^3 / 4 GPUs, full bisection.

    There are `ports` pods. Pod p has ports / 2 leaf switches leaf{p}.0, ... with ports / 2 GPUs each, and ports / 2
    aggregation switches aggregation{p}.0, ...; above are (ports / 2)^2 core switches core0, ... Order of links: each
    GPU in rank order with its leaf; for each pod each leaf with each aggregation switch; for each pod each aggregation
    switch j with cores j * ports / 2 to (j + 1) * ports / 2 - 1. Switches are plain.
    """
    check_whole("fat_tree", "ports", ports, 2)
    if ports % 2:
        raise TopologyError(f"fat_tree: ports must be even, got {ports}; try {ports + 1}")
    half = ports // 2
    gpus = ports * half * half
    _check_gpus("fat_tree", gpus)
    pods = [(pod, i) for pod in range(ports) for i in range(half)]
    names = [f"leaf{pod}.{i}" for pod, i in pods] + [f"aggregation{pod}.{i}" for pod, i in pods]
    names += [f"core{i}" for i in range(half * half)]
    leaf, aggregation, core = gpus, gpus + ports * half, gpus + 2 * ports * half
    pairs = [(rank, leaf + rank // half) for rank in range(gpus)]
    pairs += [(leaf + pod * half + i, aggregation + pod * half + j) for pod, i in pods for j in range(half)]
    pairs += [(aggregation + pod * half + j, core + j * half + c) for pod, j in pods for c in range(half)]
    links = [k for a, b in pairs for k in both(a, b, bandwidth_GBps, latency_us, overhead_us)]
    name = machine_name(fat_tree, f"fat_tree:{ports}", locals())
    return Topology(name, (*gpu_nodes(gpus), *_switches(names)), tuple(links))


def dragonfly(
    switches: int,
    gpus: int,
    global_links: int,
    *,
    bandwidth_GBps: float = 25.0,
    latency_us: float = 0.7,
    overhead_us: float = 0.0,
) -> Topology:
    """Return a dragonfly (Kim et al. 2008, their a, p, h): groups of switches, one link pair between every two groups.

    Each group has `switches` switches, all linked with each other; each switch has `gpus` GPUs and `global_links`
    links to other groups, so there are switches * global_links + 1 groups. The switches of group g are switch{g}.0,
    ...; switch s of group g has `gpus` GPUs from rank (g * switches + s) * gpus on. Global link k of a group is on
    switch k // global_links and connects to the k-th of the other groups. Order of the links: each GPU in rank order
    with its switch; for each group every two of its switches; every two groups. Switches are plain.
    """
    for what, value in (("switches", switches), ("gpus", gpus), ("global_links", global_links)):
        check_whole("dragonfly", what, value, 1)
    groups = switches * global_links + 1
    total = groups * switches * gpus
    _check_gpus("dragonfly", total)
    _check_links("dragonfly", 2 * total + groups * switches * (switches - 1) + groups * (groups - 1))
    names = [f"switch{group}.{i}" for group in range(groups) for i in range(switches)]
    pairs = [(rank, total + rank // gpus) for rank in range(total)]
    for group in range(groups):
        pairs += combinations(range(total + group * switches, total + (group + 1) * switches), 2)
    for a, b in combinations(range(groups), 2):  # b is number b - 1 among the other groups of a; a is number a for b
        from_a = total + a * switches + (b - 1) // global_links
        pairs.append((from_a, total + b * switches + a // global_links))
    links = [k for a, b in pairs for k in both(a, b, bandwidth_GBps, latency_us, overhead_us)]
    name = machine_name(dragonfly, f"dragonfly:{switches}:{gpus}:{global_links}", locals())
    return Topology(name, (*gpu_nodes(total), *_switches(names)), tuple(links))


def rail(
    hosts: int,
    gpus: int,
    *,
    bandwidth_GBps: float = 25.0,
    latency_us: float = 0.7,
    overhead_us: float = 0.0,
    network_GBps: float = 12.5,
    network_latency_us: float = 1.3,
    network_overhead_us: float = 0.0,
) -> Topology:
    """Return a cluster of `hosts` hosts with `gpus` GPUs each: one switch per host, one rail switch per GPU index.

    Host h has the GPUs from rank h * gpus on and switch{h}; GPU i of every host is linked with rail{i}. Order of the
    links: each GPU in rank order with the switch of its host (bandwidth_GBps, latency_us, overhead_us); for each rail,
    the GPU of each host with the rail (network_GBps, network_latency_us, network_overhead_us). One host has no rails;
    hosts of one GPU have no switch inside. Switches are plain.
    """
    check_hosts("rail", "hosts", hosts, gpus)
    if hosts * gpus < 2:
        raise TopologyError("rail: needs at least 2 gpus in total, got 1 host with 1 gpu; try rail:2x1 or rail:1x2")
    name = machine_name(rail, f"rail:{hosts}x{gpus}", locals())
    switches = [Node(name=f"switch{h}", kind="switch", host=f"host{h}") for h in range(hosts)] if gpus > 1 else []
    inside, network = (bandwidth_GBps, latency_us, overhead_us), (network_GBps, network_latency_us, network_overhead_us)
    return rail_cluster(name, hosts, gpus, switches, inside, network)


# -- shared with hardware.py and machines.py ------------------------------------------------------------------------


def rail_cluster(
    name: str,
    hosts: int,
    gpus: int,
    switches: Sequence[Node],
    inside: tuple[float, ...],
    network: tuple[float, ...],
    model: str = "",
) -> Topology:
    """Return a `rail` cluster with given in-host switches; `inside`, `network` are (bandwidth, latency[, overhead])."""
    total = hosts * gpus
    links = [k for rank in range(total) for k in both(rank, total + rank // gpus, *inside)] if switches else []
    rails = rail_nodes(gpus) if hosts > 1 else []
    first = total + len(switches)
    for index in range(len(rails)):
        links += [k for host in range(hosts) for k in both(host * gpus + index, first + index, *network)]
    return Topology(name, (*gpu_nodes(total, gpus, model), *switches, *rails), tuple(links))


def both(
    a: int,
    b: int,
    bandwidth_GBps: float,
    latency_us: float,
    overhead_us: float = 0.0,
    *,
    kind: LinkKind | None = None,
) -> tuple[Link, Link]:
    """Return the two links between nodes `a` and `b`: a -> b, then b -> a."""
    there = Link(src=a, dst=b, bandwidth_GBps=bandwidth_GBps, latency_us=latency_us, overhead_us=overhead_us, kind=kind)
    return there, replace(there, src=b, dst=a)


def gpu_nodes(count: int, per_host: int = 0, model: str = "") -> list[Node]:
    """Return GPUs gpu0, gpu1, ...; if `per_host` is given, that many in host0, the next in host1 and so on."""
    hosts = [f"host{i // per_host}" if per_host else "" for i in range(count)]
    return [Node(name=f"gpu{i}", host=host, model=model) for i, host in enumerate(hosts)]


def rail_nodes(count: int) -> list[Node]:
    """Return plain switches rail0, rail1, ..."""
    return _switches(f"rail{i}" for i in range(count))


def machine_name(function: Callable[..., Topology], base: str, arguments: Mapping[str, Any]) -> str:
    """Return `base` followed by the options that differ from the defaults: "ring:8:bandwidth=50GB/s"."""
    for key, default in machine_options(function).items():
        value = arguments[key]
        if value == default:
            continue
        if isinstance(value, bool | str):
            base += f":{key}={str(value).lower()}"
        else:
            number = repr(float(value)).removesuffix(".0")
            unit = "GB/s" if key.endswith("_GBps") else "us" if key.endswith("_us") else ""
            base += f":{option_name(key)}={number}{unit}"
    return base


def machine_options(function: Callable[..., Topology]) -> dict[str, float | bool | str]:
    """Return the options of a function that builds a machine: its keyword-only parameters, with their defaults."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def option_name(parameter: str) -> str:
    """Return the name of an option in the name of a machine: the parameter without its unit."""
    return parameter.removesuffix("_GBps").removesuffix("_us")


def check_whole(machine: str, what: str, value: int, least: int) -> None:
    """Refuse a size that is not a whole number from `least` to MAX_GPUS."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TopologyError(f"{machine}: {what} must be a whole number, got {value!r}")
    if value < least:
        raise TopologyError(f"{machine}: {what} must be at least {least}, got {value}")
    if value > MAX_GPUS:
        raise TopologyError(f"{machine}: {what} must be at most {MAX_GPUS:,}, got {value:,}")


def check_hosts(machine: str, what: str, hosts: int, gpus_per_host: int) -> None:
    """Refuse fewer than one host (or rack: `what`), and more than MAX_GPUS GPUs."""
    check_whole(machine, what, hosts, 1)
    check_whole(machine, "gpus", gpus_per_host, 1)
    _check_gpus(machine, hosts * gpus_per_host)


def _check_gpus(machine: str, gpus: int) -> None:
    if gpus > MAX_GPUS:
        raise TopologyError(f"{machine}: at most {MAX_GPUS:,} gpus can be built, this would be {gpus:,}")


def _check_links(machine: str, links: int) -> None:
    if links > MAX_LINKS:
        raise TopologyError(f"{machine}: at most {MAX_LINKS:,} links can be built, this would be {links:,}")


def _check_grid(machine: str, sizes: tuple[int, ...]) -> None:
    if len(sizes) not in (2, 3):
        raise TopologyError(f"{machine}: needs 2 or 3 sizes such as 4x4 or 4x4x4, got {len(sizes)}")
    for size in sizes:
        check_whole(machine, "every size", size, 1)
    if prod(sizes) < 2:
        raise TopologyError(f"{machine}: needs at least 2 gpus, got {'x'.join(map(str, sizes))}")
    _check_gpus(machine, prod(sizes))


def _grid_links(sizes: tuple[int, ...], wraps: bool, *cost: float) -> list[Link]:
    """Return the links of a grid; `cost` is (bandwidth_GBps, latency_us, overhead_us)."""
    strides = [prod(sizes[dimension + 1 :]) for dimension in range(len(sizes))]
    links: list[Link] = []
    for rank in range(prod(sizes)):
        for size, stride in zip(sizes, strides, strict=True):
            place = rank // stride % size
            if place + 1 < size:
                links += both(rank, rank + stride, *cost)
            elif wraps and size > 2:
                links += both(rank, rank - place * stride, *cost)
    return links


def _switches(names: Iterable[str]) -> list[Node]:
    return [Node(name=name, kind="switch") for name in names]
