"""What a portfolio search knows: its arms, and what the next steps of methods are expected to take."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

from flowccl.auto.arm import Arm, step_work_s, traits_of
from flowccl.auto.chunk_counts import ChunkCounts
from flowccl.auto.params import AutoParams
from flowccl.demand.demand import Demand
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import Method, SearchContext
from flowccl.topology.topology import Topology

_WHILE_OTHERS_WAIT = 0.4  # part of the time left that a step with more chunks may take before all methods had a try
_CARRY_S = 5e-5  # of carrying out a schedule on a runtime, for each of its deliveries and contributions

PLACES = 2  # arms that a round runs side by side; fixed, so that results do not depend on the number of threads
SAFETY = 1.5  # a first step begins only where this many times its expected seconds are left


@dataclass
class SearchState:
    """Arms of several methods at several chunk counts; `counts` says which are allowed.

    `useful_chunks` is the second chunk count of a method. `carry` carries out a schedule on a runtime. `after_round`
    makes better schedules of those that were found. `load` loads what a method needs, before its first step.
    """

    topology: Topology
    counts: ChunkCounts
    methods: dict[str, Method]
    context: SearchContext
    workers: int = 2
    useful_chunks: Callable[[str], int] = lambda name: 1
    params: AutoParams = field(default_factory=AutoParams)
    carry: Callable[[Schedule], Schedule | None] | None = None
    after_round: Callable[[float], Iterable[Schedule]] = lambda best_ps: ()
    load: Callable[[str], None] = lambda name: None
    arms: list[Arm] = field(default_factory=list)
    best_ps: float = inf  # of all arms
    reached_ps: float = inf  # the same, or of what was made of their schedules
    work_s: float = 0.0
    steps: int = 0
    verifying_s: float = 0.0  # the longest verification
    dropped: set[str] = field(default_factory=set)
    left_out: dict[str, float] = field(default_factory=dict)  # whose first step would not end in time, and its seconds

    def arms_of(self, name: str) -> list[Arm]:
        """The arms of a method, by their chunk counts."""
        return sorted((arm for arm in self.arms if arm.name == name), key=lambda arm: arm.count)

    def running(self) -> list[Arm]:
        """The arms that go on, and whose next step fits into the time."""
        return [arm for arm in self.arms if not arm.over and arm.taken and self.context.budget.has_time(arm.seconds)]

    def first_s(self, name: str) -> float:
        """Expected seconds of a first step with one chunk; on a runtime, with what carrying out takes."""
        demand, traits = self.counts.allowed(1), traits_of(name)
        if self.rate_s(name):
            unicast = traits.unicast_work if demand.is_unicast and not demand.reduces else 1.0
            return self.rate_s(name) * unicast * (len(demand.destination_rank) + len(demand.source_rank))
        return step_work_s(name, demand, first=True) + self.carry_s(demand)

    def carry_s(self, demand: Demand) -> float:
        """Expected seconds for carrying out a schedule on a runtime."""
        return 0.0 if self.carry is None else _CARRY_S * (len(demand.destination_rank) + len(demand.source_rank))

    def fits(self, below: Arm, count: int) -> bool:
        """Whether there is time for a first step with this many chunks; for leaps, as if work were quadratic.

        While other methods wait for their first try, it may take a part of the time that is left.
        """
        times, demand = count / below.count, below.demand
        if delivery_s := self.rate_s(below.name):
            unicast = below.traits.unicast_work if demand.is_unicast and not demand.reduces else 1.0
            more_s = delivery_s * unicast * times * (len(demand.destination_rank) + len(demand.source_rank))
            step_s = min(below.first_s + more_s, below.first_s * times)  # what it prepares once counts once
        else:
            more_s = step_work_s(below.name, demand, first=True, times=times)
            more = more_s / step_work_s(below.name, demand, first=True)
            is_leap = count > 2 * below.count and not below.traits.one_schedule
            step_s = below.first_s * (more**2 if is_leap else more)
        return self.context.budget.has_time(SAFETY * step_s / self._part(step_s))

    def _part(self, step_s: float) -> float:
        """The part of the time left that a step may take: less while others wait for one that is shorter."""
        most_s = _WHILE_OTHERS_WAIT * step_s
        known = self.dropped | set(self.left_out)
        waiting = any(self._waiting_s(name) <= most_s for name in self.methods if name not in known)
        return _WHILE_OTHERS_WAIT if waiting else 1.0

    def _waiting_s(self, name: str) -> float:
        """Expected seconds of the first try of a method, or of its second chunk count; inf where it had both."""
        tried = [arm for arm in self.arms_of(name) if arm.taken]
        if not tried:
            return self.first_s(name)
        more = self.counts.above(tried[-1].count, powers=True)
        hopeful = len(tried) == 1 and tried[0].best_ps < 2 * self.best_ps  # twice the chunks may at most halve the time
        return tried[0].first_s * more / tried[0].count if more and hopeful else inf

    def rate_s(self, name: str) -> float:
        """Seconds of a method for each delivery, where known.

        On a runtime, carrying out takes longer than planning, unless the method does so itself.
        """
        return traits_of(name).delivery_s if self.carry is None else traits_of(name).carried_s

    def is_rated(self, name: str) -> bool:
        """Whether the time of a method is in proportion to the deliveries, and is not lost on carrying out."""
        return self.rate_s(name) > 0 and name not in self.dropped

    def goes_first(self, name: str) -> bool:
        """Whether a method goes before the searches, or is about as good as the best."""
        ps = min((arm.best_ps for arm in self.arms_of(name)), default=inf)
        return traits_of(name).begins_early or ps <= (1 + self.params.close) * self.best_ps

    def first_work_s(self, name: str, count: int) -> float:
        """Expected work of a first step with a number of chunks; inf where that is not allowed."""
        demand = self.counts.demand(count)
        return inf if demand is None else step_work_s(name, demand, first=True)

    def open(self, name: str, count: int, steps: Iterator[Schedule | None] | None = None) -> Arm:
        """Add an arm."""
        problem = Problem(self.topology, self.counts.allowed(count))
        steps = steps or self.methods[name](problem, self.context)
        self.arms.append(Arm(name, count, problem.demand, steps, self.params.memory_s))
        return self.arms[-1]
