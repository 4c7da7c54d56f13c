"""Re-planning after faults: how late a plan would be, and a new plan that is repaired from the old one."""

import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from flowccl.adapters.runtime import planning_problem
from flowccl.adapters.trunks import on_trunks
from flowccl.bounds.lower_bound import Bound
from flowccl.demand.collectives import collective
from flowccl.demand.demand import Demand
from flowccl.errors import FlowcclError, InputError, NothingFoundError
from flowccl.faults.repair import FaultyMachine
from flowccl.faults.substitution import substituted
from flowccl.faults.tree_repair import repaired_trees
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.runtimes.machine import with_costs_in_links
from flowccl.runtimes.profiles import ALIGNMENT_BYTES
from flowccl.schedule.generation.carrying import Carrier
from flowccl.schedule.generation.engine import Engine
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import subdivide
from flowccl.search.context import SearchContext
from flowccl.topology.faults import Fault, find_faults
from flowccl.topology.topology import Topology
from flowccl.topology.trunks import split_trunks
from flowccl.verifier.bound import bound_of
from flowccl.verifier.verify import verify

_SUBDIVISIONS = (1, 2)  # smaller chunks spread the traffic of a lost link over more of the others
_METHODS = ("hierarchical", "greedy")  # the quick ones, best first: one step is a whole schedule
_NO_TIME_LIMIT_S = 3600.0  # work is counted in steps
_REPAIRED = 2_000  # transfers of the largest schedule whose chunks are subdivided: more would take too long to compare


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
    topology = machine.near.topology
    planned = _planned_again(schedule)
    late = None if planned is None else FaultyMachine(planned, faults).late()
    quick = (schedule, topology, max(steps, 1))
    with _forked(in_parallel and steps > 0) as pool:
        forked = None if pool is None else pool.submit(_fresh, *quick)
        found = [] if planned is None else _repairs(planned, faults, late)
        carry = _carrier(schedule, topology)
        late, found = (None if late is None else carry(late)), _carried(found, carry)
        bound = bound_of(schedule, topology)  # while the other process works
        if steps or not found:
            found += _carried(_fresh(*quick) if forked is None else forked.result(), carry)
    if not found:
        raise NothingFoundError(f"no plan found for {schedule.demand.collective} with these faults")
    chosen = min(found, key=lambda one: one.finish_ps)
    program_us = None if schedule.execution is None else chosen.finish_us
    late_us = None if late is None else late.finish_us
    times = (schedule.finish_us, late_us, chosen.finish_us, program_us)
    return Replanned(chosen, faults, len(machine.affected), len(schedule), *times, bound)


@contextmanager
def _forked(wanted: bool) -> Iterator[ProcessPoolExecutor | None]:
    """A forked process, which shares all that is loaded already; None where programs have threads, whose locks stay."""
    if not wanted or sys.platform != "linux" or threading.active_count() > 1:
        yield None
        return
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        yield pool


def _carrier(schedule: Schedule, topology: Topology) -> Callable[[Schedule], Schedule | None]:
    """What carries out plans on the runtime of a schedule; without a runtime, plans stay as they are."""
    if schedule.execution is None:
        return lambda one: one
    return Carrier(schedule.execution.profile, topology, schedule.execution.sms)


def _carried(found: Sequence[Schedule], carry: Callable[[Schedule], Schedule | None]) -> list[Schedule]:
    """The plans as the runtime carries them out, those that are valid."""
    made = [carry(one) for one in found]
    return [one for one in made if one is not None and not verify(one)]


def _repairs(schedule: Schedule, faults: tuple[Fault, ...], late: Schedule | None) -> list[Schedule]:
    """The valid repairs with chunks of several sizes, and the schedule as it is where it still runs."""
    made: list[Schedule | None] = [late]
    for times in _SUBDIVISIONS:
        fine = schedule if times == 1 else _subdivided(schedule, times)
        if fine is not None and (times == 1 or len(fine) <= _REPAIRED):
            machine = FaultyMachine(fine, faults)
            some = [repaired_trees(machine, False), repaired_trees(machine, True), substituted(machine, False)]
            if fine.has_messages:
                some.append(substituted(machine, True))
            made += some
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
    """The plans of the first quick method that suits the machine, of an allreduce in two halves, and with switches."""
    runtime = schedule.runtime
    problem = Problem(topology, schedule.demand)
    plain = topology if runtime is None else planning_problem(problem, runtime).topology
    quick = (_after_steps(method, plain, schedule.demand, steps) for method in _METHODS)
    found = [next((made for made in quick if made is not None), None)]
    found.append(_after_steps("hierarchical-halves", plain, schedule.demand, steps))
    if runtime is not None:
        switched = planning_problem(problem, runtime, operations=True).topology
        found.append(_after_steps("nvls", switched, schedule.demand, 2, check=False))
    return [made for made in found if made is not None]


def _after_steps(method: str, topology: Topology, demand: Demand, steps: int, *, check: bool = True) -> Schedule | None:
    """The verified schedule of a method after some steps; None where the method does not suit the problem.

    Without `check`, it is a draft, which the runtime carries out and which is verified then.
    """
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
    return None if made is None or (check and verify(made)) else made


def _planned_again(schedule: Schedule) -> Schedule | None:
    """Return the schedule of a runtime as one on a machine whose links stand for the costs of messages.

    None where it uses operations of switches, which only the runtime has.
    """
    if schedule.execution is None:
        return schedule
    if schedule.shape.operation:
        return None
    machine = with_costs_in_links(schedule.topology, schedule.execution.profile)
    return Engine(schedule, None, machine).run()
