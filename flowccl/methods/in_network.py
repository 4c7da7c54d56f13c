"""In-network collectives (NVLS, SHARP): switches of the hosts reduce and multicast.

Allreduce on one host: chunk by chunk, all GPUs send their contributions to the switch. It sends the reduction to one
GPU, the owner, which sends it back once; the switch multicasts it to all other GPUs. Every GPU sends and receives each
byte once, about half of the traffic of other algorithms. While the switch multicasts one chunk, it reduces the next.

On several hosts, a link or switch connects GPUs with the same position in their hosts, and each position owns an equal
part of the data. Allreduce: the switch of each host reduces to the owner, the owners exchange (recursive doubling over
the hosts), and the switches multicast. Reduce_scatter: the switches reduce, and the owners send to the destination.
Allgather: every GPU multicasts in its host and sends to the other hosts, where the receiver multicasts.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from flowccl.errors import DemandError
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift
from flowccl.search.context import SearchContext
from flowccl.topology.neighbours import neighbours
from flowccl.topology.reducing_switches import reducing_switch, switch_ports
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology


def in_network(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Yield the one schedule."""
    if problem.allreduce_ranks is not None and problem.reducing_switch is not None:
        yield _on_one_switch(problem, problem.allreduce_ranks, problem.reducing_switch)
        return
    hosts = switched_hosts(problem)
    if hosts is None:
        raise DemandError(
            "method in-network needs an allreduce whose ranks share a switch that reduces and copies, or an "
            "allreduce, allgather or reduce_scatter of hosts with such a switch each; "
            f"{problem.topology.name} has none for this {problem.demand.collective}"
        )
    draft = _Draft(problem.topology, hosts)
    {"allreduce": _allreduce, "allgather": _allgather, "reduce_scatter": _reduce_scatter}[problem.demand.collective](
        problem, draft
    )
    yield draft.schedule(problem)


def switched_hosts(problem: Problem) -> list[list[int]] | None:
    """The ranks of each host, if every host has a switch that reduces and copies and is connected as the method needs.

    For allreduce the number of hosts must be a power of two. None if the collective is none of the whole machine.
    """
    topology, demand = problem.topology, problem.demand
    by_host: dict[str, list[int]] = {}
    for rank, node in enumerate(topology.nodes[: topology.num_gpus]):
        by_host.setdefault(node.host, []).append(rank)
    hosts = list(by_host.values())
    width, count = len(hosts[0]), len(hosts)
    known = demand.collective in ("allgather", "reduce_scatter", "allreduce") and problem.is_whole_machine
    whole = demand.collective != "allreduce" or (problem.allreduce_ranks is not None and not count & (count - 1))
    even = width > 1 and all(len(ranks) == width for ranks in hosts) and not len(demand) % topology.num_gpus
    if not (known and whole and even) or any(reducing_switch(topology, ranks) is None for ranks in hosts):
        return None
    near = neighbours(topology, 1)
    few = np.diff(near.routes.ptr) <= 2  # routes over links between switches may meet there
    pairs = set(zip(near.src[few].tolist(), near.end[few].tolist(), strict=True))
    rails = {(a[k], b[k]) for a in hosts for b in hosts if a is not b for k in range(width)}
    return hosts if rails <= pairs else None


@dataclass(slots=True)
class _Draft:
    """Transfers (chunk, links, reduces, message, round) in order; those of a round start together."""

    topology: Topology
    hosts: list[list[int]]
    rows: list[tuple[int, tuple[int, ...], bool, int, int]] = field(default_factory=list)
    messages: int = 0
    rounds: int = 0
    rails: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    ports: list[tuple[dict[int, int], dict[int, int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        near = neighbours(self.topology)
        for pair, (src, end) in enumerate(zip(near.src.tolist(), near.end.tolist(), strict=True)):
            self.rails[src, end] = near.routes.links(int(near.pair_ptr[pair]))
        for ranks in self.hosts:
            switch = reducing_switch(self.topology, ranks)
            assert switch is not None
            self.ports.append(switch_ports(self.topology, switch))

    def reduce(self, chunks: list[int], host: int, owner: int) -> None:
        """Reduce the contributions of a host to some chunks inside its switch, for the owner."""
        into, out = self.ports[host]
        links = (*(into[rank] for rank in self.hosts[host] if rank != owner), out[owner])
        self._send(chunks, links, reduces=True)

    def multicast(self, chunks: list[int], host: int, owner: int) -> None:
        """Copy some chunks from their owner to all other GPUs of its host."""
        into, out = self.ports[host]
        self._send(chunks, (into[owner], *(out[rank] for rank in self.hosts[host] if rank != owner)), reduces=False)

    def send(self, chunks: list[int], src: int, dst: int, *, reduces: bool) -> None:
        """Send some chunks from one host to another."""
        self._send(chunks, self.rails[src, dst], reduces=reduces)

    def _send(self, chunks: list[int], links: tuple[int, ...], *, reduces: bool) -> None:
        message = self.messages if len(chunks) > 1 else -1
        self.messages += len(chunks) > 1
        self.rows += [(chunk, links, reduces, message, self.rounds) for chunk in chunks]

    def schedule(self, problem: Problem) -> Schedule:
        """Return the schedule: rounds one after the other, then every transfer as early as possible."""
        topology, demand = self.topology, problem.demand
        number = {links: k for k, links in enumerate(dict.fromkeys(row[1] for row in self.rows))}
        chunk = np.array([row[0] for row in self.rows])
        slot = np.ceil(float(demand.chunk_bytes.sum()) * 1000.0 / topology.link_GBps.min())
        longest = int(slot + 8 * topology.link_latency_ps.max() + 8 * topology.link_overhead_ps.max()) + 1
        return left_shift(
            Schedule(
                topology,
                demand,
                Routes.from_lists([list(links) for links in number]),
                chunk,
                np.array([number[row[1]] for row in self.rows]),
                np.array([row[4] * longest for row in self.rows], dtype=np.int64),
                np.array([row[2] for row in self.rows]),
                message=np.array([row[3] for row in self.rows], dtype=np.int32),
                method="in-network",
            )
        )


def _allreduce(problem: Problem, draft: _Draft) -> None:
    """Reduce in every host, exchange between the owners, multicast in every host."""
    hosts = draft.hosts
    width, count, chunks = len(hosts[0]), len(hosts), len(problem.demand)
    per_owner = chunks // width  # contiguous chunks, in messages of as many as there are hosts
    parts = [
        [(k, list(range(k * per_owner + p, k * per_owner + p + count))) for k in range(width)]
        for p in range(0, per_owner, count)
    ]
    for part in parts:
        for k, own in part:
            for host, ranks in enumerate(hosts):
                draft.reduce(own, host, ranks[k])
            draft.rounds += 1
    for distance in (1 << bit for bit in range(count.bit_length() - 1)):
        for part in parts:
            for k, own in part:
                for host, ranks in enumerate(hosts):
                    draft.send(own, ranks[k], hosts[host ^ distance][k], reduces=True)
            draft.rounds += 1
    for part in parts:
        for k, own in part:
            for host, ranks in enumerate(hosts):
                draft.multicast(own, host, ranks[k])
            draft.rounds += 1


def _allgather(problem: Problem, draft: _Draft) -> None:
    """Multicast in the own host and send to the other hosts, then multicast there."""
    hosts, pieces = draft.hosts, problem.demand.pieces
    width = len(hosts[0])
    steps = [(piece, k) for piece in range(pieces) for k in range(width)]
    for piece, k in steps:
        for host, ranks in enumerate(hosts):
            chunk = [ranks[k] * pieces + piece]
            draft.multicast(chunk, host, ranks[k])
        draft.rounds += 1
    for distance in range(1, len(hosts)):
        for piece, k in steps:
            for host, ranks in enumerate(hosts):
                other = (host + distance) % len(hosts)
                draft.send([ranks[k] * pieces + piece], ranks[k], hosts[other][k], reduces=False)
            draft.rounds += 1
    for distance in range(1, len(hosts)):
        for piece, k in steps:
            for host, ranks in enumerate(hosts):
                other = (host + distance) % len(hosts)
                draft.multicast([ranks[k] * pieces + piece], other, hosts[other][k])
            draft.rounds += 1


def _reduce_scatter(problem: Problem, draft: _Draft) -> None:
    """Reduce in every host to the GPU at the position of the destination, then send to the destination."""
    hosts, pieces = draft.hosts, problem.demand.pieces
    count, width = len(hosts), len(hosts[0])
    steps = [(piece, k) for piece in range(pieces) for k in range(width)]
    for piece, k in steps:
        for distance in (*range(1, count), 0):  # what other hosts wait for comes first
            for host, ranks in enumerate(hosts):
                draft.reduce([hosts[(host + distance) % count][k] * pieces + piece], host, ranks[k])
            draft.rounds += 1
    for distance in range(1, count):
        for piece, k in steps:
            for host, ranks in enumerate(hosts):
                target = hosts[(host + distance) % count][k]
                draft.send([target * pieces + piece], ranks[k], target, reduces=True)
            draft.rounds += 1


def _on_one_switch(problem: Problem, ranks: list[int], switch: int) -> Schedule:
    """Return the allreduce of ranks on one switch."""
    topology, demand = problem.topology, problem.demand
    into, out = switch_ports(topology, switch)
    owner = max(ranks, key=lambda rank: (min(topology.link_GBps[into[rank]], topology.link_GBps[out[rank]]), -rank))
    others = [rank for rank in ranks if rank != owner]
    reduces = [*(into[rank] for rank in others), out[owner]]
    copies = [into[owner], *(out[rank] for rank in others)]
    both = Routes.from_lists([reduces, copies])
    slowest = topology.link_GBps[reduces + copies].min()
    delay = 4 * int(topology.link_latency_ps[reduces + copies].max())
    delay += int(topology.link_overhead_ps[reduces + copies].max())
    slot = np.ceil(demand.chunk_bytes * 1000.0 / slowest).astype(np.int64) + delay + 1
    begin = 2 * (np.cumsum(slot) - slot)
    count = len(demand)
    return left_shift(
        Schedule(
            topology,
            demand,
            both,
            np.repeat(np.arange(count), 2),
            np.tile([0, 1], count),
            np.stack((begin, begin + slot), axis=1).reshape(-1),
            np.tile([True, False], count),
            method="in-network",
        )
    )
