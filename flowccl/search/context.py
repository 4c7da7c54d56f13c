"""The context of a search, which every method receives beside its problem; and what a method is."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.budget import Budget
from flowccl.search.incumbents import Incumbents


@dataclass
class SearchContext:
    """Budget, shared incumbents, random seed, and the options of the method.

    A method writes what it has to report beside its schedules to `notes`.
    """

    budget: Budget
    incumbents: Incumbents = field(default_factory=Incumbents)
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: dict[str, object] = field(default_factory=dict)

    @classmethod
    def with_limit(
        cls, time_limit_s: float, *, seed: int = 0, steps: int | None = None, options: Mapping[str, Any] | None = None
    ) -> "SearchContext":
        """A context of its own for one search."""
        return cls(Budget(time_limit_s, steps), seed=seed, options=options or {})


Method: TypeAlias = Callable[[Problem, SearchContext], Iterator[Schedule | None]]
"""Yields after every step: a schedule that is better than all before, or None. Ends when it has nothing more to try."""
