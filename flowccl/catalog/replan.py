"""Re-planning after faults: how late a plan would be, and a new plan that is repaired from the old one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from flowccl.bounds.lower_bound import Bound, lower_bound
from flowccl.catalog.case import PlanTimer
from flowccl.catalog.repair import FaultyMachine
from flowccl.demand.collectives import collective
from flowccl.errors import FlowcclError, InputError, NothingFoundError
from flowccl.runtimes.profiles import PROFILES, RuntimeProfile
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import subdivide
from flowccl.synthesis import synthesize
from flowccl.topology.faults import Fault, apply_faults, find_faults
from flowccl.units import ps_to_us
from flowccl.verifier.verify import verify

_SUBDIVISIONS = (1, 2, 4)  # smaller chunks spread the traffic of a lost link over more of the others


@dataclass(frozen=True)
class Replanned:
    """A plan after faults. `affected` of its transfers use faulty links.

    `before_us` is its time on the whole machine, `late_us` its time on the faulty machine as it is (None: it needs a
    lost link), `after_us` the time of the new plan.
    """

    schedule: Schedule
    faults: tuple[Fault, ...]
    affected: int
    transfers: int
    before_us: float
    late_us: float | None
    after_us: float
    bound: Bound

    def to_json(self) -> dict[str, Any]:
        """One flat JSON object, for scripts."""
        return {
            "machine": self.schedule.topology.name,
            "fingerprint": self.schedule.topology.fingerprint,
            "collective": self.schedule.demand.collective,
            "size_bytes": self.schedule.demand.size_bytes,
            "chunks": self.schedule.demand.pieces,
            "faults": [str(fault) for fault in self.faults],
            "affected_transfers": self.affected,
            "transfers": self.transfers,
            "before_us": self.before_us,
            "late_us": self.late_us,
            "after_us": self.after_us,
            "lower_bound_us": self.bound.us,
        }


def replan(schedule: Schedule, *, without: Sequence[str] = (), slow: Sequence[str] = (), steps: int = 8) -> Replanned:
    """Return a plan for the machine with faults, repaired from the schedule; see `with_faults` for the texts.

    Transfers that use faulty links get other paths; chunks are subdivided where that helps. A synthesis of `steps`
    counted steps is tried too (0: only if no repair is valid), and the earliest plan is returned, verified. Raises
    InputError if the faults disconnect GPUs.
    """
    faults = find_faults(schedule.topology, without=without, slow=slow)
    if not faults:
        raise InputError("nothing to do: give a lost link with --without, or a slow one with --slow")
    runtime = schedule.runtime or PROFILES["ideal"]
    machine = FaultyMachine(schedule, faults)
    late = machine.late()
    before_us, late_us = (None if one is None else _time_us(one, runtime) for one in (schedule, late))
    found = _repairs(schedule, faults, late)
    if steps or not found:
        found += _fresh(schedule, faults, runtime, max(steps, 1))
    if not found:
        raise NothingFoundError(f"no plan found for {schedule.demand.collective} with these faults")
    chosen, after_us = _fastest(found, runtime)
    bound = lower_bound(chosen.topology, chosen.demand)
    count = len(machine.affected)
    return Replanned(chosen, faults, count, len(schedule), before_us or 0.0, late_us, after_us, bound)


def _repairs(schedule: Schedule, faults: tuple[Fault, ...], late: Schedule | None) -> list[Schedule]:
    """The valid repairs with chunks of several sizes, and the schedule as it is where it still runs."""
    made = [late]
    for times in _SUBDIVISIONS:
        fine = schedule if times == 1 else _subdivided(schedule, times)
        if fine is not None:
            made.append(FaultyMachine(fine, faults).repaired())
    return [one for one in made if one is not None and not verify(one)]


def _subdivided(schedule: Schedule, times: int) -> Schedule | None:
    from flowccl.runtimes.profiles import ALIGNMENT_BYTES

    demand = schedule.demand
    if int(demand.chunk_bytes.min()) % (ALIGNMENT_BYTES * times):
        return None
    try:
        fine = collective(demand.collective, demand.num_gpus, demand.size_bytes, demand.pieces * times)
    except FlowcclError:
        return None
    return subdivide(schedule, fine)


def _fresh(schedule: Schedule, faults: tuple[Fault, ...], runtime: RuntimeProfile, steps: int) -> list[Schedule]:
    """A synthesis on the faulty machine; its links already have the message costs of the runtime."""
    topology = apply_faults(schedule.topology, faults)
    result = synthesize(topology, schedule.demand.collective, schedule.demand.size_bytes, steps=steps, time_limit_s=600)
    return [replace(result.schedule, runtime=None if runtime.is_ideal else runtime)]


def _fastest(found: Sequence[Schedule], runtime: RuntimeProfile) -> tuple[Schedule, float]:
    """The plan whose program is the earliest; plans that the runtime cannot run are left out."""
    best: tuple[float, int] | None = None
    problem = ""
    for number, schedule in sorted(enumerate(found), key=lambda row: (row[1].finish_ps, row[0])):
        if best is not None and schedule.finish_us > best[0]:
            break
        try:
            time_us = _time_us(schedule, runtime)
        except InputError as error:
            problem = str(error)
            continue
        best = min(best or (time_us, number), (time_us, number))
    if best is None:
        raise NothingFoundError(f"{runtime.name} can run none of the plans that were found: {problem}")
    return found[best[1]], best[0]


def _time_us(schedule: Schedule, runtime: RuntimeProfile) -> float:
    if runtime.is_ideal:
        return schedule.finish_us
    return ps_to_us(PlanTimer(schedule, runtime, False).time_ps(schedule.demand.size_bytes))
