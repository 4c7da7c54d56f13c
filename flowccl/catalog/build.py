"""Building a catalog: synthesize at many sizes, keep the few plans that win somewhere, and write the folder."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from flowccl.catalog.case import Case, FinishedCase, PlanTimer
from flowccl.catalog.engine import TaskEngine
from flowccl.catalog.files import save_catalog, save_plan_files
from flowccl.catalog.library import Shape, library_ps, shape_of
from flowccl.catalog.model import BuildSettings, ByteRange, Catalog, CatalogPlan, MachineId, Rule, TimePoint
from flowccl.catalog.ranges import cover, crossover, probes, segments
from flowccl.catalog.sweep import locked, sweep
from flowccl.demand.collectives import collective_name
from flowccl.errors import InputError, NothingFoundError
from flowccl.export.exporting import ExportOptions, make
from flowccl.files import json_bytes
from flowccl.runtimes.limits import check_collective
from flowccl.runtimes.machine import sms_of
from flowccl.runtimes.profiles import ALIGNMENT_BYTES, PROFILES, RuntimeProfile, profile_to_json
from flowccl.topology.files import save_topology
from flowccl.topology.topology import Topology
from flowccl.units import format_bytes, ps_to_us

COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "alltoall")
"""The collectives of catalogs: those without a root, since rules do not look at a root."""

_NEIGHBOURS = 3  # probed sizes on each side at which a plan is timed too: a plan rarely wins at 8 times its size


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
    on_progress: Callable[[int, int, int], None] = lambda finished, total, before: None,
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
        on_phase("writing plans")
        plans, rules, times = list[CatalogPlan](), list[Rule](), list[TimePoint]()
        contents = [one.exported() for one in made]
        for one, files in zip(made, contents, strict=True):
            for number in range(len(one.segments)):
                name = None
                if number in files:
                    plans.append(one.written(folder, number, files[number]))
                    name = plans[-1].name
                rules.append(one.rule(number, name))
                times += one.points(number, name)
        save_topology(topology, folder / "machine.json")
        settings = BuildSettings(options.low_bytes, options.high_bytes, options.steps, options.seed, options.tolerance)
        costs = {} if options.runtime.is_ideal else profile_to_json(options.runtime)
        machine = machine_id(topology)
        tables = tuple(plans), tuple(rules), tuple(times)
        catalog = Catalog(machine, options.runtime.name, settings, *tables, costs)
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
    """The plans of one collective and their ranges: a segment of the probed sizes for each."""

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
        self.topology, self.engine, self.shape = topology, engine, shape_of(topology)
        known = {size for row in rows for size in row.times_ps}
        self.sizes = [size for size in _sizes(topology, options) if size in known]
        predicted = {size: library_ps(self.shape, name, size) for size in self.sizes}
        self.library = predicted if options.use_library else dict.fromkeys(self.sizes)
        self.times = [dict(row.times_ps) for row in rows]
        kept = cover(self.times, self.sizes, options.tolerance, options.most)
        self._time_everywhere(kept)
        kept = [kept[n] for n in cover([self.times[n] for n in kept], self.sizes, options.tolerance, options.most)]
        self.segments = segments({n: self.times[n] for n in kept}, self.library, self.sizes, options.tolerance)
        on_phase(f"{name}: crossovers of {len({part.plan for part in self.segments})} plans")
        edges = self._edges()
        self.ranges = [ByteRange(*pair) for pair in pairwise(edges)]

    def _time_everywhere(self, kept: Sequence[int]) -> None:
        """Time the kept plans at all probed sizes: some may replace others far from their own size."""
        options = self.options
        missing = [tuple(size for size in self.sizes if size not in self.times[n]) for n in kept]
        tasks = [(self.rows[n], some, options.runtime, options.inplace) for n, some in zip(kept, missing, strict=True)]
        for n, times in zip(kept, self.engine.results(times_at, tasks, f"{self.name}: times of a plan"), strict=True):
            self.times[n] |= times

    def _edges(self) -> list[int]:
        """Where each segment begins, and where the last one ends."""
        options, unit = self.options, ALIGNMENT_BYTES * self.topology.num_gpus
        tasks = []
        for a, b in pairwise(self.segments):
            plans = [None if part.plan is None else self.rows[part.plan] for part in (a, b)]
            ends = (self.sizes[a.last], self.sizes[b.first])
            tasks.append((*plans, ends, unit, options.runtime, options.inplace, self.shape, self.name))
        between = self.engine.results(find_crossover, tasks, f"{self.name}: crossovers")
        return [options.low_bytes, *between, options.high_bytes + 1]

    def exported(self) -> dict[int, bytes]:
        """The files for the runtime of the segments that have a plan."""
        numbers = [number for number, part in enumerate(self.segments) if part.plan is not None]
        tasks = [
            (self.rows[self.segments[n].plan or 0], self.options.runtime.name, self.options.inplace, self.ranges[n])
            for n in numbers
        ]
        made = self.engine.results(exported, tasks, f"plan of {self.name}")
        return dict(zip(numbers, made, strict=True))

    def written(self, folder: Path, number: int, content: bytes) -> CatalogPlan:
        """Write the files of the plan of a segment."""
        options, row = self.options, self.rows[self.segments[number].plan or 0]
        name = f"{self.name}-{self.topology.num_gpus}-{self.ranges[number].low:012d}"
        times_us = (ps_to_us(row.times_ps[row.size_bytes]), row.lower_bound_us)
        names = (name, f"{self.name}-{row.size_bytes}")
        return save_plan_files(folder, row.loaded, content, options.runtime.name, names, times_us)

    def rule(self, number: int, plan: str | None) -> Rule:
        """The rule of a segment."""
        machine, options = machine_id(self.topology), self.options
        place = (machine.ranks, machine.ranks_per_host, options.inplace)
        return Rule(self.name, *place, self.ranges[number], machine.fingerprint, plan, self._reason(number))

    def _reason(self, number: int) -> str:
        """Why a segment has its plan, at the middle one of its probed sizes."""
        part = self.segments[number]
        size = self.sizes[(part.first + part.last) // 2]
        fastest = min(times[size] for times in self.times if size in times)
        own = self.library[size]
        if part.plan is None:
            return f"the library is predicted faster, {_us(own)} at {format_bytes(size)}; the best plan {_us(fastest)}"
        than = "" if own is None else f", the library {_us(own)}"
        return f"predicted {_us(self.times[part.plan][size])} at {format_bytes(size)}{than}"

    def points(self, number: int, plan: str | None) -> Iterator[TimePoint]:
        """The predicted times at the probed sizes of a segment."""
        part = self.segments[number]
        for size in self.sizes[part.first : part.last + 1]:
            both = (None if part.plan is None else self.times[part.plan][size], self.library[size])
            bound = next((row.lower_bound_us for row in self.rows if row.size_bytes == size), None)
            program_us, library_us = (None if ps is None else ps_to_us(ps) for ps in both)
            yield TimePoint(self.name, size, plan, program_us, library_us, bound)


def times_at(case: FinishedCase, sizes: Sequence[int], runtime: RuntimeProfile, inplace: bool) -> dict[int, int]:
    """Return the times of a plan at some sizes, in picoseconds."""
    if not sizes:
        return {}
    timer = PlanTimer(case.loaded, runtime, inplace)
    return {size: timer.time_ps(size) for size in sizes}


def find_crossover(
    before: FinishedCase | None,
    after: FinishedCase | None,
    ends: tuple[int, int],
    unit: int,
    runtime: RuntimeProfile,
    inplace: bool,
    shape: Shape,
    collective: str,
) -> int:
    """Return the size at which the second plan takes over from the first one; None is the library."""

    def timer(case: FinishedCase | None) -> Callable[[int], int]:
        if case is None:
            return lambda size: library_ps(shape, collective, size) or 0
        return PlanTimer(case.loaded, runtime, inplace).time_ps

    return crossover(timer(before), timer(after), *ends, unit)


def exported(case: FinishedCase, runtime: str, inplace: bool, sizes: ByteRange) -> bytes:
    """Return the proved file for the runtime; the schedule itself where there is no runtime."""
    if runtime == "ideal":
        return json_bytes(case.schedule)
    chosen = ExportOptions(inplace=inplace, min_bytes=sizes.low, max_bytes=sizes.high - 1)
    return make(case.loaded, runtime, chosen)[0]


def _us(ps: int | None) -> str:
    return "unknown" if ps is None else f"{ps_to_us(ps):.4g} us"
