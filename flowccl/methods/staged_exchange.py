"""Staged exchange: allreduce for small sizes, in stages in which all members of a group exchange partial results.

A single stage is a one-shot allreduce; stages of groups of two are recursive doubling. After a stage, all ranks of a
group have the same partial result and form a block; the groups of the next stage consist of such blocks. Blocks are
consecutive ranks, in the given order or in an order in which linked ranks are adjacent. All factorizations of the
number of ranks are tried. A rank without links from all other blocks of its group receives the partial result from a
rank that has them. In a plan with several stages, different chunks may start with different stages, so that the links
of all stages are busy from the start.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.timing import replay
from flowccl.schedule.transform import left_shift
from flowccl.search.context import SearchContext
from flowccl.topology.neighbours import Neighbours, neighbours
from flowccl.topology.topology import Topology

_MOST_SENDS = 60_000
_STEP_SENDS = 10_000  # sends examined in one step, about 0.1 s
_MOST_PLANS = 32
_ORDERS = 12

Send = tuple[int, int, bool]  # from rank, to rank, reduce
Groups = list[list[list[int]]]  # of a stage: groups of blocks of ranks
Cost = dict[tuple[int, int], float]  # time of a chunk from one node to a neighbour


def staged_exchange(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """All plans for one order of the ranks, then the better ones for other orders; only for allreduce.

    Every plan for the first order is yielded: on a runtime, another one may be the best.
    """
    topology, demand = problem.topology, problem.demand
    ranks = problem.allreduce_ranks
    if ranks is None:
        raise DemandError(
            "method staged-exchange is for allreduce, where all contributing ranks want the result; "
            f"got {demand.collective}"
        )
    near = neighbours(topology, 1)
    cost = _costs(near, float(demand.chunk_bytes.mean()))
    placement = SerialPlacement(topology, demand, near)
    random = np.random.default_rng(context.seed)
    best_ps = None
    near_ps = float(near.distance_ps(float(demand.chunk_bytes.mean()))[np.ix_(ranks, ranks)].max())
    for turn in range(_ORDERS):
        if best_ps is not None and best_ps <= 1.1 * near_ps:
            return
        order = ranks if turn == 0 else _pairing_order(ranks, cost, random)
        better: Schedule | None = None
        examined = 0
        products = _products(len(ranks))[:_MOST_PLANS]
        for sizes, turns in ((factors, turns) for factors in products for turns in sorted({1, len(factors)})):
            plans = [_rotated(order, sizes, first) for first in range(turns)]
            schedule = _placed(placement, cost, [list(_groups(*plan)) for plan in plans])
            if turn == 0 and schedule is not None:
                yield schedule
            if schedule is not None and (best_ps is None or schedule.finish_ps < best_ps):
                better, best_ps = None if turn == 0 else schedule, schedule.finish_ps
            examined += turns * len(ranks) * sum(sizes)
            if examined > _STEP_SENDS:
                yield better
                better, examined = None, 0
        yield better


def _rotated(ranks: list[int], sizes: list[int], first: int) -> tuple[list[int], list[int]]:
    """The plan rotated to begin with stage `first`: the order of the ranks, and the sizes of the stages."""
    stages = [*range(first, len(sizes)), *range(first)]
    axes = [len(sizes) - 1 - stage for stage in reversed(stages)]
    order: list[int] = np.array(ranks).reshape(sizes[::-1]).transpose(axes).ravel().tolist()
    return order, [sizes[stage] for stage in stages]


def _placed(placement: "SerialPlacement", cost: Cost, plans: list[list[Groups]]) -> Schedule | None:
    """The schedule in which the chunks use the plans in turn; None if a plan is infeasible or too large."""
    steps: list[list[list[list[Send]]]] = []
    for stages in plans:
        rounds = [_stage(cost, groups) for groups in stages]
        known = [one for one in rounds if one is not None]
        if len(known) < len(rounds):
            return None
        steps.append(known)
    count = max(sum(len(sends) for rounds in stages for sends in rounds) for stages in steps)
    return None if count * len(placement.demand) > _MOST_SENDS else placement.place(steps)


def _pairing_order(ranks: list[int], cost: Cost, random: np.random.Generator) -> list[int]:
    """A random order of the ranks: blocks are merged in pairs, each with the block that it is linked to best."""
    blocks = [[rank] for rank in ranks]
    while len(blocks) > 1 and len(blocks) % 2 == 0:
        left = [blocks[i] for i in random.permutation(len(blocks))]
        blocks = []
        while left:
            block = left.pop()
            lost = [_unlinked(cost, block, other) for other in left]
            blocks.append(block + left.pop(int(np.argmin(lost))))
    return [rank for block in blocks for rank in block]


def _unlinked(cost: Cost, block: list[int], other: list[int]) -> float:
    """Number of ranks of two blocks without a link from the other block; ties are broken by the slowest link."""
    costs = [min((cost.get((b, a), np.inf) for b in other), default=np.inf) for a in block]
    costs += [min((cost.get((a, b), np.inf) for a in block), default=np.inf) for b in other]
    linked = [cost_ps for cost_ps in costs if np.isfinite(cost_ps)]
    return len(costs) - len(linked) + max(linked, default=0.0) * 1e-15


def _products(number: int) -> list[list[int]]:
    """All ordered factorizations of a number into factors above 1; few factors first."""
    found = [
        [factor, *rest]
        for factor in range(2, number + 1)
        if number % factor == 0
        for rest in (_products(number // factor) if factor < number else [[]])
    ]
    return sorted(found, key=len)


def _groups(ranks: list[int], sizes: Sequence[int]) -> Iterator[Groups]:
    """For each stage, its groups: each is a list of blocks, each block a list of ranks."""
    for stage, size in enumerate(sizes):
        width = prod(sizes[:stage])
        blocks = [ranks[at : at + width] for at in range(0, len(ranks), width)]
        yield [blocks[at : at + size] for at in range(0, len(blocks), size)]


def _stage(cost: Cost, groups: Groups) -> list[list[Send]] | None:
    """The rounds of sends of one stage: first reductions, then copies; None if the stage is infeasible."""
    rounds: dict[int, list[Send]] = {}
    for blocks in groups:
        full: dict[int, float] = {}
        for i, block in enumerate(blocks):
            for rank in block:
                partners = [_nearest(cost, other, rank) for other in blocks if other is not block]
                if None in partners:
                    continue
                known = [partner for partner in partners if partner is not None]
                full[rank] = max(cost[partner, rank] for partner in known)
                others = [j for j in range(len(blocks)) if j != i]
                for j, partner in zip(others, known, strict=True):
                    rounds.setdefault((i - j) % len(blocks), []).append((partner, rank, True))
        spread = _spread(cost, full, [rank for block in blocks for rank in block])
        if spread is None:
            return None
        for turn, send in enumerate(spread):
            rounds.setdefault(len(blocks) + turn, []).append(send)
    return [rounds[turn] for turn in sorted(rounds)]


def _costs(near: Neighbours, size_bytes: float) -> Cost:
    pairs = zip(near.src.tolist(), near.end.tolist(), strict=True)
    return dict(zip(pairs, near.pair_cost_ps(size_bytes).tolist(), strict=True))


def _nearest(cost: Cost, senders: list[int], rank: int) -> int | None:
    """The sender that reaches the rank earliest; ties go to the same position, so that the senders share the load."""
    linked = [sender for sender in senders if (sender, rank) in cost]
    if not linked:
        return None
    place = rank % len(senders)
    return min(linked, key=lambda s: (cost[s, rank], (s % len(senders) - place) % len(senders)))


def _spread(cost: Cost, full: dict[int, float], ranks: list[int]) -> list[Send] | None:
    """Sends that copy the partial result to the ranks of the group that lack it, the earliest first."""
    have, lack, sends = dict(full), [rank for rank in ranks if rank not in full], []
    while lack:
        costs = [(have[a] + cost[a, b], a, b) for b in lack for a in have if (a, b) in cost]
        if not costs:
            return None
        at, a, b = min(costs)
        have[b] = at
        lack.remove(b)
        sends.append((a, b, False))
    return sends


@dataclass
class SerialPlacement:
    """Serial generation: each transfer in turn is placed as early as its links and its data allow."""

    topology: Topology
    demand: Demand
    near: Neighbours
    free_at: dict[int, int] = field(default_factory=dict)
    rows: list[tuple[int, int, int, bool]] = field(default_factory=list)  # chunk, pair, start, reduce
    over: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        pairs = zip(self.near.src.tolist(), self.near.end.tolist(), strict=True)
        self.pair = {ends: i for i, ends in enumerate(pairs)}
        self.sizes, self.size_of = np.unique(self.demand.chunk_bytes, return_inverse=True)
        self.known: dict[tuple[int, int], tuple[list[tuple[int, int, int]], int]] = {}

    def place(self, plans: list[list[list[list[Send]]]]) -> Schedule | None:
        """The schedule in which the chunks use the plans in turn.

        None if a rank would send a partial result that already contains contributions of the same stage.
        """
        self.free_at.clear()
        self.rows.clear()
        ready = dict.fromkeys(((c, r) for c in range(len(self.demand)) for r in self.demand.sources(c).tolist()), 0)
        self.over = dict.fromkeys(ready, -1)  # when a node last sent or received a chunk in the stages before
        for stage in range(len(plans[0])):
            later = dict(ready)
            for chunk in range(len(self.demand)):
                rounds = plans[chunk % len(plans)][stage]
                first_in: dict[int, int] = {}
                for sends in rounds:
                    for a, b, reduce in sends:
                        begin, arrival = self.place_transfer(
                            chunk, a, b, reduce, ready[chunk, a] if reduce else later[chunk, a]
                        )
                        if reduce and begin >= first_in.get(a, begin + 1):
                            return None
                        first_in[b] = min(first_in.get(b, arrival), arrival)
                        later[chunk, b] = max(later[chunk, b], arrival)
                if self._too_early(chunk, rounds, first_in):
                    return None
                for c, pair, start, _ in self.rows[-sum(len(sends) for sends in rounds) :]:
                    sender = (c, int(self.near.src[pair]))
                    self.over[sender] = max(self.over[sender], start)
            self.over = {key: max(at, later[key]) for key, at in self.over.items()}
            ready = later
        return self.schedule("staged-exchange")

    def _too_early(self, chunk: int, rounds: list[list[Send]], first_in: dict[int, int]) -> bool:
        """Whether a contribution arrives at a rank before the rank has sent its own in this stage."""
        count = sum(len(sends) for sends in rounds)
        ends = self.near.src
        return any(
            reduce and start >= first_in.get(int(ends[pair]), start + 1)
            for c, pair, start, reduce in self.rows[-count:]
            if c == chunk
        )

    def place_transfer(self, chunk: int, a: int, b: int, reduce: bool, ready: int) -> tuple[int, int]:
        """Place a send of a chunk from one rank to another, from `ready` on; return its start and its arrival."""
        pair = self.pair[a, b]
        hops, whole = self._times(pair, int(self.size_of[chunk]))
        after = self.over.get((chunk, b), -1) + 1 - whole
        start = max([ready, after, *(self.free_at.get(link, 0) - begin for link, begin, _ in hops)])
        for link, _, end in hops:
            self.free_at[link] = start + end
        self.rows.append((chunk, pair, start, reduce))
        return start, start + whole

    def _times(self, pair: int, size: int) -> tuple[list[tuple[int, int, int]], int]:
        """When the links of a pair's route are busy for a start at 0, and the arrival."""
        if (pair, size) not in self.known:
            route = np.array([self.near.pair_ptr[pair]], dtype=np.int32)
            zero = np.zeros(1, dtype=np.int64)
            timing = replay(self.topology, self.near.shape, self.sizes[size : size + 1], route, zero)
            columns = (timing.hop_link, timing.hop_from_ps, timing.hop_to_ps)
            hops = list(zip(*(column.tolist() for column in columns), strict=True))
            self.known[pair, size] = hops, int(timing.end_arrival_ps[0])
        return self.known[pair, size]

    def schedule(self, method: str) -> Schedule:
        """The transfers placed so far, left-shifted."""
        chunk, pair, start, reduce = (np.array(column) for column in zip(*self.rows, strict=True))
        route = self.near.pair_ptr[:-1][pair].astype(np.int32)
        return left_shift(
            Schedule(self.topology, self.demand, self.near.routes, chunk, route, start, reduce, method=method)
        )
