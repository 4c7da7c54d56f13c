"""Variants of method `hierarchical`: which levels are used, and how groups send to each other."""

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from flowccl.methods.hierarchical.loads import LoadedRoutes
from flowccl.problem import Problem
from flowccl.schedule.generation.engine import MOST_SHARED


@dataclass(frozen=True, slots=True)
class TreeVariant:
    """Which levels are used, how groups send to each other, and how chunks go on inside the innermost groups.

    In an allreduce, a chunk has a root, or groups exchange it. Of chunks with roots, every `exchanged`-th one is
    exchanged instead: links between groups are idle while the first results come back. `roots` is the
    way in which they are chosen where GPUs have different links to other groups, see `RootChoice`. Small plans are made
    for links that are shared `by_rate`.
    """

    levels: tuple[int, ...]
    between: str
    inside: str = "star"
    rooted: bool = False
    exchanged: int = 0
    roots: str = "least"
    by_rate: bool = False


def variants(problem: Problem) -> list[TreeVariant]:
    """All variants of trees; their shape matters where a group has more than two groups or GPUs below it."""
    result, by_rate = list[TreeVariant](), _is_by_rate(problem)
    for chosen in _subsets(problem):
        outer = [0, *(len(problem.hierarchy.levels[level]) for level in chosen[:-1])]
        below = [len(problem.hierarchy.levels[level]) for level in chosen]
        many = any(inner > 2 * max(around, 1) for around, inner in zip(outer, below, strict=True))
        shapes = ["direct", "chain", "tree"] if many and problem.is_multicast else ["direct"]
        result += [TreeVariant(chosen, between, by_rate=by_rate) for between in shapes]
    if largest_group(problem) <= 2 or not problem.is_multicast:
        return result
    if not problem.topology.copies[problem.topology.num_gpus :].any():
        return result + [replace(one, inside="chain") for one in result]
    return result if problem.is_reduction else result + [replace(one, inside="mixed") for one in result]


def exchange_variants(problem: Problem) -> list[TreeVariant]:
    """The variants of an allreduce in which groups exchange chunks."""
    some, by_rate = _subsets(problem), _is_by_rate(problem)
    staged = [TreeVariant(levels, "stages", by_rate=by_rate) for levels in some if len(levels) > 1]
    return [*(TreeVariant(levels, "direct", by_rate=by_rate) for levels in some), *staged]


def _is_by_rate(problem: Problem) -> bool:
    """Whether there are few enough transfers to share links by rate."""
    return problem.deliveries * (2 if problem.allreduce_ranks is not None else 1) <= MOST_SHARED


def least_exchange_ps(problem: Problem, variant: TreeVariant) -> float:
    """A lower bound on the time of an exchange: each outermost group sends all bytes to each other group."""
    if variant.between == "stages":
        return 0.0
    label = np.array(problem.hierarchy.group_of(variant.levels[0]))
    network = LoadedRoutes(problem.topology, np.zeros(len(problem.topology.links) + 1))
    joins = network.joins_groups(label)
    out = np.unique(np.stack((label[network.src[joins]], network.links[joins][:, 0])), axis=1)
    rates = np.bincount(out[0], 1 / network.per_byte_ps[out[1]], int(label.max()) + 1)  # bytes per ps
    return float(problem.demand.chunk_bytes.sum()) * int(label.max()) / float(max(rates.min(), 1e-12))


def largest_group(problem: Problem) -> int:
    """The number of GPUs of the largest innermost group."""
    return int(np.bincount(problem.hierarchy.group_of(len(problem.hierarchy.levels) - 1)).max())


def _subsets(problem: Problem) -> list[tuple[int, ...]]:
    """All sets of levels with the innermost one, the largest first; none inside groups that have trees of their own.

    Chunks with one destination take no outer levels: nothing is saved by passing through another host.
    """
    *outer, inner = range(_used_levels(problem))
    outer = outer if problem.is_multicast else []
    return [(*chosen, inner) for size in range(len(outer), -1, -1) for chosen in combinations(outer, size)]


def _used_levels(problem: Problem) -> int:
    """The number of levels to the first one whose groups are joined unevenly: trees there grow over direct links."""
    stores = problem.topology.stores
    if not (stores[problem.topology.link_src] & stores[problem.topology.link_dst]).any():
        return len(problem.hierarchy.levels)
    network = LoadedRoutes(problem.topology, np.zeros(len(problem.topology.links) + 1))
    for level, groups in enumerate(problem.hierarchy.levels):
        if any(len(ranks) > 1 and network.is_uneven(ranks[0], list(ranks[1:])) for ranks in groups):
            return level + 1
    return len(problem.hierarchy.levels)
