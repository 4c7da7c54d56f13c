"""Which numbers of chunks are tried next: a pipeline gains by more chunks, up to a limit that two of them show."""

from dataclasses import dataclass
from itertools import islice
from math import inf

from flowccl.auto.arm import REFINE, Arm, solves_programs, traits_of
from flowccl.auto.chunk_counts import limit_ps
from flowccl.auto.state import PLACES, SAFETY, SearchState


@dataclass(frozen=True)
class NextCounts:
    """The chunk counts that are due, by what the arms of a search have found."""

    search: SearchState

    def raised(self) -> list[tuple[str, int]]:
        """Methods whose next chunk count is due: known to be useful, then those that go first, then the least work."""
        due, search = [], self.search
        for name in search.methods:
            for count in self._next_counts(name):
                if name not in search.dropped and self._is_due(name, count):
                    is_more, is_later = count > search.useful_chunks(name), not search.goes_first(name)
                    due.append((is_more, is_later, search.first_work_s(name, count), name, count))
        return [(name, count) for *_, name, count in sorted(due, key=lambda row: row[:3])[: 2 * PLACES]]

    def _next_counts(self, name: str) -> list[int]:
        """Chunk counts that may improve on the best: the next one of the method, or those where others are best."""
        tried = self.search.arms_of(name)
        if not tried:
            return [1]
        if traits_of(name).continues_others and len(self.search.methods) > 1:
            leaders = sorted((arm for arm in self.search.arms if arm.best is not None), key=lambda arm: arm.best_ps)
            if not leaders:  # nothing was found yet
                return []
            few = min(arm.count for arm in leaders if arm.best_ps <= 1.01 * leaders[0].best_ps)
            wanted = [few, leaders[0].count, *self.search.counts.doublings(self.search.useful_chunks(name))[-1:]]
            if leaders[0] is tried[-1]:  # it leads, so it raises the count itself
                wanted.append(self.search.counts.above(leaders[0].count, powers=True) or few)
            return [count for count in dict.fromkeys(wanted) if count not in {arm.count for arm in tried}]
        more = self._may_gain(tried) and self._above(tried, tried[-1].count)
        return self.useful(name) or ([self._next_count(name, tried)] if more else [])

    def useful(self, name: str) -> list[int]:
        """The next chunk counts on the way to the useful one of a method, as far as time allows.

        A method that leads the search also tries the count after its highest one.
        """
        tried = self.search.arms_of(name)
        if not tried or not tried[-1].taken or not (len(tried) == 1 or self._may_gain(tried)):
            return []
        least, leads = tried[-1].count, self._is_quick(tried[-1]) and tried[-1].best_ps <= self.search.best_ps
        most = max(self.search.useful_chunks(name), self._above(tried, least) if leads else 0)
        half = len(tried) == 1 and not self.search.rate_s(tried[-1].name)  # first half of the way, to see what is best
        doublings = [n for n in self.search.counts.doublings(most) if not half or n * n <= most]
        finest = [] if half or self.search.counts.most > most else [self.search.counts.most]
        counts = [*finest, *reversed(doublings), self._above(tried, least)]
        fitting = (n for n in counts if least < n <= most and self.search.fits(tried[-1], n))
        possible = (n for n in fitting if self.search.counts.demand(n))
        found = list(islice(possible, 1))
        between = [n for n in self.search.counts.doublings(least - 1) if n > tried[-2].count] if len(tried) > 1 else []
        skipped = [n for n in between[-1:] if self.search.fits(tried[-1], n)]
        return found or skipped  # more chunks are not always better

    def first(self, name: str) -> list[tuple[str, int]]:
        """One chunk for a method that was not tried, and its useful chunk count after that.

        One that carries out its schedules itself goes on to twice as many as long as that is better, and then tries
        what lies beside the best.
        """
        tried = self.search.arms_of(name)
        if self.search.carry is None or not tried:
            return [(name, count) for count in (self.useful(name) if len(tried) == 1 else [] if tried else [1])]
        more, best_ps = self.search.counts.above(tried[-1].count, powers=True), min(arm.best_ps for arm in tried)
        if best_ps < inf and tried[-1].best_ps > best_ps:
            more = self.search.counts.beside(
                min(tried, key=lambda arm: arm.best_ps).count, [arm.count for arm in tried]
            )
        return [(name, more)] if more is not None and best_ps < inf and self.search.fits(tried[-1], more) else []

    def _is_quick(self, arm: Arm) -> bool:
        """Whether its method goes before the searches, and beyond its useful chunk count while that helps."""
        return arm.traits.begins_early and not solves_programs(arm.name)

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
            useful = tried[-1].count * (tried[-1].best_ps - limit) / max(self.search.params.close * limit, 1.0)
            while (more := self._above(tried, count)) and more <= useful and self._is_due(name, more):
                count = more
        return count

    def _above(self, tried: list[Arm], count: int) -> int:
        """The allowed chunk count after this one; 0 where there is none."""
        return self.search.counts.above(count, powers=tried[-1].traits.powers_of_two) or 0

    def _may_gain(self, tried: list[Arm]) -> bool:
        """Whether more chunks may beat the incumbent, by the law of pipelines fitted to the method's arms."""
        best, last = min(tried, key=lambda arm: arm.best_ps), tried[-1]
        if len(tried) == 1:
            return best.best_ps < 2 * self.search.best_ps  # twice the chunks may at most halve the time
        if best is not last:  # searches are noisy: compare with what others found with no more chunks
            peers_ps = min(arm.best_ps for arm in self.search.arms if arm.count <= last.count)
            patient = not last.traits.one_schedule and len(tried) - tried.index(best) <= self.search.params.patience
            return patient and (len(tried) == 2 or best.best_ps <= (1 + self.search.params.close) * peers_ps)
        before = min(tried[:-1], key=lambda arm: arm.best_ps)
        by_first = limit_ps(before.count, before.fitted_ps, last.count, last.fitted_ps)
        limit = min(by_first, limit_ps(before.count, before.best_ps, last.count, last.best_ps))
        return limit < self.search.best_ps * (1 if last.traits.one_schedule else 1 + self.search.params.close)

    def _is_due(self, name: str, count: int) -> bool:
        """Whether enough work was done for a first step with this many chunks, and whether it fits into the time."""
        work_s = self.search.first_work_s(name, count)
        enough = self.search.params.due * work_s <= self.search.work_s or not self.search.running()
        if not (tried := self.search.arms_of(name)):
            return enough and self.search.context.budget.has_time(SAFETY * work_s)
        known = count <= self.search.useful_chunks(name) or self.search.context.budget.steps is not None
        others = (arm for arm in self.search.arms if arm.name != REFINE)  # refined schedules may come from its own
        best_ps = min(arm.best_ps for arm in others)
        near = (
            tried[-1].best_ps <= (1 + self.search.params.close) * best_ps
            and tried[-1].traits.one_schedule
            and not solves_programs(name)
        )  # all it can try
        return (enough or known or near) and self.search.fits(tried[-1], count)
