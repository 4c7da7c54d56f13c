"""Re-planning after faults: how late a plan would be, and a new plan that is repaired from the old one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import inf
from typing import Any

from flowccl.adapters.trunks import on_trunks
from flowccl.bounds.lower_bound import Bound, lower_bound
from flowccl.catalog.forked import Forked
from flowccl.catalog.repair import FaultyMachine
from flowccl.catalog.substitution import substituted
from flowccl.catalog.tree_repair import repaired_trees
from flowccl.demand.collectives import collective
from flowccl.demand.demand import Demand
from flowccl.errors import FlowcclError, InputError, NothingFoundError
from flowccl.lowered import program_estimate_us
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.runtimes.machine import on_runtime
from flowccl.runtimes.profiles import ALIGNMENT_BYTES, RuntimeProfile
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import subdivide
from flowccl.search.context import SearchContext
from flowccl.topology.faults import Fault, find_faults
from flowccl.topology.topology import Topology
from flowccl.topology.trunks import split_trunks
from flowccl.verifier.verify import verify

_SUBDIVISIONS = (1, 2)  # smaller chunks spread the traffic of a lost link over more of the others
_METHODS = ("hierarchical", "greedy")  # the quick ones, best first: one step is a whole schedule
_NO_TIME_LIMIT_S = 3600.0  # work is counted in steps
_REPAIRED = 2_000  # transfers of the largest schedule whose chunks are subdivided: more would take too long to compare
_LOWERED = 4_000  # transfers that are lowered to compare programs: about a second


class _Known:
    """The times of programs and the bounds that were computed already, and why a plan cannot run on the runtime."""

    def __init__(self, runtime: RuntimeProfile | None) -> None:
        self.runtime, self.problem = runtime, ""
        self.programs: list[tuple[Schedule, float]] = []
        self.bounds: list[tuple[Schedule, Bound]] = []

    def program_us(self, schedule: Schedule) -> float:
        """The estimated time of a schedule's program, its own time without a runtime; infinite if it cannot run."""
        if self.runtime is None:
            return schedule.finish_us
        for one, known_us in self.programs:
            if one is schedule:
                return known_us
        try:
            time_us = program_estimate_us(schedule, self.runtime)
        except InputError as error:
            self.problem = f"{self.runtime.name} can run none of the plans that were found: {error}"
            time_us = inf
        self.programs.append((schedule, time_us))
        return time_us

    def bound(self, schedule: Schedule) -> Bound:
        """The lower bound of a schedule's demand on its machine."""
        for one, known in self.bounds:
            if one.topology == schedule.topology and one.demand == schedule.demand:
                return known
        self.bounds.append((schedule, lower_bound(schedule.topology, schedule.demand)))
        return self.bounds[-1][1]


@dataclass(frozen=True)
class Replanned:
    """A plan after faults. `affected` of its transfers use faulty links.

    `before_us` is the completion time of the old schedule on the whole machine, `late_us` on the faulty machine as it
    is (None: it needs a lost link), `after_us` that of the new one, and `program_us` the estimated time of the new
    program on the runtime.
    """

    schedule: Schedule
    faults: tuple[Fault, ...]
    affected: int
    transfers: int
    before_us: float
    late_us: float | None
    after_us: float
    program_us: float | None
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
            "program_us": self.program_us,
            "lower_bound_us": self.bound.us,
        }


def replan(
    schedule: Schedule,
    *,
    without: Sequence[str] = (),
    slow: Sequence[str] = (),
    steps: int = 1,
    in_parallel: bool = False,
) -> Replanned:
    """Return a plan for the machine with faults, repaired from the schedule; see `with_faults` for the texts.

    Transfers, trees or chunks that use faulty links get other paths; chunks are subdivided where that helps. Quick
    methods run `steps` counted steps with the chunks of the schedule (0: only if no repair is valid); `in_parallel`, in
    a forked process, which suits programs without threads of their own. The earliest plan is returned, verified; for a
    runtime, the one with the earliest program. Raises InputError if the faults disconnect GPUs.
    """
    faults = find_faults(schedule.topology, without=without, slow=slow)
    if not faults:
        raise InputError("nothing to do: give a lost link with --without, or a slow one with --slow")
    machine = FaultyMachine(schedule, faults)
    late = machine.late()
    fresh = partial(_fresh, schedule, machine.near.topology, max(steps, 1))
    forked = Forked(fresh) if in_parallel and steps else None
    found, known = _repairs(schedule, faults, late), _Known(schedule.runtime)
    if forked is not None and found:  # what is needed later is done while the other process works
        first = min(found, key=lambda one: one.finish_ps)
        known.program_us(first)
        known.bound(first)
    if steps or not found:
        found += fresh() if forked is None else forked.result()
    chosen = _fastest(found, known)
    if chosen is None:
        raise NothingFoundError(known.problem or f"no plan found for {schedule.demand.collective} with these faults")
    bound = known.bound(chosen)
    program_us = None if schedule.runtime is None else known.program_us(chosen)
    late_us = None if late is None else late.finish_us
    times = (schedule.finish_us, late_us, chosen.finish_us, program_us)
    return Replanned(chosen, faults, len(machine.affected), len(schedule), *times, bound)


def _repairs(schedule: Schedule, faults: tuple[Fault, ...], late: Schedule | None) -> list[Schedule]:
    """The valid repairs with chunks of several sizes, and the schedule as it is where it still runs."""
    made = [late]
    for times in _SUBDIVISIONS:
        fine = schedule if times == 1 else _subdivided(schedule, times)
        if fine is not None and (times == 1 or len(fine) <= _REPAIRED):
            machine = FaultyMachine(fine, faults)
            some = [repaired_trees(machine, False), repaired_trees(machine, True), substituted(machine, False)]
            if fine.has_messages:
                some.append(substituted(machine, True))
            made += some if any(some) else [machine.repaired()]
    return [one for one in made if one is not None and not verify(one)]


def _subdivided(schedule: Schedule, times: int) -> Schedule | None:
    demand = schedule.demand
    if int(demand.chunk_bytes.min()) % (ALIGNMENT_BYTES * times):
        return None
    try:
        fine = collective(demand.collective, demand.num_gpus, demand.size_bytes, demand.pieces * times)
    except FlowcclError:
        return None
    return subdivide(schedule, fine)


def _fresh(schedule: Schedule, topology: Topology, steps: int) -> list[Schedule]:
    """The plans of the first quick method that suits the machine, of an allreduce in two halves, and with switches.

    The links of the machine already have the message costs of the runtime. Runtimes run in-network operations only as
    the method `in-network` uses them: for the others, switches forward.
    """
    runtime = schedule.runtime
    plain = topology if runtime is None else on_runtime(topology, runtime, runtime)
    quick = (_after_steps(method, plain, schedule.demand, steps) for method in _METHODS)
    found = [next((made for made in quick if made is not None), None)]
    found.append(_after_steps("hierarchical-halves", plain, schedule.demand, steps))
    if runtime is not None and any(node.reduces for node in topology.nodes[topology.num_gpus :]):
        found.append(_after_steps("in-network", topology, schedule.demand, steps))
    return [replace(made, runtime=runtime) for made in found if made is not None]


def _after_steps(method: str, topology: Topology, demand: Demand, steps: int) -> Schedule | None:
    """The verified schedule of a method after some steps; None where the method does not suit the problem."""
    lanes = split_trunks(topology)
    problem = Problem(topology if lanes is None else lanes.topology, demand)
    context = SearchContext.with_limit(_NO_TIME_LIMIT_S, steps=steps)
    made = None
    try:
        for found in islice(load_method(method)(problem, context), steps):
            made = found or made
    except FlowcclError:
        return None
    if made is not None and lanes is not None:
        made = on_trunks(made, lanes)
    return None if made is None or verify(made) else made


def _fastest(found: Sequence[Schedule], known: _Known) -> Schedule | None:
    """The earliest plan; for a runtime, the one with the earliest program; None where none can run.

    Programs are compared in the order of the completion times of their plans, until the counted work is spent.
    """
    best, best_us, work = None, inf, 0
    for schedule in sorted(found, key=lambda one: one.finish_ps):
        work += len(schedule)
        if schedule.finish_us > best_us or (best is not None and work > _LOWERED):
            break
        time_us = known.program_us(schedule)
        if time_us < best_us:
            best, best_us = schedule, time_us
    return best
