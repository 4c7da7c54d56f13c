"""Building a catalog: synthesize at many sizes, keep the few plans that win somewhere, and write the folder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowccl.catalog.case import Case, FinishedCase, PlanTimer, loaded_schedule
from flowccl.catalog.engine import TaskEngine, TaskFailure
from flowccl.catalog.files import plan_alignment, save_catalog, sha256_of
from flowccl.catalog.library import library_ps, shape_of
from flowccl.catalog.model import BuildSettings, ByteRange, Catalog, CatalogPlan, MachineId, Rule, TimePoint
from flowccl.catalog.ranges import Segment, cover, crossover, probes, segments
from flowccl.catalog.sweep import SweepProgress, locked, sweep
from flowccl.demand.collectives import collective_name
from flowccl.errors import InputError, NothingFoundError
from flowccl.export.exporting import ExportOptions, make
from flowccl.files import json_bytes, make_folder, write_bytes
from flowccl.runtimes.limits import check_collective
from flowccl.runtimes.machine import sms_of
from flowccl.runtimes.profiles import ALIGNMENT_BYTES, PROFILES, RuntimeProfile, profile_to_json
from flowccl.topology.files import save_topology
from flowccl.topology.topology import Topology
from flowccl.units import format_bytes, ps_to_us

COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "alltoall")
"""The collectives of catalogs: those without a root, since rules do not look at a root."""

_NEIGHBOURS = 3  # probed sizes on each side at which a plan is timed too: a plan rarely wins at 8 times its size
SUFFIX = {"mscclpp": ".json", "ideal": ".json", "msccl": ".xml", "executor": ".xml", "rccl": ".xml"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """What to build: collectives and sizes for a runtime, with counted work, so that results are repeatable.

    `tolerance` is the part by which a plan may be later than the fastest one found and still be kept in its place;
    `most` is the largest number of plans of a collective. With `use_library`, sizes at which the library is predicted
    to be faster are left to it.
    """

    collectives: tuple[str, ...] = COLLECTIVES
    low_bytes: int = 1_000
    high_bytes: int = 1_000_000_000
    runtime: RuntimeProfile = field(default_factory=lambda: PROFILES["mscclpp"])
    inplace: bool = False
    steps: int = 40
    seed: int = 0
    sms: int | None = None
    tolerance: float = 0.01
    most: int = 8
    use_library: bool = True

    def __post_init__(self) -> None:
        if self.low_bytes > self.high_bytes:
            raise InputError(f"the first size, {self.low_bytes} B, is larger than the last, {self.high_bytes} B")
        for name in self.collectives:
            if collective_name(name) not in COLLECTIVES:
                raise InputError(f"a catalog has collectives without a root: {', '.join(COLLECTIVES)}; not {name}")


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The catalog, and the cases that failed with their messages."""

    catalog: Catalog
    failed: tuple[tuple[Case, str], ...]


def build_catalog(
    topology: Topology,
    folder: Path,
    options: BuildOptions,
    engine: TaskEngine | None = None,
    on_progress: Callable[[SweepProgress], None] = lambda progress: None,
    on_phase: Callable[[str], None] = lambda text: None,
) -> BuildResult:
    """Build the catalog of a machine in a folder; catalog.json is written last, when all other files are complete."""
    cases = cases_of(topology, options)
    engine = engine or TaskEngine()
    with locked(folder):
        done = sweep(topology, cases, folder, engine, on_progress)
        if not done.finished:
            raise NothingFoundError(f"every case failed: {done.failed[0][1]}")
        made = [
            _Collective(topology, name, rows, options, engine, on_phase)
            for name in options.collectives
            if (rows := [row for row in done.finished if row.collective == name])
        ]
        plans, rules, times = _written(folder, topology, options, made, engine, on_phase)
        save_topology(topology, folder / "machine.json")
        settings = BuildSettings(options.low_bytes, options.high_bytes, options.steps, options.seed, options.tolerance)
        costs = {} if options.runtime.is_ideal else profile_to_json(options.runtime)
        machine = machine_id(topology)
        catalog = Catalog(machine, options.runtime.name, settings, plans, rules, times, costs)
        save_catalog(catalog, folder)
    return BuildResult(catalog, done.failed)


def cases_of(topology: Topology, options: BuildOptions) -> list[Case]:
    """Return the cases of a build, each with the probed sizes at which its plan is timed."""
    limits = options.runtime.limits
    if limits is not None:
        sms_of(topology, options.sms)
    sizes = _sizes(topology, options)
    cases = []
    for name in options.collectives:
        if limits is not None:
            check_collective(limits, name)
        for at, size in enumerate(sizes):
            near = sizes[max(at - _NEIGHBOURS, 0) : at + _NEIGHBOURS + 1]
            cases.append(
                Case(name, size, near, options.runtime, options.inplace, options.steps, options.seed, options.sms)
            )
    return cases


def machine_id(topology: Topology) -> MachineId:
    """Return what a catalog says of its machine."""
    hosts = [node.host for node in topology.nodes[: topology.num_gpus]]
    counts = {hosts.count(host) for host in hosts}
    return MachineId(topology.name, topology.fingerprint, topology.num_gpus, counts.pop() if len(counts) == 1 else 0)


def _sizes(topology: Topology, options: BuildOptions) -> tuple[int, ...]:
    return probes(options.low_bytes, options.high_bytes, topology.num_gpus)


class _Collective:
    """The plans of one collective and their ranges."""

    def __init__(
        self,
        topology: Topology,
        name: str,
        rows: Sequence[FinishedCase],
        options: BuildOptions,
        engine: TaskEngine,
        on_phase: Callable[[str], None],
    ) -> None:
        self.name, self.rows, self.options = name, rows, options
        shape = shape_of(topology)
        known = {size for row in rows for size in row.times_ps}
        self.sizes = [size for size in _sizes(topology, options) if size in known]
        predicted = {size: library_ps(shape, name, size) for size in self.sizes}
        self.library = predicted if options.use_library else dict.fromkeys(self.sizes)
        self.times = [dict(row.times_ps) for row in rows]
        kept = cover(self.times, self.sizes, options.tolerance, options.most)
        self._time_everywhere(kept, engine)
        kept = [kept[n] for n in cover([self.times[n] for n in kept], self.sizes, options.tolerance, options.most)]
        self.segments = segments({n: self.times[n] for n in kept}, self.library, self.sizes, options.tolerance)
        on_phase(f"{name}: crossovers of {len({part.plan for part in self.segments})} plans")
        self.edges = self._edges(topology, engine)

    def _time_everywhere(self, kept: Sequence[int], engine: TaskEngine) -> None:
        """Time the kept plans at all probed sizes: some may replace others far from their own size."""
        missing = [tuple(size for size in self.sizes if size not in self.times[n]) for n in kept]
        tasks = [
            (self.rows[n].to_json(), sizes, self.options.runtime, self.options.inplace)
            for n, sizes in zip(kept, missing, strict=True)
        ]
        for number, outcome in engine.map(times_at, tasks):
            if isinstance(outcome, TaskFailure):
                raise InputError(f"{self.name}: times of a plan: {outcome.message}")
            self.times[kept[number]] |= outcome

    def _edges(self, topology: Topology, engine: TaskEngine) -> list[int]:
        """Where each segment begins, and where the last one ends."""
        unit = ALIGNMENT_BYTES * topology.num_gpus
        tasks = []
        for a, b in zip(self.segments, self.segments[1:], strict=False):
            plans = [None if part.plan is None else self.rows[part.plan].to_json() for part in (a, b)]
            ends = (self.sizes[a.last], self.sizes[b.first])
            tasks.append(
                (*plans, ends, unit, self.options.runtime, self.options.inplace, shape_of(topology), self.name)
            )
        edges = [self.options.low_bytes, *(self.sizes[part.first] for part in self.segments[1:])]
        for number, outcome in engine.map(find_crossover, tasks):
            if isinstance(outcome, TaskFailure):
                raise InputError(f"{self.name}: crossovers: {outcome.message}")
            edges[number + 1] = outcome
        return [*edges, self.options.high_bytes + 1]

    def range_of(self, number: int) -> ByteRange:
        """The sizes that a segment serves."""
        return ByteRange(self.edges[number], self.edges[number + 1])

    def reason_of(self, part: Segment) -> str:
        """Why a segment has its plan, at the middle one of its probed sizes."""
        size = self.sizes[(part.first + part.last) // 2]
        fastest = min(times[size] for times in self.times if size in times)
        own = self.library[size]
        if part.plan is None:
            return f"the library is predicted faster, {_us(own)} at {format_bytes(size)}; the best plan {_us(fastest)}"
        ours = self.times[part.plan][size]
        than = "" if own is None else f", the library {_us(own)}"
        return f"predicted {_us(ours)} at {format_bytes(size)}{than}"


def times_at(case: dict[str, Any], sizes: Sequence[int], runtime: RuntimeProfile, inplace: bool) -> dict[int, int]:
    """Return the times of a plan at some sizes, in picoseconds."""
    if not sizes:
        return {}
    timer = PlanTimer(loaded_schedule(FinishedCase.from_json(case, "plan")), runtime, inplace)
    return {size: timer.time_ps(size) for size in sizes}


def find_crossover(
    before: dict[str, Any] | None,
    after: dict[str, Any] | None,
    ends: tuple[int, int],
    unit: int,
    runtime: RuntimeProfile,
    inplace: bool,
    shape: Any,
    collective: str,
) -> int:
    """Return the size at which the second plan takes over from the first one; None is the library."""

    def timer(value: dict[str, Any] | None) -> Callable[[int], int]:
        if value is None:
            return lambda size: library_ps(shape, collective, size) or 0
        return PlanTimer(loaded_schedule(FinishedCase.from_json(value, "plan")), runtime, inplace).time_ps

    return crossover(timer(before), timer(after), *ends, unit)


# -- the files of the folder --------------------------------------------------------------------------------------


def _written(
    folder: Path,
    topology: Topology,
    options: BuildOptions,
    made: Sequence[_Collective],
    engine: TaskEngine,
    on_phase: Callable[[str], None],
) -> tuple[tuple[CatalogPlan, ...], tuple[Rule, ...], tuple[TimePoint, ...]]:
    """Write the files of all plans; return the plans, the rules and the times."""
    on_phase("writing plans")
    segments_of = [(one, number, part) for one in made for number, part in enumerate(one.segments)]
    with_plan = [(one, number, part) for one, number, part in segments_of if part.plan is not None]
    tasks = [
        (one.rows[part.plan].to_json(), options.runtime.name, options.inplace, one.range_of(number))
        for one, number, part in with_plan
        if part.plan is not None
    ]
    contents: dict[int, bytes] = {}
    for number, outcome in engine.map(exported, tasks):
        if isinstance(outcome, TaskFailure):
            raise InputError(f"plan of {with_plan[number][0].name}: {outcome.message}")
        contents[number] = outcome
    plans: dict[tuple[str, int], CatalogPlan] = {}
    for number, (one, at, _) in enumerate(with_plan):
        plans[one.name, at] = _write_plan(folder, topology, options, one, at, contents[number])
    rules, times = [], []
    for one, at, part in segments_of:
        plan = plans.get((one.name, at))
        rules.append(_rule(topology, options, one, at, None if plan is None else plan.name))
        times += [_time(one, part, plan, n) for n in range(part.first, part.last + 1)]
    return tuple(plans.values()), tuple(rules), tuple(times)


def exported(case: dict[str, Any], runtime: str, inplace: bool, sizes: ByteRange) -> bytes:
    """Return the proved file for the runtime; the schedule itself where there is no runtime."""
    finished = FinishedCase.from_json(case, "plan")
    if runtime == "ideal":
        return json_bytes(finished.schedule)
    chosen = ExportOptions(inplace=inplace, min_bytes=sizes.low, max_bytes=sizes.high - 1)
    return make(loaded_schedule(finished), runtime, chosen)[0]


def _write_plan(
    folder: Path, topology: Topology, options: BuildOptions, one: _Collective, number: int, content: bytes
) -> CatalogPlan:
    part, sizes = one.segments[number], one.range_of(number)
    assert part.plan is not None
    row = one.rows[part.plan]
    name = f"{one.name}-{topology.num_gpus}-{sizes.low:012d}"
    schedule = json_bytes(row.schedule)
    file, schedule_file = f"plans/{name}{SUFFIX[options.runtime.name]}", f"schedules/{one.name}-{row.size_bytes}.json"
    for path, data in ((file, content), (schedule_file, schedule)):
        make_folder((folder / path).parent)
        write_bytes(folder / path, data)
    loaded = loaded_schedule(row)
    return CatalogPlan(
        name,
        one.name,
        loaded.demand.size_bytes,
        loaded.demand.pieces,
        plan_alignment(loaded, options.runtime.name, content),
        options.runtime.name,
        file,
        sha256_of(content),
        schedule_file,
        sha256_of(schedule),
        ps_to_us(row.times_ps[row.size_bytes]),
        row.lower_bound_us,
    )


def _rule(topology: Topology, options: BuildOptions, one: _Collective, number: int, plan: str | None) -> Rule:
    machine = machine_id(topology)
    return Rule(
        one.name,
        machine.ranks,
        machine.ranks_per_host,
        options.inplace,
        one.range_of(number),
        machine.fingerprint,
        plan,
        one.reason_of(one.segments[number]),
    )


def _time(one: _Collective, part: Segment, plan: CatalogPlan | None, at: int) -> TimePoint:
    size = one.sizes[at]
    own = one.library[size]
    ours = None if part.plan is None else one.times[part.plan][size]
    bound = next((row.lower_bound_us for row in one.rows if row.size_bytes == size), None)
    library_us, program_us = (None if ps is None else ps_to_us(ps) for ps in (own, ours))
    return TimePoint(one.name, size, None if plan is None else plan.name, program_us, library_us, bound)


def _us(ps: int | None) -> str:
    return "unknown" if ps is None else f"{ps_to_us(ps):.4g} us"
