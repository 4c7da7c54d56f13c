"""The portfolio search: arms take turns by their outlook, and chunk counts are raised while they pay.

The search goes on in rounds. What a round does depends on what was known before it and on counted work, never on
seconds; so rounds are the same with one thread and with two, and more time only adds rounds.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from time import thread_time

from flowccl.auto.arm import REFINE, Arm, step_work_s, traits_of
from flowccl.auto.chunk_counts import ChunkCounts, limit_ps
from flowccl.auto.params import AutoParams
from flowccl.auto.refine import refined
from flowccl.auto.rows import methods_tried
from flowccl.auto.stop import NOTHING_LEFT, STEPS_USED, GapReached, StopRule, TimeLimit
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.registry import REGISTRY
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import Method, SearchContext
from flowccl.topology.topology import Topology
from flowccl.verifier.verify import verify

log = logging.getLogger(__name__)

_PLACES = 2  # arms that a round runs side by side; fixed, so that results do not depend on the number of threads
_FOR_OTHER_METHODS = 0.6  # part of the time limit that the first method leaves to the others as it adds chunks
_WHILE_OTHERS_WAIT = 0.4  # part of the time left that a step with more chunks may take before all methods had a try
_EARLY_STEPS = 5  # of a method that continues the first schedules of others
_CARRY_S = 5e-5  # of carrying out a schedule on a runtime, for each of its deliveries and contributions
_QUICK_S = 1.0  # first steps that take no longer run as long as nothing is found, even after the time limit
_SHORT = 3.0  # times what two chunks of the first method take: with less time left, these go before other methods
_SAFETY = 1.5  # a first step begins only where this many times its expected seconds are left


@dataclass
class PortfolioSearch:
    """Arms of several methods at several chunk counts; `counts` says which are allowed.

    `useful_chunks` is the second chunk count of a method. `carry` carries out a schedule on a runtime. `after_round`
    makes better schedules of those that were found. A single method raises its errors; one of several is dropped
    instead.
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
    arms: list[Arm] = field(default_factory=list)
    best_ps: float = inf  # of all arms
    reached_ps: float = inf  # the same, or of what was made of their schedules
    work_s: float = 0.0
    steps: int = 0
    verifying_s: float = 0.0  # the longest verification

    def __post_init__(self) -> None:
        self.dropped: set[str] = set()
        self.left_out: dict[str, float] = {}  # methods whose first step would not end in time, and its expected seconds
        self.refined: dict[tuple[int, int], float] = {}  # (chunk count, fine count) -> completion time refined from
        self.rules: list[StopRule] = [TimeLimit(self.context), GapReached(self.context)]
        self.stopped = ""
        """Why the search ended."""

    def run(self) -> Iterator[Schedule]:
        """Verified schedules, each better than all before."""
        pool = ThreadPoolExecutor(self.workers)
        try:
            while turns := self._within_steps(self._round() or self._left_over()):
                turns.sort(key=self._order_of)
                futures = {pool.submit(self._advance, arm, steps): arm for arm, steps in turns}
                for arm, found in self._results(futures):
                    if found.finish_ps < self.best_ps and self._is_valid(arm, found):
                        self.best_ps = found.finish_ps
                        if self.best_ps < self.reached_ps:
                            self.reached_ps = self.best_ps
                            yield found
                for found in self.after_round(self.reached_ps):
                    self.reached_ps = found.finish_ps
                    yield found
                self.work_s = sum(arm.work_s for arm in self.arms) / _PLACES
                self.steps = sum(arm.taken for arm in self.arms)
                self.context.incumbents.best_ps = self.best_ps
                self.context.incumbents.publish()
                if reasons := [rule.reason for rule in self.rules if rule(self.work_s, self.reached_ps)]:
                    self.stopped = reasons[-1]
                    return
            self.stopped = self._why_nothing()
        finally:
            pool.shutdown(cancel_futures=True)

    def found(self) -> list[Schedule]:
        """The best schedule of every arm, for a choice among them."""
        return [arm.best for arm in self.arms if arm.best is not None]

    def methods_tried(self) -> list[dict[str, object]]:
        """A row for each method: its chunk counts, steps, seconds and best completion time."""
        return methods_tried(self.arms, self.dropped, self.left_out)

    def schedule_with(self, like: Schedule, count: int) -> Schedule | None:
        """The schedule of the same method with another chunk count; None where it is a search, or there is no time."""
        if not traits_of(like.method).one_schedule or self.counts.demand(count) is None:
            return None
        return self._advance(self._open(like.method, count), 1)

    # -- one round ------------------------------------------------------------------------------------------------

    def _round(self) -> list[tuple[Arm, int]]:
        """The arms that run next, each with a number of steps; empty where nothing is left to try."""
        names = [name for name in self._in_time() if not traits_of(name).step_s or len(self.methods) == 1]
        if not self.arms:
            quick = [name for name in names if not self._solves_programs(name)]
            carried = [name for name in names if self.carry is not None and self._is_rated(name)]
            alone = (carried or quick or names)[0]
            return [(self._open(alone, self._opening_count(alone)), 1)]  # alone, so that there is an answer early
        if rated := [row for name in names if self._is_rated(name) for row in self._first_counts(name)]:
            tries = self._before_others() or [row for row in rated if row[1] == 1]  # before more chunks of others
            plain = [(name, count) for name, count in tries if not self._solves_programs(name)]
            if not plain and (continued := self._early(names)):
                return [(self._open(name, count), _EARLY_STEPS) for name, count in continued]
            return [(self._open(name, count), 1) for name, count in plain or tries or rated]  # nothing slows them down
        useful = [(name, count) for name in names for count in self._useful_counts(name)]
        if missing := [name for name in names if name not in self.dropped and not self._arms_of(name)]:
            early = useful and self.context.budget.has_time(_FOR_OTHER_METHODS * self.context.budget.time_limit_s)
            first = [name for name in missing if traits_of(name).begins_early]  # before more chunks of others
            opened = [*([] if first else useful), *((name, 1) for name in first or ([] if early else missing))]
            return [(self._open(name, count), 1) for name, count in opened]
        young = [arm for arm in self._running() if arm.count == 1 and arm.taken < self.params.first_steps]
        hopeful = [arm for arm in young if arm.best is None or arm.best_ps < 2 * self.best_ps]
        if turns := [(arm, 1) for arm in hopeful if not arm.traits.slow_second_step]:
            return [*((self._open(name, count), 1) for name, count in useful), *turns]
        new = [*(self._open(name, count) for name, count in self._raised()), *self._refinements()]
        return [*((arm, 1) for arm in new), *self._turns(new)]

    def _opening_count(self, name: str) -> int:
        """One chunk; two where these are useful, and there is time for them alone but not after a step with one."""
        step_s, left_s = self._first_s(name), self.context.budget.left_s
        is_short = 2 * step_s <= left_s < 3 * step_s
        return 2 if is_short and self._gains_from_two(name) else 1

    def _gains_from_two(self, name: str) -> bool:
        """Whether two chunks are useful for a method whose time is known, where steps are not counted."""
        rated = self._is_rated(name) and self.context.budget.steps is None and self.counts.demand(2) is not None
        return rated and self.useful_chunks(name) > 1

    def _before_others(self) -> list[tuple[str, int]]:
        """Two chunks of the first method, where there might be no time for them after the first tries of others."""
        first, two_s = self.arms[0], _SAFETY * 2 * self.arms[0].first_s
        is_short = two_s <= self.context.budget.left_s < _SHORT * two_s
        if len(self.arms) > 1 or first.count > 1 or first.best is None or not is_short:
            return []
        return [(first.name, 2)] if self._gains_from_two(first.name) else []

    def _in_time(self) -> list[str]:
        """The methods that began, or whose first step is expected to end in time; at first at least the quickest."""
        waiting = {name: self._first_s(name) for name in self.methods if not self._arms_of(name)}
        quickest = min(waiting, key=lambda name: waiting[name], default="") if not self.arms else ""
        budget = self.context.budget
        left_s = budget.left_s if self.best_ps < inf else max(budget.after_s, _QUICK_S)
        counted = budget.steps is not None
        late = {name: s for name, s in waiting.items() if name != quickest and not counted and s > left_s}
        self.left_out |= {name: s for name, s in late.items() if name not in self.dropped}
        return [name for name in self.methods if name not in late]

    def _first_s(self, name: str) -> float:
        """Expected seconds of a first step with one chunk; on a runtime, with what carrying out takes."""
        demand, traits = self.counts.allowed(1), traits_of(name)
        if self._rate_s(name):
            unicast = traits.unicast_work if demand.is_unicast and not demand.reduces else 1.0
            return self._rate_s(name) * unicast * (len(demand.destination_rank) + len(demand.source_rank))
        return step_work_s(name, demand, first=True) + self._carry_s(demand)

    def _carry_s(self, demand: Demand) -> float:
        """Expected seconds for carrying out a schedule on a runtime."""
        return 0.0 if self.carry is None else _CARRY_S * (len(demand.destination_rank) + len(demand.source_rank))

    def _left_over(self) -> list[tuple[Arm, int]]:
        """Where nothing is due: the next chunk count of the best method that has one and fits into the time."""
        known = [name for name in self.methods if name not in self.dropped and self._arms_of(name)]
        for name in sorted(known, key=lambda name: min(arm.best_ps for arm in self._arms_of(name))):
            last = self._arms_of(name)[-1]
            count = self.counts.above(last.count, powers=True)
            if count is not None and last.best is not None and self._fits(last, count):
                return [(self._open(name, count), 1)]
        return []

    def _why_nothing(self) -> str:
        """The reason for the end of a search in which nothing is left to do."""
        budget = self.context.budget
        if budget.steps is not None and self.steps >= budget.steps:
            return STEPS_USED
        more = [arm for arm in self.arms if not arm.over]
        return f"the time left is too short for another step of {more[0].name}" if more else NOTHING_LEFT

    def _turns(self, new: Sequence[Arm]) -> list[tuple[Arm, int]]:
        """The arm with the best outlook works for half of the round; the other half is shared by up to three others."""
        if not (running := [arm for arm in self._running() if arm not in new]):
            return []
        leader, *others = sorted(running, key=lambda arm: (arm.outlook_ps, arm.idle_s))
        near = [arm for arm in others if arm.best_ps <= (1 + self.params.close) * self.best_ps]
        slow = [arm for arm in others if arm.traits.improves_slowly][:3]
        partners = [min(some, key=lambda arm: arm.work_s) for some in (others[:1], slow, near) if some]
        chosen = self._compatible([leader, *partners], new)
        work_s = max([arm.next_work_s for arm in [*chosen, *new]])
        steps = ((arm, int(work_s / (1 if arm is leader else 3) / arm.next_work_s)) for arm in chosen)
        return [(arm, max(min(count, arm.taken), 1)) for arm, count in steps]  # others may open between the rounds

    def _compatible(self, arms: Sequence[Arm], new: Sequence[Arm]) -> list[Arm]:
        """Without duplicates; of a method that reports within a round, only one arm."""
        kept = list[Arm]()
        for arm in arms:
            same = arm.name if not arm.traits.reports_after_round else None
            if not any(arm is other or other.name == same for other in [*kept, *new]):
                kept.append(arm)
        return kept

    # -- chunk counts ---------------------------------------------------------------------------------------------

    def _raised(self) -> list[tuple[str, int]]:
        """Methods whose next chunk count is due: known to be useful, then those that go first, then the least work."""
        due = [
            (count > self.useful_chunks(name), not self._goes_first(name), self._first_work_s(name, count), name, count)
            for name in self.methods
            for count in self._next_counts(name)
            if name not in self.dropped and self._is_due(name, count)
        ]
        return [(name, count) for *_, name, count in sorted(due, key=lambda row: row[:3])[: 2 * _PLACES]]

    def _next_counts(self, name: str) -> list[int]:
        """Chunk counts that may improve on the best: the next one of the method, or those where others are best."""
        tried = self._arms_of(name)
        if not tried:
            return [1]  # its one step takes long, so it waits until the others have worked
        if traits_of(name).continues_others and len(self.methods) > 1:
            leaders = sorted((arm for arm in self.arms if arm.best is not None), key=lambda arm: arm.best_ps)
            if not leaders:  # nothing was found yet
                return []
            few = min(arm.count for arm in leaders if arm.best_ps <= 1.01 * leaders[0].best_ps)
            wanted = [few, leaders[0].count, *self.counts.doublings(self.useful_chunks(name))[-1:]]
            if leaders[0] is tried[-1]:  # it leads, so it raises the count itself
                wanted.append(self.counts.above(leaders[0].count, powers=True) or few)
            return [count for count in dict.fromkeys(wanted) if count not in {arm.count for arm in tried}]
        more = self._may_gain(tried) and self._above(tried, tried[-1].count)
        return self._useful_counts(name) or ([self._next_count(name, tried)] if more else [])

    def _useful_counts(self, name: str) -> list[int]:
        """The next chunk counts on the way to the useful one of a method, as far as time allows.

        A method that leads the search also tries the count after its highest one.
        """
        tried = self._arms_of(name)
        if not tried or not tried[-1].taken or not (len(tried) == 1 or self._may_gain(tried)):
            return []
        least, leads = tried[-1].count, tried[-1].traits.begins_early and tried[-1].best_ps <= self.best_ps
        most = max(self.useful_chunks(name), self._above(tried, least) if leads else 0)
        half = len(tried) == 1 and not self._delivery_s(tried[-1])  # first half of the way, to see what is best
        doublings = [n for n in self.counts.doublings(most) if not half or n * n <= most]
        finest = [] if half or self.counts.most > most else [self.counts.most]
        counts = [*finest, *reversed(doublings), self._above(tried, least)]
        possible = (n for n in counts if least < n <= most and self._fits(tried[-1], n) and self.counts.demand(n))
        found = list(islice(possible, 1))
        between = [n for n in self.counts.doublings(least - 1) if n > tried[-2].count] if len(tried) > 1 else []
        skipped = [n for n in between[-1:] if self._fits(tried[-1], n)]
        return found or skipped  # more chunks are not always better

    def _is_rated(self, name: str) -> bool:
        """Whether the time of a method is in proportion to the deliveries, and is not lost on carrying out."""
        return self._rate_s(name) > 0 and name not in self.dropped

    def _early(self, names: Sequence[str]) -> list[tuple[str, int]]:
        """Methods that begin early and continue the first schedules of others, at their useful chunk counts."""
        if not any(arm.best is not None and self._is_rated(arm.name) for arm in self.arms):
            return []
        able = (name for name in names if traits_of(name).begins_early and traits_of(name).continues_others)
        waiting = [name for name in able if name not in self.dropped and not self._arms_of(name)]
        return [(name, ([1, *self.counts.doublings(self.useful_chunks(name))])[-1]) for name in waiting]

    def _solves_programs(self, name: str) -> bool:
        return name in REGISTRY and REGISTRY[name].by_rate

    def _first_counts(self, name: str) -> list[tuple[str, int]]:
        """One chunk for a method that was not tried, and its useful chunk count after that.

        One that carries out its schedules itself goes on to twice as many as long as that is better, and then tries
        what lies beside the best.
        """
        tried = self._arms_of(name)
        if self.carry is None or not tried:
            return [(name, count) for count in (self._useful_counts(name) if len(tried) == 1 else [] if tried else [1])]
        more, best_ps = self.counts.above(tried[-1].count, powers=True), min(arm.best_ps for arm in tried)
        if best_ps < inf and tried[-1].best_ps > best_ps:
            more = self.counts.beside(min(tried, key=lambda arm: arm.best_ps).count, [arm.count for arm in tried])
        return [(name, more)] if more is not None and best_ps < inf and self._fits(tried[-1], more) else []

    def _fits(self, below: Arm, count: int) -> bool:
        """Whether there is time for a first step with this many chunks; for leaps, as if work were quadratic.

        While other methods wait for their first try, it may take a part of the time that is left.
        """
        times, demand = count / below.count, below.demand
        if delivery_s := self._delivery_s(below):
            unicast = below.traits.unicast_work if demand.is_unicast and not demand.reduces else 1.0
            more_s = delivery_s * unicast * times * (len(demand.destination_rank) + len(demand.source_rank))
            step_s = min(below.first_s + more_s, below.first_s * times)  # what it prepares once counts once
        else:
            more_s = step_work_s(below.name, demand, first=True, times=times)
            more = more_s / step_work_s(below.name, demand, first=True)
            is_leap = count > 2 * below.count and not below.traits.one_schedule
            step_s = below.first_s * (more**2 if is_leap else more)
        return self.context.budget.has_time(_SAFETY * step_s / self._part(step_s))

    def _part(self, step_s: float) -> float:
        """The part of the time left that a step may take: less while others wait for a first try that is shorter."""
        tried = {arm.name for arm in self.arms if arm.taken} | self.dropped | set(self.left_out)
        others = (name for name in self.methods if name not in tried)
        waiting = any(self._first_s(name) <= _WHILE_OTHERS_WAIT * step_s for name in others)
        return _WHILE_OTHERS_WAIT if waiting else 1.0

    def _delivery_s(self, arm: Arm) -> float:
        """Seconds for each delivery, where known."""
        return self._rate_s(arm.name)

    def _rate_s(self, name: str) -> float:
        """The same for a method; on a runtime, carrying out takes longer than planning, unless it does so itself."""
        return traits_of(name).delivery_s if self.carry is None else traits_of(name).carried_s

    def _next_count(self, name: str, tried: list[Arm]) -> int:
        """The next chunk count of a method: counts are skipped where the law of pipelines says that they lose much."""
        count = self._above(tried, tried[-1].count)
        if len(tried) > 1 and tried[-1].best_ps < tried[-2].best_ps:
            limit = limit_ps(
                tried[-2].count,
                tried[-2].best_ps,
                tried[-1].count,
                tried[-1].best_ps,
            )
            useful = tried[-1].count * (tried[-1].best_ps - limit) / max(self.params.close * limit, 1.0)
            while (more := self._above(tried, count)) and more <= useful and self._is_due(name, more):
                count = more
        return count

    def _above(self, tried: list[Arm], count: int) -> int:
        """The allowed chunk count after this one; 0 where there is none."""
        return self.counts.above(count, powers=tried[-1].traits.powers_of_two) or 0

    def _may_gain(self, tried: list[Arm]) -> bool:
        """Whether more chunks may beat the incumbent, by the law of pipelines fitted to the method's arms."""
        best, last = min(tried, key=lambda arm: arm.best_ps), tried[-1]
        if len(tried) == 1:
            return best.best_ps < 2 * self.best_ps  # twice the chunks may at most halve the time
        if best is not last:  # searches are noisy: compare with what others found with no more chunks
            peers_ps = min(arm.best_ps for arm in self.arms if arm.count <= last.count)
            patient = not last.traits.one_schedule and len(tried) - tried.index(best) <= self.params.patience
            return patient and (len(tried) == 2 or best.best_ps <= (1 + self.params.close) * peers_ps)
        before = min(tried[:-1], key=lambda arm: arm.best_ps)
        limit = limit_ps(before.count, before.fitted_ps, last.count, last.fitted_ps)
        return limit < self.best_ps * (1 if last.traits.one_schedule else 1 + self.params.close)

    def _is_due(self, name: str, count: int) -> bool:
        """Whether enough work was done for a first step with this many chunks, and whether it fits into the time."""
        work_s = self._first_work_s(name, count)
        enough = self.params.due * work_s <= self.work_s or not self._running()
        if not (tried := self._arms_of(name)):
            return enough and self.context.budget.has_time(_SAFETY * work_s)
        known = count <= self.useful_chunks(name) or self.context.budget.steps is not None
        best_ps = min(arm.best_ps for arm in self.arms if arm.name != REFINE)  # refined ones may come from its own
        near = (
            tried[-1].best_ps <= (1 + self.params.close) * best_ps and tried[-1].traits.one_schedule
        )  # all it can try
        return (enough or known or near) and self._fits(tried[-1], count)

    def _refinements(self) -> list[Arm]:
        """The most promising refinement of a schedule, where one is due."""
        bases: dict[int, Schedule] = {}
        for arm in sorted(self.arms, key=lambda arm: -arm.best_ps):
            rated = arm.traits.delivery_s > 0  # more chunks of such a method are better than its chunks in parts
            if arm.best is not None and len(self.methods) > 1 and not rated:
                bases[arm.count] = arm.best
        fines = {count: self._refined_count(count, base) for count, base in bases.items()}
        options = [(self._refined_limit_ps(count, bases[count]), fine, count) for count, fine in fines.items() if fine]
        done_s = sum(arm.work_s for arm in self.arms if arm.name == REFINE)
        for hope_ps, fine, count in sorted(options):
            demand = self.counts.demand(fine)
            if hope_ps >= self.best_ps * (1 - self.params.worth) or demand is None:
                continue
            work_s = step_work_s(REFINE, demand, first=True) + self._carry_s(demand)
            enough = self.params.due * (done_s + work_s) <= self.work_s * _PLACES
            if enough and self.context.budget.has_time(_SAFETY * work_s):
                self.refined[count, fine] = bases[count].finish_ps
                return [self._open(REFINE, fine, refined(bases[count], demand, self.context, self.carry))]
        return []

    def _refined_count(self, count: int, base: Schedule) -> int | None:
        """The fine count to try for a schedule: the first double of it that was not tried from this completion time."""
        times = 2
        while (fine := self.counts.multiple(count, times)) is not None:
            if self.refined.get((count, fine)) != base.finish_ps:
                return fine
            times = 2 * fine // count
        return None

    def _refined_limit_ps(self, count: int, base: Schedule) -> float:
        """What refining a schedule may reach, by the law of pipelines from earlier refinements of this count."""
        if not (tried := sorted(fine for coarse, fine in self.refined if coarse == count)):
            return base.finish_ps * 0.98
        found = (arm.best_ps for arm in self.arms if arm.name == REFINE and arm.count == tried[-1])
        ratio = min(found, default=inf) / self.refined[count, tried[-1]]
        return base.finish_ps * limit_ps(count, 1.0, tried[-1], ratio)

    def _open(self, name: str, count: int, steps: Iterator[Schedule | None] | None = None) -> Arm:
        problem = Problem(self.topology, self.counts.allowed(count))
        steps = steps or self.methods[name](problem, self.context)
        self.arms.append(Arm(name, count, problem.demand, steps, self.params.memory_s))
        return self.arms[-1]

    def _order_of(self, turn: tuple[Arm, int]) -> tuple[bool, bool, bool, float]:
        """The order in a round: first tries, what goes first, what goes to its useful chunk count at once."""
        arm, steps = turn
        again = arm.count > 1 or arm.taken > 0
        return again, not self._goes_first(arm.name), not self._delivery_s(arm), arm.next_work_s * steps

    def _goes_first(self, name: str) -> bool:
        """Whether a method goes before the searches, or is about as good as the best."""
        ps = min((arm.best_ps for arm in self._arms_of(name)), default=inf)
        return traits_of(name).begins_early or ps <= (1 + self.params.close) * self.best_ps

    def _arms_of(self, name: str) -> list[Arm]:
        return sorted((arm for arm in self.arms if arm.name == name), key=lambda arm: arm.count)

    def _running(self) -> list[Arm]:
        return [arm for arm in self.arms if not arm.over and arm.taken and self.context.budget.has_time(arm.seconds)]

    def _first_work_s(self, name: str, count: int) -> float:
        demand = self.counts.demand(count)
        return inf if demand is None else step_work_s(name, demand, first=True)

    def _within_steps(self, turns: list[tuple[Arm, int]]) -> list[tuple[Arm, int]]:
        """At most as many steps as are left, where they are counted."""
        if self.context.budget.steps is None:
            return turns
        left, kept = self.context.budget.steps - self.steps, []
        for arm, steps in turns:
            kept.append((arm, min(steps, left)))
            left -= steps
        return [(arm, steps) for arm, steps in kept if steps > 0]

    def _advance(self, arm: Arm, steps: int) -> Schedule | None:
        """The best schedule of some steps of an arm; after the very first one, none begins that would end too late."""
        best: Schedule | None = None
        for _ in range(steps):
            seconds = arm.seconds if arm.taken or arm.count > 1 or arm.name == REFINE else self._first_s(arm.name)
            late = not self.context.budget.has_time(seconds) or TimeLimit(self.context)(self.work_s, self.best_ps)
            late = late or GapReached(self.context)(self.work_s, self.reached_ps)  # the bound may have come meanwhile
            if arm.over or (self.steps and self.context.budget.steps is None and late):
                break
            began, began_cpu_s = self.context.budget.elapsed_s, thread_time()
            try:
                if arm.name in self.methods:
                    self.useful_chunks(arm.name)  # plans for all chunk counts, which is no part of a step
                    began, began_cpu_s = self.context.budget.elapsed_s, thread_time()
                best = arm.step() or best
            except Exception as error:  # an error of one method does not end the search of the others
                if len(self.methods) == 1:
                    raise
                level = logging.DEBUG if isinstance(error, DemandError) else logging.WARNING
                log.log(level, "%s is dropped: %r", arm.name, error)
                self.dropped.add(arm.name)
                arm.over = True
            arm.seconds = self.context.budget.elapsed_s - began
            arm.total_s += arm.seconds
            if arm.best is not None:  # steps before the first schedule prepare for all chunk counts
                arm.first_s = arm.first_s or thread_time() - began_cpu_s
        if best is not None and best.demand.reduces:
            self.context.incumbents.report(best)
        return best

    def _results(self, futures: dict[Future[Schedule | None], Arm]) -> Iterator[tuple[Arm, Schedule]]:
        """What the arms of a round found: as soon as they do, or in order where steps are counted."""
        for future in as_completed(futures) if self.context.budget.steps is None else futures:
            if (found := future.result()) is not None:
                yield futures[future], found

    def _is_valid(self, arm: Arm, found: Schedule) -> bool:
        """Whether the verifier accepts it; else the arm is given up, and what other arms found still counts."""
        began_s = thread_time()
        violations = verify(found)
        self.verifying_s = max(self.verifying_s, thread_time() - began_s)
        if violations:
            log.warning("%s made an invalid schedule, which is dropped: %s", found.method, violations[0])
            arm.over, arm.best, arm.best_ps = True, None, inf
        return not violations
