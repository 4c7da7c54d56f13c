"""How many chunks: more of them fill the pipe, fewer pay less latency. All methods, one context, two cores.

A search is one method at one number of chunks. The ladder gives each a first step, at 1, 2, 3, 4, 6, 8, 12, ... chunks
while more chunks help and as work gets done; beside it and after it the best searches go on, until the context is over.
They go on in rounds: what is done in a round depends on what was known before it, and on work that is counted, not on
seconds. So the rounds are the same on one core and on two, and with more time there are more of the same.
"""

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from flowccl.auto.arm import Search, next_rung, traits_of
from flowccl.auto.arms import SURE, Searches
from flowccl.auto.balance import can_level, levelled
from flowccl.auto.chunk_counts import PATIENCE, SHARE, SMALL_SHARE, Ladder
from flowccl.auto.refine import Cuts
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import Method, SearchContext
from flowccl.topology.topology import Topology
from flowccl.verifier.verify import verify

log = logging.getLogger(__name__)

FIRST_STEPS = 5  # of each search on the first rung: they find out what works on this machine
_NEAR = 1.05  # searches that are at most so much later than the best get their turn, however little they were tried
_AS_GOOD = 1.01  # what is at most so much later than the best with fewer chunks will do
_MOST_IMPROVED = 3  # numbers of chunks at which the methods that go on from others get a search
_HOPEFUL_S = 10.0  # for what is good to become better, if a gap of this at most was asked for
_DEMANDING, _CLOSE = 1.0051, 1.001  # and it is not this close to the floor, or still gets better:
_PATIENT_S, _PATIENT, _BETTER = 2.0, 1.5, 1e-5  # in so much work, or times as much as until it was so much better
_FINE = 1.0005  # so close to the floor nothing is cut finer, unless a smaller gap was asked for
_PLACES = 2  # searches side by side, for which rounds are made
_BESIDE = 3  # searches that share a place beside the best
_MOMENT_S = 0.005  # of work, the least that a search does in its turn
_NO_WAIT = 0.4  # of that beside who hurries, that it need not wait
_ROUNDS_PER_RUNG = 2  # after the ladder, the next rung for who is best is taken every so many rounds

Turn = tuple[Search, int]  # a search and its steps in a round


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
    context: SearchContext
    workers: int = 2
    all_first: bool = False
    first_steps: int = FIRST_STEPS
    wanted: int = 1
    steps: int = 0
    best: Schedule | None = None
    best_ps: float = float("inf")  # what the searches know of it is as old as the round
    better_s: float = 0.0  # the work after which it last became better

    def __post_init__(self) -> None:
        several = len(self.methods) > 1
        self.last = [name for name in self.methods if several and traits_of(name).runs_last]
        names = [name for name in self.methods if name not in self.last]
        self.places = _PLACES if self.context.budget.steps is not None else max(_PLACES, self.workers)
        self.searches = Searches(self.topology, self.demand_of, self.methods, self.context, self.places)
        longer = self.all_first and several
        self.ladder = Ladder(self.searches, names, self.first_steps, longer, self.wanted)
        self.cuts = Cuts(self.searches)
        self.levels: list[tuple[Schedule, Search]] = []  # what was levelled

    def run(self) -> Iterator[Schedule]:
        """Better and better schedules, until the context is over."""
        pool = ThreadPoolExecutor(self.workers)
        try:
            for new in self._rounds():
                turns = self._beside(new) if new else self._turns()
                turns = self._in_steps_left([*turns, *self._cut(), *self._level()])
                turns.sort(key=lambda turn: -turn[0].cost_s * turn[1])  # the longest first, so that none waits for it
                if not turns or self._enough():
                    return
                before_ps = self.best_ps
                for found in self._found([pool.submit(self._some, *turn) for turn in turns]):
                    if found.finish_ps < self.best_ps and _right(found):
                        self.best, self.best_ps = found, found.finish_ps
                        yield found
                levels = [search for _, search in self.levels]
                self.steps = sum(search.taken for search in [*self.searches.all, *self.cuts.made, *levels])
                self.context.incumbents.best_ps = min(search.best_ps for search in self.searches.all)
                self.context.incumbents.publish()
                if self.best_ps < before_ps * (1 - _BETTER):
                    self.better_s = self.searches.worked_s
        finally:
            pool.shutdown(cancel_futures=True)  # who is interrupted does not wait for the rest of a round

    @property
    def _close(self) -> bool:
        """Whether there is only a hair left to be won."""
        return self.best_ps <= self.context.incumbents.bound_ps * _CLOSE

    def _cut(self) -> list[Turn]:
        """Something to cut finer, where methods work together and it is worth more chunks."""
        worth = (
            self.best_ps > min(self.context.incumbents.bound_ps * _FINE, self.context.budget.good_ps)
            and not self.ladder.hurried
        )
        cut = self.cuts.next(self.best_ps) if len(self.methods) > 1 and worth else None
        return [] if cut is None else [(cut, 1)]

    @property
    def _lately(self) -> bool:
        """Whether it got better not long ago, by the work that was done; where steps are counted, that is not asked."""
        until_s = max(self.better_s + _PATIENT_S, self.better_s * _PATIENT)
        return self.context.budget.steps is None and self.searches.worked_s < until_s

    def _level(self) -> list[Turn]:
        """The best with pieces of other lengths, where a few bytes are all that is left to be won."""
        if self.best is None or not self._waits_for_level():
            return []
        demand = self.best.demand
        search = Search("level", demand.pieces, demand, levelled(self.best, self.context))
        self.levels.append((self.best, search))
        return [(search, 1)]

    def _waits_for_level(self) -> bool:
        """Each that is the best for a while is levelled once, where methods work together."""
        nothing = self.best_ps <= self.context.incumbents.bound_ps or not self._close or self._lately
        if self.best is None or nothing or len(self.methods) == 1:
            return False
        done = any(search.taken and self.best in (level_of, search.best) for level_of, search in self.levels)
        return not done and can_level(self.best)

    def _found(self, going: list[Future[Schedule | None]]) -> Iterator[Schedule]:
        """What the searches of a round find, as soon as they do; where steps are counted, in their order."""
        for future in as_completed(going) if self.context.budget.steps is None else going:
            if (found := future.result()) is not None:
                yield found

    def _enough(self) -> bool:
        """Whether nothing else begins."""
        some_wait = self.all_first and (self._hopes() or self.steps < len(self.methods))
        return self.steps > 0 and self.context.budget.over(float("inf") if some_wait else self.best_ps)

    def _hopes(self) -> bool:
        """Whether what is within the gap may still become better in a few seconds."""
        bound_ps = self.context.incumbents.bound_ps
        if self.context.budget.good_ps > bound_ps * _DEMANDING or self.best_ps <= bound_ps:
            return False
        if self.context.budget.steps is not None:
            return self.ladder.on_first_rung and not self._close
        more = (self._lately and len(self.methods) > 1) or self._waits_for_level()
        return self.context.budget.elapsed_s < _HOPEFUL_S and (not self._close or more)

    def _in_steps_left(self, turns: list[Turn]) -> list[Turn]:
        """No more than the steps that are left, where they are counted."""
        if self.context.budget.steps is None:
            return turns
        before = itertools.accumulate((steps for _, steps in turns), initial=self.steps)
        cut = [
            (search, min(steps, self.context.budget.steps - done))
            for (search, steps), done in zip(turns, before, strict=False)
        ]
        return [(search, steps) for search, steps in cut if steps > 0]

    def _some(self, search: Search, steps: int) -> Schedule | None:
        """The best of so many steps, or of those for which there is time; the very first is made in any case."""
        found = list[Schedule | None]()
        while len(found) < steps and not search.over and self._may_begin(search):
            found.append(self._step(search))
        return min((one for one in found if one is not None), key=lambda one: one.finish_ps, default=None)

    def _may_begin(self, search: Search) -> bool:
        in_time = self.steps == 0 or self.searches.has_time(search.seconds)
        return self.context.budget.steps is not None or (in_time and not self._enough())

    def _step(self, search: Search) -> Schedule | None:
        """One step; of several methods, one that cannot have this problem is left out."""
        try:
            return search.step(self.context)
        except DemandError as error:
            if len(self.methods) == 1:
                raise
            log.debug("%s is left out: %s", search.name, error)
            search.over = True
            return None

    def _rounds(self) -> Iterator[list[Search]]:
        """The new searches of each round, or those on the first rung; none, where the best go on."""
        yield from self.ladder.first_rung()
        yield from self.ladder.ahead()
        climb, last = self.ladder.climb(), list(self.last)
        for number in itertools.count():
            rungs = next(climb, [])
            new = rungs if self.ladder.hurried else rungs + self._improvers(1 if rungs else _MOST_IMPROVED)
            if not rungs and number % _ROUNDS_PER_RUNG == 0:
                new += self._next_rung()
            if not new and last and self._as_long(last[0]):
                new = [self.searches.new(last.pop(0), 1)]
            if not new and not self.searches.running():
                return
            yield new

    def _as_long(self, name: str) -> bool:
        """Whether others have worked as long as a method that comes last will take, and there is time for it."""
        seconds = self.searches.first_work_s(name, 1)
        return self.searches.worked_s >= seconds and self.searches.has_time(SURE * seconds)

    def _beside(self, new: list[Search]) -> list[Turn]:
        """A step of each, and beside the longest what the best can do meanwhile."""
        costs = [search.cost_s for search in new]
        left_s = (self.places * max(costs) - sum(costs)) * (_NO_WAIT if self.ladder.hurried else 1.0)
        beside = [turn for turn in self._turns(new, left_s / 2 / _BESIDE) if turn[0].cost_s * turn[1] <= left_s]
        return [*((search, 1) for search in new), *beside]

    def _turns(self, new: Sequence[Search] = (), turn_s: float = 0.0) -> list[Turn]:
        """The best search, and some others that work as much as it does, beside new ones; so long at least for each."""
        running = sorted(self.searches.running(), key=lambda search: search.standing)
        wanted = [*new, *running[:1], *self._partners(running), *running[1:]]
        going = self.searches.apart(wanted)[len(new) : len(new) + 1 + _BESIDE * (self.places - 1)]
        turn_s = turn_s or max([_MOMENT_S, *(search.cost_s for search in going)])
        steps = [max(int(turn_s / search.cost_s), 1) for search in going]
        steps[:1] = [_BESIDE * many for many in steps[:1]]
        return list(zip(going, steps, strict=True))

    def _partners(self, running: list[Search]) -> Iterable[Search]:
        """Who makes steps beside the best: the next best, one that needs many, the least tried of those near."""
        improvers = [search for search in running[1:] if traits_of(search.name).improves_slowly][:_MOST_IMPROVED]
        near = [search for search in running[1:] if search.best_ps <= _NEAR * running[0].best_ps]
        for some in (running[1:2], improvers, near):
            if some:
                yield min(some, key=lambda search: search.worked_s)

    def _improvers(self, most: int) -> list[Search]:
        """Searches by methods that go on from others, where there are none: with few chunks that do, and with the best.

        On the ladder they have too little time to be worth the next rung.
        """
        best = sorted((search for search in self.searches.all if not search.over), key=lambda search: search.best_ps)
        few = min((search.count for search in best if search.best_ps <= _AS_GOOD * best[0].best_ps), default=1)
        counts = list(dict.fromkeys([few, *(search.count for search in best)]))[:most]
        names = [name for name in self.methods if traits_of(name).continues_others]
        wanted = [(name, count) for name in names for count in self._missing(name, counts)]
        return [self.searches.new(name, count) for name, count in wanted]

    def _next_rung(self) -> list[Search]:
        """One more number of chunks for the first of the best who has time for it, and whom the last few rungs helped.

        The ladder may have ended early: there every method has one step on a rung, which may be an unlucky one. Who
        goes on from others lets them go first.
        """
        near = [search for search in self.searches.all if search.best_ps <= _NEAR * self.context.incumbents.best_ps]
        near.sort(key=lambda search: search.best_ps)
        names = dict.fromkeys(search.name for search in near)
        tops = [found for name in names if (found := self._top(name)) is not None]
        for top, share in [found for found in tops if not traits_of(found[0].name).continues_others] or tops:
            count = next_rung(top.name, top.count)
            if self.searches.due(share, top, count):
                return [self.searches.new(top.name, count)]
        return []

    def _top(self, name: str) -> tuple[Search, int] | None:
        """A method's last rung, and how much work the next one waits for; none where it shall take no other."""
        mine = sorted((search for search in self.searches.all if search.name == name), key=lambda search: search.count)
        best, top = min(mine, key=lambda search: search.best_ps), mine[-1]
        tried = traits_of(name).one_schedule and best.best_ps > self.context.incumbents.best_ps
        helpless = len(mine) - mine.index(best) - 1 > PATIENCE
        asked = traits_of(name).runs_last or (
            traits_of(name).continues_others and best.best_ps > self.context.incumbents.best_ps
        )
        climbs = any(climber.name == name and self.ladder.climbs(climber) for climber in self.ladder.climbers)
        if climbs or asked or tried or helpless or top.over:
            return None
        if self.searches.demand(next_rung(name, top.count)) is None:
            return None
        return top, SHARE if top.best_ps <= _NEAR * best.best_ps else SMALL_SHARE

    def _missing(self, name: str, counts: list[int]) -> list[int]:
        """Numbers of chunks at which a method has no search yet, and time for one."""
        have = {search.count: search for search in self.searches.all if search.name == name}
        if not have:
            return []
        top = have[max(have)]
        return [count for count in counts if count not in have and self.searches.due(SHARE, top, count)]


def _right(found: Schedule) -> bool:
    """The judge's word; what a method got wrong does not hide what another got right."""
    violations = verify(found)
    if violations:
        log.warning("%s made a wrong schedule, which is left out: %s", found.method, violations[0])
    return not violations
