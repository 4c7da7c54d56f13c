"""A lower bound of every matrix in microseconds, with its witness: cuts around GPUs, hosts and switches."""

from dataclasses import dataclass

from flowccl.units import ps_to_us


@dataclass(frozen=True, slots=True)
class PlanBound:
    """A proved lower bound in picoseconds, and its witness in words."""

    ps: int
    witness: str

    @property
    def us(self) -> float:
        """The bound in microseconds."""
        return ps_to_us(self.ps)
