"""Allreduce for small sizes: stages in which everybody of a group sends its sum to everybody else, who adds it up.

With one stage this is one-shot; with stages of two, recursive doubling. After a stage all of a group have the same
sum: they are a block, and blocks are the members of the groups of the next stage. Blocks are runs of ranks, or of ranks
put in an order in which neighbours are near each other; every way to write the number of ranks as a product is tried.
Who has no link to all other blocks of its group gets the sum from one who has. Of a plan with several stages, chunks in
turn may begin with another of them, so that the links of all stages are busy from the start.
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
_MOST_PLANS = 32
_ORDERS = 12

Send = tuple[int, int, bool]  # from rank, to rank, add
Groups = list[list[list[int]]]  # of a stage: groups of blocks of ranks
Cost = dict[tuple[int, int], float]  # of a chunk from one node to a neighbour


def staged_exchange(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """All plans for one order of the ranks, then for others; only for sums that all who contribute want."""
    topology, demand = problem.topology, problem.demand
    ranks = problem.allreduce_ranks
    if ranks is None:
        raise DemandError(
            f"staged-exchange is for allreduce, where all contributing ranks want the result; got {demand.collective}"
        )
    near = neighbours(topology, 1)
    cost = _costs(near, float(demand.chunk_bytes.mean()))
    placing = _Placing(topology, demand, near)
    random = np.random.default_rng(context.seed)
    best_ps = None
    near_ps = float(near.distance_ps(float(demand.chunk_bytes.mean()))[np.ix_(ranks, ranks)].max())
    for turn in range(_ORDERS):
        if best_ps is not None and best_ps <= 1.1 * near_ps:
            return
        order = ranks if turn == 0 else _paired(ranks, cost, random)
        better: Schedule | None = None
        products = _products(len(ranks))[:_MOST_PLANS]
        for sizes, turns in ((factors, turns) for factors in products for turns in sorted({1, len(factors)})):
            plans = [_turned(order, sizes, first) for first in range(turns)]
            schedule = _placed(placing, cost, [list(_groups(*plan)) for plan in plans])
            if schedule is not None and (best_ps is None or schedule.finish_ps < best_ps):
                better, best_ps = schedule, schedule.finish_ps
            if context.budget.over():
                break
        if best_ps is not None or context.budget.over() or turn == _ORDERS - 1:
            yield better  # until there is one, go on with other orders


def _turned(ranks: list[int], sizes: list[int], first: int) -> tuple[list[int], list[int]]:
    """The plan that begins with another stage: ranks in the order for it, and the sizes of its stages."""
    stages = [*range(first, len(sizes)), *range(first)]
    axes = [len(sizes) - 1 - stage for stage in reversed(stages)]
    order: list[int] = np.array(ranks).reshape(sizes[::-1]).transpose(axes).ravel().tolist()
    return order, [sizes[stage] for stage in stages]


def _placed(placing: "_Placing", cost: Cost, plans: list[list[Groups]]) -> Schedule | None:
    """The schedule of plans that the chunks take in turn; None where one cannot be or they would be large."""
    steps: list[list[list[list[Send]]]] = []
    for stages in plans:
        rounds = [_stage(cost, groups) for groups in stages]
        known = [one for one in rounds if one is not None]
        if len(known) < len(rounds):
            return None
        steps.append(known)
    count = max(sum(len(sends) for rounds in stages for sends in rounds) for stages in steps)
    return None if count * len(placing.demand) > _MOST_SENDS else placing.place(steps)


def _paired(ranks: list[int], cost: Cost, random: np.random.Generator) -> list[int]:
    """The ranks in another order: blocks join in pairs, each with one that all of it has links with if there is one."""
    blocks = [[rank] for rank in ranks]
    while len(blocks) > 1 and len(blocks) % 2 == 0:
        left = [blocks[i] for i in random.permutation(len(blocks))]
        blocks = []
        while left:
            block = left.pop()
            lost = [_strangers(cost, block, other) for other in left]
            blocks.append(block + left.pop(int(np.argmin(lost))))
    return [rank for block in blocks for rank in block]


def _strangers(cost: Cost, block: list[int], other: list[int]) -> float:
    """How many of two blocks have no link from the other; among equals, the slowest of the links decides."""
    ways = [min((cost.get((b, a), np.inf) for b in other), default=np.inf) for a in block]
    ways += [min((cost.get((a, b), np.inf) for a in block), default=np.inf) for b in other]
    linked = [way for way in ways if np.isfinite(way)]
    return len(ways) - len(linked) + max(linked, default=0.0) * 1e-15


def _products(number: int) -> list[list[int]]:
    """All ways to write a number as a product of factors above 1, in every order; few factors first."""
    found = [
        [factor, *rest]
        for factor in range(2, number + 1)
        if number % factor == 0
        for rest in (_products(number // factor) if factor < number else [[]])
    ]
    return sorted(found, key=len)


def _groups(ranks: list[int], sizes: Sequence[int]) -> Iterator[Groups]:
    """Stage by stage: the groups, each a list of blocks, each a list of ranks."""
    for stage, size in enumerate(sizes):
        width = prod(sizes[:stage])
        blocks = [ranks[at : at + width] for at in range(0, len(ranks), width)]
        yield [blocks[at : at + size] for at in range(0, len(blocks), size)]


def _stage(cost: Cost, groups: Groups) -> list[list[Send]] | None:
    """Rounds of sends of one stage: first those that add up, by turns, then those that spread; None if impossible."""
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
    """Who of the senders reaches the rank soonest; among equals the one in the same place, so that all take turns."""
    linked = [sender for sender in senders if (sender, rank) in cost]
    if not linked:
        return None
    place = rank % len(senders)
    return min(linked, key=lambda s: (cost[s, rank], (s % len(senders) - place) % len(senders)))


def _spread(cost: Cost, full: dict[int, float], ranks: list[int]) -> list[Send] | None:
    """Sends that bring the sum from those who have it to the others of the group, the earliest first."""
    have, lack, sends = dict(full), [rank for rank in ranks if rank not in full], []
    while lack:
        ways = [(have[a] + cost[a, b], a, b) for b in lack for a in have if (a, b) in cost]
        if not ways:
            return None
        at, a, b = min(ways)
        have[b] = at
        lack.remove(b)
        sends.append((a, b, False))
    return sends


@dataclass
class _Placing:
    """Transfers put down one after the other, each as early as its links and its data allow."""

    topology: Topology
    demand: Demand
    near: Neighbours
    free_at: dict[int, int] = field(default_factory=dict)
    rows: list[tuple[int, int, int, bool]] = field(default_factory=list)  # chunk, pair, start, add
    over: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        pairs = zip(self.near.src.tolist(), self.near.end.tolist(), strict=True)
        self.pair = {ends: i for i, ends in enumerate(pairs)}
        self.sizes, self.size_of = np.unique(self.demand.chunk_bytes, return_inverse=True)
        self.known: dict[tuple[int, int], tuple[list[tuple[int, int, int]], int]] = {}

    def place(self, plans: list[list[list[list[Send]]]]) -> Schedule | None:
        """The schedule, of plans in turn for the chunks; None where a send would meet a sum that has grown already."""
        self.free_at.clear()
        self.rows.clear()
        ready = dict.fromkeys(((c, r) for c in range(len(self.demand)) for r in self.demand.sources(c).tolist()), 0)
        self.over = dict.fromkeys(ready, -1)  # the last that a node did with a chunk in the stages before
        for stage in range(len(plans[0])):
            later = dict(ready)
            for chunk in range(len(self.demand)):
                rounds = plans[chunk % len(plans)][stage]
                first_in: dict[int, int] = {}
                for sends in rounds:
                    for a, b, add in sends:
                        begin, arrival = self._put(chunk, a, b, add, ready[chunk, a] if add else later[chunk, a])
                        if add and begin >= first_in.get(a, begin + 1):
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
        return self._schedule()

    def _too_early(self, chunk: int, rounds: list[list[Send]], first_in: dict[int, int]) -> bool:
        """Whether something arrived before the end had sent all that it sends in this stage."""
        count = sum(len(sends) for sends in rounds)
        ends = self.near.src
        return any(
            add and start >= first_in.get(int(ends[pair]), start + 1)
            for c, pair, start, add in self.rows[-count:]
            if c == chunk
        )

    def _put(self, chunk: int, a: int, b: int, add: bool, ready: int) -> tuple[int, int]:
        pair = self.pair[a, b]
        hops, whole = self._times(pair, int(self.size_of[chunk]))
        after = self.over[chunk, b] + 1 - whole
        start = max([ready, after, *(self.free_at.get(link, 0) - begin for link, begin, _ in hops)])
        for link, _, end in hops:
            self.free_at[link] = start + end
        self.rows.append((chunk, pair, start, add))
        return start, start + whole

    def _times(self, pair: int, size: int) -> tuple[list[tuple[int, int, int]], int]:
        """Holds of the links of a pair's route for a start at 0, and the arrival."""
        if (pair, size) not in self.known:
            route = np.array([self.near.pair_ptr[pair]], dtype=np.int32)
            zero = np.zeros(1, dtype=np.int64)
            timing = replay(self.topology, self.near.shape, self.sizes[size : size + 1], route, zero)
            columns = (timing.hop_link, timing.hop_from_ps, timing.hop_to_ps)
            hops = list(zip(*(column.tolist() for column in columns), strict=True))
            self.known[pair, size] = hops, int(timing.end_arrival_ps[0])
        return self.known[pair, size]

    def _schedule(self) -> Schedule:
        chunk, pair, start, add = (np.array(column) for column in zip(*self.rows, strict=True))
        route = self.near.pair_ptr[:-1][pair].astype(np.int32)
        return left_shift(
            Schedule(self.topology, self.demand, self.near.routes, chunk, route, start, add, method="staged-exchange")
        )
