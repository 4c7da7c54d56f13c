"""Up the numbers of chunks, as far as more of them help and as work gets done."""

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from flowccl.auto.arm import Climber, Search, traits_of
from flowccl.auto.arms import SURE, Searches
from flowccl.search.context import SearchContext

PATIENCE = 3  # rungs that may bring nothing
SHARE, SMALL_SHARE = 2, 5  # a rung is taken once so many times as much work was done as it will take
_LEADS = 1.01  # who is at most so much later than the best, and whom the last rung helped, has the larger share
_MOST_BEHIND = 4  # rungs in a row on which a method may be later than that
_HELPED, _NEAR_BOUND = 4, 1.008  # rungs in a row that helped, and a finish, with which a method hurries
_FEW = 2  # chunks, up to which all methods climb
_EARLY_S = 0.3  # of work on the first rung
_LATE_S = 3.0  # after which the first rung is over however little was done
_FAR_UP, _FAR_UP_SHARE = (16, 48), 5  # numbers of chunks; the next if so many times its seconds are left


@dataclass
class Ladder:
    """Methods on their way up, in rounds: all at one chunk first, then each at its next number when it is due.

    `first_steps` of each are on the first rung, and more while it is early where it is worth staying `longer`. `wanted`
    is a number of chunks to go on from after the first.
    """

    searches: Searches
    names: list[str]
    first_steps: int
    longer: bool
    wanted: int
    climbers: list[Climber] = field(default_factory=list)
    on_first_rung: bool = True
    hurried: bool = False  # the last rungs

    @property
    def context(self) -> SearchContext:
        """The one of all searches."""
        return self.searches.context

    def first_rung(self) -> Iterator[list[Search]]:
        """All at one chunk: a few steps of each find out what works here, and a while longer may find what is best."""
        new = [self.searches.new(self.names[0], 1)]
        yield new  # alone, so that there is an answer at once
        new += [self.searches.new(name, 1) for name in self.names[1:]]
        yield new[1:]
        for turn in itertools.count(1):
            running = [search for search in new if not search.over]
            hope = self.longer and min((search.idle for search in running), default=0) < PATIENCE
            early = self.searches.worked_s < _EARLY_S and not self._late()
            if not running or not early or not (hope or turn < self.first_steps):
                break
            yield running
        self.on_first_rung = False
        self.climbers = [Climber(search.name, search) for search in new]
        for climber in self.climbers:
            climber.climbed(climber.rung, self.context.incumbents.best_ps)

    def ahead(self) -> Iterator[list[Search]]:
        """For sums that all want, who is good far up the ladder is tried there first: with all others it comes late."""
        demand = self.searches.demand_of(1)
        to_all = demand.reduces and not demand.is_unicast
        names = [name for name in self.names if traits_of(name).prefers_many_chunks and to_all and len(self.names) > 1]
        for name, count in itertools.product(names, _FAR_UP):
            if self.searches.demand(count) is None or self.context.incumbents.best_ps <= self.context.budget.good_ps:
                return
            search = self.searches.new(name, count)
            yield [search]
            if not self.searches.has_time(_FAR_UP_SHARE * search.seconds):
                return

    def climb(self) -> Iterator[list[Search]]:
        """The next rungs that are due, a few at once, the lowest first; none, where work is to be done first.

        A method leaves the ladder when a few rungs did not help it. All others wait for who hurries.
        """
        while climbers := self._on_their_way():
            due = sorted((climber for climber in climbers if self._due_for(climber)), key=self._above)
            hurried = [climber for climber in due if climber.hurries]
            self.hurried, due = bool(hurried), hurried or due
            work = list(
                itertools.accumulate(self.searches.first_work_s(climber.name, self._above(climber)) for climber in due)
            )
            due = due[: max(bisect_right(work, self.searches.worked_s), 1)]
            rungs = [self.searches.new(climber.name, self._above(climber)) for climber in due]
            yield rungs
            for climber, rung in zip(due, rungs, strict=True):
                climber.climbed(rung, self.context.incumbents.best_ps)
                climber.behind = climber.behind + 1 if climber.best_ps > _LEADS * self._so_far_ps(climber) else 0
        self.hurried = False

    def _on_their_way(self) -> list[Climber]:
        """Who climbs; and who hurries, which is asked once, since time goes on and the floor may come meanwhile."""
        for climber in self.climbers:
            climber.hurries = self._hurries(climber)
        return [climber for climber in self.climbers if self.climbs(climber)]

    def climbs(self, climber: Climber) -> bool:
        """Whether a method is on the ladder still, and not on its top."""
        count, traits = self._above(climber), traits_of(climber.name)
        behind = traits.one_schedule and climber.best_ps > self.context.incumbents.best_ps
        asked = traits.continues_others and len(self.climbers) > 1  # where others are best
        if self.searches.demand(count) is None or (count > _FEW and (behind or asked)):
            return False
        near = climber.best_ps <= climber.may_be_behind * self._so_far_ps(climber)
        late = climber.behind >= _MOST_BEHIND and not climber.rung.demand.reduces  # sums may want many chunks
        return count == self.wanted or (climber.idle < PATIENCE and near and not late)

    def _due_for(self, climber: Climber) -> bool:
        """Whether the next rung is due for a method; sooner for who leads."""
        leads = climber.best_ps <= (_LEADS if climber.idle == 0 else 1.0) * self._so_far_ps(climber)
        count = self._above(climber)
        share = (0 if climber.hurries else SHARE) if leads else SMALL_SHARE
        return count == self.wanted or self.searches.due(share, climber.rung, count)

    def _hurries(self, climber: Climber) -> bool:
        """Whether more chunks are all that a method wants: near the floor, where one rung after the other helped.

        One that is alone has its time, and where little is left it does not leave out what can be had. A classic's only
        schedule is cut finer, which is quicker.
        """
        near = (
            climber.best_ps <= self.context.incumbents.bound_ps * _NEAR_BOUND
            and not traits_of(climber.name).one_schedule
        )
        in_time = self.searches.has_time(2 * SURE * climber.rung.first_s)  # for twice as many chunks
        return len(self.climbers) > 1 and near and in_time and climber.helped >= _HELPED

    def _so_far_ps(self, climber: Climber) -> float:
        """The best finish with no more chunks than a method has tried; others may be further up."""
        return min(search.best_ps for search in self.searches.all if search.count <= climber.count)

    def _above(self, climber: Climber) -> int:
        return climber.above(self.wanted)

    def _late(self) -> bool:
        """Whether the first rung takes far longer than its work says; never, where steps are counted."""
        return self.context.budget.steps is None and self.context.budget.elapsed_s > _LATE_S
