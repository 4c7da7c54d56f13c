"""What a synthesis gives: the schedule, its numbers, and the proof of how good it is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flowccl.bounds.lower_bound import Bound
from flowccl.schedule.metrics import Metrics
from flowccl.schedule.schedule import Schedule


@dataclass(frozen=True)
class Progress:
    """Where a synthesis stands: the best finish, the floor, the method that found it, and the seconds so far."""

    finish_us: float | None
    lower_bound_us: float | None
    method: str
    elapsed_s: float

    @property
    def gap(self) -> float | None:
        """Finish over floor, less 1."""
        if self.finish_us is None or not self.lower_bound_us:
            return None
        return self.finish_us / self.lower_bound_us - 1


@dataclass(frozen=True)
class Result:
    """A verified schedule with its certificate. `trace` says who improved when."""

    schedule: Schedule
    bound: Bound
    metrics: Metrics
    synthesis_s: float
    peak_memory_MB: float
    seed: int
    trace: tuple[Progress, ...]
    interrupted: bool = False
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """Finish over lower bound, less 1."""
        return self.schedule.finish_ps / max(self.bound.ps, 1) - 1

    @property
    def status(self) -> str:
        """Optimal when the finish meets the lower bound, else feasible."""
        return "optimal" if self.schedule.finish_ps <= self.bound.ps else "feasible"

    def to_json(self) -> dict[str, Any]:
        """One flat object, for scripts."""
        from flowccl.version import VERSION

        demand, topology = self.schedule.demand, self.schedule.topology
        return {
            "machine": topology.name,
            "gpus": topology.num_gpus,
            "collective": demand.collective,
            "size_bytes": demand.size_bytes,
            "chunks": demand.pieces,
            "method": self.schedule.method,
            "status": self.status,
            "finish_us": self.metrics.finish_us,
            "lower_bound_us": self.bound.us,
            "gap": self.gap,
            "bound_witness": self.bound.witness,
            "algbw_GBps": self.metrics.algbw_GBps,
            "busbw_GBps": self.metrics.busbw_GBps,
            "transfers": len(self.schedule),
            "synthesis_s": round(self.synthesis_s, 3),
            "peak_memory_MB": round(self.peak_memory_MB, 1),
            "verified": True,
            "interrupted": self.interrupted,
            "seed": self.seed,
            "details": dict(self.details),
            "version": VERSION,
        }
