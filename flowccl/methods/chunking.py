"""How many chunks: more of them fill the pipe, fewer pay less latency. All methods, one clock.

A search is one method at one number of chunks. The ladder gives each a first step, at 1, 2, 3, 4, 6, 8, 12, ... chunks
while more chunks help; then the best searches take turns until the clock is over.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.clock import Clock
from flowccl.methods.method import Method
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology

_MOST_DELIVERIES = 400_000  # no more chunks than give so many (chunk, destination) pairs
_LOADING_S = 1.0  # of the very first step: loading the compiled code
_PATIENCE = 3  # rungs of the ladder that may bring nothing
_TURNS = (0, 1, 0, 2, 0, 1, 0, 3)  # which of the best searches gets the next step


@dataclass
class _Search:
    """One method at one number of chunks."""

    name: str
    steps: Iterator[Schedule | None]
    best_ps: float = float("inf")
    seconds: float = 0.0
    over: bool = False

    def step(self, clock: Clock) -> Schedule | None:
        began = clock.elapsed_s
        found = next(self.steps, "over")
        self.seconds = clock.elapsed_s - began
        if isinstance(found, str):
            self.over = True
            return None
        if found is not None:
            self.best_ps = min(self.best_ps, found.finish_ps)
        return found


@dataclass
class Chunking:
    """Searches of several methods at several numbers of chunks."""

    topology: Topology
    demand_of: Callable[[int], Demand]
    methods: dict[str, Method]
    clock: Clock
    searches: list[_Search] = field(default_factory=list)
    best_ps: float = float("inf")
    steps: int = 0

    def run(self) -> Iterator[Schedule]:
        """Better and better schedules, until the clock is over."""
        for found in self._every_step():
            if found is not None and found.finish_ps < self.best_ps:
                self.best_ps = found.finish_ps
                yield found
            self.steps += 1
            if self.clock.over(self.best_ps) or (self.clock.steps is not None and self.steps >= self.clock.steps):
                return

    def _every_step(self) -> Iterator[Schedule | None]:
        yield from self._ladder()
        turn = 0
        while True:
            running = sorted((s for s in self.searches if not s.over), key=lambda s: s.best_ps)
            if not running:
                return
            yield running[min(_TURNS[turn % len(_TURNS)], len(running) - 1)].step(self.clock)
            turn += 1

    def _ladder(self) -> Iterator[Schedule | None]:
        """First steps; stops when a few rungs did not help, or the next would take too much of the time left."""
        idle, cost_s, last = 0, 0.0, 1
        for count in _counts():
            try:
                demand = self.demand_of(count)
            except DemandError:
                if count == 1:
                    raise
                return
            next_s = cost_s * count / last
            too_long = self.clock.steps is None and 2 * next_s > self.clock.left_s
            if count > 1 and (len(demand.destination_rank) > _MOST_DELIVERIES or too_long or idle >= _PATIENCE):
                return
            before, cost_s = self.best_ps, 0.0
            for name, method in self.methods.items():
                if count > 1 and self._hopeless(name):
                    continue
                search = _Search(name, method(self.topology, demand, self.clock))
                self.searches.append(search)
                yield search.step(self.clock)
                cost_s += search.seconds
            if count == 1:
                cost_s -= min(_LOADING_S, 0.9 * cost_s)
            last, idle = count, 0 if self.best_ps < before * (1 - 1e-4) else idle + 1

    def _hopeless(self, name: str) -> bool:
        """A method whose best so far is twice as late as the best of all gets no more rungs."""
        return min(s.best_ps for s in self.searches if s.name == name) > 2 * self.best_ps


def _counts() -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, 24, ..."""
    yield 1
    power = 2
    while True:
        yield power
        yield power * 3 // 2
        power *= 2
