"""The time of a file on a machine, by an event simulation in the clock of schedules.

A step starts when everything that it waits for is complete. A send inside a host occupies its threadblock for the
overhead of a message and for its bytes, at most at the rate of a threadblock. A send over a NIC occupies the proxy
thread of its GPU for the overhead only, and its threadblock not at all. Its signal delays only the receiver. Copies,
reductions and packets that are read occupy their threadblock at the rates of the runtime's profile. Links and limits
are shared by rate: a send has one constant rate, and waits while others leave it none. Bandwidths are those at time
zero.

flowccl's own files say when the schedule starts each send, and at which rate; the runtime ignores that. A send starts
no earlier than that here, because other sends may need the link first; at another size than that of the schedule, only
the order of sends that are ready together follows it. Sends of other files start as soon as they can,
and those that start together share links evenly.

The clock starts when all GPUs have entered the call and know it of each other, and stops when the data is there: the
signals that separate calls take no time.
"""

import heapq
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from math import isinf

from flowccl.errors import InputError
from flowccl.export.proof.network import Resource, SimulatedNetwork, SimulatedRoute
from flowccl.export.proof.program import Operation, RuntimeProgram
from flowccl.runtimes.profiles import RuntimeProfile
from flowccl.topology.topology import Topology
from flowccl.units import busy_ps

_LEAST_SHARE = 0.01  # of the rate that a send could have alone; with less it waits
_Use = tuple[Resource, int, int]
"""(link or limit, from, until), with times relative to the start of the flow."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """When each step of a program begins, after its waits, and ends; and the pairs of steps (sender, receiver)."""

    begin_ps: list[int]
    end_ps: list[int]
    tokens: list[tuple[int, int]]
    finish_ps: int


def estimate_ps(
    program: RuntimeProgram, topology: Topology, size_bytes: int, profile: RuntimeProfile | None = None
) -> int:
    """Return the finish time of a program on a machine for a buffer of `size_bytes`, as nccl-tests counts them.

    `profile` has the costs of the runtime; None: messages cost what the links of the machine say.
    """
    return step_times(program, topology, size_bytes, profile).finish_ps


def step_times(
    program: RuntimeProgram, topology: Topology, size_bytes: int, profile: RuntimeProfile | None = None
) -> StepTimes:
    """Return when each step of a program begins and ends on a machine for a buffer of `size_bytes`."""
    if topology.num_gpus != program.num_gpus:
        machine = f"the machine {topology.name} has {topology.num_gpus}"
        raise InputError(f"the file is for {program.num_gpus} gpus, but {machine}")
    keeps = program.made_for_bytes == size_bytes
    return _Simulation(program, SimulatedNetwork(topology, profile), -(-size_bytes // program.chunks), keeps).run()


class _Simulation:
    def __init__(
        self, program: RuntimeProgram, network: SimulatedNetwork, chunk_bytes: int, keeps_starts: bool
    ) -> None:
        self.program, self.network, self.chunk_bytes, self.keeps_starts = program, network, chunk_bytes, keeps_starts
        count = len(program.operations)
        self.after: list[list[tuple[int, bool]]] = [[] for _ in range(count)]  # (step, whether through a connection)
        self.waits, self.since = [0] * count, [0] * count
        self.begin, self.end, self.completed = [0] * count, [0] * count, 0
        self.queue: list[tuple[int, int, int]] = []  # (time, index in its threadblock, step)
        self.in_turn = isinf(network.threadblock_GBps(packets=False))  # one send fills a link: first come, first served
        self.proxy_free = [0] * program.num_gpus
        self.posted: set[int] = set()  # messages that wait for the proxy
        self.late: dict[tuple[int, int, int], int] = {}  # (rank, block, peer): what the last put still takes
        before: list[list[int]] = [[] for _ in range(count)]
        for first, second, by_token in _edges(program):
            self.after[first].append((second, by_token))
            self.waits[second] += 1
            before[second].append(first)
        self.enters = _entries(program, before)
        self.is_first = _first_of_messages(program)

    def run(self) -> StepTimes:
        """Return the times of all steps."""
        operations = self.program.operations
        self.queue = [(0, o.index, n) for n, o in enumerate(operations) if not self.waits[n]]
        heapq.heapify(self.queue)
        while self.queue:
            now = self.queue[0][0]
            sends = []
            while self.queue and self.queue[0][0] == now:
                n = heapq.heappop(self.queue)[2]
                if operations[n].size and (operations[n].sends_to >= 0 or operations[n].group):
                    sends.append(n)
                else:
                    self._local(now, n)
            self._send(now, sends)
        if self.completed < len(operations):
            raise InputError("the file deadlocks, so it has no finish; check-export shows where")
        tokens = [(n, other) for n, after in enumerate(self.after) for other, by_token in after if by_token]
        finish = max((end for n, end in enumerate(self.end) if not operations[n].leaves), default=0)
        return StepTimes(self.begin, self.end, tokens, finish)

    def _local(self, now: int, n: int) -> None:
        operation = self.program.operations[n]
        self.begin[n] = now
        done = now + self.network.local_ps(operation, self.chunk_bytes, first=self.is_first[n])
        self._complete(n, done, done)

    def _send(self, now: int, sends: list[int]) -> None:
        """Start sends that are ready at the same time; those without a rate of their own share links evenly.

        Where threadblocks have no rate of their own either, sends take turns on a link.
        """
        rows: list[tuple[int, SimulatedRoute | None, int, list[_Use], float]] = []
        sharing: Counter[int] = Counter()
        for n in sorted(sends, key=lambda n: (self.program.operations[n].start_ps, self.since[n], n)):
            operation = self.program.operations[n]
            if self.keeps_starts and operation.start_ps > now:
                heapq.heappush(self.queue, (operation.start_ps, operation.index, n))
                continue
            for row in self._choices(now, n):
                rows.append(row)
                if not operation.GBps and not self.in_turn:
                    sharing.update({id(resource) for resource, _, _ in row[3]})
                    break
        started: set[int] = set()
        wake: dict[int, int] = {}
        for n, route, lead, uses, most in rows:
            if n in started:
                continue
            begin = self._from(now, n, route) + lead
            asked = self.in_turn or self.program.operations[n].GBps > 0
            available = [
                resource.left_GBps(begin + a, begin + b, now) / (1 if asked else max(sharing[id(resource)], 1))
                for resource, a, b in uses
            ]
            rate = min(most, *available)
            if rate < (most / (1 + 1e-6) if asked else most * _LEAST_SHARE):
                ends = [
                    resource.next_end(begin + a, begin + b) - a - begin + now
                    for (resource, a, b), share in zip(uses, available, strict=True)
                    if share < most
                ]
                wake[n] = min(wake.get(n, 1 << 62), max(min(ends), now + 1))
                continue
            started.add(n)
            for resource in {id(resource): resource for resource, _, _ in uses}.values():
                sharing[id(resource)] -= sharing[id(resource)] > 0
            self._start(now, n, route, lead, min(rate, most))
        for n, time in wake.items():
            if n not in started:
                heapq.heappush(self.queue, (time, self.program.operations[n].index, n))

    def _bytes(self, operation: Operation) -> int:
        return operation.size * self.chunk_bytes * (2 if operation.packets else 1)

    def _choices(self, now: int, n: int) -> Iterator[tuple[int, SimulatedRoute | None, int, list[_Use], float]]:
        """Yield (step, route, time before the bytes flow, uses of links, highest rate) for each route."""
        operation, network = self.program.operations[n], self.network
        size = self._bytes(operation)
        if operation.group:
            yield self._through_switch(n, size)
            return
        chosen = network.with_links(operation.rank, operation.sends_to, operation.links)
        for route in chosen or network.between(operation.rank, operation.sends_to, size, operation.is_proxied):
            most = route.GBps
            if not route.is_proxied:
                most = min(most, network.threadblock_GBps(packets=operation.packets))
            most = min(most, operation.GBps or most)
            lead = route.overhead_ps if self.is_first[n] else 0
            yield n, route, lead, self._uses(route, size, most), most

    def _uses(self, route: SimulatedRoute, size: int, rate_GBps: float) -> list[_Use]:
        duration = route.durations_ps(size, rate_GBps)
        uses: list[_Use] = []
        for link, offset, segment in route.hops:
            begin = offset + sum(duration[:segment])
            end = begin + duration[segment] + route.link_overhead_ps
            uses.append((self.network.links[link], begin, end))
            uses += [(self.network.limits[limit], begin, end) for limit in self.network.limits_of[link]]
        return uses

    def _through_switch(self, n: int, size: int) -> tuple[int, SimulatedRoute | None, int, list[_Use], float]:
        """Return what an operation of a switch uses: the links between the switch and the GPUs of its group.

        A store to all moves the bytes from the issuing GPU and to every GPU. A load with reduction moves them up and
        down on every link of the group, and again on those of the issuing GPU.
        """
        operation, network = self.program.operations[n], self.network
        issuer, loads = operation.rank, operation.name == "glres"
        others = [rank for rank in operation.group if rank != issuer]
        out = [network.between(issuer, other)[0] for other in others]
        into = [network.between(other, issuer)[0] for other in others]
        links = {route.hops[-1][0] for route in out} | {out[0].hops[0][0]}
        if loads:
            links |= {route.hops[0][0] for route in into} | {into[0].hops[-1][0]}
        most = min(network.threadblock_GBps(packets=False), *(route.GBps for route in (*into, *out)))
        most = operation.GBps or (most / 2 if loads else most)
        busy = busy_ps(size, most)
        lead = max(route.overhead_ps for route in out) if self.is_first[n] else 0
        return n, None, lead, [(network.links[link], 0, busy) for link in sorted(links)], most

    def _from(self, now: int, n: int, route: SimulatedRoute | None) -> int:
        """Return when a send begins: a proxy first finishes what it was given before."""
        if route is not None and route.is_proxied:
            return max(now, self.proxy_free[self.program.operations[n].rank])
        return now

    def _start(self, now: int, n: int, route: SimulatedRoute | None, lead: int, rate: float) -> None:
        operation = self.program.operations[n]
        size, start = self._bytes(operation), self._from(now, n, route)
        flow = start + lead
        if route is None:
            uses = [(resource, 0, busy_ps(size, rate)) for resource, _, _ in self._through_switch(n, size)[3]]
            durations = [busy_ps(size, rate)]
        else:
            uses, durations = self._uses(route, size, rate), route.durations_ps(size, rate)
        for resource, begin, end in uses:
            resource.uses.append((flow + begin, flow + end, rate))
        self.begin[n] = start
        own = 0 if route is None else route.link_overhead_ps
        done = flow + own + sum(durations)
        if route is not None and route.is_proxied:
            self.proxy_free[operation.rank] = start + lead
            self._complete(n, now, done)
            return
        free = flow + own + durations[0]
        for peer in operation.group or (operation.sends_to,):
            self.late[operation.rank, operation.block, peer] = done - free
        self._complete(n, free, done)

    def _complete(self, n: int, free: int, done: int) -> None:
        """Complete a step: its threadblock continues at `free`, its data has left at `done`."""
        operations = self.program.operations
        operation = operations[n]
        self.completed += 1
        self.end[n] = max(free, done)
        for other, by_token in self.after[n]:
            ready = free
            if by_token:
                ready = done
                if operations[other].rank != operation.rank and not self.enters[n]:
                    ready += self._delay(operation, operations[other].rank)
            self.since[other] = max(self.since[other], ready)
            self.waits[other] -= 1
            if not self.waits[other]:
                heapq.heappush(self.queue, (self.since[other], operations[other].index, other))

    def _delay(self, operation: Operation, peer: int) -> int:
        """Return the time from the end of a step until another GPU sees its token."""
        route = self.network.signal_route(operation.rank, peer, self._is_proxied(operation, peer))
        late = 0 if operation.size else self.late.get((operation.rank, operation.block, peer), 0)
        return late + route.latency_ps + (0 if operation.packets else route.signal_ps)

    def _is_proxied(self, operation: Operation, peer: int) -> bool | None:
        """Return whether a step tells another GPU something through the proxy of a NIC; None if it does not say so."""
        if operation.is_proxied is not None:
            return operation.is_proxied
        kinds = [
            key[3] == "port" for key in operation.pushes if isinstance(key, tuple) and key[:3:2] == ("signal", peer)
        ]
        return kinds[0] if kinds else None


def _entries(program: RuntimeProgram, before: list[list[int]]) -> list[bool]:
    """Return the steps with which GPUs enter the call: they move no data, and nothing before them does."""
    count = [len(found) for found in before]
    after: list[list[int]] = [[] for _ in before]
    for n, found in enumerate(before):
        for other in found:
            after[other].append(n)
    enters = [not operation.assigns for operation in program.operations]
    ready = [n for n, left in enumerate(count) if not left]
    for n in ready:
        enters[n] &= all(enters[other] for other in before[n])
        for other in after[n]:
            count[other] -= 1
            if not count[other]:
                ready.append(other)
    return enters


def _first_of_messages(program: RuntimeProgram) -> list[bool]:
    """Return the steps that begin a message: all, except those that continue one by the word of the file."""
    last: dict[tuple[int, int], tuple[int, bool]] = {}
    result = []
    for operation in program.operations:
        key, kind = (operation.rank, operation.block), (operation.message, operation.sends_to >= 0)
        result.append(operation.message < 0 or last.get(key) != kind)
        if operation.assigns:
            last[key] = kind
    return result


def _edges(program: RuntimeProgram) -> Iterator[tuple[int, int, bool]]:
    """Yield (step, step that waits for it, whether through a connection)."""
    operations = program.operations
    place = {(o.rank, o.block, o.index): n for n, o in enumerate(operations)}
    puts: dict[Hashable, list[int]] = {}
    takes: dict[Hashable, list[int]] = {}
    for n, operation in enumerate(operations):
        if operation.index:
            yield place[operation.rank, operation.block, operation.index - 1], n, False
        for block, index in operation.after:
            yield place[operation.rank, block, index], n, False
        for key in operation.pushes:
            puts.setdefault(key, []).append(n)
        for key in operation.pops:
            takes.setdefault(key, []).append(n)
    for key, putting in puts.items():
        taking = takes.get(key, [])
        for put, take in zip(putting, taking, strict=False):
            yield put, take, True
        if program.depth is not None:
            for take, put in zip(taking, putting[program.depth :], strict=False):
                yield take, put, False
