"""The parameters of `auto`, each with the reason for its value."""

from dataclasses import asdict, dataclass

from flowccl.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoParams:
    """Numbers that steer the portfolio search.

    first_steps  steps of every method with one chunk before any chunk count is raised: they show what works here
    patience     chunk counts in a row that may bring a method nothing before it is raised no further
    close        arms whose completion time is within this fraction of the best one get turns
    worth        relative improvement for which another chunk count or refinement is tried
    due          the next chunk count is opened when the work done so far is this many times the work that it takes
    memory_s     seconds of counted work over which an arm's reward is remembered
    max_deliveries  largest number of (chunk, destination) pairs of an arm, which bounds memory
    """

    first_steps: int = 4
    patience: int = 3
    close: float = 0.05
    worth: float = 1e-4
    due: float = 2.0
    memory_s: float = 0.5
    max_deliveries: int = 1 << 21

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise InputError(f"AutoParams: {name} must be above 0, got {value}")
