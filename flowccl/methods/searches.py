"""All searches of a synthesis: one method at one number of chunks each."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.clock import Clock
from flowccl.methods.method import Method
from flowccl.methods.rungs import Search
from flowccl.methods.traits import traits_of
from flowccl.topology.topology import Topology

_MOST_DELIVERIES = 400_000  # no more chunks than give so many (chunk, destination) pairs
_SURE = 2  # a first step is begun where so many times as long is left as it is thought to take


@dataclass
class Searches:
    """The searches so far, and which of them have time for a step."""

    topology: Topology
    demand_of: Callable[[int], Demand]
    methods: dict[str, Method]
    clock: Clock
    all: list[Search] = field(default_factory=list)
    demands: dict[int, Demand | None] = field(default_factory=dict)

    def demand(self, count: int) -> Demand | None:
        """In so many chunks, if it can be and they are not too many."""
        if count not in self.demands:
            try:
                demand = self.demand_of(count)
            except DemandError:  # the chunks are given, or a block has fewer bytes
                self.demands[count] = None
            else:
                few = count == 1 or len(demand.destination_rank) <= _MOST_DELIVERIES
                self.demands[count] = demand if few else None
        return self.demands[count]

    def new(self, name: str, count: int, seconds: float = 0.0) -> Search:
        """A search that takes part from now on, whose first step is thought to take so long."""
        demand = self.demand(count) or self.demand_of(count)
        steps = self.methods[name](self.topology, demand, self.clock)
        self.all.append(Search(name, count, steps, len(demand.destination_rank), seconds=seconds))
        return self.all[-1]

    def running(self) -> list[Search]:
        """Searches that can go on in the time that is left."""
        return [search for search in self.all if not search.over and self.has_time(search.seconds)]

    def may(self, search: Search) -> bool:
        """Whether it may make a step now: if it makes none, nor a search of its method to which it tells what works."""
        at_once = not traits_of(search.name).tells_late
        busy = [other for other in self.all if other.busy]
        return not any(other is search or (at_once and other.name == search.name) for other in busy)

    def when_free(self, searches: list[Search]) -> Iterator[Search | None]:
        """Each as soon as it may."""
        for search in searches:
            while not self.may(search):
                yield None
            yield search

    def all_done(self) -> Iterator[None]:
        """Wait for those who make a step."""
        while any(search.busy for search in self.all):
            yield None

    def has_time(self, seconds: float) -> bool:
        """Whether so much time is left; always, where steps are counted."""
        return self.clock.steps is not None or seconds <= self.clock.left_s

    def due(self, share: int, seconds: float) -> bool:
        """Whether a search whose first step takes so long is due by now; where steps are counted, always.

        By the time that has passed, not by what is left: with more of it all begins as with less.
        """
        if self.clock.steps is not None:
            return True
        return self.has_time(_SURE * seconds) and (share * seconds <= self.clock.elapsed_s or not self.running())
