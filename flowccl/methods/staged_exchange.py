"""Staged exchange: allreduce for small sizes, in stages in which all members of a group exchange partial results.

A single stage is a one-shot allreduce; stages of groups of two are recursive doubling. After a stage, all ranks of a
group have the same partial result and form a block; the groups of the next stage consist of such blocks. Blocks are
consecutive ranks, in the given order or in an order in which linked ranks are adjacent. All factorizations of the
number of ranks are tried. A rank without links from all other blocks of its group receives the partial result from a
rank that has them. In a plan with several stages, different chunks may start with different stages, so that the links
of all stages are busy from the start.
"""

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from flowccl.errors import DemandError
from flowccl.problem import Problem
from flowccl.schedule.generation.engine import Engine
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.neighbours import Neighbours, neighbours

_MOST_SENDS = 60_000
_ORDERS = 12

Send = tuple[int, int, bool]  # from rank, to rank, reduce
Groups = list[list[list[int]]]  # of a stage: groups of blocks of ranks
Cost = dict[tuple[int, int], float]  # time of a chunk from one node to a neighbour


def staged_exchange(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """All plans for one order of the ranks, then the better ones for other orders; only for allreduce.

    Every plan for the first order is yielded: on a runtime, another one may be the best.
    """
    demand, ranks = problem.demand, problem.allreduce_ranks
    if ranks is None:
        raise DemandError(
            "method staged-exchange is for allreduce, where all contributing ranks want the result; "
            f"got {demand.collective}"
        )
    near = neighbours(problem.topology, 1)
    cost = _costs(near, float(demand.chunk_bytes.mean()))
    random = np.random.default_rng(context.seed)
    best_ps = None
    near_ps = float(near.distance_ps(float(demand.chunk_bytes.mean()))[np.ix_(ranks, ranks)].max())
    for turn in range(_ORDERS):
        if best_ps is not None and best_ps <= 1.1 * near_ps:
            return
        order = ranks if turn == 0 else _pairing_order(ranks, cost, random)
        products = _products(len(ranks))
        for sizes, turns in ((factors, turns) for factors in products for turns in sorted({1, len(factors)})):
            plans = [_rotated(order, sizes, first) for first in range(turns)]
            schedule = _placed(problem, near, cost, [list(_groups(*plan)) for plan in plans])
            is_better = schedule is not None and (best_ps is None or schedule.finish_ps < best_ps)
            if schedule is not None and is_better:
                best_ps = schedule.finish_ps
            yield schedule if turn == 0 or is_better else None


def _rotated(ranks: list[int], sizes: list[int], first: int) -> tuple[list[int], list[int]]:
    """The plan rotated to begin with stage `first`: the order of the ranks, and the sizes of the stages."""
    stages = [*range(first, len(sizes)), *range(first)]
    axes = [len(sizes) - 1 - stage for stage in reversed(stages)]
    order: list[int] = np.array(ranks).reshape(sizes[::-1]).transpose(axes).ravel().tolist()
    return order, [sizes[stage] for stage in stages]


def _placed(problem: Problem, near: Neighbours, cost: Cost, plans: list[list[Groups]]) -> Schedule | None:
    """The schedule in which the chunks use the plans in turn; None if a plan is infeasible or too large."""
    steps: list[list[list[list[Send]]]] = []
    for stages in plans:
        rounds = [_stage(cost, groups) for groups in stages]
        known = [one for one in rounds if one is not None]
        if len(known) < len(rounds):
            return None
        steps.append(known)
    count = max(sum(len(sends) for rounds in stages for sends in rounds) for stages in steps)
    return None if count * len(problem.demand) > _MOST_SENDS else Engine(_draft(problem, near, steps)).run()


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


def _draft(problem: Problem, near: Neighbours, plans: list[list[list[list[Send]]]]) -> Schedule:
    """The transfers of the chunks, which use the plans in turn: one stage after the other, reductions before copies.

    In a stage, all GPUs send what they have before they receive anything.
    """
    topology, demand = problem.topology, problem.demand
    pair = {ends: i for i, ends in enumerate(zip(near.src.tolist(), near.end.tolist(), strict=True))}
    rounds = max(len(stage) for stages in plans for stage in stages)
    rows = [
        (chunk, pair[a, b], stage * rounds + (0 if reduce else turn), reduce)
        for stage in range(len(plans[0]))
        for chunk in range(len(demand))
        for turn, sends in enumerate(plans[chunk % len(plans)][stage])
        for a, b, reduce in sends
    ]
    chunk, used, turn, reduce = (np.array(column) for column in zip(*rows, strict=True))
    size = float(demand.chunk_bytes.max())
    longest_ps = int(near.pair_cost_ps(size)[used].max()) + 1
    route = near.pair_ptr[:-1][used].astype(np.int32)
    starts = turn.astype(np.int64) * longest_ps
    return Schedule(topology, demand, near.routes, chunk, route, starts, reduce, method="staged-exchange")
