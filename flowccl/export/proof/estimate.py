"""Estimate of the finish time of a file on a machine: the cost of lowering, or the quality of another tool's file.

This is an event simulation. A step starts when everything it waits for is complete. A step that sends occupies the
links of the fastest route between the two GPUs until its bytes have passed, first come, first served; a trunk carries
as many at once as its bandwidth allows. The data of a step arrives after the latency of the route. Packets are twice
the bytes, and need no signal after their arrival. Copies and reductions on a GPU take no time, unless the profile of
the runtime has their costs. Bandwidths are those at time zero.

Operations of a switch share the links of all GPUs of the group: a store to all of z bytes moves z bytes from the GPU
that issues it to every GPU; a load with reduction of z bytes moves z bytes up and down on every link, and again on
those of the GPU that issues it, which loads the result and stores it to all.
"""

import heapq
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from flowccl.errors import InputError
from flowccl.export.proof.network import Occupation, SimulatedNetwork
from flowccl.export.proof.program import RuntimeProgram
from flowccl.runtimes.costs import MessageCosts
from flowccl.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class StepTimes:
    """When each step of a program begins, after its waits, and ends; and the pairs of steps (sender, receiver)."""

    begin_ps: list[int]
    end_ps: list[int]
    tokens: list[tuple[int, int]]


def estimate_ps(program: RuntimeProgram, topology: Topology, size_bytes: int, costs: MessageCosts | None = None) -> int:
    """Return the finish time of a program on a machine for a buffer of `size_bytes`, as nccl-tests counts them.

    Links have the overheads of the machine: use `on_runtime` for those of a runtime. `costs` says on which kinds of
    links a proxy sends: it posts the messages of a GPU one after the other, and the threadblock continues meanwhile.
    """
    return max(step_times(program, topology, size_bytes, costs).end_ps, default=0)


def step_times(
    program: RuntimeProgram, topology: Topology, size_bytes: int, costs: MessageCosts | None = None
) -> StepTimes:
    """Return when each step of a program begins and ends on a machine for a buffer of `size_bytes`."""
    if topology.num_gpus != program.num_gpus:
        machine = f"the machine {topology.name} has {topology.num_gpus}"
        raise InputError(f"the file is for {program.num_gpus} gpus, but {machine}")
    return _Simulation(program, SimulatedNetwork(topology, costs), -(-size_bytes // program.chunks)).run()


class _Simulation:
    def __init__(self, program: RuntimeProgram, network: SimulatedNetwork, chunk_bytes: int) -> None:
        self.program, self.network, self.chunk_bytes = program, network, chunk_bytes
        self.free = [[0] * count for count in network.lanes]  # when each lane of a resource is free: heaps
        self.waiting: list[list[tuple[int, int, int]]] = [[] for _ in self.free]  # of each resource, in order
        self.woken = [-1] * len(self.free)  # when the resource wakes the first step that waits for it
        self.active: list[list[tuple[int, float]]] = [[] for _ in network.topology.limits]
        self.queue: list[tuple[int, int, int]] = []  # (time, -1, resource) or (time, index, step)
        count = len(program.operations)
        self.after: list[list[tuple[int, bool]]] = [[] for _ in range(count)]  # (step, whether through a connection)
        self.waits = [0] * count
        self.since = [0] * count
        self.begin, self.end, self.completed = [0] * count, [0] * count, 0
        for first, second, by_token in _edges(program):
            self.after[first].append((second, by_token))
            self.waits[second] += 1

    def run(self) -> StepTimes:
        """Return the times of all steps."""
        operations = self.program.operations
        self.queue = [(0, o.index, n) for n, o in enumerate(operations) if not self.waits[n]]
        heapq.heapify(self.queue)
        while self.queue:
            now, index, n = heapq.heappop(self.queue)
            if index < 0:
                self._wake(now, n)
            else:
                self._try(now, n)
        if self.completed < len(operations):
            raise InputError("the file deadlocks, so it has no finish; check-export shows where")
        tokens = [(n, other) for n, after in enumerate(self.after) for other, by_token in after if by_token]
        return StepTimes(self.begin, self.end, tokens)

    def _wake(self, now: int, resource: int) -> None:
        """Let the steps that wait for a resource try in order, until one occupies it."""
        self.woken[resource] = -1
        waiting = self.waiting[resource]
        while waiting and self.free[resource][0] <= now:
            self._try(now, heapq.heappop(waiting)[2])
        if waiting:
            self._watch(resource)

    def _watch(self, resource: int) -> None:
        time = self.free[resource][0]
        if self.woken[resource] != time:
            self.woken[resource] = time
            heapq.heappush(self.queue, (time, -1, resource))

    def _try(self, now: int, n: int) -> None:
        """Start a step if everything that it occupies is free, else let it wait for that."""
        operation = self.program.operations[n]
        if operation.group:
            self._through_switch(now, n)
            return
        elif operation.sends_to >= 0 and operation.size:
            size = operation.size * self.chunk_bytes * (2 if operation.packets else 1)
            choices = self.network.send(operation.rank, operation.sends_to, size)
        else:
            self.begin[n] = now
            done = now + self.network.local_ps(operation, self.chunk_bytes)
            self._complete(n, done, done)
            return
        blocked = [self._blocked(now, choice) for choice in choices]
        start, resource, k = min((*row, k) for k, row in enumerate(blocked))
        if start <= now:
            choice, self.begin[n] = choices[k], now
            for used, _, end in choice.uses:
                heapq.heapreplace(self.free[used], now + end)
                if self.waiting[used]:
                    self._watch(used)
            for limit, rate in choice.rates:
                self.active[limit].append((now + choice.end_ps, rate))
            self._complete(n, now + choice.free_ps, now + choice.end_ps)
        elif resource < 0:
            heapq.heappush(self.queue, (start, operation.index, n))
        else:
            heapq.heappush(self.waiting[resource], (self.since[n], operation.index, n))
            self._watch(resource)

    def _through_switch(self, now: int, n: int) -> None:
        """Do an operation of a switch: each of its links moves its share after what it already has to move."""
        operation = self.program.operations[n]
        use = self.network.group(operation, operation.size * self.chunk_bytes)
        self.begin[n], end = now, 0
        for link, busy in use.uses:
            until = max(now + use.overhead_ps, self.free[link][0]) + busy
            heapq.heapreplace(self.free[link], until)
            end = max(end, until)
            if self.waiting[link]:
                self._watch(link)
        self._complete(n, end + use.latency_ps, end + use.latency_ps)

    def _blocked(self, now: int, choice: Occupation) -> tuple[int, int]:
        """Return when the choice may be free, and the resource that blocks it (-1: none, or a limit)."""
        start, blocker = now, -1
        for resource, begin, _ in choice.uses:
            if self.free[resource][0] - begin > start:
                start, blocker = self.free[resource][0] - begin, resource
        if blocker >= 0:
            begin = next(b for resource, b, _ in choice.uses if resource == blocker)
            return start, blocker if begin == 0 else -1
        for limit, rate in choice.rates:
            self.active[limit] = [(end, r) for end, r in self.active[limit] if end > now]
            total = sum(r for _, r in self.active[limit]) + rate
            if total > self.network.topology.limit_GBps[limit] * (1 + 1e-9):
                start = max(start, min(end for end, _ in self.active[limit]))
        return start, -1

    def _complete(self, n: int, free: int, done: int) -> None:
        """Complete a step: its threadblock continues at `free`, its data has left at `done`."""
        operations = self.program.operations
        rank = operations[n].rank
        self.completed += 1
        self.end[n] = done
        for other, by_token in self.after[n]:
            ready = done if by_token else free
            if by_token and operations[other].rank != rank:
                ready += self.network.latency_ps(rank, operations[other].rank, signals=not operations[n].packets)
            self.since[other] = max(self.since[other], ready)
            self.waits[other] -= 1
            if not self.waits[other]:
                heapq.heappush(self.queue, (self.since[other], operations[other].index, other))


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
