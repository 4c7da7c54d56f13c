"""`flowccl run FILE --on mscclpp`: from a schedule or a plan to checked and timed rows."""

import dataclasses
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flowccl.errors import InputError
from flowccl.export.exporting import ExportOptions, make
from flowccl.export.formats.read_mscclpp import MAX_PLAN_BYTES
from flowccl.export.lowering.buffers import layout_of
from flowccl.files import read_json
from flowccl.run.measure import Row, RunOptions
from flowccl.run.mscclpp import cuda
from flowccl.run.mscclpp.cases import PlanCase, combine, merge_places
from flowccl.run.mscclpp.external import Peers, find_peers, run_among
from flowccl.run.mscclpp.launcher import run_processes
from flowccl.run.mscclpp.plan_facts import PlanFacts, plan_dtype
from flowccl.run.mscclpp.runtime import Provider, find_provider
from flowccl.run.mscclpp.worker import PlanJob
from flowccl.schedule.schedule import Schedule
from flowccl.wording import counted


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """How plans run: all ranks on one GPU or each on its own, and the limit for a step that makes no progress."""

    one_gpu: bool = False
    warmup: int = 5
    timeout_s: float = 60.0
    root: int = 0


def plans_of(schedule: Schedule, options: ExportOptions, inplace: bool, folder: Path) -> list[Path]:
    """Write the plan of a schedule for out-of-place calls, and with `inplace` also that for in-place calls."""
    paths = []
    for place in (False, True) if inplace else (False,):
        path = folder / f"{'in' if place else 'out'}-of-place.json"
        path.write_bytes(make(schedule, "mscclpp", dataclasses.replace(options, inplace=place))[0])
        paths.append(path)
    return paths


def root_of(schedule: Schedule) -> int:
    """Return the root of a schedule's collective, 0 if it has none."""
    return max(layout_of(schedule.demand, 1, False).root, 0)


def run_plans(paths: Sequence[str | Path], options: RunOptions, gpu: GpuOptions) -> list[Row] | None:
    """Run plans with all sizes and types; return the rows, or None if another process has them."""
    cases = [
        PlanCase(str(path), size, name, gpu.root, options.iterations, gpu.warmup)
        for path in paths
        for size in options.sizes
        for name in options.dtypes
    ]
    rows = run_cases_of_plans(cases, gpu)
    return None if rows is None else merge_places(rows)


def run_cases_of_plans(cases: Sequence[PlanCase], gpu: GpuOptions) -> list[Row] | None:
    """Run cases, all in the same processes; return one row per case, or None if another process has them.

    Everything that can be checked without a GPU is checked before the first one is touched.
    """
    facts = {case.plan: case.facts() for case in cases}
    for case in cases:
        facts[case.plan].layout(case.size, plan_dtype(case.dtype))
    peers = find_peers()
    devices = _devices(list(facts.values()), gpu.one_gpu, peers)
    provider = find_provider()
    for plan in facts.values():
        plan.check_version(provider.version)
    with tempfile.TemporaryDirectory(prefix="flowccl-plans-") as folder:
        copies = {path: _copy(path, number, Path(folder)) for number, path in enumerate(facts)}
        made = tuple(dataclasses.replace(case, plan=copies[case.plan]) for case in cases)
        job = PlanJob(made, devices, provider.version, _path(provider))
        results = run_processes(job, gpu.timeout_s) if peers is None else run_among(job, peers)
    if results is None:
        return None
    return [combine(case, ranks) for case, ranks in zip(cases, results, strict=True)]


def named_plan(path: Path, name: str, to: Path | None = None) -> None:
    """Give a plan a name of its own, in place or in a copy: MSCCL++ keeps what it has prepared by the plan's name."""
    value = read_json(path, MAX_PLAN_BYTES)
    (to or path).write_text(json.dumps(value | {"name": name}))


def _copy(path: str, number: int, folder: Path) -> str:
    copy = folder / f"{number}-{Path(path).name}"
    named_plan(Path(path), f"flowccl-{number}", copy)
    return str(copy)


def _path(provider: Provider) -> str | None:
    return None if provider.library is None else str(provider.library)


def _devices(facts: Sequence[PlanFacts], one_gpu: bool, peers: Peers | None) -> tuple[int, ...]:
    """Return the GPU of each rank, on its own host; raise InputError if the plans do not fit the GPUs."""
    ranks, found = facts[0].ranks, cuda.devices()
    for plan in facts:
        if plan.ranks != ranks:
            raise InputError(f"{plan.path} is for {plan.ranks} ranks, but {facts[0].path} is for {ranks}")
        plan.check_resident(found[0], ranks if one_gpu else 1)
    if peers is not None and peers.size != ranks:
        raise InputError(f"{facts[0].path} is for {ranks} ranks, but {peers.size} processes were started")
    if one_gpu:
        return (0,) * ranks
    local = [peers.local] if peers is not None else range(ranks)
    if max(local) >= len(found):
        have = counted(len(found), "GPU")
        raise InputError(f"{facts[0].path} is for {ranks} ranks, but this host has {have}; --one-gpu runs all on one")
    return tuple(range(ranks)) if peers is None else (peers.local,) * ranks
