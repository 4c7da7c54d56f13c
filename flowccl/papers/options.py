"""What the options of all methods in this folder have in common."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from flowccl.errors import InputError
from flowccl.search.context import SearchContext
from flowccl.solver import SolverOptions


@dataclass(frozen=True, kw_only=True)
class PaperOptions:
    """Options of `methods`: the LP/MILP solver, and its number of threads."""

    methods: ClassVar[str]
    solver: str = "highs"
    threads: int | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Create the options from a mapping; InputError for an unknown option."""
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                raise InputError(f"unknown option {name!r} of {cls.methods}; the options are {', '.join(known)}")
        return cls(**options)

    def of_solve(
        self, context: SearchContext, seconds: float, *, gap: float = 1e-6, first: bool = False
    ) -> SolverOptions:
        """Return the options of one solve; with `first`, it ends with the first solution."""
        return SolverOptions(
            time_limit_s=seconds,
            gap=gap,
            threads=self.threads,
            seed=context.seed,
            first_solution=first,
            should_stop=context.budget.should_stop,
        )
