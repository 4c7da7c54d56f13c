"""The machine: nodes, directed links, and limits that links share. Objects are frozen and validated on creation."""

import hashlib
import json
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.errors import TopologyError
from flowccl.units import us_to_ps

Kind = Literal["gpu", "switch", "memory"]
LinkKind = Literal["nvlink", "pcie", "nic"]
Crossing = Literal["cut-through", "store-and-forward"]

_ABILITIES = {  # kind: stores, copies, reduces
    "gpu": (True, True, True),
    "memory": (True, True, False),
    "switch": (False, False, False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A GPU, a switch or a host memory.

    `stores`, `copies` and `reduces` say what the node can do; None means the default of the kind (a GPU can do all
    three, a memory stores and copies, a plain switch only forwards). Only GPUs own data. `crossing` says how data
    crosses a switch. `buffer_bytes` limits the forwarded data that a storing node can keep. `reduce_GBps` is the rate
    at which the node reduces arriving data, one transfer after the other; None means instantly. `model` is the model
    of a GPU, such as "H100"; `gpu_models.py` lists the models whose SMs are known.
    """

    name: str
    kind: Kind = "gpu"
    host: str = ""
    stores: bool | None = None
    copies: bool | None = None
    reduces: bool | None = None
    crossing: Crossing = "cut-through"
    buffer_bytes: int | None = None
    reduce_GBps: float | None = None
    model: str = ""

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise TopologyError(f"the name of a node must be a non-empty string, got {self.name!r}")
        if self.kind not in _ABILITIES:
            raise TopologyError(f"node {self.name}: kind must be gpu, switch or memory, got {self.kind!r}")
        if self.crossing not in get_args(Crossing):
            raise TopologyError(
                f"node {self.name}: crossing must be cut-through or store-and-forward, got {self.crossing!r}"
            )
        for ability, default in zip(("stores", "copies", "reduces"), _ABILITIES[self.kind], strict=True):
            if getattr(self, ability) is None:
                object.__setattr__(self, ability, default)
        if self.kind == "gpu" and not self.stores:
            raise TopologyError(f"node {self.name}: a gpu owns data, so stores cannot be false")
        if self.buffer_bytes is not None and self.buffer_bytes < 0:
            raise TopologyError(f"node {self.name}: buffer_bytes must be >= 0, got {self.buffer_bytes}")
        if self.buffer_bytes is not None and not self.stores:
            raise TopologyError(f"node {self.name}: buffer_bytes needs a node that stores; a switch does not")
        if self.model and self.kind != "gpu":
            raise TopologyError(f"node {self.name}: only a gpu has a model, not a {self.kind}")
        if self.reduce_GBps is not None:
            _check_rate(f"node {self.name}", "reduce_GBps", self.reduce_GBps)
            object.__setattr__(self, "reduce_GBps", float(self.reduce_GBps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A directed link between two nodes, given by their indices in `Topology.nodes`.

    Every message occupies the link for `overhead_us` before its bytes flow; the latency does not occupy the link.
    `changes` are pairs (from_us, bandwidth_GBps), sorted by time, for a bandwidth that changes over time. `kind` says
    what a runtime needs to send on the link: nvlink (any link between GPUs of a host), pcie or nic; None means a NIC
    between hosts and NVLink inside a host.
    """

    src: int
    dst: int
    bandwidth_GBps: float
    latency_us: float = 0.0
    changes: tuple[tuple[float, float], ...] = ()
    overhead_us: float = 0.0
    kind: LinkKind | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "bandwidth_GBps", float(self.bandwidth_GBps))
        object.__setattr__(self, "latency_us", float(self.latency_us))
        object.__setattr__(self, "overhead_us", float(self.overhead_us))
        object.__setattr__(self, "changes", tuple((float(at), float(bandwidth)) for at, bandwidth in self.changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A bandwidth that several links share; `links` are their indices in `Topology.links`."""

    name: str
    links: tuple[int, ...]
    bandwidth_GBps: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "bandwidth_GBps", float(self.bandwidth_GBps))
        object.__setattr__(self, "links", tuple(self.links))


@dataclass(frozen=True)
class Topology:
    """A machine. GPUs come first in `nodes`; the index of a GPU is its rank."""

    name: str
    nodes: tuple[Node, ...]
    links: tuple[Link, ...]
    limits: tuple[Limit, ...] = field(default=())

    def __post_init__(self) -> None:
        for attribute in ("nodes", "links", "limits"):
            object.__setattr__(self, attribute, tuple(getattr(self, attribute)))
        _check_nodes(self)
        for index, link in enumerate(self.links):
            _check_link(self, index, link)
        for limit in self.limits:
            _check_limit(self, limit)
        twice = [name for name, times in Counter(limit.name for limit in self.limits).items() if times > 1]
        if twice:
            raise TopologyError(f"limit name {twice[0]!r} is used twice; names must differ")

    def __repr__(self) -> str:
        return f"Topology({self.name!r}, {self.num_gpus} gpus, {len(self.nodes)} nodes, {len(self.links)} links)"

    def _repr_html_(self) -> str:
        """A table and a small picture, for notebooks."""
        return str(import_module("flowccl.notebook").topology_html(self))  # by name: a layer above this one

    # -- counts and names ---------------------------------------------------------------------------------------

    @cached_property
    def num_gpus(self) -> int:
        """Number of GPUs; they are nodes 0 to num_gpus - 1."""
        return sum(node.kind == "gpu" for node in self.nodes)

    @cached_property
    def index(self) -> dict[str, int]:
        """Index of each node by name."""
        return {node.name: position for position, node in enumerate(self.nodes)}

    def link_name(self, link: int) -> str:
        """Return the name of a link in messages: "gpu0 -> gpu4"."""
        return f"{self.nodes[self.links[link].src].name} -> {self.nodes[self.links[link].dst].name}"

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts, in order of appearance."""
        return tuple(dict.fromkeys(node.host for node in self.nodes if node.host))

    # -- arrays per link and per node ---------------------------------------------------------------------------

    @cached_property
    def link_src(self) -> NDArray[np.int32]:
        """Source node of each link."""
        return np.array([link.src for link in self.links], dtype=np.int32)

    @cached_property
    def link_dst(self) -> NDArray[np.int32]:
        """Destination node of each link."""
        return np.array([link.dst for link in self.links], dtype=np.int32)

    @cached_property
    def link_GBps(self) -> NDArray[np.float64]:
        """Bandwidth of each link at time zero."""
        return np.array([link.bandwidth_GBps for link in self.links], dtype=np.float64)

    @cached_property
    def link_peak_GBps(self) -> NDArray[np.float64]:
        """Highest bandwidth of each link over time."""
        return np.array([max([link.bandwidth_GBps, *(b for _, b in link.changes)]) for link in self.links])

    @cached_property
    def link_latency_ps(self) -> NDArray[np.int64]:
        """Latency of each link."""
        return np.array([us_to_ps(link.latency_us) for link in self.links], dtype=np.int64)

    @cached_property
    def link_overhead_ps(self) -> NDArray[np.int64]:
        """Overhead per message of each link: the time that it is busy before the bytes flow."""
        return np.array([us_to_ps(link.overhead_us) for link in self.links], dtype=np.int64)

    @cached_property
    def has_overheads(self) -> bool:
        """Whether any link has an overhead per message."""
        return bool(self.link_overhead_ps.any())

    @cached_property
    def link_kinds(self) -> tuple[LinkKind, ...]:
        """Kind of each link: as given, else nic between hosts and nvlink inside a host."""
        host = [node.host for node in self.nodes]
        return tuple(link.kind or ("nvlink" if host[link.src] == host[link.dst] else "nic") for link in self.links)

    @cached_property
    def link_delay_ps(self) -> NDArray[np.int64]:
        """Time that each link adds to a path: its latency, and its overhead where the link leaves a storing node.

        Overheads of links behind a switch overlap with that of the first link.
        """
        return np.where(self.stores[self.link_src], self.link_latency_ps + self.link_overhead_ps, self.link_latency_ps)

    @cached_property
    def link_changes(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Bandwidth over time: (pointer per link, from_ps, GBps); the first entry of a link is at time zero."""
        sizes = [1 + len(link.changes) for link in self.links]
        pointer = pointers(sizes)
        rows = [row for link in self.links for row in ((0.0, link.bandwidth_GBps), *link.changes)]
        since = np.array([us_to_ps(at) for at, _ in rows], dtype=np.int64)
        return pointer, since, np.array([bandwidth for _, bandwidth in rows], dtype=np.float64)

    @cached_property
    def changes(self) -> bool:
        """Whether any link changes its bandwidth over time."""
        return any(link.changes for link in self.links)

    @cached_property
    def has_buffer_limits(self) -> bool:
        """Whether any node has a buffer limit."""
        return any(node.buffer_bytes is not None for node in self.nodes)

    @property
    def has_limits_or_changes(self) -> bool:
        """Whether links share bandwidth limits or change their bandwidth over time."""
        return bool(self.limits) or self.changes

    @property
    def has_extra_constraints(self) -> bool:
        """Whether anything but the links themselves constrains transfers: limits, changing bandwidth, buffer limits."""
        return self.has_limits_or_changes or self.has_buffer_limits

    @cached_property
    def link_limits(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Limits of each link: (pointer per link, limit indices)."""
        members: list[list[int]] = [[] for _ in self.links]
        for index, limit in enumerate(self.limits):
            for link in limit.links:
                members[link].append(index)
        pointer = pointers([len(m) for m in members])
        return pointer, np.array([limit for m in members for limit in m], dtype=np.int32)

    @cached_property
    def limit_GBps(self) -> NDArray[np.float64]:
        """Bandwidth of each limit."""
        return np.array([limit.bandwidth_GBps for limit in self.limits], dtype=np.float64)

    @cached_property
    def stores(self) -> NDArray[np.bool_]:
        """Which nodes store (GPUs and memories)."""
        return np.array([bool(node.stores) for node in self.nodes])

    @cached_property
    def copies(self) -> NDArray[np.bool_]:
        """Which nodes can forward more than one copy of the data that they receive."""
        return np.array([bool(node.copies) for node in self.nodes])

    @cached_property
    def reduces(self) -> NDArray[np.bool_]:
        """Which nodes can reduce the data that they receive."""
        return np.array([bool(node.reduces) for node in self.nodes])

    @cached_property
    def reduce_GBps(self) -> NDArray[np.float64]:
        """Rate at which each node reduces arriving data; infinite if reducing takes no time."""
        return np.array([np.inf if node.reduce_GBps is None else node.reduce_GBps for node in self.nodes])

    @cached_property
    def has_reduce_rate(self) -> bool:
        """Whether reducing takes time at any node."""
        return any(node.reduce_GBps is not None for node in self.nodes)

    @cached_property
    def cuts_through(self) -> NDArray[np.bool_]:
        """Which nodes forward data while still receiving it (cut-through switches)."""
        return np.array([not node.stores and node.crossing == "cut-through" for node in self.nodes])

    @cached_property
    def out_links(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Links that leave each node: (pointer per node, link indices)."""
        return _group(self.link_src, len(self.nodes))

    @cached_property
    def in_links(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Links that enter each node: (pointer per node, link indices)."""
        return _group(self.link_dst, len(self.nodes))

    @cached_property
    def route_shapes(self) -> dict[tuple[int, ...], Any]:
        """Cache of `routes.py` for the routes of this machine."""
        return {}

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that affects a schedule: nodes, links and limits, but not the name of the machine."""
        rows = (
            [[getattr(node, name) for name in _fields_of(node)] for node in self.nodes],
            [
                [link.src, link.dst, link.bandwidth_GBps, link.latency_us, link.changes]
                + ([link.overhead_us] if link.overhead_us else [])
                for link in self.links
            ],
            [[limit.name, limit.links, limit.bandwidth_GBps] for limit in self.limits],
        )
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]

    @cached_property
    def reversed(self) -> "Topology":
        """The machine with all links reversed; nodes that copy reduce instead, and nodes that reduce copy instead."""
        nodes = [replace(node, copies=node.reduces, reduces=node.copies) for node in self.nodes]
        links = [replace(link, src=link.dst, dst=link.src) for link in self.links]
        back = " reversed"
        name = self.name.removesuffix(back) if self.name.endswith(back) else self.name + back
        return Topology(name, tuple(nodes), tuple(links), self.limits)


def _group(keys: NDArray[np.int32], count: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    order = np.argsort(keys, kind="stable").astype(np.int32)
    return pointers(np.bincount(keys, minlength=count)), order


def _fields_of(node: Node) -> tuple[str, ...]:
    """Return the fields in the fingerprint: those that affect the times of a schedule."""
    given = {"reduce_GBps": node.reduce_GBps is not None, "model": False}
    return tuple(name for name in Node.__slots__ if given.get(name, True))


def _check_nodes(topology: Topology) -> None:
    if not topology.nodes:
        raise TopologyError("a machine needs at least one gpu")
    twice = [name for name, times in Counter(node.name for node in topology.nodes).items() if times > 1]
    if twice:
        raise TopologyError(f"node name {twice[0]!r} is used twice; names must differ")
    kinds = [node.kind for node in topology.nodes]
    if kinds[0] != "gpu":
        raise TopologyError(f"gpus come first in nodes, but {topology.nodes[0].name} is a {kinds[0]}")
    for before, after in zip(topology.nodes, topology.nodes[1:], strict=False):
        if before.kind != "gpu" and after.kind == "gpu":
            raise TopologyError(f"gpus come first in nodes, but {after.name} comes after {before.name}")


def _check_link(topology: Topology, index: int, link: Link) -> None:
    count = len(topology.nodes)
    for end, node in (("src", link.src), ("dst", link.dst)):
        if not 0 <= node < count:
            raise TopologyError(f"link {index}: {end} must be a node, 0 to {count - 1}, got {node}")
    where = f"link {index} ({topology.nodes[link.src].name} -> {topology.nodes[link.dst].name})"
    if link.src == link.dst:
        raise TopologyError(f"{where}: a link must connect two different nodes")
    _check_bandwidth(where, link.bandwidth_GBps)
    if link.kind not in (None, *get_args(LinkKind)):
        raise TopologyError(f"{where}: kind must be nvlink, pcie or nic, got {link.kind!r}")
    for name in ("latency_us", "overhead_us"):
        if not 0 <= getattr(link, name) <= 1e9:
            raise TopologyError(f"{where}: {name} must be >= 0 and at most 1e9, got {getattr(link, name):g}")
    last = 0.0
    for at_us, bandwidth in link.changes:
        _check_bandwidth(where, bandwidth)
        if not (math.isfinite(at_us) and at_us <= 1e9 and us_to_ps(at_us) > us_to_ps(last)):
            raise TopologyError(f"{where}: times of changes must be above 0 and increase, got {at_us:g} after {last:g}")
        last = at_us


def _check_limit(topology: Topology, limit: Limit) -> None:
    where = f"limit {limit.name!r}"
    if not limit.links:
        raise TopologyError(f"{where}: needs at least one link")
    if len(set(limit.links)) != len(limit.links):
        raise TopologyError(f"{where}: names a link twice")
    for link in limit.links:
        if not 0 <= link < len(topology.links):
            raise TopologyError(f"{where}: link must be 0 to {len(topology.links) - 1}, got {link}")
    _check_bandwidth(where, limit.bandwidth_GBps)


def _check_bandwidth(where: str, bandwidth_GBps: float) -> None:
    _check_rate(where, "bandwidth_GBps", bandwidth_GBps)


def _check_rate(where: str, what: str, GBps: float) -> None:
    if not (math.isfinite(GBps) and GBps > 0):
        raise TopologyError(f"{where}: {what} must be > 0, got {GBps:g}")
    if not 1e-6 <= GBps <= 1e9:
        raise TopologyError(f"{where}: {what} must be between 1e-6 and 1e9, got {GBps:g}")
