"""How many chunks: more of them fill the pipe, fewer pay less latency. All methods, one clock, two cores.

A search is one method at one number of chunks. The ladder gives each a first step, at 1, 2, 3, 4, 6, 8, 12, ... chunks
while more chunks help; then the best searches take turns until the clock is over. Two searches make a step at a time,
side by side where there are two cores; they hear of each other only afterwards, so that for a number of steps the
result is the same with one.
"""

import itertools
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from flowccl.check.verify import verify
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.clock import Clock
from flowccl.methods.method import Method
from flowccl.methods.rungs import Climber, Search, has_rung, numbers_of_chunks
from flowccl.methods.traits import traits_of
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology

log = logging.getLogger(__name__)

_MOST_DELIVERIES = 400_000  # no more chunks than give so many (chunk, destination) pairs
FIRST_STEPS = 5  # of each search on the first rung: they find out what works on this machine
_PATIENCE = 3  # rungs of the ladder that may bring nothing
_NEAR = 1.05  # searches that are at most so much later than the best get their turn, however little they were tried
_TREES_AHEAD = (16, 48)  # numbers of chunks
_MOST_IMPROVED = 3  # numbers of chunks at which the methods that go on from others get a search
_EARLY, _LONGER = 0.2, 0.15  # parts of the time on the first rung: for a few steps of each, and for small problems
_HOPEFUL_S = 10.0  # for what is good to become better
_CLOSE, _DEMANDING = 1.001, 1.0051  # if it is not this close to the floor, and a gap of this at most was asked for
_SHARE, _SMALL_SHARE, _LAST_SHARE = 5, 20, 3  # a rung that takes one of so many parts of the time left is not taken
_LEADS = 1.01  # who is at most so much later than the best, and whom the last rung helped, has the larger share
_FEW = 2  # chunks, up to which all methods climb
_MOST_AT_ONCE = 8  # steps of one search while another makes one
_TURNS_PER_RUNG = 4  # after the ladder, the next rung for who is best is taken every so many turns


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
    lanes: int = 1  # on the ladder

    def run(self) -> Iterator[Schedule]:
        """Better and better schedules, until the clock is over."""
        with ThreadPoolExecutor(self.workers) as pool:
            for together in self._turns():
                left = len(together) if self.clock.steps is None else self.clock.steps - self.steps
                for found in self._steps(together[:left], pool):
                    if found is not None and found.finish_ps < self.best_ps and self._right(found):
                        self.best_ps = self.clock.best_ps = found.finish_ps
                        yield found
                self.steps += len(together)
                if self._enough():
                    return

    def _enough(self) -> bool:
        """Whether to stop."""
        some_wait = self.all_first and (self._hopes() or self.steps < len(self.methods))
        counted = self.clock.steps is not None and self.steps >= self.clock.steps
        return counted or self.clock.over(float("inf") if some_wait else self.best_ps)

    def _hopes(self) -> bool:
        """Whether what is within the gap may still become better in a few seconds."""
        floor_ps = self.clock.floor_ps
        more = self.best_ps > floor_ps * _CLOSE and self.clock.good_ps <= floor_ps * _DEMANDING
        return more and (self.on_first_rung if self.clock.steps is not None else self.clock.elapsed_s < _HOPEFUL_S)

    def _steps(self, together: list[Search], pool: ThreadPoolExecutor) -> list[Schedule | None]:
        """One step of each, or more of the quicker one; what they told each other counts from now on."""
        if len(together) == 1 or self.workers == 1:
            found = [self._step(search) for search in together]
        else:
            found = list(pool.map(self._several, together, self._times(together)))
        self.clock.settle()
        return found

    def _times(self, together: list[Search]) -> list[int]:
        """How many steps each makes while the slowest makes one; one each where steps are counted, or none is known."""
        slowest = max(search.seconds for search in together)
        if self.clock.steps is not None or min(search.seconds for search in together) <= 0:
            return [1] * len(together)
        return [min(int(slowest / search.seconds), _MOST_AT_ONCE) for search in together]

    def _several(self, search: Search, times: int) -> Schedule | None:
        """The best of so many steps."""
        found = [self._step(search) for _ in range(times) if not search.over]
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

    def _turns(self) -> Iterator[list[Search]]:
        """Which searches make a step next."""
        yield from self._ladder()
        yield from self._pairs([*self._improvers(), *self._last()])
        turn = 0
        while True:
            fit = (s for s in self.searches if not s.over and self._has_time(s.seconds))
            running = sorted(fit, key=lambda s: s.standing)
            if not running:
                return
            yield from self._pairs([running[0], *self._partner(turn, running)])
            turn += 1
            more = self._next_rung() if turn % _TURNS_PER_RUNG == 0 else []
            yield from self._pairs([*more, *self._improvers()])

    def _partner(self, turn: int, running: list[Search]) -> list[Search]:
        """Who makes a step beside the best search: in turn the next best, one that needs many, the one least tried."""
        best, others = running[0], running[1:]
        improvers = [search for search in others if traits_of(search.name).needs_steps][:_MOST_IMPROVED]
        near = [search for search in others if search.best_ps <= _NEAR * best.best_ps]
        some = (others[:1], improvers, near)[turn % 3] or others[:1]
        return sorted(some, key=lambda search: search.taken)[:1]

    def _ladder(self) -> Iterator[list[Search]]:
        """First steps: all at one chunk; then up, a quick method on one core ahead of the others on the second."""
        climbers = [Climber(name) for name in self.methods if not traits_of(name).comes_last]
        demand = self.demand_of(1)
        new = [self._new(climber.name, 1, demand) for climber in climbers]
        yield from self._pairs(new[:1])  # so that there is an answer at once
        yield from self._pairs(new[1:])
        yield from self._first_rung(new)
        self.on_first_rung = False
        for climber, search in zip(climbers, new, strict=True):
            climber.climbed(1, search, self.best_ps)
        yield from self._ahead(demand)
        quick = [climber for climber in climbers if traits_of(climber.name).climbs_ahead and not demand.reduces]
        others = [climber for climber in climbers if climber not in quick]
        lanes = [self._climb(lane) for lane in (quick, others) if lane]
        while lanes:
            self.lanes = len(lanes)
            steps = [(lane, next(lane, None)) for lane in lanes]
            lanes = [lane for lane, searches in steps if searches]
            yield from self._pairs([search for _, searches in steps for search in searches or ()])

    def _climb(self, climbers: list[Climber]) -> Iterator[list[Search]]:
        """Up the ladder. A method leaves it when a few rungs did not help it, or the next would take too long."""
        for count in itertools.islice(numbers_of_chunks(self.wanted), 1, None):
            try:
                demand = self.demand_of(count)
            except DemandError:  # the chunks are given, or a block has fewer bytes
                return
            climbers = [climber for climber in climbers if count == self.wanted or self._worth(climber, count)]
            if not climbers or len(demand.destination_rank) > _MOST_DELIVERIES:
                return
            here = [climber for climber in climbers if has_rung(climber.name, count)]
            new = [self._new(climber.name, count, demand) for climber in here]
            done = 0
            while done < len(new):
                size = 1 if self.lanes > 1 else 2
                yield new[done : done + size]
                done += size
            for climber, search in zip(here, new, strict=True):
                climber.climbed(count, search, self.best_ps)

    def _first_rung(self, new: list[Search]) -> Iterator[list[Search]]:
        """More steps at one chunk: a few of each find out what works here, and a while longer may find what is best."""
        longer = self.all_first and self.clock.steps is None and len(self.methods) > 1
        for turn in itertools.count(1):
            running = [search for search in new if not search.over]
            hope = longer and min((search.idle for search in running), default=0) < _PATIENCE
            part = _EARLY if turn < self.first_steps else _LONGER if hope else 0.0
            if not running or not part or not self._early(part):
                return
            yield from self._pairs(running)

    def _ahead(self, demand: Demand) -> Iterator[list[Search]]:
        """For sums that all want, trees far up the ladder: there they are good, and with all others they come late."""
        to_all = demand.reduces and len(demand.destination_rank) > len(demand)
        for count in _TREES_AHEAD if to_all and "trees" in self.methods and len(self.methods) > 1 else ():
            try:
                wide = self.demand_of(count)
            except DemandError:  # the chunks are given, or a block has fewer bytes
                return
            if len(wide.destination_rank) > _MOST_DELIVERIES or self.best_ps <= self.clock.good_ps:
                return
            search = self._new("trees", count, wide)
            yield [search]
            if not self._has_time(_SHARE * search.seconds):
                return

    def _new(self, name: str, count: int, demand: Demand) -> Search:
        """A search that takes part from now on."""
        steps = self.methods[name](self.topology, demand, self.clock)
        self.searches.append(Search(name, count, steps, len(demand.destination_rank)))
        return self.searches[-1]

    def _improvers(self) -> list[Search]:
        """At the best numbers of chunks, searches by methods that go on from others, where there are none.

        On the ladder they have too little time to be worth the next rung.
        """
        best = sorted((search for search in self.searches if not search.over), key=lambda search: search.best_ps)
        counts = list(dict.fromkeys(search.count for search in best))[:_MOST_IMPROVED]
        names = [name for name in self.methods if traits_of(name).goes_on]
        wanted = [(name, count) for name in names for count in self._missing(name, counts)]
        return [self._new(name, count, self.demand_of(count)) for name, count in wanted]

    def _next_rung(self) -> list[Search]:
        """One more number of chunks for the first of the best who has time for it, and whom the last few rungs helped.

        The ladder may have ended early: there every method has one step on a rung, which may be an unlucky one.
        """
        for best in sorted(self.searches, key=lambda search: search.best_ps):
            mine = [search for search in self.searches if search.name == best.name]
            top = max(mine, key=lambda search: search.count)
            if best.best_ps > _NEAR * self.best_ps:
                break
            traits, above = traits_of(best.name), sum(search.count > best.count for search in mine)
            if traits.comes_last or (traits.has_one and best.best_ps > self.best_ps) or above > _PATIENCE:
                continue
            count = next(count for count in numbers_of_chunks() if count > top.count and has_rung(best.name, count))
            share = _LAST_SHARE if top.best_ps <= _NEAR * best.best_ps else _SMALL_SHARE
            if top.over or not self._has_time(share * top.first_s * count / top.count):
                continue
            try:
                demand = self.demand_of(count)
            except DemandError:  # the chunks are given, or a block has fewer bytes
                return []
            if len(demand.destination_rank) <= _MOST_DELIVERIES:
                return [self._new(best.name, count, demand)]
        return []

    def _missing(self, name: str, counts: list[int]) -> list[int]:
        """Numbers of chunks at which a method has no search yet, and time for one."""
        have = {search.count: search.first_s for search in self.searches if search.name == name}
        pace = max((seconds / count for count, seconds in have.items()), default=0.0)
        return [count for count in counts if count not in have and self._has_time(_SHARE * pace * count)]

    def _last(self) -> list[Search]:
        """Searches by methods whose step takes long."""
        names = [name for name in self.methods if traits_of(name).comes_last]
        return [self._new(name, 1, self.demand_of(1)) for name in names]

    def _pairs(self, searches: list[Search]) -> Iterator[list[Search]]:
        """Two and two; alone where both are of one method or of sums, if these tell each other what works."""
        names = [search.name for search in searches if not traits_of(search.name).tells_late]
        alone = len(set(names)) < len(names) or self.demand_of(1).reduces
        size = 1 if alone else 2
        for i in range(0, len(searches), size):
            yield searches[i : i + size]

    def _worth(self, climber: Climber, count: int) -> bool:
        """Whether a method may take the next rung."""
        leads = climber.best_ps <= (_LEADS if climber.idle == 0 else 1.0) * self.best_ps
        if traits_of(climber.name).has_one and climber.best_ps > self.best_ps and count > _FEW:
            return False
        in_time = self._has_time((_SHARE if leads else _SMALL_SHARE) * climber.seconds * count / climber.count)
        return in_time and climber.idle < _PATIENCE and climber.best_ps <= climber.may_be_behind * self.best_ps

    def _has_time(self, seconds: float) -> bool:
        """Whether so much time is left; always, where steps are counted."""
        return self.clock.steps is not None or seconds <= self.clock.left_s

    def _early(self, part: float) -> bool:
        """In the first part of the time; where steps are counted, on the first rung."""
        if self.clock.steps is not None:
            return self.on_first_rung
        return self.clock.elapsed_s < part * self.clock.time_limit_s
