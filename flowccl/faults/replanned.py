"""The catalog of a machine after faults: the rules of the old one, with a new plan for each of its plans."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flowccl.catalog.build import machine_id
from flowccl.catalog.case import PlanTimer, runtime_of
from flowccl.catalog.files import load_machine, save_catalog, save_plan_files
from flowccl.catalog.library import library_ps, shape_of
from flowccl.catalog.model import ByteRange, Catalog, CatalogPlan, TimePoint
from flowccl.export.exporting import ExportOptions, make
from flowccl.faults.replan import Replanned
from flowccl.files import json_bytes, make_folder
from flowccl.schedule.files import schedule_to_json
from flowccl.topology.faults import with_faults
from flowccl.topology.files import save_topology
from flowccl.topology.topology import Topology
from flowccl.units import ps_to_us


def save_replanned(
    folder: Path,
    catalog: Catalog,
    results: Mapping[str, Replanned],
    out: Path,
    *,
    without: Sequence[str] = (),
    slow: Sequence[str] = (),
) -> Catalog:
    """Write the catalog of the faulty machine into a folder, catalog.json last, and return it.

    `results` are the new plans by the names of the old ones, whose names, sizes and rules they take over.
    """
    topology = with_faults(load_machine(folder, catalog), without=without, slow=slow)
    machine = machine_id(topology)
    faults = ", ".join(str(fault) for fault in next(iter(results.values())).faults)
    for part in ("", "plans", "schedules"):
        make_folder(out / part)
    timers = {name: _timer(catalog, result) for name, result in results.items()}
    plans = tuple(_write_plan(out, catalog, plan, results[plan.name], timers[plan.name]) for plan in catalog.plans)
    rules = tuple(
        replace(
            rule,
            ranks_per_host=machine.ranks_per_host,
            fingerprint=machine.fingerprint,
            reason=f"planned again {faults}; before: {rule.reason}",
        )
        for rule in catalog.rules
    )
    times = tuple(_time(topology, point, timers) for point in catalog.times)
    save_topology(topology, out / machine.file)
    new = replace(catalog, machine=machine, plans=plans, rules=rules, times=times)
    save_catalog(new, out)
    return new


def _timer(catalog: Catalog, result: Replanned) -> PlanTimer:
    inplace = any(rule.inplace for rule in catalog.rules)
    return PlanTimer(result.schedule, runtime_of(catalog.runtime, catalog.costs), inplace)


def _write_plan(out: Path, catalog: Catalog, plan: CatalogPlan, result: Replanned, timer: PlanTimer) -> CatalogPlan:
    """Write the files of a plan; return its new entry."""
    schedule, ranges = result.schedule, [rule.bytes for rule in catalog.rules if rule.plan == plan.name]
    if timer.runtime.is_ideal:
        content = json_bytes(schedule_to_json(schedule))
    else:
        content = _exported(catalog, _hull(ranges), result)
    times_us = (ps_to_us(timer.time_ps(schedule.demand.size_bytes)), result.bound.us)
    return save_plan_files(out, schedule, content, catalog.runtime, (plan.name, plan.name), times_us)


def _hull(ranges: Sequence[ByteRange]) -> ByteRange:
    """Return the sizes from the smallest to the largest one of some ranges."""
    return ByteRange(min(one.low for one in ranges), max(one.high for one in ranges))


def _exported(catalog: Catalog, sizes: ByteRange, result: Replanned) -> bytes:
    inplace = any(rule.inplace for rule in catalog.rules)
    chosen = ExportOptions(inplace=inplace, min_bytes=sizes.low, max_bytes=sizes.high - 1)
    return make(result.schedule, catalog.runtime, chosen)[0]


def _time(topology: Topology, point: TimePoint, timers: Mapping[str, PlanTimer]) -> TimePoint:
    """The predicted times on the faulty machine at the same size; there is no bound at sizes of other plans."""
    own = library_ps(shape_of(topology), point.collective, point.size_bytes)
    timer = None if point.plan is None else timers[point.plan]
    ours = None if timer is None else ps_to_us(timer.time_ps(point.size_bytes))
    return replace(point, program_us=ours, library_us=None if own is None else ps_to_us(own), lower_bound_us=None)
