"""Estimate of the finish time of a file on a machine: the cost of lowering, or the quality of another tool's file.

This is an event simulation. A step starts when everything it waits for is complete. A step that sends occupies the
links of the fastest route between the two GPUs until its bytes have passed, first come, first served; its data arrives
after the latency of the route. Copies and reductions on a GPU take no time. Bandwidths are those at time zero.
"""

import heapq
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from flowccl.errors import InputError
from flowccl.export.proof.program import RuntimeProgram
from flowccl.topology.neighbours import neighbours
from flowccl.topology.topology import Topology
from flowccl.topology.trunks import split_trunks
from flowccl.units import busy_ps


@dataclass(frozen=True, slots=True)
class _Hop:
    link: int
    offset_ps: int
    GBps: float
    segment: int
    overhead_ps: int
    link_GBps: float


@dataclass(frozen=True, slots=True)
class _Route:
    """A route between two GPUs: its hops, its latency, and the bandwidth of each of its segments."""

    hops: tuple[_Hop, ...]
    latency_ps: int
    segment_GBps: tuple[float, ...]

    def busy_times_ps(self, size_bytes: int) -> list[int]:
        """Return the time for which each segment is busy."""
        busy = [busy_ps(size_bytes, rate) for rate in self.segment_GBps]
        for hop in self.hops:
            if hop.overhead_ps:
                busy[hop.segment] = max(busy[hop.segment], hop.overhead_ps + busy_ps(size_bytes, hop.link_GBps))
        return busy


@dataclass(frozen=True, slots=True)
class StepTimes:
    """When each step of a program begins, after its waits, and ends; and the pairs of steps (sender, receiver)."""

    begin_ps: list[int]
    end_ps: list[int]
    tokens: list[tuple[int, int]]


def estimate_ps(program: RuntimeProgram, topology: Topology, size_bytes: int) -> int:
    """Return the finish time of a program on a machine for a buffer of `size_bytes`, as nccl-tests counts them."""
    return max(step_times(program, topology, size_bytes).end_ps, default=0)


def step_times(program: RuntimeProgram, topology: Topology, size_bytes: int) -> StepTimes:
    """Return when each step of a program begins and ends on a machine for a buffer of `size_bytes`."""
    if topology.num_gpus != program.num_gpus:
        machine = f"the machine {topology.name} has {topology.num_gpus}"
        raise InputError(f"the file is for {program.num_gpus} gpus, but {machine}")
    lanes = split_trunks(topology)  # a link of the simulation carries one step at a time
    simulated = topology if lanes is None else lanes.topology
    return _Simulation(program, simulated, -(-size_bytes // program.chunks)).run()


class _Simulation:
    def __init__(self, program: RuntimeProgram, topology: Topology, chunk_bytes: int) -> None:
        self.program, self.topology, self.chunk_bytes = program, topology, chunk_bytes
        self.routes = _routes(topology)
        self.free = [0] * len(topology.links)
        self.active: list[list[tuple[int, float]]] = [[] for _ in topology.limits]
        pointer, limits = topology.link_limits
        self.limits_of = [limits[pointer[k] : pointer[k + 1]].tolist() for k in range(len(topology.links))]
        count = len(program.operations)
        self.after: list[list[tuple[int, bool]]] = [[] for _ in range(count)]  # (step, whether through a connection)
        self.waits = [0] * count
        self.since = [0] * count
        self._connect()

    def _connect(self) -> None:
        operations = self.program.operations
        place = {(o.rank, o.block, o.index): n for n, o in enumerate(operations)}
        puts: dict[Hashable, list[int]] = {}
        takes: dict[Hashable, list[int]] = {}
        for n, operation in enumerate(operations):
            if operation.index:
                self._edge(place[operation.rank, operation.block, operation.index - 1], n, False)
            for block, index in operation.after:
                self._edge(place[operation.rank, block, index], n, False)
            for key in operation.pushes:
                puts.setdefault(key, []).append(n)
            for key in operation.pops:
                takes.setdefault(key, []).append(n)
        for key, putting in puts.items():
            taking = takes.get(key, [])
            for put, take in zip(putting, taking, strict=False):
                self._edge(put, take, True)
            if self.program.depth is not None:
                for take, put in zip(taking, putting[self.program.depth :], strict=False):
                    self._edge(take, put, False)

    def _edge(self, first: int, second: int, by_token: bool) -> None:
        self.after[first].append((second, by_token))
        self.waits[second] += 1

    def run(self) -> StepTimes:
        operations = self.program.operations
        queue = [(0, o.index, n) for n, o in enumerate(operations) if not self.waits[n]]
        heapq.heapify(queue)
        begin, end, completed = [0] * len(operations), [0] * len(operations), 0
        while queue:
            now, index, n = heapq.heappop(queue)
            operation = operations[n]
            done = now
            if operation.sends_to >= 0 and operation.size:
                start, done = self._send(now, operation.rank, operation.sends_to, operation.size * self.chunk_bytes)
                if start > now:
                    heapq.heappush(queue, (start, index, n))
                    continue
            completed += 1
            begin[n], end[n] = now, done
            for other, by_token in self.after[n]:
                far = by_token and operations[other].rank != operation.rank
                ready = done + (self._latency(operation.rank, operations[other].rank) if far else 0)
                self.since[other] = max(self.since[other], ready)
                self.waits[other] -= 1
                if not self.waits[other]:
                    heapq.heappush(queue, (self.since[other], operations[other].index, other))
        if completed < len(operations):
            raise InputError("the file deadlocks, so it has no finish; check-export shows where")
        tokens = [(n, other) for n, after in enumerate(self.after) for other, by_token in after if by_token]
        return StepTimes(begin, end, tokens)

    def _latency(self, src: int, dst: int) -> int:
        """Return the latency of a signal, which may travel against the direction of the only links."""
        routes = self.routes.get((src, dst)) or self.routes.get((dst, src)) or self._between(src, dst)
        return routes[0].latency_ps

    def _between(self, src: int, dst: int) -> list[_Route]:
        if (src, dst) not in self.routes:
            names = f"{self.topology.nodes[src].name} -> {self.topology.nodes[dst].name}"
            raise InputError(f"the file sends {names}, but {self.topology.name} has no link or switch between them")
        return self.routes[src, dst]

    def _send(self, now: int, src: int, dst: int, size_bytes: int) -> tuple[int, int]:
        """Return (start, end) of a send on the fastest route; links are occupied only if it starts now."""
        routes = self._between(src, dst)
        cost = [sum(route.busy_times_ps(size_bytes)) + route.latency_ps for route in routes]
        best = [route for route, time in zip(routes, cost, strict=True) if time == min(cost)]
        starts = [self._start(now, route, size_bytes) for route in best]
        start = min(starts)
        busy = best[starts.index(start)].busy_times_ps(size_bytes)
        if start == now:
            self._occupy(start, best[starts.index(start)], busy)
        return start, start + sum(busy)

    def _start(self, now: int, route: _Route, size_bytes: int) -> int:
        busy = route.busy_times_ps(size_bytes)
        start = now
        for hop in route.hops:
            start = max(start, self.free[hop.link] - hop.offset_ps - sum(busy[: hop.segment]))
        if start > now or not self.topology.limits:
            return start
        for limit, rate in self._rates(route).items():
            self.active[limit] = [(end, r) for end, r in self.active[limit] if end > now]
            if sum(r for _, r in self.active[limit]) + rate > self.topology.limit_GBps[limit] * (1 + 1e-9):
                start = max(start, min(end for end, _ in self.active[limit]))
        return start

    def _rates(self, route: _Route) -> dict[int, float]:
        rates: dict[int, float] = {}
        for hop in route.hops:
            for limit in self.limits_of[hop.link]:
                rates[limit] = rates.get(limit, 0.0) + hop.GBps
        return rates

    def _occupy(self, start: int, route: _Route, busy: list[int]) -> None:
        for hop in route.hops:
            self.free[hop.link] = start + hop.offset_ps + sum(busy[: hop.segment + 1])
        for limit, rate in self._rates(route).items():
            self.active[limit].append((start + sum(busy), rate))


def _routes(topology: Topology) -> dict[tuple[int, int], list[_Route]]:
    """Return the routes between all pairs of GPUs that a link or switches connect."""
    near = neighbours(topology)
    shape = near.shape
    first = np.searchsorted(shape.segment_route, np.arange(len(near.routes) + 1))
    result: dict[tuple[int, int], list[_Route]] = {}
    for pair, (src, end) in enumerate(zip(near.src.tolist(), near.end.tolist(), strict=True)):
        rows = []
        for r in range(int(near.pair_ptr[pair]), int(near.pair_ptr[pair + 1])):
            hops = range(int(near.routes.ptr[r]), int(near.routes.ptr[r + 1]))
            rates = shape.segment_GBps[first[r] : first[r + 1]].tolist()
            made = []
            for hop in hops:
                link, segment = int(near.routes.link[hop]), int(shape.hop_segment[hop] - first[r])
                own = (int(topology.link_overhead_ps[link]), float(topology.link_GBps[link]))
                made.append(_Hop(link, int(shape.hop_offset_ps[hop]), rates[segment], segment, *own))
            latency = made[-1].offset_ps + int(topology.link_latency_ps[made[-1].link])
            rows.append(_Route(tuple(made), latency, tuple(rates)))
        result[src, end] = rows
    return result
