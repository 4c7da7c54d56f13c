"""Operations of the switches of hosts (NVLS), as MSCCL++ has them: store to all, and load, reduce and store to all.

On one host, an allreduce is one operation for each chunk: the GPU that issues it loads the reduction of what all GPUs
have through the switch, and stores it to all of them. In an allgather every GPU stores its data to all.

On several hosts, a chunk has a GPU in every host that works for it. Allgather: the source sends the chunk to those of
the other hosts, and each of them stores it to its host. Allreduce: the switch of every host reduces, the GPUs exchange
the results, and store the sum to their hosts. Fewer bytes would move if all hosts but one reduced without their
switches, and sent to a GPU of that one, whose switch then reduced for all. But a switch reads the same place on all
GPUs of a host, and that GPU has its part of the sum elsewhere than the others have their input.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from flowccl.errors import DemandError
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.neighbours import neighbours
from flowccl.topology.reducing_switches import reducing_switch, switch_ports
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology


def nvls(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Yield a schedule; its times are those of a draft, which a runtime carries out."""
    hosts = nvls_hosts(problem.topology)
    if hosts is None or not has_nvls(problem):
        raise DemandError(
            "method nvls needs an allreduce or allgather of all GPUs, and hosts whose switches reduce and copy; "
            "use it with --for mscclpp"
        )
    if problem.demand.collective == "allgather":
        yield _allgather(_NvlsDraft(problem, hosts))
    elif len(hosts) == 1:
        yield _on_one_host(_NvlsDraft(problem, hosts))
    else:
        yield _exchanged(_NvlsDraft(problem, hosts))


def has_nvls(problem: Problem) -> bool:
    """An allgather or allreduce of all GPUs, on hosts whose switches reduce and copy, for a runtime."""
    if not problem.topology.has_overheads or not problem.is_whole_machine:
        return False
    whole = problem.demand.collective == "allgather" or problem.allreduce_ranks is not None
    return whole and nvls_hosts(problem.topology) is not None


def nvls_hosts(topology: Topology) -> list[list[int]] | None:
    """The GPUs of each host, if every host has a switch that reduces and copies."""
    hosts: dict[str, list[int]] = {}
    for rank, node in enumerate(topology.nodes[: topology.num_gpus]):
        hosts.setdefault(node.host, []).append(rank)
    found = list(hosts.values())
    return found if all(len(host) > 1 and reducing_switch(topology, host) is not None for host in found) else None


@dataclass
class _NvlsDraft:
    """Transfers (round, chunk, links, reduces), and the GPU of each host that works for a rank."""

    problem: Problem
    hosts: list[list[int]]
    rows: list[tuple[int, int, tuple[int, ...], bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        topology = self.problem.topology
        near = neighbours(topology, 1)
        pairs = zip(near.src.tolist(), near.end.tolist(), strict=True)
        self.route = {pair: near.routes.links(int(near.pair_ptr[n])) for n, pair in enumerate(pairs)}
        cost = near.pair_cost_ps(float(self.problem.demand.chunk_bytes.mean()))
        self.cost_ps = dict(zip(self.route, cost.tolist(), strict=True))
        self.ports = []
        for host in self.hosts:
            switch = reducing_switch(topology, host)
            assert switch is not None
            self.ports.append(switch_ports(topology, switch))
        self.host_of = {rank: number for number, host in enumerate(self.hosts) for rank in host}
        self.workers: dict[tuple[int, int], int] = {}

    def worker(self, rank: int, host: int) -> int:
        """The GPU of a host that works for what belongs to a rank: the rank, or one with a cheap route to it."""
        if self.host_of[rank] == host:
            return rank
        if (rank, host) not in self.workers:
            place = self.hosts[self.host_of[rank]].index(rank)
            order = sorted(
                (self.cost_ps.get((rank, other), np.inf), (at - place) % len(self.hosts[host]), other)
                for at, other in enumerate(self.hosts[host])
            )
            self.workers[rank, host] = order[0][2]
        return self.workers[rank, host]

    def reduce_for_all(self, step: int, chunk: int, issuer: int) -> None:
        """Reduce what the GPUs of a host have, for all of them."""
        host = self.host_of[issuer]
        into, out = self.ports[host]
        ranks = [issuer, *(rank for rank in self.hosts[host] if rank != issuer)]
        self.rows.append((step, chunk, (*(into[r] for r in ranks), *(out[r] for r in ranks)), False))

    def store_to_all(self, step: int, chunk: int, issuer: int) -> None:
        """Store what a GPU has to all GPUs of its host."""
        host = self.host_of[issuer]
        into, out = self.ports[host]
        ranks = [issuer, *(rank for rank in self.hosts[host] if rank != issuer)]
        self.rows.append((step, chunk, (into[issuer], *(out[r] for r in ranks)), False))

    def send(self, step: int, chunk: int, src: int, dst: int, *, reduces: bool = False) -> None:
        """Send a chunk from one GPU to another."""
        self.rows.append((step, chunk, self.route[src, dst], reduces))

    def owner(self, chunk: int) -> int:
        """The GPU that owns a chunk of an allreduce."""
        return chunk // self.problem.demand.pieces % self.problem.topology.num_gpus

    def schedule(self) -> Schedule:
        """The draft of a schedule: rounds one after the other; in a round, the first chunks of all GPUs come first."""
        demand, topology = self.problem.demand, self.problem.topology
        number = {links: n for n, links in enumerate(dict.fromkeys(row[2] for row in self.rows))}
        total_ps = float(demand.chunk_bytes.sum()) * 1000.0 / float(topology.link_GBps.min())
        round_ps = int(8 * total_ps) + int(topology.link_latency_ps.sum() + topology.link_overhead_ps.sum()) + 1
        return Schedule(
            topology,
            demand,
            Routes.from_lists([list(links) for links in number]),
            np.array([row[1] for row in self.rows], dtype=np.int32),
            np.array([number[row[2]] for row in self.rows], dtype=np.int32),
            np.array([row[0] * round_ps + row[1] % demand.pieces for row in self.rows], dtype=np.int64),
            np.array([row[3] for row in self.rows], dtype=np.bool_),
            "nvls",
        )


def _on_one_host(draft: _NvlsDraft) -> Schedule:
    for chunk in range(len(draft.problem.demand)):
        draft.reduce_for_all(0, chunk, draft.owner(chunk))
    return draft.schedule()


def _allgather(draft: _NvlsDraft) -> Schedule | None:
    demand = draft.problem.demand
    for chunk in range(len(demand)):
        (source,) = demand.sources(chunk).tolist()
        draft.store_to_all(0, chunk, source)
        for host in range(len(draft.hosts)):
            worker = draft.worker(source, host)
            if worker != source:
                if (source, worker) not in draft.route:
                    return None
                draft.send(0, chunk, source, worker)
                draft.store_to_all(1, chunk, worker)
    return draft.schedule()


def _exchanged(draft: _NvlsDraft) -> Schedule | None:
    """Allreduce: every host reduces, the hosts exchange, every host stores."""
    count = len(draft.hosts)
    for chunk in range(len(draft.problem.demand)):
        workers = [draft.worker(draft.owner(chunk), host) for host in range(count)]
        if any((a, b) not in draft.route for a in workers for b in workers if a != b):
            return None
        for worker in workers:
            draft.reduce_for_all(0, chunk, worker)
            draft.store_to_all(2, chunk, worker)
        for shift in range(1, count):
            for at, worker in enumerate(workers):
                draft.send(1, chunk, worker, workers[(at + shift) % count], reduces=True)
    return draft.schedule()
