"""The portfolio search: arms (a method at a chunk count) share the time. More chunks pipeline better but cost latency.

`ChunkCounts` gives each method a first step at 1, 2, 3, 4, 6, 8, 12, ... chunks, as long as more chunks help and enough
work was done. Between and after these steps, the best arms continue until the budget is used up. The search proceeds
in rounds. What happens in a round depends only on earlier rounds and on counted work, not on seconds. So the rounds
are the same on one core and on two, and a longer time limit adds rounds without changing the first ones.
"""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from flowccl.auto.arm import Arm, next_chunk_count, traits_of
from flowccl.auto.arms import TIME_MARGIN, Arms
from flowccl.auto.balance import balanced_once, can_balance
from flowccl.auto.chunk_counts import LEADER_WORK_RATIO, OTHER_WORK_RATIO, PATIENCE, ChunkCounts
from flowccl.auto.refine import Refinements
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import Method, SearchContext
from flowccl.topology.topology import Topology
from flowccl.verifier.verify import verify

log = logging.getLogger(__name__)

FIRST_STEPS = 5  # steps of each arm with one chunk, which show what suits the machine
_NEAR_RATIO = 1.05  # arms within this factor of the best get turns even if they were tried little
_AS_GOOD = 1.01  # fewer chunks are as good if they are within this factor of the best
_MAX_IMPROVED_COUNTS = 3  # chunk counts at which methods that continue others get an arm
# A schedule within the gap is improved for some seconds more, if the requested gap is small. Close to the bound, only
# while it still improves.
_EXTRA_S = 10.0
_SMALL_GAP, _CLOSE = 1.0051, 1.001
# It still improves if the last improvement, by this fraction, is at most this much work, or this factor, ago.
_PATIENCE_S, _PATIENCE_RATIO, _MIN_IMPROVEMENT = 2.0, 1.5, 1e-5
_REFINE_ABOVE = 1.0005  # closer to the bound nothing is refined, unless a smaller gap was requested
_SLOTS = 2  # arms that run concurrently in a round
_SHARED_SLOT = 3  # arms that share a slot beside the best
_MIN_TURN_S = 0.005  # least work of a turn
_FAST_TRACK_IDLE = 0.4  # fraction of the idle time beside a fast-tracked arm that other arms use
_ROUNDS_PER_COUNT = (
    2  # after `raise_counts` has ended, the best method gets another chunk count once per this many rounds
)

Turn = tuple[Arm, int]  # an arm and its number of steps in a round


@dataclass
class PortfolioSearch:
    """Arms of several methods at several chunk counts.

    With `all_first`, every method makes a step before the search may stop, and more steps follow while little time was
    used and nothing is proved. Each method makes `first_steps` steps with one chunk; `target_count` is a chunk count to
    continue with.
    """

    topology: Topology
    demand_of: Callable[[int], Demand]
    methods: dict[str, Method]
    context: SearchContext
    workers: int = 2
    all_first: bool = False
    first_steps: int = FIRST_STEPS
    target_count: int = 1
    steps: int = 0
    best: Schedule | None = None
    best_ps: float = float("inf")  # the arms see it from the next round on
    improved_s: float = 0.0  # work done at the last improvement

    def __post_init__(self) -> None:
        several = len(self.methods) > 1
        self.run_last = [name for name in self.methods if several and traits_of(name).runs_last]
        names = [name for name in self.methods if name not in self.run_last]
        self.slots = _SLOTS if self.context.budget.steps is not None else max(_SLOTS, self.workers)
        self.arms = Arms(self.topology, self.demand_of, self.methods, self.context, self.slots)
        stay_longer = self.all_first and several
        self.chunk_counts = ChunkCounts(self.arms, names, self.first_steps, stay_longer, self.target_count)
        self.refinements = Refinements(self.arms)
        self.balance_arms: list[tuple[Schedule, Arm]] = []  # each schedule that was balanced, with its arm

    def run(self) -> Iterator[Schedule]:
        """Yield better and better schedules until the budget is used up."""
        pool = ThreadPoolExecutor(self.workers)
        try:
            for new in self._rounds():
                turns = self._new_turns(new) if new else self._turns()
                turns = self._within_steps([*turns, *self._next_refinement(), *self._balance()])
                turns.sort(key=lambda turn: -turn[0].cost_s * turn[1])  # longest first, so that no turn waits for it
                if not turns or self._should_stop():
                    return
                before_ps = self.best_ps
                for found in self._results([pool.submit(self._run_steps, *turn) for turn in turns]):
                    if found.finish_ps < self.best_ps and _is_valid(found):
                        self.best, self.best_ps = found, found.finish_ps
                        yield found
                balance_arms = [arm for _, arm in self.balance_arms]
                self.steps = sum(arm.steps_taken for arm in [*self.arms.all, *self.refinements.made, *balance_arms])
                self.context.incumbents.best_ps = min(arm.best_ps for arm in self.arms.all)
                self.context.incumbents.publish()
                if self.best_ps < before_ps * (1 - _MIN_IMPROVEMENT):
                    self.improved_s = self.arms.work_done_s
        finally:
            pool.shutdown(cancel_futures=True)  # after an interrupt, do not wait for the rest of the round

    @property
    def _is_near_bound(self) -> bool:
        """Whether almost nothing can be gained."""
        return self.best_ps <= self.context.incumbents.bound_ps * _CLOSE

    def _next_refinement(self) -> list[Turn]:
        """A refinement, if there are several methods and more chunks are worthwhile."""
        worthwhile = (
            self.best_ps > min(self.context.incumbents.bound_ps * _REFINE_ABOVE, self.context.budget.good_ps)
            and not self.chunk_counts.fast_tracking
        )
        refinement = self.refinements.next(self.best_ps) if len(self.methods) > 1 and worthwhile else None
        return [] if refinement is None else [(refinement, 1)]

    @property
    def _improved_recently(self) -> bool:
        """Whether the best schedule improved recently, by work done; False if steps are counted."""
        until_s = max(self.improved_s + _PATIENCE_S, self.improved_s * _PATIENCE_RATIO)
        return self.context.budget.steps is None and self.arms.work_done_s < until_s

    def _balance(self) -> list[Turn]:
        """An arm that balances the best schedule, if only a few bytes can be gained."""
        if self.best is None or not self._should_balance():
            return []
        demand = self.best.demand
        arm = Arm("balance", demand.pieces, demand, balanced_once(self.best, self.context))
        self.balance_arms.append((self.best, arm))
        return [(arm, 1)]

    def _should_balance(self) -> bool:
        """Balance each schedule that stays the best for a while once, if there are several methods."""
        nothing = self.best_ps <= self.context.incumbents.bound_ps or not self._is_near_bound or self._improved_recently
        if self.best is None or nothing or len(self.methods) == 1:
            return False
        done = any(arm.steps_taken and self.best in (balanced, arm.best) for balanced, arm in self.balance_arms)
        return not done and can_balance(self.best)

    def _results(self, going: list[Future[Schedule | None]]) -> Iterator[Schedule]:
        """Yield the results of a round as they arrive; in the order of the turns if steps are counted."""
        for future in as_completed(going) if self.context.budget.steps is None else going:
            if (found := future.result()) is not None:
                yield found

    def _should_stop(self) -> bool:
        """Return whether no further step may start."""
        some_wait = self.all_first and (self._may_still_improve() or self.steps < len(self.methods))
        return self.steps > 0 and self.context.budget.over(float("inf") if some_wait else self.best_ps)

    def _may_still_improve(self) -> bool:
        """Return whether a schedule within the gap may improve in a few seconds."""
        bound_ps = self.context.incumbents.bound_ps
        if self.context.budget.good_ps > bound_ps * _SMALL_GAP or self.best_ps <= bound_ps:
            return False
        if self.context.budget.steps is not None:
            return self.chunk_counts.is_single_chunk and not self._is_near_bound
        more = (self._improved_recently and len(self.methods) > 1) or self._should_balance()
        return self.context.budget.elapsed_s < _EXTRA_S and (not self._is_near_bound or more)

    def _within_steps(self, turns: list[Turn]) -> list[Turn]:
        """Limit the turns to the steps left, if steps are counted."""
        if self.context.budget.steps is None:
            return turns
        before = itertools.accumulate((steps for _, steps in turns), initial=self.steps)
        limited = [
            (arm, min(steps, self.context.budget.steps - done))
            for (arm, steps), done in zip(turns, before, strict=False)
        ]
        return [(arm, steps) for arm, steps in limited if steps > 0]

    def _run_steps(self, arm: Arm, steps: int) -> Schedule | None:
        """Return the best result of up to this many steps; the very first step is always made."""
        found = list[Schedule | None]()
        while len(found) < steps and not arm.exhausted and self._may_start(arm):
            found.append(self._step(arm))
        return min((one for one in found if one is not None), key=lambda one: one.finish_ps, default=None)

    def _may_start(self, arm: Arm) -> bool:
        in_time = self.steps == 0 or self.arms.has_time(arm.last_step_s)
        return self.context.budget.steps is not None or (in_time and not self._should_stop())

    def _step(self, arm: Arm) -> Schedule | None:
        """Make one step; with several methods, a method that does not support the problem is dropped."""
        try:
            return arm.step(self.context)
        except DemandError as error:
            if len(self.methods) == 1:
                raise
            log.debug("method %s is skipped: %s", arm.name, error)
            arm.exhausted = True
            return None

    def _rounds(self) -> Iterator[list[Arm]]:
        """Yield the new arms of each round, or all arms with one chunk; none if only the best arms continue."""
        yield from self.chunk_counts.single_chunk_rounds()
        yield from self.chunk_counts.many_chunk_rounds()
        raising, last = self.chunk_counts.raise_counts(), list(self.run_last)
        for number in itertools.count():
            next_arms = next(raising, [])
            new = (
                next_arms
                if self.chunk_counts.fast_tracking
                else next_arms + self._improvers(1 if next_arms else _MAX_IMPROVED_COUNTS)
            )
            if not next_arms and number % _ROUNDS_PER_COUNT == 0:
                new += self._next_count_arm()
            if not new and last and self._is_due_last(last[0]):
                new = [self.arms.add(last.pop(0), 1)]
            if not new and not self.arms.running():
                return
            yield new

    def _is_due_last(self, name: str) -> bool:
        """Return whether the others have worked as long as a method that runs last takes."""
        seconds = self.arms.first_step_work_s(name, 1)
        return self.arms.work_done_s >= seconds and self.arms.has_time(TIME_MARGIN * seconds)

    def _new_turns(self, new: list[Arm]) -> list[Turn]:
        """One step of each new arm and, beside the longest step, turns of the best arms."""
        costs = [arm.cost_s for arm in new]
        left_s = (self.slots * max(costs) - sum(costs)) * (_FAST_TRACK_IDLE if self.chunk_counts.fast_tracking else 1.0)
        beside = [turn for turn in self._turns(new, left_s / 2 / _SHARED_SLOT) if turn[0].cost_s * turn[1] <= left_s]
        return [*((arm, 1) for arm in new), *beside]

    def _turns(self, new: Sequence[Arm] = (), turn_s: float = 0.0) -> list[Turn]:
        """Turns of the best arm and of some others that get equal work; at least `turn_s` each."""
        running = sorted(self.arms.running(), key=lambda arm: arm.score)
        wanted = [*new, *running[:1], *self._partners(running), *running[1:]]
        going = self.arms.concurrent(wanted)[len(new) : len(new) + 1 + _SHARED_SLOT * (self.slots - 1)]
        turn_s = turn_s or max([_MIN_TURN_S, *(arm.cost_s for arm in going)])
        steps = [max(int(turn_s / arm.cost_s), 1) for arm in going]
        steps[:1] = [_SHARED_SLOT * many for many in steps[:1]]
        return list(zip(going, steps, strict=True))

    def _partners(self, running: list[Arm]) -> Iterable[Arm]:
        """Arms that run beside the best one.

        The next best; of those that improve slowly, and of those near the best, the one with the least work.
        """
        improvers = [arm for arm in running[1:] if traits_of(arm.name).improves_slowly][:_MAX_IMPROVED_COUNTS]
        near = [arm for arm in running[1:] if arm.best_ps <= _NEAR_RATIO * running[0].best_ps]
        for some in (running[1:2], improvers, near):
            if some:
                yield min(some, key=lambda arm: arm.work_done_s)

    def _improvers(self, most: int) -> list[Arm]:
        """New arms of methods that continue others: at the fewest chunks that are good, and at the best.

        With only one step per chunk count, as other methods get, these methods would hardly improve anything.
        """
        best = sorted((arm for arm in self.arms.all if not arm.exhausted), key=lambda arm: arm.best_ps)
        few = min((arm.count for arm in best if arm.best_ps <= _AS_GOOD * best[0].best_ps), default=1)
        counts = list(dict.fromkeys([few, *(arm.count for arm in best)]))[:most]
        names = [name for name in self.methods if traits_of(name).continues_others]
        wanted = [(name, count) for name in names for count in self._missing_counts(name, counts)]
        return [self.arms.add(name, count) for name, count in wanted]

    def _next_count_arm(self) -> list[Arm]:
        """An arm at the next chunk count, for the best method that may try another one.

        A method may have stopped early, since its one step at a chunk count may be unlucky. Methods that continue
        others come after the methods that they continue.
        """
        near = [arm for arm in self.arms.all if arm.best_ps <= _NEAR_RATIO * self.context.incumbents.best_ps]
        near.sort(key=lambda arm: arm.best_ps)
        names = dict.fromkeys(arm.name for arm in near)
        tops = [found for name in names if (found := self._last_arm(name)) is not None]
        for top, work_ratio in [found for found in tops if not traits_of(found[0].name).continues_others] or tops:
            count = next_chunk_count(top.name, top.count)
            if self.arms.is_due(work_ratio, top, count):
                return [self.arms.add(top.name, count)]
        return []

    def _last_arm(self, name: str) -> tuple[Arm, int] | None:
        """The arm of a method with most chunks, and the work ratio for the next one; None if it has ended."""
        mine = sorted((arm for arm in self.arms.all if arm.name == name), key=lambda arm: arm.count)
        best, top = min(mine, key=lambda arm: arm.best_ps), mine[-1]
        beaten = traits_of(name).one_schedule and best.best_ps > self.context.incumbents.best_ps
        stagnant = len(mine) - mine.index(best) - 1 > PATIENCE
        excluded = traits_of(name).runs_last or (
            traits_of(name).continues_others and best.best_ps > self.context.incumbents.best_ps
        )
        is_raising = any(
            progress.name == name and self.chunk_counts.is_raising(progress)
            for progress in self.chunk_counts.all_progress
        )
        if is_raising or excluded or beaten or stagnant or top.exhausted:
            return None
        if self.arms.demand(next_chunk_count(name, top.count)) is None:
            return None
        return top, LEADER_WORK_RATIO if top.best_ps <= _NEAR_RATIO * best.best_ps else OTHER_WORK_RATIO

    def _missing_counts(self, name: str, counts: list[int]) -> list[int]:
        """Chunk counts at which a method has no arm yet, and for which there is time."""
        have = {arm.count: arm for arm in self.arms.all if arm.name == name}
        if not have:
            return []
        top = have[max(have)]
        return [count for count in counts if count not in have and self.arms.is_due(LEADER_WORK_RATIO, top, count)]


def _is_valid(found: Schedule) -> bool:
    """Verify a schedule. An invalid schedule of one method must not hide a valid one of another."""
    violations = verify(found)
    if violations:
        log.warning("method %s returned an invalid schedule, which is ignored: %s", found.method, violations[0])
    return not violations
