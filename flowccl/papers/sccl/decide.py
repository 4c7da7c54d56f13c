"""Decide one instance: find a plan, prove that there is none, or run out of time.

A program in which the rounds per step are variables often proves at once that there is no plan, but takes long to find
one; with the rounds of each step fixed it is the other way round. So both are tried in turn, with more and more time,
and even splits of the rounds before uneven ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, islice, pairwise
from math import comb

from flowccl.demand.demand import Demand
from flowccl.papers.sccl.graph import StepGraph
from flowccl.papers.sccl.options import ScclOptions
from flowccl.papers.sccl.program import StepPlan, StepProgram
from flowccl.search.context import SearchContext
from flowccl.solver import Status

Split = tuple[int, ...]
_FIRST_SLICE_S = 0.5  # of each program; with a good split, those of the paper's machines take 0.1 s
_LONGER = 4  # times the slice before
_ALL_SPLITS = 300  # with more splits than this, only even ones are tried
_EVEN_SPLITS = 40


@dataclass(frozen=True)
class Decision:
    """A plan; or the proof that there is none (`infeasible`); or neither, because the time was over."""

    plan: StepPlan | None
    infeasible: bool = False


def decide(
    graph: StepGraph, demand: Demand, steps: int, rounds: int, options: ScclOptions, context: SearchContext
) -> Decision:
    """Decide whether a demand, whose chunks have one source each, can be met in these steps and rounds."""
    if steps < graph.least_steps(demand)[0]:
        return Decision(None, infeasible=True)
    program = StepProgram(graph, demand, steps)
    if program.is_too_large:
        return Decision(None)
    complete, splits = _splits(steps, rounds)
    todo: list[Split | None] = [None, *splits] if len(splits) > 1 or not complete else [*splits]
    slice_s = _FIRST_SLICE_S
    while todo:
        for split in list(todo):
            left_s = context.budget.left_s
            if left_s <= 0 or context.budget.should_stop():
                return Decision(None)
            limits = options.of_solve(context, min(slice_s, left_s), first=True)
            status, plan = program.solve(rounds, split, limits, options.solver)
            if plan is not None:
                return Decision(plan)
            if status is Status.INFEASIBLE:
                if split is None:
                    return Decision(None, infeasible=True)
                todo.remove(split)
                if complete and todo in ([], [None]):
                    return Decision(None, infeasible=True)
        slice_s *= _LONGER
    return Decision(None)


def _splits(steps: int, rounds: int) -> tuple[bool, list[Split]]:
    """Splits of the rounds into steps of at least one, the most even first; and whether these are all."""
    if comb(rounds - 1, steps - 1) <= _ALL_SPLITS:
        return True, sorted(_compositions(steps, rounds), key=lambda split: (sum(r * r for r in split), split))
    least, more = divmod(rounds, steps)
    places = islice(combinations(range(steps), more), _EVEN_SPLITS)
    return False, [tuple(least + (step in place) for step in range(steps)) for place in places]


def _compositions(steps: int, rounds: int) -> Iterator[Split]:
    for cuts in combinations(range(1, rounds), steps - 1):
        ends = (0, *cuts, rounds)
        yield tuple(b - a for a, b in pairwise(ends))
