"""How many chunks: more of them fill the pipe, fewer pay less latency. All methods, one clock, two cores.

A search is one method at one number of chunks. The ladder gives each a first step, at 1, 2, 3, 4, 6, 8, 12, ... chunks
while more chunks help and as time passes; beside it and after it the best searches go on, until the clock is over. What
is tried next depends on the time that has passed, not on what is left: with more of it all begins as with less. Two
searches make steps side by side; where steps are counted, they hear of each other only when both are done, so that the
result is the same on one core.
"""

import itertools
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from flowccl.check.verify import verify
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.clock import Clock
from flowccl.methods.method import Method
from flowccl.methods.rungs import Climber, Search, next_rung
from flowccl.methods.traits import traits_of
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology

log = logging.getLogger(__name__)

_MOST_DELIVERIES = 400_000  # no more chunks than give so many (chunk, destination) pairs
FIRST_STEPS = 5  # of each search on the first rung: they find out what works on this machine
_PATIENCE = 3  # rungs of the ladder that may bring nothing
_NEAR = 1.05  # searches that are at most so much later than the best get their turn, however little they were tried
_TREES_AHEAD, _TREES_SHARE = (16, 48), 5  # numbers of chunks; the next if so many times its seconds are left
_MOST_IMPROVED = 3  # numbers of chunks at which the methods that go on from others get a search
_EARLY, _LONGER = 0.2, 0.15  # parts of the time on the first rung: for a few steps of each, and for small problems
_EARLY_OF_S = 5.0  # of no more time than this
_HOPEFUL_S = 10.0  # for what is good to become better
_CLOSE, _DEMANDING = 1.001, 1.0051  # if it is not this close to the floor, and a gap of this at most was asked for
_SHARE, _SMALL_SHARE = 3, 6  # a rung is taken once so many times as long as it will take has passed
_LEADS = 1.01  # who is at most so much later than the best, and whom the last rung helped, has the larger share
_FEW = 2  # chunks, up to which all methods climb
_MOMENT_S = 0.005  # for quick steps
_SURE = 2  # a first step is begun where so many times as long is left as it is thought to take
_TURNS_PER_RUNG = 8  # after the ladder, the next rung for who is best is taken every so many turns


@dataclass
class Chunking:
    """Searches of several methods at several numbers of chunks.

    Where `all_first`, every method makes a step before anything is good enough, so that none of them is ever better;
    more steps while it is early and nothing is proved. `first_steps` of each method are on the first rung.
    """

    topology: Topology
    demand_of: Callable[[int], Demand]
    methods: dict[str, Method]
    clock: Clock
    workers: int = 2
    all_first: bool = False
    first_steps: int = FIRST_STEPS
    wanted: int = 1  # a number of chunks to go on from after the first
    searches: list[Search] = field(default_factory=list)
    best_ps: float = float("inf")
    steps: int = 0
    on_first_rung: bool = True
    climbers: list[Climber] = field(default_factory=list)
    demands: dict[int, Demand | None] = field(default_factory=dict)

    @property
    def places(self) -> int:
        """How many searches make steps side by side."""
        return self.workers if self.clock.steps is None else 2

    def run(self) -> Iterator[Schedule]:
        """Better and better schedules, until the clock is over."""
        turns, going = self._turns(), dict[Future[Schedule | None], Search]()
        until = FIRST_COMPLETED if self.clock.steps is None else ALL_COMPLETED
        with ThreadPoolExecutor(self.workers) as pool:
            while True:
                while len(going) < self.places and not self._enough(len(going)) and (search := next(turns, None)):
                    search.busy = True
                    going[pool.submit(self._some, search)] = search
                if not going:
                    return
                done = wait(going, return_when=until).done
                ended = [future for future in going if future in done]
                for future in ended:
                    going.pop(future).busy = False
                self.steps += len(ended)
                self.clock.settle()
                for found in (future.result() for future in ended):
                    if found is not None and found.finish_ps < self.best_ps and self._right(found):
                        self.best_ps = self.clock.best_ps = found.finish_ps
                        yield found

    def _enough(self, going: int) -> bool:
        """Whether no other step begins, beside so many."""
        if self.clock.steps is not None and self.steps + going >= self.clock.steps:
            return True
        some_wait = self.all_first and (self._hopes() or self.steps < len(self.methods))
        return self.steps > 0 and self.clock.over(float("inf") if some_wait else self.best_ps)

    def _hopes(self) -> bool:
        """Whether what is within the gap may still become better in a few seconds."""
        floor_ps = self.clock.floor_ps
        more = self.best_ps > floor_ps * _CLOSE and self.clock.good_ps <= floor_ps * _DEMANDING
        return more and (self.on_first_rung if self.clock.steps is not None else self.clock.elapsed_s < _HOPEFUL_S)

    def _some(self, search: Search) -> Schedule | None:
        """The best of the steps of a moment; where steps are counted, of one."""
        began, found = self.clock.elapsed_s, [self._step(search)]
        while self.clock.steps is None and not search.over and self.clock.elapsed_s < began + _MOMENT_S:
            found.append(self._step(search))
        return min((one for one in found if one is not None), key=lambda one: one.finish_ps, default=None)

    def _step(self, search: Search) -> Schedule | None:
        """One step; of several methods, one that cannot have this problem is left out."""
        try:
            return search.step(self.clock)
        except DemandError as error:
            if len(self.methods) == 1:
                raise
            log.debug("%s is left out: %s", search.name, error)
            search.over = True
            return None

    def _right(self, found: Schedule) -> bool:
        """The judge's word; what a method got wrong does not hide what another got right."""
        violations = verify(found)
        if violations:
            log.warning("%s made a wrong schedule, which is left out: %s", found.method, violations[0])
        return not violations

    def _turns(self) -> Iterator[Search | None]:
        """Which search makes a step next; None, where another has to end first."""
        alone = len(self.methods) == 1
        self.climbers = [Climber(name) for name in self.methods if alone or not traits_of(name).comes_last]
        yield from self._first_rung()
        yield from self._ahead()
        quick = [climber for climber in self.climbers if traits_of(climber.name).climbs_ahead and self.places > 1]
        lanes = [self._climb(quick), self._climb([climber for climber in self.climbers if climber not in quick])]
        last = [name for name in self.methods if not alone and traits_of(name).comes_last]
        turn = 0
        while True:
            new = next((search for lane in lanes if (search := next(lane, None))), None)
            if new is None and not self._climbing():
                yield from self._when_free([self._new(name, 1) for name in last])
                last = []
                yield from self._when_free(self._next_rung() if turn % _TURNS_PER_RUNG == 0 else [])
            if new is None:
                yield from self._when_free(self._improvers())
            search = new or self._turn(turn)
            if search is None and not any(search.busy for search in self.searches):
                return
            yield search
            turn += new is None

    def _climbing(self) -> bool:
        """Whether somebody is on a new rung."""
        new = [search for search in self.searches if search.busy and not search.taken]
        return any(not traits_of(search.name).comes_last for search in new)

    def _turn(self, turn: int) -> Search | None:
        """The best search, or beside it (in turn with it, where there is one place) another."""
        running = sorted(self._running(), key=lambda search: search.standing)
        free = [search for search in running if self._may(search)]
        if free and free[0] is running[0] and (self.places > 1 or turn % 2 == 0):
            return free[0]
        others = [search for search in free if search is not running[0]]
        return self._partner(turn // 2, running[0], others) if others else next(iter(free), None)

    def _may(self, search: Search) -> bool:
        """Whether it may make a step now: if it makes none, nor a search of its method to which it tells what works."""
        at_once = not traits_of(search.name).tells_late
        busy = [other for other in self.searches if other.busy]
        return not any(other is search or (at_once and other.name == search.name) for other in busy)

    def _when_free(self, searches: list[Search]) -> Iterator[Search | None]:
        """Each as soon as it may."""
        for search in searches:
            while not self._may(search):
                yield None
            yield search

    def _all_done(self) -> Iterator[None]:
        """Wait for those who make a step."""
        while any(search.busy for search in self.searches):
            yield None

    def _running(self) -> list[Search]:
        """Searches that can go on in the time that is left."""
        return [search for search in self.searches if not search.over and self._has_time(search.seconds)]

    def _partner(self, turn: int, best: Search, others: list[Search]) -> Search:
        """Who makes a step beside the best: in turn the next best, one that needs many, the one least tried."""
        improvers = [search for search in others if traits_of(search.name).needs_steps][:_MOST_IMPROVED]
        near = [search for search in others if search.best_ps <= _NEAR * best.best_ps]
        some = (others[:1], improvers, near)[turn % 3] or others[:1]
        return min(some, key=lambda search: search.spent)

    def _first_rung(self) -> Iterator[Search | None]:
        """All at one chunk: a few steps of each find out what works here, and a while longer may find what is best."""
        new = [self._new(climber.name, 1) for climber in self.climbers]
        yield new[0]  # alone, so that there is an answer at once
        yield from self._all_done()
        yield from self._when_free(new[1:])
        longer = self.all_first and self.clock.steps is None and len(self.methods) > 1
        for turn in itertools.count(1):
            running = [search for search in new if not search.over]
            hope = longer and min((search.idle for search in running), default=0) < _PATIENCE
            part = _EARLY if turn < self.first_steps else _LONGER if hope else 0.0
            if not running or not part or not self._early(part):
                break
            yield from self._when_free(running)
        yield from self._all_done()
        self.on_first_rung = False
        for climber, search in zip(self.climbers, new, strict=True):
            climber.climbed(search, self.best_ps)

    def _climb(self, climbers: list[Climber]) -> Iterator[Search | None]:
        """Up the ladder, the lowest rung that is due; None, where time has to pass first, or a step to end.

        A method leaves it when a few rungs did not help it.
        """
        while climbers := [climber for climber in climbers if self._climbs(climber)]:
            due = [climber for climber in climbers if self._due_for(climber)]
            if not due:
                yield None
                continue
            climber = min(due, key=lambda climber: climber.above(self.wanted))
            count = climber.above(self.wanted)
            search = self._new(climber.name, count, climber.seconds * count / climber.count)
            yield from self._when_free([search])
            while search.busy:
                yield None
            climber.climbed(search, self.best_ps)

    def _climbs(self, climber: Climber) -> bool:
        """Whether a method is on the ladder still, and not on its top."""
        count = climber.above(self.wanted)
        traits = traits_of(climber.name)
        if self._demand(count) is None or (traits.has_one and self._behind(climber, count)):
            return False
        if traits.goes_on and count > _FEW and len(self.climbers) > 1:
            return False
        so_far_ps = min(search.best_ps for search in self.searches if search.count <= climber.count)
        near = climber.best_ps <= climber.may_be_behind * so_far_ps  # others may be further up
        return count == self.wanted or (climber.idle < _PATIENCE and near)

    def _behind(self, climber: Climber, count: int) -> bool:
        """Whether another is better, beyond a few chunks."""
        return climber.best_ps > self.best_ps and count > _FEW

    def _due_for(self, climber: Climber) -> bool:
        """Whether the next rung is due for a method; sooner for who leads."""
        count = climber.above(self.wanted)
        leads = climber.best_ps <= (_LEADS if climber.idle == 0 else 1.0) * self.best_ps
        seconds = climber.seconds * count / climber.count
        return count == self.wanted or self._due(_SHARE if leads else _SMALL_SHARE, seconds)

    def _ahead(self) -> Iterator[Search | None]:
        """For sums that all want, trees far up the ladder: there they are good, and with all others they come late."""
        demand = self.demand_of(1)
        to_all = demand.reduces and len(demand.destination_rank) > len(demand)
        for count in _TREES_AHEAD if to_all and "trees" in self.methods and len(self.methods) > 1 else ():
            if self._demand(count) is None or self.best_ps <= self.clock.good_ps:
                return
            search = self._new("trees", count)
            yield search
            yield from self._all_done()
            if not self._has_time(_TREES_SHARE * search.seconds):
                return

    def _demand(self, count: int) -> Demand | None:
        """In so many chunks, if it can be and they are not too many."""
        if count not in self.demands:
            try:
                demand = self.demand_of(count)
            except DemandError:  # the chunks are given, or a block has fewer bytes
                self.demands[count] = None
            else:
                few = count == 1 or len(demand.destination_rank) <= _MOST_DELIVERIES
                self.demands[count] = demand if few else None
        return self.demands[count]

    def _new(self, name: str, count: int, seconds: float = 0.0) -> Search:
        """A search that takes part from now on, whose first step is thought to take so long."""
        demand = self._demand(count) or self.demand_of(count)
        steps = self.methods[name](self.topology, demand, self.clock)
        self.searches.append(Search(name, count, steps, len(demand.destination_rank), seconds=seconds))
        return self.searches[-1]

    def _improvers(self) -> list[Search]:
        """At the best numbers of chunks, searches by methods that go on from others, where there are none.

        On the ladder they have too little time to be worth the next rung.
        """
        best = sorted((search for search in self.searches if not search.over), key=lambda search: search.best_ps)
        counts = list(dict.fromkeys(search.count for search in best))[:_MOST_IMPROVED]
        names = [name for name in self.methods if traits_of(name).goes_on]
        wanted = [(name, count) for name in names for count in self._missing(name, counts)]
        return [self._new(name, count) for name, count in wanted]

    def _next_rung(self) -> list[Search]:
        """One more number of chunks for the first of the best who has time for it, and whom the last few rungs helped.

        The ladder may have ended early: there every method has one step on a rung, which may be an unlucky one.
        """
        on_ladder = {climber.name for climber in self.climbers if self._climbs(climber)}
        near = [search for search in self.searches if search.best_ps <= _NEAR * self.best_ps]
        for name in dict.fromkeys(search.name for search in sorted(near, key=lambda search: search.best_ps)):
            mine = sorted((search for search in self.searches if search.name == name), key=lambda search: search.count)
            best, top = min(mine, key=lambda search: search.best_ps), mine[-1]
            tried = traits_of(name).has_one and best.best_ps > self.best_ps
            helpless = len(mine) - mine.index(best) - 1 > _PATIENCE
            asked = traits_of(name).comes_last or traits_of(name).goes_on  # elsewhere
            if name in on_ladder or asked or tried or helpless or top.over:
                continue
            count = next_rung(name, top.count)
            share = _SHARE if top.best_ps <= _NEAR * best.best_ps else _SMALL_SHARE
            seconds = top.first_s * count / top.count
            if self._demand(count) is not None and self._due(share, seconds):
                return [self._new(name, count, seconds)]
        return []

    def _missing(self, name: str, counts: list[int]) -> list[int]:
        """Numbers of chunks at which a method has no search yet, and time for one."""
        have = {search.count: search.first_s for search in self.searches if search.name == name}
        most = max(have, default=1)
        pace = have.get(most, 0.0) / most
        return [count for count in counts if count not in have and self._due(_SHARE, pace * count)]

    def _has_time(self, seconds: float) -> bool:
        """Whether so much time is left; always, where steps are counted."""
        return self.clock.steps is not None or seconds <= self.clock.left_s

    def _due(self, share: int, seconds: float) -> bool:
        """Whether a search whose first step takes so long is due by now; where steps are counted, always.

        By the time that has passed, not by what is left: with more of it all begins as with less.
        """
        if self.clock.steps is not None:
            return True
        return self._has_time(_SURE * seconds) and (share * seconds <= self.clock.elapsed_s or not self._running())

    def _early(self, part: float) -> bool:
        """In the first part of the time; where steps are counted, on the first rung."""
        if self.clock.steps is not None:
            return self.on_first_rung
        return self.clock.elapsed_s < part * min(self.clock.time_limit_s, _EARLY_OF_S)
