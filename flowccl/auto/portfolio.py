"""The portfolio: which methods `auto` tries on a problem, in the order of their first steps."""

from flowccl.methods.registry import REGISTRY
from flowccl.problem import Problem

_LARGE = 10_000  # deliveries, beyond which a method with a quick start has its first schedule much earlier


def portfolio(problem: Problem) -> list[str]:
    """Names of the methods to try; on large problems those with a quick start come first."""
    names = [name for name, info in REGISTRY.items() if info.suits(problem)]
    if problem.deliveries > _LARGE:
        names.sort(key=lambda name: not REGISTRY[name].traits.quick_start)
    return names
