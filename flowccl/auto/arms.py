"""All searches of a synthesis: one method at one number of chunks each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flowccl.auto.arm import Search, traits_of, work_s
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.problem import Problem
from flowccl.search.context import Method, SearchContext
from flowccl.topology.topology import Topology

MOST_DELIVERIES = 400_000  # no more chunks than give so many (chunk, destination) pairs
SURE = 1.5  # a first step is begun where so many times as long is left as it is thought to take


@dataclass
class Searches:
    """The searches so far, how much they worked, and which of them have time for a step.

    `worked_s` is the work of all steps, for each of so many `places` that go on side by side.
    """

    topology: Topology
    demand_of: Callable[[int], Demand]
    methods: dict[str, Method]
    context: SearchContext
    places: int
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
                _check_bytes(demand, (self.demand(1) if count > 1 else None) or demand)
                few = count == 1 or len(demand.destination_rank) <= MOST_DELIVERIES
                self.demands[count] = demand if few else None
        return self.demands[count]

    def new(self, name: str, count: int) -> Search:
        """A search that takes part from now on."""
        demand = self.demand(count)
        assert demand is not None, f"{count} chunks were asked for before"
        self.all.append(Search(name, count, demand, self.methods[name](Problem(self.topology, demand), self.context)))
        return self.all[-1]

    @property
    def worked_s(self) -> float:
        """Work so far, side by side."""
        return sum(search.worked_s for search in self.all) / self.places

    def running(self) -> list[Search]:
        """Searches that can go on in the time that is left."""
        return [search for search in self.all if not search.over and search.taken and self.has_time(search.seconds)]

    def apart(self, searches: Sequence[Search]) -> list[Search]:
        """Of these, those who may make steps side by side: of methods that tell at once what works, the first."""
        kept = list[Search]()
        for search in searches:
            at_once = not traits_of(search.name).reports_after_round
            if not any(search is other or (at_once and search.name == other.name) for other in kept):
                kept.append(search)
        return kept

    def has_time(self, seconds: float) -> bool:
        """Whether so much time is left; always, where steps are counted."""
        return self.context.budget.steps is not None or seconds <= self.context.budget.left_s

    def due(self, share: int, below: Search, count: int) -> bool:
        """Whether it is time for so many chunks, by the first step with fewer; where steps are counted, always.

        By the work that was done, not by the time that is left: with more of it all begins as with less.
        """
        if self.context.budget.steps is not None:
            return True
        more = count / below.count  # a step takes longer as there are more chunks
        passed = share * self.first_work_s(below.name, count) * below.slow <= self.worked_s or not self.running()
        return passed and self.has_time(SURE * below.first_s * more)

    def first_work_s(self, name: str, count: int) -> float:
        """The work of a first step with so many chunks."""
        demand = self.demand(count)
        return 0.0 if demand is None else work_s(name, demand, first=True)


def _check_bytes(demand: Demand, whole: Demand) -> None:
    """A demand is the same in any number of chunks: floors hold for all of them."""
    parts, total = int(demand.chunk_bytes.sum()), int(whole.chunk_bytes.sum())
    if parts != total:
        what = f"{demand.collective}: in {demand.pieces} chunks per block it has {parts} bytes"
        raise DemandError(f"{what}, in {whole.pieces} it has {total}; all must have the same")
