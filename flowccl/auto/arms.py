"""All arms of a search: which exist, how much work they did, and which have time for a step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flowccl.auto.arm import Arm, step_work_s, traits_of
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.problem import Problem
from flowccl.search.context import Method, SearchContext
from flowccl.topology.topology import Topology

MAX_DELIVERIES = 400_000  # chunk counts with more (chunk, destination) pairs are not tried
TIME_MARGIN = 1.5  # a first step starts only if this many times its expected duration is left


@dataclass
class Arms:
    """The arms so far.

    `slots` is the number of arms that run concurrently; `work_done_s` is divided by it.
    """

    topology: Topology
    demand_of: Callable[[int], Demand]
    methods: dict[str, Method]
    context: SearchContext
    slots: int
    all: list[Arm] = field(default_factory=list)
    demands: dict[int, Demand | None] = field(default_factory=dict)

    def demand(self, count: int) -> Demand | None:
        """Return the demand in this many chunks; None if it cannot be divided or has too many deliveries."""
        if count not in self.demands:
            try:
                demand = self.demand_of(count)
            except DemandError:  # the chunks are fixed, or a block has fewer bytes
                self.demands[count] = None
            else:
                _check_bytes(demand, (self.demand(1) if count > 1 else None) or demand)
                few = count == 1 or len(demand.destination_rank) <= MAX_DELIVERIES
                self.demands[count] = demand if few else None
        return self.demands[count]

    def add(self, name: str, count: int) -> Arm:
        """Add an arm and return it."""
        demand = self.demand(count)
        assert demand is not None, f"{count} chunks are not possible"
        self.all.append(Arm(name, count, demand, self.methods[name](Problem(self.topology, demand), self.context)))
        return self.all[-1]

    @property
    def work_done_s(self) -> float:
        """Work of all arms so far, per slot."""
        return sum(arm.work_done_s for arm in self.all) / self.slots

    def running(self) -> list[Arm]:
        """Return the arms that can make another step in the time left."""
        return [arm for arm in self.all if not arm.exhausted and arm.steps_taken and self.has_time(arm.last_step_s)]

    def concurrent(self, arms: Sequence[Arm]) -> list[Arm]:
        """Return the arms that may run in the same round.

        Of a method that reports during a round, only the first arm is kept.
        """
        kept = list[Arm]()
        for arm in arms:
            reports_at_once = not traits_of(arm.name).reports_after_round
            if not any(arm is other or (reports_at_once and arm.name == other.name) for other in kept):
                kept.append(arm)
        return kept

    def has_time(self, seconds: float) -> bool:
        """Return whether this much time is left; always true if steps are counted."""
        return self.context.budget.steps is not None or seconds <= self.context.budget.left_s

    def is_due(self, work_ratio: int, previous: Arm, count: int) -> bool:
        """Return whether `count` chunks are due, given the arm with the previous chunk count.

        They are due after `work_ratio` times their first step's work, or if no arm can run, and if time for that step
        is left. The condition uses the work done and not the time left, so that a longer limit does not change the
        start of a search. With counted steps, every count is due.
        """
        if self.context.budget.steps is not None:
            return True
        more = count / previous.count  # the duration of a step grows with the number of chunks
        passed = (
            work_ratio * self.first_step_work_s(previous.name, count) * previous.slowdown <= self.work_done_s
            or not self.running()
        )
        return passed and self.has_time(TIME_MARGIN * previous.first_step_s * more)

    def first_step_work_s(self, name: str, count: int) -> float:
        """Return the work of the first step of a method at a chunk count."""
        demand = self.demand(count)
        return 0.0 if demand is None else step_work_s(name, demand, first=True)


def _check_bytes(demand: Demand, whole: Demand) -> None:
    """Raise DemandError if the size depends on the chunk count: lower bounds hold for all chunk counts."""
    parts, total = int(demand.chunk_bytes.sum()), int(whole.chunk_bytes.sum())
    if parts != total:
        what = f"{demand.collective}: {demand.pieces} chunks per block have {parts} bytes in all"
        raise DemandError(f"{what}, {whole.pieces} have {total}; the size must not depend on the number of chunks")
