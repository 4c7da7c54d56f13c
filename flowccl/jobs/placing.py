"""Calls on the machine: which GPU a rank is, and the demand of a kind of calls."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from flowccl.demand.collectives import alltoallv
from flowccl.demand.demand import Demand
from flowccl.demand.groups import group_collective, in_group
from flowccl.demand.tenants import Tenant, combined_demand
from flowccl.errors import DemandError, InputError
from flowccl.jobs.kinds import Kind
from flowccl.topology.symmetry.automorphisms import known_symmetry
from flowccl.topology.topology import Link, Topology

_NAME = re.compile(r"[\w.-]+")
_LARGEST_ORBIT = 20_000  # groups that are looked at to find one that is equivalent by symmetry


def rank_map(text: str | None, gpus: int) -> tuple[int, ...]:
    """Return the GPU of each rank: all of them in order, or as in a text such as "8-15,0-7" or a file with it."""
    if text is None:
        return tuple(range(gpus))
    if Path(text).is_file():
        text = Path(text).read_text(encoding="utf-8")
    found: list[int] = []
    for part in text.replace("\n", ",").replace(" ", ",").split(","):
        ends = part.strip().split("-")
        if part.strip() and (len(ends) > 2 or not all(end.isdecimal() and len(end) < 8 for end in ends)):
            raise InputError(
                f"--rank-map: {part.strip()!r} is not a GPU or a range of GPUs; write for example 8-15,0-7"
            )
        if part.strip() and int(ends[0]) > int(ends[-1]):
            raise InputError(f"--rank-map: {part.strip()!r} goes backwards; write the smaller GPU first")
        found += range(int(ends[0]), int(ends[-1]) + 1) if part.strip() else ()
    if len(set(found)) != len(found):
        raise InputError("--rank-map: names a GPU twice; every rank has its own GPU")
    if found and max(found) >= gpus:
        raise InputError(f"--rank-map: GPU {max(found)} does not exist; the machine has GPUs 0 to {gpus - 1}")
    return tuple(found)


def placed_group(kind: Kind, places: Sequence[int], topology: Topology) -> tuple[int, ...]:
    """Return the GPUs of a group; raises InputError if the machine has too few."""
    highest = max(kind.group, default=0)
    if highest >= len(places):
        raise InputError(
            f"the logs have rank {highest}, but {topology.name} with this rank map has {len(places)} GPUs; "
            "give the machine of the job with --machine, or --rank-map"
        )
    return tuple(places[rank] for rank in kind.group)


def demand_of(
    kind: Kind,
    gpus: tuple[int, ...],
    topology: Topology,
    *,
    relays: bool,
    chunks: int = 1,
    size_bytes: int | None = None,
) -> Demand | None:
    """Return the demand of a call; None where it moves nothing that is known.

    With `relays`, GPUs outside the group may forward data. A send is a broadcast to one GPU.
    """
    size = kind.size_bytes if size_bytes is None else size_bytes
    through = None if relays else ()
    if kind.collective == "barrier" or len(gpus) < 2 or size < 1:
        return None
    if kind.collective == "alltoallv":
        if kind.matrix is None:
            return _even(size, gpus, topology, chunks, through)
        return in_group(alltoallv(kind.matrix, chunks), gpus, topology.num_gpus, through)
    root = _root(kind, gpus)
    name = "broadcast" if kind.collective == "send" else kind.collective
    size = max(size, len(gpus) * chunks)  # a block of less than a byte is one byte
    return group_collective(name, size, gpus, topology.num_gpus, chunks=chunks, root=root, relays=through)


def _even(size: int, gpus: tuple[int, ...], topology: Topology, chunks: int, through: tuple[int, ...] | None) -> Demand:
    size = max(size, len(gpus) * chunks)
    return group_collective("alltoall", size, gpus, topology.num_gpus, chunks=chunks, relays=through)


def _root(kind: Kind, gpus: tuple[int, ...]) -> int | None:
    if kind.collective == "send":
        return gpus[0]
    if kind.collective not in ("broadcast", "reduce", "gather", "scatter"):
        return None
    return gpus[kind.group.index(kind.root)] if kind.root in kind.group else gpus[0]


def fits(demand: Demand, topology: Topology) -> bool:
    """Whether all data of a demand can reach its destinations."""
    try:
        demand.check_fits(topology)
    except DemandError:
        return False
    return True


def together(demands: Sequence[Demand]) -> Demand:
    """Return one demand of calls that run at the same time."""
    return combined_demand([Tenant(f"group {at}", demand) for at, demand in enumerate(demands)])


class EquivalentGroups:
    """Finds groups that are equivalent by the symmetry of the machine: what holds for one holds for all of them."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._moves = [generator.astype(np.int64) for generator in known_symmetry(topology).nodes]
        self._from: dict[frozenset[int], tuple[frozenset[int], int]] = {}  # the group before, and the move from there

    def representative(self, gpus: Sequence[int]) -> frozenset[int]:
        """Return the same set of GPUs for all groups that are known to be equivalent."""
        first = frozenset(gpus)
        if first not in self._from:
            self._explore(first)
        while self._from[first][1] >= 0:
            first = self._from[first][0]
        return first

    def _explore(self, first: frozenset[int]) -> None:
        self._from[first] = first, -1
        moves, todo = [move.tolist() for move in self._moves], [first]
        for group in todo:
            for number, move in enumerate(moves):
                image = frozenset(move[gpu] for gpu in group)
                if image not in self._from and len(todo) < _LARGEST_ORBIT:
                    self._from[image] = group, number
                    todo.append(image)

    def renamed(self, text: str, gpus: Sequence[int]) -> str:
        """Return a text about the representative with the names of this group: gpu0 becomes gpu8, host0 host1."""
        self.representative(gpus)
        path, group = [], frozenset(gpus)
        while self._from[group][1] >= 0:
            group, move = self._from[group]
            path.append(move)
        if not path:
            return text
        place = np.arange(len(self._topology.nodes))
        for move in reversed(path):
            place = self._moves[move][place]
        nodes = self._topology.nodes
        names = {node.name: nodes[int(to)].name for node, to in zip(nodes, place, strict=True)}
        names |= {node.host: nodes[int(to)].host for node, to in zip(nodes, place, strict=True) if node.host}
        return _NAME.sub(lambda found: names.get(found[0], found[0]), text)


def only_gpus(topology: Topology, gpus: Sequence[int]) -> Topology:
    """Return the machine with only these GPUs, in this order, and all switches and memories."""
    others = list(range(topology.num_gpus, len(topology.nodes)))
    kept = [*gpus, *others]
    place = np.full(len(topology.nodes), -1, dtype=np.int64)
    place[kept] = np.arange(len(kept))
    links: list[Link] = []
    number: dict[int, int] = {}
    for at, link in enumerate(topology.links):
        if place[link.src] >= 0 and place[link.dst] >= 0:
            number[at] = len(links)
            links.append(replace(link, src=int(place[link.src]), dst=int(place[link.dst])))
    limits = [
        replace(limit, links=inside)
        for limit in topology.limits
        if (inside := tuple(number[at] for at in limit.links if at in number))
    ]
    nodes = tuple(topology.nodes[at] for at in kept)
    return _without_idle(Topology(f"{topology.name}, {len(gpus)} gpus", nodes, tuple(links), tuple(limits)))


def _without_idle(topology: Topology) -> Topology:
    """The machine without switches and memories that have no links left."""
    used = np.zeros(len(topology.nodes), dtype=np.bool_)
    used[: topology.num_gpus] = True
    used[topology.link_src] = True
    used[topology.link_dst] = True
    place = np.cumsum(used) - 1
    links = tuple(replace(k, src=int(place[k.src]), dst=int(place[k.dst])) for k in topology.links)
    nodes = tuple(node for node, keep in zip(topology.nodes, used.tolist(), strict=True) if keep)
    return Topology(topology.name, nodes, links, topology.limits)
