"""One case of a sweep: synthesize a collective for one size, and time the plan at neighbouring sizes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flowccl.catalog.files import sha256_of
from flowccl.errors import FileError, InputError
from flowccl.export.exporting import TARGETS, ExportOptions, parse
from flowccl.export.program import program_for
from flowccl.export.proof.estimate import estimate_ps
from flowccl.export.proof.program import RuntimeProgram
from flowccl.files import json_bytes
from flowccl.runtimes.profiles import PROFILES, RuntimeProfile, profile_from_json, profile_to_json
from flowccl.schedule.files import schedule_from_json, schedule_to_json
from flowccl.schedule.resize import resized
from flowccl.schedule.schedule import Schedule
from flowccl.synthesis import synthesize
from flowccl.topology.files import topology_from_json
from flowccl.topology.topology import Topology
from flowccl.version import VERSION

FORMAT = "flowccl-catalog-case"
_NO_TIME_LIMIT_S = 3600.0  # work is counted in steps; this only ends a case that is stuck


@dataclass(frozen=True, slots=True)
class Case:
    """A synthesis of a sweep. `sizes` are those at which its plan is timed."""

    collective: str
    size_bytes: int
    sizes: tuple[int, ...]
    runtime: RuntimeProfile
    inplace: bool
    steps: int
    seed: int
    sms: int | None = None

    def __str__(self) -> str:
        return f"{self.collective} {self.size_bytes} B"

    def key(self, machine: Mapping[str, Any]) -> str:
        """Return a hash of all that the result depends on, for the name of the file of the finished case."""
        values = {name: getattr(self, name) for name in self.__slots__ if name != "runtime"}
        whole = [FORMAT, VERSION, machine, values | {"runtime": profile_to_json(self.runtime)}]
        return sha256_of(json_bytes(whole))[:24]


@dataclass(frozen=True, slots=True)
class FinishedCase:
    """The plan of a case as a JSON value, its lower bound at its own size, and its times by size."""

    collective: str
    size_bytes: int
    schedule: dict[str, Any]
    lower_bound_us: float
    times_ps: dict[int, int]

    def to_json(self) -> dict[str, Any]:
        """Return the case as a JSON value."""
        values = {name: getattr(self, name) for name in self.__slots__}
        return {"format": FORMAT} | values | {"times_ps": [list(row) for row in self.times_ps.items()]}

    @classmethod
    def from_json(cls, value: Any, name: str) -> "FinishedCase":
        """Return the case in a JSON value that `to_json` made."""
        try:
            times = {int(size): int(ps) for size, ps in value["times_ps"]}
            rows = {key: value[key] for key in ("collective", "size_bytes", "schedule", "lower_bound_us")}
            return cls(**rows, times_ps=times)
        except (KeyError, TypeError, ValueError):
            raise FileError(f"{name}: is no finished case of a catalog; remove it") from None

    @property
    def loaded(self) -> Schedule:
        """The schedule of the plan."""
        return schedule_from_json(self.schedule, f"the case {self.collective} {self.size_bytes} B")


def run_case(machine: Mapping[str, Any], case: Case) -> dict[str, Any]:
    """Return the finished case as a JSON value. `machine` is the machine as a JSON value."""
    topology = topology_from_json(machine, "machine")
    result = synthesize(
        topology,
        case.collective,
        case.size_bytes,
        runtime=case.runtime,
        sms=case.sms,
        seed=case.seed,
        steps=case.steps,
        time_limit_s=_NO_TIME_LIMIT_S,
        workers=1,
    )
    timer = PlanTimer(result.schedule, case.runtime, case.inplace)
    times = {size: timer.time_ps(size) for size in case.sizes}
    made = schedule_to_json(result.schedule)
    return FinishedCase(case.collective, case.size_bytes, made, result.bound.us, times).to_json()


def _program(schedule: Schedule, runtime: RuntimeProfile, inplace: bool) -> RuntimeProgram:
    if runtime.name == "mscclpp":
        return program_for(schedule, inplace=inplace).parsed
    made = TARGETS[runtime.name](schedule, ExportOptions(inplace=inplace))
    return parse(made, runtime.name, f"the program for {runtime.name}")


class PlanTimer:
    """The time of one plan at any size: that of its program, or of its transfers where there is no runtime."""

    def __init__(self, schedule: Schedule, runtime: RuntimeProfile, inplace: bool) -> None:
        self.schedule, self.runtime = schedule, runtime
        self.program: RuntimeProgram | None = None
        if not runtime.is_ideal:
            self.program = _program(schedule, runtime, inplace)

    def time_ps(self, size_bytes: int, topology: Topology | None = None) -> int:
        """Return the time at a size, on the machine of the schedule or on another one with the same routes."""
        if self.program is not None:
            return estimate_ps(self.program, topology or self.schedule.topology, size_bytes, self.runtime)
        schedule = resized(self.schedule, size_bytes)
        return schedule.finish_ps if topology is None else replace(schedule, topology=topology).finish_ps


def runtime_of(name: str, costs: Mapping[str, object]) -> RuntimeProfile:
    """Return the profile that a catalog was built for."""
    if name not in PROFILES:
        raise InputError(f"runtime: unknown {name!r}; known runtimes: {', '.join(PROFILES)}")
    return profile_from_json(dict(costs)) if costs else PROFILES[name]
