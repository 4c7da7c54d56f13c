"""Which chunk counts each method tries, and when: higher counts as long as they help and enough work was done."""

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from flowccl.auto.arm import Arm, MethodProgress, traits_of
from flowccl.auto.arms import TIME_MARGIN, Arms
from flowccl.search.context import SearchContext

PATIENCE = 3  # chunk counts without improvement after which a method stops
# The next chunk count is due once this many times its first step's work was done.
LEADER_WORK_RATIO, OTHER_WORK_RATIO = 2, 5
_LEAD_RATIO = 1.01  # a method leads if it is at most this factor behind the best and the last count improved it
_MAX_COUNTS_BEHIND = 4  # chunk counts in a row on which a method may be further behind than that
_FAST_TRACK_GAINS, _NEAR_BOUND = 4, 1.008  # improvements in a row, and factor to the bound, for a fast track
_COUNTS_FOR_ALL = 2  # chunk counts that all methods try
_SINGLE_CHUNK_WORK_S = 0.3  # work with one chunk
_SINGLE_CHUNK_LIMIT_S = 3.0  # time after which the rounds with one chunk end, however little work was done
# Chunk counts to try early with methods that prefer many chunks; the second only if this many times the first's
# duration is left.
_MANY_CHUNKS, _MANY_CHUNKS_TIME_RATIO = (16, 48), 5


@dataclass
class ChunkCounts:
    """The chunk counts of all methods, in rounds: all methods with one chunk first, then higher counts when due.

    Each method makes `first_steps` steps with one chunk, and more if `stay_longer` and little work was done. After one
    chunk, methods continue with `target_count` chunks.
    """

    arms: Arms
    names: list[str]
    first_steps: int
    stay_longer: bool
    target_count: int
    all_progress: list[MethodProgress] = field(default_factory=list)
    is_single_chunk: bool = True  # whether all arms so far have one chunk
    fast_tracking: bool = False  # whether the last arms were fast-tracked

    @property
    def context(self) -> SearchContext:
        """The context of all arms."""
        return self.arms.context

    def single_chunk_rounds(self) -> Iterator[list[Arm]]:
        """Yield the arms of the rounds with one chunk.

        A few steps of each method show which methods suit the problem; more steps may find an optimum with one chunk.
        """
        new = [self.arms.add(self.names[0], 1)]
        yield new  # alone, so that the first schedule comes early
        new += [self.arms.add(name, 1) for name in self.names[1:]]
        yield new[1:]
        for turn in itertools.count(1):
            running = [arm for arm in new if not arm.exhausted]
            promising = self.stay_longer and min((arm.unimproved for arm in running), default=0) < PATIENCE
            early = self.arms.work_done_s < _SINGLE_CHUNK_WORK_S and not self._is_overdue()
            if not running or not early or not (promising or turn < self.first_steps):
                break
            yield running
        self.is_single_chunk = False
        self.all_progress = [MethodProgress(arm.name, arm) for arm in new]
        for progress in self.all_progress:
            progress.record(progress.arm, self.context.incumbents.best_ps)

    def many_chunk_rounds(self) -> Iterator[list[Arm]]:
        """For allreduce, try the methods that prefer many chunks at high chunk counts early."""
        demand = self.arms.demand_of(1)
        to_all = demand.reduces and not demand.is_unicast
        names = [name for name in self.names if traits_of(name).prefers_many_chunks and to_all and len(self.names) > 1]
        for name, count in itertools.product(names, _MANY_CHUNKS):
            if self.arms.demand(count) is None or self.context.incumbents.best_ps <= self.context.budget.good_ps:
                return
            arm = self.arms.add(name, count)
            yield [arm]
            if not self.arms.has_time(_MANY_CHUNKS_TIME_RATIO * arm.last_step_s):
                return

    def raise_counts(self) -> Iterator[list[Arm]]:
        """Yield the arms at the next chunk counts that are due, lowest counts first.

        The list is empty if more work must be done first. A method stops after a few chunk counts without improvement.
        While a method is fast-tracked, the next chunk counts of the other methods are deferred.
        """
        while raising := self._raising():
            due = sorted((progress for progress in raising if self._is_due(progress)), key=self._next_count)
            fast_tracked = [progress for progress in due if progress.fast_tracked]
            self.fast_tracking, due = bool(fast_tracked), fast_tracked or due
            work = list(
                itertools.accumulate(
                    self.arms.first_step_work_s(progress.name, self._next_count(progress)) for progress in due
                )
            )
            due = due[: max(bisect_right(work, self.arms.work_done_s), 1)]
            next_arms = [self.arms.add(progress.name, self._next_count(progress)) for progress in due]
            yield next_arms
            for progress, arm in zip(due, next_arms, strict=True):
                progress.record(arm, self.context.incumbents.best_ps)
                progress.counts_behind = (
                    progress.counts_behind + 1
                    if progress.best_ps > _LEAD_RATIO * self._best_up_to_count_ps(progress)
                    else 0
                )
        self.fast_tracking = False

    def _raising(self) -> list[MethodProgress]:
        """Decide once per round which methods are fast-tracked, and return those that try further counts.

        The decision depends on the time and on the lower bound, which may change during a round.
        """
        for progress in self.all_progress:
            progress.fast_tracked = self._should_fast_track(progress)
        return [progress for progress in self.all_progress if self.is_raising(progress)]

    def is_raising(self, progress: MethodProgress) -> bool:
        """Return whether a method still tries higher chunk counts, and a higher one is possible."""
        count, traits = self._next_count(progress), traits_of(progress.name)
        behind = traits.one_schedule and progress.best_ps > self.context.incumbents.best_ps
        continues = traits.continues_others and len(self.all_progress) > 1  # runs at the best counts of others
        if self.arms.demand(count) is None or (count > _COUNTS_FOR_ALL and (behind or continues)):
            return False
        near = progress.best_ps <= progress.allowed_ratio * self._best_up_to_count_ps(progress)
        late = (
            progress.counts_behind >= _MAX_COUNTS_BEHIND and not progress.arm.demand.reduces
        )  # reductions may need many
        return count == self.target_count or (progress.unimproved < PATIENCE and near and not late)

    def _is_due(self, progress: MethodProgress) -> bool:
        """Return whether the next chunk count of a method is due; methods that lead are due earlier."""
        leads = progress.best_ps <= (_LEAD_RATIO if progress.unimproved == 0 else 1.0) * self._best_up_to_count_ps(
            progress
        )
        count = self._next_count(progress)
        work_ratio = (0 if progress.fast_tracked else LEADER_WORK_RATIO) if leads else OTHER_WORK_RATIO
        return count == self.target_count or self.arms.is_due(work_ratio, progress.arm, count)

    def _should_fast_track(self, progress: MethodProgress) -> bool:
        """Return whether a method needs only more chunks: near the bound, and each count helped.

        A single method is not fast-tracked, and no method is when little time is left. Methods with one schedule per
        chunk count are not either: refining their schedule is faster.
        """
        near = (
            progress.best_ps <= self.context.incumbents.bound_ps * _NEAR_BOUND
            and not traits_of(progress.name).one_schedule
        )
        in_time = self.arms.has_time(2 * TIME_MARGIN * progress.arm.first_step_s)  # with twice as many chunks
        return len(self.all_progress) > 1 and near and in_time and progress.gains_in_a_row >= _FAST_TRACK_GAINS

    def _best_up_to_count_ps(self, progress: MethodProgress) -> float:
        """Best completion time with at most as many chunks as a method has tried."""
        return min(arm.best_ps for arm in self.arms.all if arm.count <= progress.count)

    def _next_count(self, progress: MethodProgress) -> int:
        return progress.next_count(self.target_count)

    def _is_overdue(self) -> bool:
        """Return whether the rounds with one chunk take too long; never if steps are counted."""
        return self.context.budget.steps is None and self.context.budget.elapsed_s > _SINGLE_CHUNK_LIMIT_S
