"""The portfolio search: arms take turns by their outlook, and chunk counts are raised while they pay.

The search goes on in rounds. What a round does depends on what was known before it and on counted work, never on
seconds; so rounds are the same with one thread and with two, and more time only adds rounds.
"""

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from math import inf
from time import thread_time

from flowccl.auto.arm import REFINE, Arm, solves_programs, traits_of
from flowccl.auto.next_counts import NextCounts
from flowccl.auto.refinements import Refinements
from flowccl.auto.rows import methods_tried
from flowccl.auto.state import PLACES, SAFETY, SearchState
from flowccl.auto.stop import NOTHING_LEFT, STEPS_USED, GapReached, StopRule, TimeLimit
from flowccl.errors import DemandError
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import as_distribution
from flowccl.verifier.compact import verify_found

log = logging.getLogger(__name__)

_FOR_OTHER_METHODS = 0.6  # part of the time limit that the first method leaves to the others as it adds chunks
_EARLY_STEPS = 5  # of a method that continues the first schedules of others
_MOST_CONTINUED = 100_000  # transfers of a reduction that others continue as a distribution: more take long to reverse
_QUICK_S = 1.0  # first steps that take no longer run as long as nothing is found, even after the time limit
_SHORT = 3.0  # times what two chunks of the first method take: with less time left, these go before other methods


@dataclass
class PortfolioSearch(SearchState):
    """The search in rounds. A single method raises errors before its first schedule; others are dropped instead."""

    def __post_init__(self) -> None:
        self.next_counts, self.refinements = NextCounts(self), Refinements(self)
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
                is_first = len(self.arms) == 1 < len(self.methods)  # other methods come before variants of its schedule
                for found in () if is_first else self.after_round(self.reached_ps):
                    self.reached_ps = found.finish_ps
                    yield found
                self.work_s = sum(arm.work_s for arm in self.arms) / PLACES
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
        return self._advance(self.open(like.method, count), 1)

    def _round(self) -> list[tuple[Arm, int]]:
        """The arms that run next, each with a number of steps; empty where nothing is left to try."""
        names = self._in_time()
        if not self.arms:
            quick = [name for name in names if not solves_programs(name)]
            carried = [name for name in names if self.carry is not None and self.is_rated(name)]
            alone = (carried or quick or names)[0]
            return [(self.open(alone, self._opening_count(alone)), 1)]  # alone, so that there is an answer early
        if rated := [row for name in names if self.is_rated(name) for row in self.next_counts.first(name)]:
            tries = self._before_others() or [row for row in rated if row[1] == 1]  # before more chunks of others
            plain = [(name, count) for name, count in tries if not solves_programs(name)]
            if not plain and (continued := self._early(names)):
                return [(self.open(name, count), _EARLY_STEPS) for name, count in continued]
            due = plain or tries or rated
            return [(self.open(name, count), 1) for name, count in [*due, *self._beside(due, names)]]
        useful = [(name, count) for name in names for count in self.next_counts.useful(name)]
        if missing := [name for name in names if name not in self.dropped and not self.arms_of(name)]:
            early = useful and self.context.budget.has_time(_FOR_OTHER_METHODS * self.context.budget.time_limit_s)
            first = [name for name in missing if traits_of(name).begins_early]  # before more chunks of others
            opened = [*([] if first else useful), *((name, 1) for name in first or ([] if early else missing))]
            return [(self.open(name, count), 1) for name, count in opened]
        young = [arm for arm in self.running() if arm.count == 1 and arm.taken < self.params.first_steps]
        hopeful = [arm for arm in young if arm.best is None or arm.best_ps < 2 * self.best_ps]
        if turns := [(arm, 1) for arm in hopeful if not arm.traits.slow_second_step]:
            return [*((self.open(name, count), 1) for name, count in useful), *turns]
        new = [*(self.open(name, count) for name, count in self.next_counts.raised()), *self.refinements.next_one()]
        return [*((arm, 1) for arm in new), *self._turns(new)]

    def _beside(self, due: Sequence[tuple[str, int]], names: Sequence[str]) -> list[tuple[str, int]]:
        """The quickest methods that wait for their first try, where a round has a place for them."""
        waiting = [name for name in names if not (self.arms_of(name) or name in self.dropped or self.is_rated(name))]
        waiting = [name for name in waiting if traits_of(name).one_schedule and not solves_programs(name)]
        return [(name, 1) for name in sorted(waiting, key=self.first_s)[: max(PLACES - len(due), 0)]]

    def _opening_count(self, name: str) -> int:
        """One chunk; two where these are useful, and there is time for them alone but not after a step with one."""
        step_s, left_s = self.first_s(name), self.context.budget.left_s
        is_short = 2 * step_s <= left_s < 3 * step_s
        return 2 if is_short and self._gains_from_two(name) else 1

    def _gains_from_two(self, name: str) -> bool:
        """Whether two chunks are useful for a method whose time is known, where steps are not counted."""
        rated = self.is_rated(name) and self.context.budget.steps is None and self.counts.demand(2) is not None
        return rated and self.useful_chunks(name) > 1

    def _before_others(self) -> list[tuple[str, int]]:
        """Two chunks of the first method, where there might be no time for them after the first tries of others."""
        first, two_s = self.arms[0], SAFETY * 2 * self.arms[0].first_s
        is_short = two_s <= self.context.budget.left_s < _SHORT * two_s
        if len(self.arms) > 1 or first.count > 1 or first.best is None or not is_short:
            return []
        return [(first.name, 2)] if self._gains_from_two(first.name) else []

    def _in_time(self) -> list[str]:
        """The methods that began, or whose first step is expected to end in time; at first at least the quickest."""
        waiting = {name: self.first_s(name) for name in self.methods if not self.arms_of(name)}
        quickest = min(waiting, key=lambda name: waiting[name], default="") if not self.arms else ""
        budget = self.context.budget
        left_s = budget.left_s if self.best_ps < inf else max(budget.after_s, _QUICK_S)
        counted = budget.steps is not None
        late = {name: s for name, s in waiting.items() if name != quickest and not counted and s > left_s}
        self.left_out |= {name: s for name, s in late.items() if name not in self.dropped}
        return [name for name in self.methods if name not in late]

    def _left_over(self) -> list[tuple[Arm, int]]:
        """Where nothing is due: the next chunk count of the best method that has one and fits into the time."""
        known = [name for name in self.methods if name not in self.dropped and self.arms_of(name)]
        for name in sorted(known, key=lambda name: min(arm.best_ps for arm in self.arms_of(name))):
            last = self.arms_of(name)[-1]
            count = self.counts.above(last.count, powers=True)
            if count is not None and last.best is not None and self.fits(last, count):
                return [(self.open(name, count), 1)]
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
        if not (running := [arm for arm in self.running() if arm not in new]):
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

    def _early(self, names: Sequence[str]) -> list[tuple[str, int]]:
        """Methods that begin early and continue the first schedules of others, at their useful chunk counts."""
        if not any(arm.best is not None and self.is_rated(arm.name) for arm in self.arms):
            return []
        able = (name for name in names if traits_of(name).begins_early and traits_of(name).continues_others)
        waiting = [name for name in able if name not in self.dropped and not self.arms_of(name)]
        return [(name, ([1, *self.counts.doublings(self.useful_chunks(name))])[-1]) for name in waiting]

    def _order_of(self, turn: tuple[Arm, int]) -> tuple[bool, bool, bool, float]:
        """The order in a round: first tries, what goes first, what goes to its useful chunk count at once."""
        arm, steps = turn
        again = arm.count > 1 or arm.taken > 0
        return again, not self.goes_first(arm.name), not self.rate_s(arm.name), arm.next_work_s * steps

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
            seconds = arm.seconds if arm.taken or arm.count > 1 or arm.name == REFINE else self.first_s(arm.name)
            late = not self.context.budget.has_time(seconds) or TimeLimit(self.context)(self.work_s, self.best_ps)
            late = late or GapReached(self.context)(self.work_s, self.reached_ps)  # the bound may have come meanwhile
            has_begun = self.steps > 0 or self.best_ps < inf  # no step counts of a method that refuses the problem
            if arm.over or (has_begun and self.context.budget.steps is None and late):
                break
            began, began_cpu_s = self.context.budget.elapsed_s, thread_time()
            try:
                if arm.name in self.methods:
                    self.load(arm.name)  # no part of a step, nor are the plans for all chunk counts
                    self.useful_chunks(arm.name)
                    began, began_cpu_s = self.context.budget.elapsed_s, thread_time()
                best = arm.step() or best
            except Exception as error:  # an error of one method does not end the search of the others
                if len(self.methods) == 1 and self.best_ps == inf:
                    raise
                level = logging.DEBUG if isinstance(error, DemandError) else logging.WARNING
                log.log(level, "%s is dropped: %r", arm.name, error)
                self.dropped.add(arm.name)
                arm.over = True
            arm.seconds = self.context.budget.elapsed_s - began
            arm.total_s += arm.seconds
            if arm.best is not None:  # steps before the first schedule prepare for all chunk counts
                arm.first_s = arm.first_s or thread_time() - began_cpu_s
        if best is not None:
            self.context.incumbents.report(best)
            if len(best) <= _MOST_CONTINUED and (other := as_distribution(best)) is not None:
                self.context.incumbents.report(other)
        return best

    def _results(self, futures: dict[Future[Schedule | None], Arm]) -> Iterator[tuple[Arm, Schedule]]:
        """What the arms of a round found: as soon as they do, or in order where steps are counted."""
        for future in as_completed(futures) if self.context.budget.steps is None else futures:
            if (found := future.result()) is not None:
                yield futures[future], found

    def _is_valid(self, arm: Arm, found: Schedule) -> bool:
        """Whether the verifier accepts it; else the arm is given up, and what other arms found still counts."""
        began_s = thread_time()
        violations = verify_found(found)
        self.verifying_s = max(self.verifying_s, thread_time() - began_s)
        if violations:
            log.warning("%s made an invalid schedule, which is dropped: %s", found.method, violations[0])
            arm.over, arm.best, arm.best_ps = True, None, inf
        return not violations
