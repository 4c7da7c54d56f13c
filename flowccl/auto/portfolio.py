"""The portfolio: which methods `auto` tries on a problem, in the order of their first steps."""

from math import inf

from flowccl.auto.arm import step_work_s
from flowccl.methods.registry import REGISTRY
from flowccl.problem import Problem

_LARGE = 10_000  # deliveries, beyond which a method with a quick start has its first schedule much earlier


def portfolio(problem: Problem) -> list[str]:
    """Names of the methods to try; on large problems those with a quick start come first, in order of their work."""
    names = [name for name, info in REGISTRY.items() if info.suits(problem)]
    if problem.deliveries > _LARGE:
        work_s = {name: step_work_s(name, problem.demand, first=True) for name in names}
        quick = {name: work_s[name] if REGISTRY[name].traits.quick_start else inf for name in names}
        names.sort(key=lambda name: quick[name])
    return names
