"""How many chunks: more of them fill the pipe, fewer pay less latency. All methods, one clock, two cores.

A search is one method at one number of chunks. The ladder gives each a first step, at 1, 2, 3, 4, 6, 8, 12, ... chunks
while more chunks help and as time passes; beside it and after it the best searches go on, until the clock is over. What
is tried next depends on the time that has passed, not on what is left: with more of it all begins as with less. Two
searches make steps side by side; where steps are counted, they hear of each other only when both are done, so that the
result is the same on one core.
"""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from flowccl.check.verify import verify
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.clock import Clock
from flowccl.methods.ladder import PATIENCE, SHARE, SMALL_SHARE, Ladder
from flowccl.methods.method import Method
from flowccl.methods.rungs import Climber, Search, next_rung
from flowccl.methods.searches import Searches
from flowccl.methods.traits import traits_of
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology

log = logging.getLogger(__name__)

FIRST_STEPS = 5  # of each search on the first rung: they find out what works on this machine
_NEAR = 1.05  # searches that are at most so much later than the best get their turn, however little they were tried
_MOST_IMPROVED = 3  # numbers of chunks at which the methods that go on from others get a search
_HOPEFUL_S = 10.0  # for what is good to become better
_CLOSE, _DEMANDING = 1.001, 1.0051  # if it is not this close to the floor, and a gap of this at most was asked for
_MOMENT_S = 0.005  # for quick steps
_TURNS_PER_RUNG = 8  # after the ladder, the next rung for who is best is taken every so many turns


@dataclass
class Chunking:
    """Searches of several methods at several numbers of chunks.

    Where `all_first`, every method makes a step before anything is good enough, so that none of them is ever better;
    more steps while it is early and nothing is proved. `first_steps` of each method are on the first rung; `wanted` is
    a number of chunks to go on from after it.
    """

    topology: Topology
    demand_of: Callable[[int], Demand]
    methods: dict[str, Method]
    clock: Clock
    workers: int = 2
    all_first: bool = False
    first_steps: int = FIRST_STEPS
    wanted: int = 1
    steps: int = 0

    def __post_init__(self) -> None:
        several = len(self.methods) > 1
        self.last = [name for name in self.methods if several and traits_of(name).comes_last]
        self.searches = Searches(self.topology, self.demand_of, self.methods, self.clock)
        climbers = [Climber(name) for name in self.methods if name not in self.last]
        longer = self.all_first and self.clock.steps is None and several
        self.ladder = Ladder(self.searches, self.clock, self.first_steps, longer, self.wanted, climbers)

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
                    if found is not None and found.finish_ps < self.clock.best_ps and self._right(found):
                        self.clock.best_ps = found.finish_ps
                        yield found

    def _enough(self, going: int) -> bool:
        """Whether no other step begins, beside so many."""
        if self.clock.steps is not None and self.steps + going >= self.clock.steps:
            return True
        some_wait = self.all_first and (self._hopes() or self.steps < len(self.methods))
        return self.steps > 0 and self.clock.over(float("inf") if some_wait else self.clock.best_ps)

    def _hopes(self) -> bool:
        """Whether what is within the gap may still become better in a few seconds."""
        floor_ps = self.clock.floor_ps
        more = self.clock.best_ps > floor_ps * _CLOSE and self.clock.good_ps <= floor_ps * _DEMANDING
        early = self.ladder.on_first_rung if self.clock.steps is not None else self.clock.elapsed_s < _HOPEFUL_S
        return more and early

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
        yield from self.ladder.first_rung()
        yield from self.ladder.ahead()
        lanes = self.ladder.lanes(self.places)
        last, turn = self.last, 0
        while True:
            new = next((search for lane in lanes if (search := next(lane, None))), None)
            if new is None and not self._climbing():
                yield from self.searches.when_free([self.searches.new(name, 1) for name in last])
                last = []
                yield from self.searches.when_free(self._next_rung() if turn % _TURNS_PER_RUNG == 0 else [])
            if new is None:
                yield from self.searches.when_free(self._improvers())
            search = new or self._turn(turn)
            if search is None and not any(search.busy for search in self.searches.all):
                return
            yield search
            turn += new is None

    def _climbing(self) -> bool:
        """Whether somebody is on a new rung."""
        new = [search for search in self.searches.all if search.busy and not search.taken]
        return any(not traits_of(search.name).comes_last for search in new)

    def _turn(self, turn: int) -> Search | None:
        """The best search, or beside it (in turn with it, where there is one place) another."""
        running = sorted(self.searches.running(), key=lambda search: search.standing)
        free = [search for search in running if self.searches.may(search)]
        if free and free[0] is running[0] and (self.places > 1 or turn % 2 == 0):
            return free[0]
        others = [search for search in free if search is not running[0]]
        return self._partner(turn // 2, running[0], others) if others else next(iter(free), None)

    def _partner(self, turn: int, best: Search, others: list[Search]) -> Search:
        """Who makes a step beside the best: in turn the next best, one that needs many, the one least tried."""
        improvers = [search for search in others if traits_of(search.name).needs_steps][:_MOST_IMPROVED]
        near = [search for search in others if search.best_ps <= _NEAR * best.best_ps]
        some = (others[:1], improvers, near)[turn % 3] or others[:1]
        return min(some, key=lambda search: search.spent)

    def _improvers(self) -> list[Search]:
        """At the best numbers of chunks, searches by methods that go on from others, where there are none.

        On the ladder they have too little time to be worth the next rung.
        """
        best = sorted((search for search in self.searches.all if not search.over), key=lambda search: search.best_ps)
        counts = list(dict.fromkeys(search.count for search in best))[:_MOST_IMPROVED]
        names = [name for name in self.methods if traits_of(name).goes_on]
        wanted = [(name, count) for name in names for count in self._missing(name, counts)]
        return [self.searches.new(name, count) for name, count in wanted]

    def _next_rung(self) -> list[Search]:
        """One more number of chunks for the first of the best who has time for it, and whom the last few rungs helped.

        The ladder may have ended early: there every method has one step on a rung, which may be an unlucky one.
        """
        on_ladder = {climber.name for climber in self.ladder.climbers if self.ladder.climbs(climber)}
        near = [search for search in self.searches.all if search.best_ps <= _NEAR * self.clock.best_ps]
        for name in dict.fromkeys(search.name for search in sorted(near, key=lambda search: search.best_ps)):
            mine = sorted(
                (search for search in self.searches.all if search.name == name), key=lambda search: search.count
            )
            best, top = min(mine, key=lambda search: search.best_ps), mine[-1]
            tried = traits_of(name).has_one and best.best_ps > self.clock.best_ps
            helpless = len(mine) - mine.index(best) - 1 > PATIENCE
            asked = traits_of(name).comes_last or (traits_of(name).goes_on and best.best_ps > self.clock.best_ps)
            if name in on_ladder or asked or tried or helpless or top.over:
                continue
            count = next_rung(name, top.count)
            share = SHARE if top.best_ps <= _NEAR * best.best_ps else SMALL_SHARE
            seconds = top.first_s * count / top.count
            if self.searches.demand(count) is not None and self.searches.due(share, seconds):
                return [self.searches.new(name, count, seconds)]
        return []

    def _missing(self, name: str, counts: list[int]) -> list[int]:
        """Numbers of chunks at which a method has no search yet, and time for one."""
        have = {search.count: search.first_s for search in self.searches.all if search.name == name}
        most = max(have, default=1)
        pace = have.get(most, 0.0) / most
        return [count for count in counts if count not in have and self.searches.due(SHARE, pace * count)]
