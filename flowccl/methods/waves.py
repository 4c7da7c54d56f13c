"""Method `waves`: an allreduce of another method in smaller chunks, which follow each other in waves.

The chunks of a schedule are divided, and the parts use the routes of their chunk. First all reductions of the first
parts, then those of the second parts, and so on; then all copies in the same order. While the last results of a wave
travel, links carry the next one, and copies begin beside the last reductions. The engine starts transfers as early as
possible in this order, in others in which waves overlap, with the longest remaining path first, and with noise.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER
from flowccl.portable import power_of_ten
from flowccl.problem import Problem
from flowccl.schedule.generation.engine import LEAST_RATES, Engine
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import chunk_by_chunk
from flowccl.search.context import SearchContext
from flowccl.verifier.verify import verify

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

_MOST, _USEFUL = 20_000, 10_000  # transfers that are divided at most, and those with which a step is quick
_LATER = (0.0, 0.25, 0.5, 1.0)  # by how much of its time each wave comes after the one before
_PATHS = (0.0, 1.0)  # how much the remaining path of a transfer counts
_LEAST_NOISE, _MOST_NOISE = -3.0, -1.5  # of the order, as powers of ten of the completion time
_NEW = 0.3  # part of the orders that do not start from the best one
_ELSEWHERE = 0.2  # part of the steps that go on from a schedule that is not the best


def waves(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Improve on the best schedules that other methods report for the same allreduce in fewer chunks, or in as many."""
    random, known, best_ps = np.random.default_rng(context.seed), dict[tuple[int, int], _Waves](), float("inf")
    while True:
        for other in _coarser(problem, context):
            key = (len(other.demand), other.finish_ps)
            if key not in known and (new := _Waves.of(other, problem)) is not None:
                known[key] = new
        if not known:
            yield None
            continue
        some = sorted(known.values(), key=lambda one: one.best_ps)
        fresh = [one for one in some if one.untried]
        chosen = fresh[0] if fresh else some[0]
        if not fresh and random.random() < _ELSEWHERE:
            chosen = some[int(random.integers(len(some)))]
        found = chosen.step(random)
        is_better = found is not None and found.finish_ps < best_ps
        best_ps = found.finish_ps if found is not None and is_better else best_ps
        yield found if is_better else None


def useful_chunks(problem: Problem, context: SearchContext) -> int:
    """The largest power of two of chunks per block with which there are few enough transfers."""
    each = 2 * problem.deliveries // problem.demand.pieces
    return 1 << max((_USEFUL // max(each, 1)).bit_length() - 1, 1 if 2 * each <= _MOST else 0)


def _coarser(problem: Problem, context: SearchContext) -> list[Schedule]:
    """The reported schedules whose chunks are those of the problem, or several of them together."""
    count = len(problem.demand)
    return [
        schedule
        for other, schedule in context.incumbents.schedules.items()
        if other.topology == problem.topology
        and count % len(other.demand) == 0
        and len(schedule) * (count // len(other.demand)) <= _MOST
        and schedule.method != "waves"
    ]


@dataclass
class _Waves:
    """The transfers of a schedule in smaller chunks, and the best order of them so far.

    `wave` is that of each transfer, `start_ps` its start in the schedule, `half_ps` the time of half a wave.
    """

    engine: Engine
    wave: I64
    start_ps: I64
    half_ps: float
    untried: list[F64]
    best_ps: float = float("inf")
    best_key: F64 | None = None

    @classmethod
    def of(cls, coarse: Schedule, problem: Problem) -> "_Waves | None":
        """The waves of a schedule; None where reductions wait for copies."""
        fine = chunk_by_chunk(coarse, problem.demand)
        if fine is None or not _has_two_phases(coarse):
            return None
        times = len(problem.demand) // len(coarse.demand)
        wave = (fine.chunk % times).astype(np.int64)
        reduced_ps = int(coarse.timing.end_arrival_ps[coarse.reduce[coarse.timing.end_transfer]].max()) + 1
        begin_ps = int(coarse.start_ps[~coarse.reduce].min())
        copies_ps = times * reduced_ps - begin_ps + wave * (coarse.finish_ps - begin_ps + 1)
        in_turn = replace(fine, start_ps=fine.start_ps + np.where(fine.reduce, wave * reduced_ps, copies_ps))
        engine, half_ps = Engine(in_turn), coarse.finish_ps / 2 / times
        keys = [in_turn.start_ps.astype(np.float64)]
        keys += [np.asarray(fine.start_ps + later * half_ps * wave - engine.tail_ps) for later in _LATER[2:3]]
        return cls(engine, wave, fine.start_ps, half_ps, keys)

    def step(self, random: np.random.Generator) -> Schedule | None:
        """The transfers in another order; None where the engine cannot carry it out, or that is not better."""
        key = self.untried.pop(0) if self.untried else self._key(random)
        found = self.engine.run(key, float(random.choice(LEAST_RATES)), self._give_up_ps)
        if found is None or found.finish_ps >= self.best_ps or verify(found):  # exchanges may be in the wrong order
            return None
        self.best_ps, self.best_key = found.finish_ps, key
        return replace(found, method="waves")

    @property
    def _give_up_ps(self) -> int:
        return int(min(self.best_ps, np.iinfo(np.int64).max // 2))

    def _key(self, random: np.random.Generator) -> F64:
        """The best order with noise, or a new one."""
        key = self.best_key
        if key is None or random.random() < _NEW:
            later, path = float(random.choice(_LATER)), float(random.choice(_PATHS))
            key = self.start_ps + later * self.half_ps * self.wave - path * self.engine.tail_ps
        noise_ps = power_of_ten(float(random.uniform(_LEAST_NOISE, _MOST_NOISE))) * self.half_ps * len(_LATER)
        return np.asarray(key + noise_ps * random.uniform(-1, 1, len(key)))


def _has_two_phases(schedule: Schedule) -> bool:
    """Whether there are reductions and copies, and no GPU sends what it has received as a copy to be reduced."""
    if not schedule.reduce.any() or schedule.reduce.all():
        return False
    timing, nodes = schedule.timing, len(schedule.topology.nodes)
    copies = ~schedule.reduce[timing.end_transfer]
    copied_to = schedule.chunk[timing.end_transfer[copies]].astype(np.int64) * nodes + timing.end_node[copies]
    copied_ps = np.full(len(schedule.demand) * nodes, NEVER)
    np.minimum.at(copied_ps, copied_to, timing.end_arrival_ps[copies])
    roots = schedule.reduce[timing.root_transfer]
    transfer = timing.root_transfer[roots]
    reduced_from = schedule.chunk[transfer].astype(np.int64) * nodes + timing.root_node[roots]
    return bool(np.all(schedule.start_ps[transfer] < copied_ps[reduced_from]))
