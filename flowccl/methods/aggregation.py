"""Few messages: relays collect the data of a host for another host, and send it in one message each.

Data from GPU s of host A to GPU d of host B goes from s to a relay a in A, in one message to a relay b in B, and on to
d; some of the three may be the same GPU. Messages between two GPUs carry everything that goes from one to the other.
The variants differ in the relays of a pair of hosts: a number of pairs (a, b) that share the data, the destinations
themselves as b (what NCCL calls PXN), or the sources themselves as a. On one host every source sends to every
destination itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from flowccl.arrays import components
from flowccl.methods.rates.network import PricedNetwork
from flowccl.problem import Problem
from flowccl.schedule.generation.engine import Engine
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.neighbours import Neighbours, neighbours
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology

_SOURCES, _DESTINATIONS = -1, -2  # as relays


def aggregation(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Yield a schedule for each choice of relays."""
    near = neighbours(problem.topology).quickest_first(float(problem.demand.chunk_bytes.mean()))
    for hosts in collecting_groups(problem, near):
        variants = [_SOURCES]
        if len(hosts) > 1:
            variants += [_DESTINATIONS, *(1 << k for k in range(max(map(len, hosts)).bit_length()))]
        for relays in variants:
            yield _Plan(problem, near, hosts, relays).schedule()
            if context.budget.over():
                return


def collecting_groups(problem: Problem, near: Neighbours) -> list[list[list[int]]]:
    """Divisions of the GPUs into groups inside which data is collected.

    These are the GPUs that reach each other without a NIC, then the levels of the machine from inside to outside. GPUs
    of a group must reach each other without other GPUs, and every group must have a route to every other one.
    """
    divisions = [_without_nics(problem.topology)]
    divisions += [[list(ranks) for ranks in level] for level in reversed(problem.hierarchy.levels)]
    pairs = set(zip(near.src.tolist(), near.end.tolist(), strict=True))
    return [
        division
        for number, division in enumerate(divisions)
        if division not in divisions[:number] and max(map(len, division)) > 1 and _has_routes(division, pairs)
    ]


def _without_nics(topology: Topology) -> list[list[int]]:
    """The GPUs by host: those that links other than those of NICs connect."""
    inside = np.array([kind != "nic" for kind in topology.link_kinds], dtype=np.bool_)
    ends = topology.link_src[inside], topology.link_dst[inside]
    part = components(len(topology.nodes), *ends)[: topology.num_gpus]
    return [np.flatnonzero(part == number).tolist() for number in dict.fromkeys(part.tolist())]


def _has_routes(groups: list[list[int]], pairs: set[tuple[int, int]]) -> bool:
    inside = all((a, b) in pairs for group in groups for a in group for b in group if a != b)
    group_of = {rank: number for number, group in enumerate(groups) for rank in group}
    between = {(group_of[a], group_of[b]) for a, b in pairs if a in group_of and b in group_of}
    return inside and all((a, b) in between for a in range(len(groups)) for b in range(len(groups)) if a != b)


@dataclass
class _Plan:
    """The transfers of a plan: (stage, src, dst, chunk)."""

    problem: Problem
    near: Neighbours
    hosts: list[list[int]]
    relays: int
    rows: set[tuple[int, int, int, int]] = field(default_factory=set)
    load: dict[int, float] = field(default_factory=dict)  # of links and limits: how long they are busy

    def __post_init__(self) -> None:
        pairs = zip(self.near.src.tolist(), self.near.end.tolist(), strict=True)
        self.pair = {pair: number for number, pair in enumerate(pairs)}
        self.cost_ps = self.near.pair_cost_ps(float(self.problem.demand.chunk_bytes.mean()))
        self.host_of = {rank: number for number, host in enumerate(self.hosts) for rank in host}
        self.chosen: dict[tuple[int, int], list[tuple[int, int]]] = {}
        if self.relays > 0:
            count = len(self.hosts)
            for shift in range(1, count):  # each round has every host once at each end, so that relays share the load
                for here in range(count):
                    self._choose(here, (here + shift) % count)

    def schedule(self) -> Schedule | None:
        """The schedule, stage by stage, with the times of the engine; None where two GPUs have no route."""
        demand = self.problem.demand
        for chunk in range(len(demand)):
            (source,) = demand.sources(chunk).tolist()
            self._deliver(chunk, source, [d for d in demand.destinations(chunk).tolist() if d != source])
        received: set[tuple[int, int]] = set()
        rows = []
        last = demand.destination_rank.tolist() if demand.is_unicast else [0] * len(demand)  # they leave together
        for stage, src, dst, chunk in sorted(self.rows, key=lambda row: (*row[:3], last[row[3]], row[3])):
            if (dst, chunk) not in received:
                received.add((dst, chunk))
                rows.append((stage, src, dst, chunk))
        if any((src, dst) not in self.pair for _, src, dst, _ in rows):
            return None
        return self._schedule_of(rows)

    def _deliver(self, chunk: int, source: int, destinations: list[int]) -> None:
        """Add the transfers of one chunk."""
        here = self.host_of[source]
        by_host: dict[int, list[int]] = {}
        for rank in destinations:
            by_host.setdefault(self.host_of[rank], []).append(rank)
        for there, ranks in by_host.items():
            if there == here:
                self.rows |= {(0, source, rank, chunk) for rank in ranks}
                continue
            for a, b, ends in self._relays(source, here, there, ranks):
                if a != source:
                    self.rows.add((0, source, a, chunk))
                self.rows.add((1, a, b, chunk))
                self.rows |= {(2, b, rank, chunk) for rank in ends if rank != b}

    def _relays(self, source: int, here: int, there: int, ranks: list[int]) -> list[tuple[int, int, list[int]]]:
        """The relays of a chunk from one host to another, each pair with the destinations that it serves."""
        if self.relays == _SOURCES:
            return [(source, self._nearest([source], self.hosts[there])[1], ranks)]
        if self.relays == _DESTINATIONS:
            return [(*self._nearest(self.hosts[here], [rank]), [rank]) for rank in ranks]
        pairs = self.chosen[here, there]
        if len(ranks) > 1:  # one copy crosses
            a, b = pairs[self.hosts[here].index(source) % len(pairs)]
            return [(a, b, ranks)]
        a, b = pairs[self.hosts[there].index(ranks[0]) % len(pairs)]
        return [(a, b, ranks)]

    def _nearest(self, sources: list[int], ends: list[int]) -> tuple[int, int]:
        """The pair of GPUs with the cheapest route; of equal ones, at the same place in their hosts."""
        place = {rank: self.hosts[self.host_of[rank]].index(rank) for rank in (*sources, *ends)}
        pairs = [(a, b) for a in sources for b in ends if (a, b) in self.pair]
        if not pairs:
            return sources[0], ends[0]
        return min(pairs, key=lambda pair: (self.cost_ps[self.pair[pair]], place[pair[0]] != place[pair[1]], pair))

    def _choose(self, here: int, there: int) -> None:
        """Choose the relays of a pair of hosts: those over routes that have little to do, and cheap ones."""
        found: list[tuple[int, int]] = []
        options = [(a, b) for a in self.hosts[here] for b in self.hosts[there] if (a, b) in self.pair]
        count = min(self.relays, len(self.hosts[here]), len(self.hosts[there]))
        chunks = len(self.hosts[here]) * (len(self.hosts[there]) if self.problem.demand.is_unicast else 1) / count
        for _ in range(count):
            used = {rank for pair in found for rank in pair}
            left = [pair for pair in options if not used & set(pair)]
            if not left:
                break
            best = min(left, key=lambda pair: (self._crowded(pair, chunks), self.cost_ps[self.pair[pair]], pair))
            found.append(best)
            for resource, takes in self.takes[self.pair[best]]:
                self.load[resource] = self.load.get(resource, 0.0) + chunks * takes
        self.chosen[here, there] = found or [(self.hosts[here][0], self.hosts[there][0])]

    def _crowded(self, pair: tuple[int, int], chunks: float) -> float:
        """How much the sum of the squares of all loads grows with more chunks between two GPUs."""
        rows = self.takes[self.pair[pair]]
        return sum((2 * self.load.get(resource, 0.0) + chunks * takes) * chunks * takes for resource, takes in rows)

    @cached_property
    def takes(self) -> list[list[tuple[int, float]]]:
        """For each pair of neighbours, the links and limits of its route, and how long each is busy with a chunk."""
        network = PricedNetwork(self.problem.topology)
        resource, pair = network.uses(self.near.routes.only(self.near.pair_ptr[:-1]))
        found: list[list[tuple[int, float]]] = [[] for _ in self.pair]
        for number, of in zip(resource.tolist(), pair.tolist(), strict=True):
            found[of].append((number, 1 / float(network.capacity[number])))
        return found

    def _schedule_of(self, rows: list[tuple[int, int, int, int]]) -> Schedule | None:
        topology, demand = self.problem.topology, self.problem.demand
        numbers = {key: n for n, key in enumerate(dict.fromkeys(row[:3] for row in rows))}
        message = np.array([numbers[row[:3]] for row in rows], dtype=np.int32)
        alone = np.bincount(message)[message] == 1
        used = sorted({(src, dst) for _, src, dst, _ in rows})
        route = {pair: n for n, pair in enumerate(used)}
        lists = [self.near.routes.links(int(self.near.pair_ptr[self.pair[pair]])) for pair in used]
        slowest, latency = float(topology.link_GBps.min()), int(topology.link_latency_ps.sum())
        stage_ps = (
            int(float(demand.chunk_bytes.sum()) * 1000 / slowest) + latency + int(topology.link_overhead_ps.sum())
        )
        draft = Schedule(
            topology,
            demand,
            Routes.from_lists(lists),
            np.array([row[3] for row in rows], dtype=np.int32),
            np.array([route[row[1], row[2]] for row in rows], dtype=np.int32),
            np.array([row[0] for row in rows], dtype=np.int64) * (8 * stage_ps + 1),
            np.zeros(len(rows), dtype=np.bool_),
            "aggregation",
            np.where(alone, -1, message).astype(np.int32),
        )
        return Engine(draft).run()
