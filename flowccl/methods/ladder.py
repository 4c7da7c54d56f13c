"""Up the numbers of chunks, as far as more of them help and as time passes."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from flowccl.methods.clock import Clock
from flowccl.methods.rungs import Climber, Search
from flowccl.methods.searches import Searches
from flowccl.methods.traits import traits_of

PATIENCE = 3  # rungs that may bring nothing
SHARE, SMALL_SHARE = 3, 6  # a rung is taken once so many times as long as it will take has passed
_LEADS = 1.01  # who is at most so much later than the best, and whom the last rung helped, has the larger share
_FEW = 2  # chunks, up to which all methods climb
_EARLY, _LONGER = 0.2, 0.15  # parts of the time on the first rung: for a few steps of each, and for small problems
_EARLY_OF_S = 5.0  # of no more time than this
_TREES_AHEAD, _TREES_SHARE = (16, 48), 5  # numbers of chunks; the next if so many times its seconds are left


@dataclass
class Ladder:
    """The methods on their way up: all at one chunk first, then the quick ones on one lane and the others on another.

    `first_steps` of each are on the first rung, and more while it is early where it is worth staying `longer`. `wanted`
    is a number of chunks to go on from after the first.
    """

    searches: Searches
    clock: Clock
    first_steps: int
    longer: bool
    wanted: int
    climbers: list[Climber]
    on_first_rung: bool = True

    def first_rung(self) -> Iterator[Search | None]:
        """All at one chunk: a few steps of each find out what works here, and a while longer may find what is best."""
        new = [self.searches.new(climber.name, 1) for climber in self.climbers]
        yield new[0]  # alone, so that there is an answer at once
        yield from self.searches.all_done()
        yield from self.searches.when_free(new[1:])
        for turn in itertools.count(1):
            running = [search for search in new if not search.over]
            hope = self.longer and min((search.idle for search in running), default=0) < PATIENCE
            part = _EARLY if turn < self.first_steps else _LONGER if hope else 0.0
            if not running or not part or not self._early(part):
                break
            yield from self.searches.when_free(running)
        yield from self.searches.all_done()
        self.on_first_rung = False
        for climber, search in zip(self.climbers, new, strict=True):
            climber.climbed(search, self.clock.best_ps)

    def ahead(self) -> Iterator[Search | None]:
        """For sums that all want, trees far up the ladder: there they are good, and with all others they come late."""
        demand, methods = self.searches.demand_of(1), self.searches.methods
        to_all = demand.reduces and len(demand.destination_rank) > len(demand)
        for count in _TREES_AHEAD if to_all and "trees" in methods and len(methods) > 1 else ():
            if self.searches.demand(count) is None or self.clock.best_ps <= self.clock.good_ps:
                return
            search = self.searches.new("trees", count)
            yield search
            yield from self.searches.all_done()
            if not self.searches.has_time(_TREES_SHARE * search.seconds):
                return

    def lanes(self, places: int) -> list[Iterator[Search | None]]:
        """Up side by side, where there are places: a quick method ahead of the others."""
        quick = [climber for climber in self.climbers if traits_of(climber.name).climbs_ahead and places > 1]
        return [self._climb(quick), self._climb([climber for climber in self.climbers if climber not in quick])]

    def _climb(self, climbers: list[Climber]) -> Iterator[Search | None]:
        """Up the ladder, the lowest rung that is due; None, where time has to pass first, or a step to end.

        A method leaves it when a few rungs did not help it.
        """
        while climbers := [climber for climber in climbers if self.climbs(climber)]:
            due = [climber for climber in climbers if self._due_for(climber)]
            if not due:
                yield None
                continue
            climber = min(due, key=lambda climber: climber.above(self.wanted))
            search = self.searches.new(climber.name, climber.above(self.wanted), climber.seconds_above(self.wanted))
            yield from self.searches.when_free([search])
            while search.busy:
                yield None
            climber.climbed(search, self.clock.best_ps)

    def climbs(self, climber: Climber) -> bool:
        """Whether a method is on the ladder still, and not on its top."""
        count, traits = climber.above(self.wanted), traits_of(climber.name)
        behind = traits.has_one and climber.best_ps > self.clock.best_ps
        asked = traits.goes_on and len(self.climbers) > 1  # where others are best
        if self.searches.demand(count) is None or (count > _FEW and (behind or asked)):
            return False
        so_far_ps = min(search.best_ps for search in self.searches.all if search.count <= climber.count)
        near = climber.best_ps <= climber.may_be_behind * so_far_ps  # others may be further up
        return count == self.wanted or (climber.idle < PATIENCE and near)

    def _due_for(self, climber: Climber) -> bool:
        """Whether the next rung is due for a method; sooner for who leads."""
        leads = climber.best_ps <= (_LEADS if climber.idle == 0 else 1.0) * self.clock.best_ps
        share, seconds = SHARE if leads else SMALL_SHARE, climber.seconds_above(self.wanted)
        return climber.above(self.wanted) == self.wanted or self.searches.due(share, seconds)

    def _early(self, part: float) -> bool:
        """In the first part of the time; where steps are counted, always."""
        limit_s = min(self.clock.time_limit_s, _EARLY_OF_S)
        return self.clock.steps is not None or self.clock.elapsed_s < part * limit_s
