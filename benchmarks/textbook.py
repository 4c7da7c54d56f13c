"""Textbook algorithms as schedules, to compare the search for a runtime with, in the same clock.

Algorithms for allgather, reduce_scatter and allreduce give a tree for every block: how it gets from its owner to all
ranks. A reduction uses the same tree backwards, and an allreduce first reduces to the owner and then distributes.
Algorithms for alltoall give a path for every block. Everything that goes between the same GPUs in the same stage is one
message for each piece of a block. `flowccl/methods/` is not used here: its methods are what is compared.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from flowccl.demand.collectives import collective as make_demand
from flowccl.demand.demand import Demand
from flowccl.errors import FlowcclError
from flowccl.runtimes.machine import sms_of, used_by
from flowccl.runtimes.profiles import ALIGNMENT_BYTES, PROFILES
from flowccl.schedule.generation.carrying import Carrier
from flowccl.schedule.schedule import Schedule
from flowccl.topology.neighbours import neighbours
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology
from flowccl.verifier.verify import verify

LEAST_CHUNK_BYTES = 512  # as in a synthesis for a runtime
PIECES = (1, 2, 4, 8, 16, 32)  # of a block, of which the earliest counts
MOST_TRANSFERS = 20_000  # in a schedule that is still tried

Hop = tuple[int, int, tuple[int, ...]]  # stage, from, to; to several GPUs where a switch copies


@dataclass(frozen=True)
class Machine:
    """A machine as the algorithms see it: hosts, the cheapest route between two GPUs, switches that reduce."""

    topology: Topology
    size_bytes: int

    @cached_property
    def hosts(self) -> list[list[int]]:
        """The GPUs of each host; one host where a GPU names none."""
        groups: dict[str, list[int]] = {}
        for rank, node in enumerate(self.topology.nodes[: self.topology.num_gpus]):
            groups.setdefault(node.host, []).append(rank)
        return [list(range(self.topology.num_gpus))] if "" in groups else list(groups.values())

    @cached_property
    def place(self) -> dict[int, tuple[int, int]]:
        """The host of each GPU, and its position there."""
        return {rank: (h, p) for h, host in enumerate(self.hosts) for p, rank in enumerate(host)}

    @cached_property
    def routes(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """The links between two GPUs that a link or a route through switches connects."""
        near = neighbours(self.topology, 1)
        pairs = zip(near.src.tolist(), near.end.tolist(), near.pair_ptr.tolist(), strict=False)
        count = self.topology.num_gpus
        return {(a, b): near.routes.links(first) for a, b, first in pairs if a < count and b < count}

    @cached_property
    def _before(self) -> tuple[list[list[float]], list[list[int]]]:
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import dijkstra

        t, size = self.topology, self.size_bytes / self.topology.num_gpus
        cost = [
            sum(t.links[k].latency_us for k in links)
            + size / 1000 / min(t.links[k].bandwidth_GBps for k in links)
            + 1e-3
            for links in self.routes.values()
        ]
        ends = np.array(list(self.routes)).reshape(-1, 2)
        graph = csr_matrix((cost, (ends[:, 0], ends[:, 1])), (t.num_gpus, t.num_gpus))
        distance, before = dijkstra(graph, return_predecessors=True)
        return distance.tolist(), before.tolist()

    def distance(self, a: int, b: int) -> float:
        """What it takes to bring a block from one GPU to another, in microseconds."""
        return self._before[0][a][b]

    def path(self, a: int, b: int) -> list[int]:
        """The GPUs from one to another one over which a block gets there first."""
        path = [b]
        while path[-1] != a:
            path.append(self._before[1][a][path[-1]])
        return path[::-1]

    def ports(self, host: int) -> tuple[dict[int, int], dict[int, int]] | None:
        """The links into and out of the switch of a host that reduces and copies; None without one."""
        t = self.topology
        for switch in range(t.num_gpus, len(t.nodes)):
            if t.nodes[switch].reduces and t.nodes[switch].copies:
                into = {k.src: n for n, k in enumerate(t.links) if k.dst == switch}
                out = {k.dst: n for n, k in enumerate(t.links) if k.src == switch}
                if all(rank in into and rank in out for rank in self.hosts[host]):
                    return into, out
        return None

    def links(self, a: int, ends: tuple[int, ...]) -> tuple[int, ...]:
        """The links from a GPU to one other GPU, or through the switch of its host to several."""
        if len(ends) == 1:
            return self.routes[a, ends[0]]
        ports = self.ports(self.place[a][0])
        assert ports is not None
        return ports[0][a], *(ports[1][end] for end in ends)


Tree = Callable[[Machine, int, int], Iterator[Hop]]  # machine, owner, piece


# -- trees: how a block gets from its owner to all ranks ------------------------------------------------------------


def direct(machine: Machine, owner: int, piece: int) -> Iterator[Hop]:
    """The owner sends the block to every rank itself; one after the other, each owner begins with the next rank."""
    count = machine.topology.num_gpus
    for step in range(1, count):
        yield 0, owner, ((owner + step) % count,)


def ring(machine: Machine, owner: int, piece: int) -> Iterator[Hop]:
    """The block travels around a ring of all ranks; pieces take the rings of all rails in turn."""
    order = _rings(machine)[piece % len(_rings(machine))]
    first = order.index(owner)
    for step, (a, b) in enumerate(pairwise(order[first:] + order[:first])):
        yield step, a, (b,)


def _rings(machine: Machine) -> list[list[int]]:
    """A ring for every position in a host: it enters there, and leaves the host on the position before it.

    Every second host is visited backwards, so that the ring stays on its rail between hosts.
    """
    hosts, rings = machine.hosts, []
    if len(hosts) == 1:
        return [_short_ring(machine)]
    for k in range(min(map(len, hosts))):
        order: list[int] = []
        for turn, host in enumerate(hosts):
            turned = host[k:] + host[:k]
            order += turned if turn % 2 == 0 else turned[::-1]
        if all((a, b) in machine.routes for a, b in pairwise([*order, order[0]])):
            rings.append(order)
    return rings or [_short_ring(machine)]


def _short_ring(machine: Machine) -> list[int]:
    """A ring of all ranks over short distances: the nearest one next."""
    order, left = [0], set(range(1, machine.topology.num_gpus))
    while left:
        order.append(min(left, key=lambda rank: (machine.distance(order[-1], rank), rank)))
        left.discard(order[-1])
    return order


def two_level(machine: Machine, owner: int, piece: int) -> Iterator[Hop]:
    """The owner sends the block to one GPU in every other host, on its rail; there it is sent to the others."""
    host, position = machine.place[owner]
    for h in _others_first(machine, host):
        ranks = machine.hosts[h]
        agent = owner if h == host else ranks[position % len(ranks)]
        if h != host:
            yield 0, owner, (agent,)
        turn = ranks.index(agent)
        for rank in (ranks[turn:] + ranks[:turn])[1:]:
            yield 1, agent, (rank,)


def two_level_nvls(machine: Machine, owner: int, piece: int) -> Iterator[Hop]:
    """The same, with the switch of a host that copies a block to all its GPUs."""
    host, position = machine.place[owner]
    for h in _others_first(machine, host):
        ranks = machine.hosts[h]
        agent = owner if h == host else ranks[position % len(ranks)]
        others = tuple(rank for rank in ranks if rank != agent)
        if h != host:
            yield 0, owner, (agent,)
        if machine.ports(h) is None:
            yield from ((1, agent, (rank,)) for rank in others)
        elif others:
            yield 1, agent, others


def _others_first(machine: Machine, host: int) -> list[int]:
    """All hosts, from the one after this host on."""
    count = len(machine.hosts)
    return [(host + step) % count for step in range(1, count + 1)]


TREES: dict[str, Tree] = {"direct": direct, "ring": ring, "two-level": two_level, "two-level NVLS": two_level_nvls}


# -- paths: how a block of an alltoall gets from its source to its destination; each leg is a stage ------------------


def straight(machine: Machine, a: int, b: int) -> list[int]:
    """The source sends to the destination itself."""
    return [a, b]


def pxn(machine: Machine, a: int, b: int) -> list[int]:
    """The blocks of a host for a GPU are collected by the GPU on its rail, which sends them in one message."""
    (h, _), (there, position) = machine.place[a], machine.place[b]
    ranks = machine.hosts[h]
    return [a, b, b] if h == there else [a, ranks[position % len(ranks)], b]


def from_the_rail(machine: Machine, a: int, b: int) -> list[int]:
    """A GPU sends its blocks for another host in one message to the GPU on its rail, which sends them on."""
    (h, position), (there, _) = machine.place[a], machine.place[b]
    ranks = machine.hosts[there]
    return [a, a, b] if h == there else [a, ranks[position % len(ranks)], b]


def one_message_per_pair_of_hosts(machine: Machine, a: int, b: int) -> list[int]:
    """All blocks from one host to another are collected by one GPU, cross in one message, and are sent on."""
    (h, _), (there, _) = machine.place[a], machine.place[b]
    if h == there:
        return [a, b, b, b]
    rail = (h + there) % min(len(machine.hosts[h]), len(machine.hosts[there]))
    return [a, machine.hosts[h][rail], machine.hosts[there][rail], b]


PATHS: dict[str, Callable[[Machine, int, int], list[int]]] = {
    "direct": straight,
    "PXN": pxn,
    "rail first": from_the_rail,
    "one message per pair of hosts": one_message_per_pair_of_hosts,
}


# -- schedules ------------------------------------------------------------------------------------------------------

Row = tuple[int, tuple[int, ...], int, bool]  # stage, links, chunk, reduces


def textbook_schedules(topology: Topology, collective: str, size_bytes: int) -> Iterator[Schedule]:
    """Yield the algorithms for a collective, each with several numbers of pieces, without times of messages.

    `method` of a schedule is the name of the algorithm.
    """
    machine = Machine(topology, size_bytes)
    for name in PATHS if collective == "alltoall" else (*TREES, "one-shot"):
        for pieces in PIECES:
            try:
                demand = make_demand(collective, topology.num_gpus, size_bytes, pieces)
            except FlowcclError:
                break
            size = demand.chunk_bytes
            if pieces > 1 and (np.any(size % ALIGNMENT_BYTES) or size.min() < LEAST_CHUNK_BYTES):
                break
            rows = _rows(machine, name, demand)
            if not rows or len(rows) > MOST_TRANSFERS:
                break
            yield _draft(machine, demand, rows, name)


def _rows(machine: Machine, name: str, demand: Demand) -> list[Row]:
    """The transfers of an algorithm; none where it does not apply."""
    if demand.collective == "alltoall":
        return _along_paths(machine, PATHS[name], demand) if name == "direct" or len(machine.hosts) > 1 else []
    if name == "one-shot":
        return _one_shot(machine, demand)
    if name == "two-level" and len(machine.hosts) == 1:
        return []
    if name == "two-level NVLS" and all(machine.ports(h) is None for h in range(len(machine.hosts))):
        return []
    if name == "two-level NVLS" and demand.reduces and len(machine.hosts) == 1:
        return _in_the_switch(machine, demand)
    return _along_trees(machine, TREES[name], demand)


def _along_paths(machine: Machine, path: Callable[[Machine, int, int], list[int]], demand: Demand) -> list[Row]:
    rows: list[Row] = []
    for chunk in range(len(demand)):
        a, b = int(demand.sources(chunk)[0]), int(demand.destinations(chunk)[0])
        if a == b:
            continue
        stops = path(machine, a, b)
        if any(not math.isfinite(machine.distance(u, v)) for u, v in pairwise(stops)):
            return []
        for leg, (u, v) in enumerate(pairwise(stops)):
            stage = leg * machine.topology.num_gpus  # a path has fewer hops
            hops = enumerate(pairwise(machine.path(u, v)))
            rows += [(stage + k, machine.routes[hop], chunk, False) for k, hop in hops]
    return rows


def _along_trees(machine: Machine, tree: Tree, demand: Demand) -> list[Row]:
    """Blocks go down the trees of their owners; reductions go up first, on trees of the machine with reversed links."""
    reduces, copies = demand.collective != "allgather", demand.collective != "reduce_scatter"
    back = Machine(machine.topology.reversed, machine.size_bytes)
    plain = two_level if tree is two_level_nvls else tree  # no runtime has reductions inside a switch for one GPU only
    up = _hops(back, plain, demand) if reduces else []
    down = _hops(machine, tree, demand) if copies else []
    if bool(up) != reduces or bool(down) != copies:
        return []
    last = max((stage for stage, _, _, _ in up), default=-1)
    rows = [(last - stage, back.links(a, ends)[::-1], chunk, True) for stage, a, ends, chunk in up]
    return rows + [(last + 1 + stage, machine.links(a, ends), chunk, False) for stage, a, ends, chunk in down]


def _hops(machine: Machine, tree: Tree, demand: Demand) -> list[tuple[int, int, tuple[int, ...], int]]:
    """The hops of all chunks, with the chunk; [] where a GPU is not reached. Block r belongs to rank r."""
    result = []
    for owner in range(machine.topology.num_gpus):
        for piece in range(demand.pieces):
            hops = _whole_tree(machine, owner, list(tree(machine, owner, piece)))
            if not hops:
                return []
            result += [(stage, a, ends, owner * demand.pieces + piece) for stage, a, ends in hops]
    return result


def _whole_tree(machine: Machine, owner: int, hops: list[Hop]) -> list[Hop]:
    """The tree with paths instead of hops where GPUs are not connected; every GPU is reached once. [] if one is not."""
    scale = machine.topology.num_gpus  # more than the hops of a path
    depth, result = {owner: -1}, []
    for stage, a, ends in hops:
        if len(ends) > 1:
            result.append((stage * scale, a, ends))
            depth |= dict.fromkeys(ends, stage * scale)
            continue
        if not math.isfinite(machine.distance(a, ends[0])):
            return []
        path = machine.path(a, ends[0])
        for u, v in pairwise(path):
            if v not in depth:
                depth[v] = max(stage * scale, depth[u] + 1)
                result.append((depth[v], u, (v,)))
    return result


def _in_the_switch(machine: Machine, demand: Demand) -> list[Row]:
    """The switch of the only host loads what all GPUs have, reduces it, and stores it to all (allreduce only)."""
    ports = machine.ports(0)
    if ports is None or demand.collective != "allreduce":
        return []
    rows: list[Row] = []
    for chunk in range(len(demand)):
        owner = chunk // demand.pieces
        ranks = [owner, *(rank for rank in machine.hosts[0] if rank != owner)]
        rows.append((0, (*(ports[0][rank] for rank in ranks), *(ports[1][rank] for rank in ranks)), chunk, False))
    return rows


def _one_shot(machine: Machine, demand: Demand) -> list[Row]:
    """Every rank sends its whole contribution to every rank, which reduces all of them itself (allreduce only)."""
    count = machine.topology.num_gpus
    pairs = [(a, (a + step) % count) for step in range(1, count) for a in range(count)]
    if demand.collective != "allreduce" or any(pair not in machine.routes for pair in pairs):
        return []
    return [(0, machine.routes[pair], chunk, True) for pair in pairs for chunk in range(len(demand))]


def _draft(machine: Machine, demand: Demand, rows: list[Row], name: str) -> Schedule:
    """The schedule of some rows, with stages far apart; the engine brings the times."""
    topology, pieces = machine.topology, demand.pieces
    end = demand.destination_rank[demand.destination_ptr[:-1]] if demand.collective == "alltoall" else None
    order = sorted(
        rows, key=lambda row: (row[0], row[1], row[2] % pieces, 0 if end is None else int(end[row[2]]), row[2])
    )
    keys = [(stage, links, reduces, chunk % pieces) for stage, links, chunk, reduces in order]
    number = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    message = np.array([number[key] for key in keys], dtype=np.int32)
    alone = np.bincount(message)[message] == 1
    route = {links: n for n, links in enumerate(dict.fromkeys(row[1] for row in order))}
    stages = {stage: n for n, stage in enumerate(sorted({row[0] for row in order}))}
    longest = (
        int(float(demand.chunk_bytes.sum()) * 1000 / topology.link_GBps.min() + topology.link_latency_ps.sum()) + 1
    )
    return Schedule(
        topology,
        demand,
        Routes.from_lists([list(links) for links in route]),
        np.array([row[2] for row in order], dtype=np.int32),
        np.array([route[row[1]] for row in order], dtype=np.int32),
        np.array([stages[row[0]] * longest for row in order], dtype=np.int64),
        np.array([row[3] for row in order], dtype=np.bool_),
        name,
        np.where(alone, -1, message).astype(np.int32),
    )


def carried_out(topology: Topology, collective: str, size_bytes: int, sms: int | None = None) -> Iterator[Schedule]:
    """Yield the algorithms for a collective as MSCCL++ carries them out; all of them verified.

    What the runtime cannot carry out with `sms` threadblocks, and what turns out invalid, is left out.
    """
    profile = PROFILES["mscclpp"]
    assert profile.limits is not None
    count = min(profile.limits.blocks, sms_of(topology, sms))
    machine = used_by(topology, profile, in_network=True)
    carrier = Carrier(profile, machine, count)
    for draft in textbook_schedules(machine, collective, size_bytes):
        timed = carrier(draft)
        if timed is not None and not verify(timed):
            yield timed
