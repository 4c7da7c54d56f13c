"""The result of a synthesis: the schedule, its metrics, and the lower bound that certifies its quality."""

import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from flowccl.bounds.lower_bound import Bound
from flowccl.lowered import Lowered
from flowccl.schedule.metrics import Metrics
from flowccl.schedule.schedule import Schedule
from flowccl.units import format_bytes, format_GBps, format_us
from flowccl.wording import counted, percent


def peak_memory_MB() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def schedule_facts(schedule: Schedule, metrics: Metrics) -> list[tuple[str, str]]:
    """Names and values of what a schedule is for and what it achieves, as text for people."""
    demand, topology = schedule.demand, schedule.topology
    return [
        ("machine", f"{topology.name}, {counted(topology.num_gpus, 'GPU')}"),
        ("collective", f"{demand.collective}, {format_bytes(demand.size_bytes)}"),
        ("chunks per block", str(demand.pieces)),
        ("method", schedule.method or "not given"),
        ("completion time", format_us(schedule.finish_us)),
        ("algbw, busbw", f"{format_GBps(metrics.algbw_GBps)}, {format_GBps(metrics.busbw_GBps)}"),
        ("transfers", f"{len(schedule)}, at most {counted(metrics.messages_per_gpu, 'message')} per GPU"),
    ]


@dataclass(frozen=True)
class Progress:
    """A step of a synthesis: the best completion time, the lower bound, the method, and the elapsed seconds."""

    finish_us: float | None
    lower_bound_us: float | None
    method: str
    elapsed_s: float

    @property
    def gap(self) -> float | None:
        """Relative distance to the lower bound: completion time / lower bound - 1."""
        if self.finish_us is None or not self.lower_bound_us:
            return None
        return self.finish_us / self.lower_bound_us - 1


@dataclass(frozen=True)
class Result:
    """A verified schedule with its lower bound. `trace` lists the improvements in order of time.

    `lowered` is its program on the runtime that it was made for; None where it was made for no runtime. The completion
    time is that of the program, where there is one. `found` are the best schedules of all methods and chunk counts that
    were tried.
    """

    schedule: Schedule
    bound: Bound
    metrics: Metrics
    synthesis_s: float
    peak_memory_MB: float
    seed: int
    trace: tuple[Progress, ...]
    interrupted: bool = False
    details: Mapping[str, object] = field(default_factory=dict)
    lowered: Lowered | None = None
    found: tuple[Schedule, ...] = field(default=(), repr=False)

    @property
    def loss(self) -> float | None:
        """What lowering costs: time of the program / completion time of the schedule - 1; None without a runtime."""
        return None if self.lowered is None else self.lowered.program_ps / max(self.schedule.finish_ps, 1) - 1

    @property
    def finish_ps(self) -> int:
        """The completion time, of the program where there is one."""
        return self.schedule.finish_ps if self.lowered is None else self.lowered.program_ps

    @property
    def gap(self) -> float:
        """Relative distance to the lower bound: completion time / lower bound - 1."""
        return self.finish_ps / max(self.bound.ps, 1) - 1

    @property
    def status(self) -> str:
        """The string "optimal" if the completion time equals the lower bound, else "feasible"."""
        return "optimal" if self.finish_ps <= self.bound.ps else "feasible"

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Names and values, as text for people."""
        bound = [("lower bound", format_us(self.bound.us)), ("gap", percent(self.gap)), ("proof", self.bound.witness)]
        return [*schedule_facts(self.schedule, self.metrics), *bound]

    def __repr__(self) -> str:
        return "\n".join(["Result", *(f"  {name:<16}  {value}" for name, value in self.facts)])

    def _repr_html_(self) -> str:
        """A table and a small picture, for notebooks."""
        return str(import_module("flowccl.notebook").result_html(self))  # by name: a layer above this one

    def to_json(self) -> dict[str, Any]:
        """One flat JSON object, for scripts."""
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
            "chunk_bytes": int(demand.chunk_bytes.min()),
            "messages_per_gpu": self.metrics.messages_per_gpu,
            **self._program_json(),
            "synthesis_s": round(self.synthesis_s, 3),
            "peak_memory_MB": round(self.peak_memory_MB, 1),
            "verified": True,
            "interrupted": self.interrupted,
            "stopped": self.details.get("stopped", ""),
            "methods": self.details.get("methods", []),
            "seed": self.seed,
            "details": {key: value for key, value in self.details.items() if key not in ("stopped", "methods")},
            "version": VERSION,
        }

    def _program_json(self) -> dict[str, Any]:
        """The program on the runtime, where there is one."""
        if self.lowered is None:
            runtime = self.schedule.runtime
            return {"runtime": "ideal" if runtime is None else runtime.name}
        program = self.lowered
        return {
            "runtime": program.runtime,
            "program_us": program.program_us,
            "schedule_us": self.schedule.finish_us,
            "loss": self.loss,
            "threadblocks": program.threadblocks,
            "operations": program.operations,
            "scratch_bytes": program.scratch_bytes,
        }
