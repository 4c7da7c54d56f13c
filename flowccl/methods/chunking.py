"""How many chunks: more of them fill the pipe, fewer pay less latency. Tried in doubling steps, then the best go on."""

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
_TURNS = (0, 0, 1, 0, 0, 1, 0, 0, 2)  # which of the best searches gets the next step


@dataclass
class _Search:
    """One method at one number of chunks."""

    steps: Iterator[Schedule | None]
    best_ps: float = float("inf")
    seconds: float = 0.0
    over: bool = False

    def step(self, clock: Clock) -> Schedule | None:
        began = clock.elapsed_s
        try:
            found = next(self.steps)
        except StopIteration:
            self.over = True
            return None
        finally:
            self.seconds = clock.elapsed_s - began
        if found is not None:
            self.best_ps = min(self.best_ps, found.finish_ps)
        return found


@dataclass
class Chunking:
    """Searches at 1, 2, 4, ... chunks, as long as more chunks help, then more steps for the best of them."""

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
        """First steps at 1, 2, 4, ... chunks; stops when two in a row did not help, or the next would take too long."""
        count, idle, cost_s = 1, 0, 0.0
        while idle < 2:
            try:
                demand = self.demand_of(count)
            except DemandError:
                if count == 1:
                    raise
                return
            too_long = self.clock.steps is None and 3 * cost_s > self.clock.left_s
            if count > 1 and (len(demand.destination_rank) > _MOST_DELIVERIES or too_long):
                return
            before, cost_s = self.best_ps, 0.0
            for method in self.methods.values():
                search = _Search(method(self.topology, demand, self.clock))
                self.searches.append(search)
                yield search.step(self.clock)
                cost_s += search.seconds
            if count == 1:
                cost_s -= min(_LOADING_S, 0.9 * cost_s)
            idle = 0 if self.best_ps < before * (1 - 2e-4) else idle + 1
            count *= 2
