"""Synthesis: choose methods, search, verify, bound, and return the leanest of the good schedules."""

import logging
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from flowccl.adapters.runtime import on_the_runtime, planning_problem
from flowccl.adapters.trunks import on_trunks
from flowccl.auto.arm import step_work_s
from flowccl.auto.chunk_counts import ChunkCounts
from flowccl.auto.params import AutoParams
from flowccl.auto.portfolio import portfolio
from flowccl.auto.search import PortfolioSearch
from flowccl.auto.stop import GapReached
from flowccl.bounds.lower_bound import Bound
from flowccl.choice import leanest, slack, with_fewer_chunks
from flowccl.demand.collectives import collective as named_collective
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError, InputError, InvalidScheduleError, NothingFoundError
from flowccl.loading import MethodLoader
from flowccl.lowered import Lowered, LoweringTime, lower_for
from flowccl.memory import MemoryWatch, check_memory, most_deliveries
from flowccl.methods.registry import REGISTRY, info_of, load_method, on_the_machine
from flowccl.problem import Problem
from flowccl.result import Progress, Result
from flowccl.runtimes.limits import check_collective
from flowccl.runtimes.machine import largest_group, least_costs, sms_of, used_by
from flowccl.runtimes.profiles import ALIGNMENT_BYTES, WARP_BYTES, RuntimeProfile, runtime_profile
from flowccl.schedule.generation.carrying import Carrier
from flowccl.schedule.metrics import Metrics, measure
from flowccl.schedule.schedule import Schedule
from flowccl.search.bound_search import BoundSearch
from flowccl.search.budget import Budget
from flowccl.search.context import Method, SearchContext
from flowccl.search.incumbents import Incumbents
from flowccl.topology.topology import Topology
from flowccl.topology.trunks import split_trunks
from flowccl.verifier.verify import verify

log = logging.getLogger(__name__)

_MOST_LATE = 3  # programs that are later than their schedules before the best of them is taken
_MOST_PROVED = 10_000  # transfers: programs of larger schedules are proved when they are exported
MIN_CHUNK_BYTES = 4_000
"""Chunks below this size are mostly overhead on every runtime."""


def synthesize(
    topology: Topology,
    collective: str | Demand | Callable[[int], Demand],
    size_bytes: int | None = None,
    *,
    method: str = "auto",
    chunks: int | None = None,
    root: int = 0,
    time_limit_s: float = 10.0,
    gap: float = 0.005,
    lean: float = 0.005,
    min_chunk_bytes: int | None = None,
    runtime: str | RuntimeProfile = "ideal",
    sms: int | None = None,
    seed: int = 0,
    steps: int | None = None,
    workers: int = 2,
    options: Mapping[str, Any] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_phase: Callable[[str], None] = lambda text: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Return a verified schedule of a collective on a machine, with a proved lower bound.

    `collective` is a name with `size_bytes` (as nccl-tests counts), a Demand, or a function that makes the Demand for a
    number of chunks per block. `chunks` fixes that number; None tries several.

    The search stops when the completion time is within `gap` of the lower bound, after `time_limit_s`, after `steps`
    counted steps, when `should_stop()` is true, or when no method has anything more to try; the result says which. Of
    all schedules within `lean` of the best one, that with the fewest transfers is returned, but none outside `gap`
    where the best one is within it. No chunk is smaller than `min_chunk_bytes`, unless the block itself is (by default
    4,000, and 512 for a runtime, whose messages have their costs in the timing). `lean=0, gap=0, min_chunk_bytes=1`
    gives the best that can be found, however small its chunks.

    `runtime` is the runtime that is to run the schedule: a name such as "mscclpp", or a profile. Its message costs are
    then part of the timing, its limits are constraints, chunks are multiples of 16 bytes (the size is raised where no
    plan could serve it), and schedules are compared by the time of the program that `export` would write. `sms` is the
    number of SMs of a GPU where the machine does not name a GPU model.

    A new installation compiles the loops of the methods, once: those of the first method before the search, the others
    in the background; their methods join as soon as they are compiled. The time limit covers that too, but at least one
    method is compiled and answers. With `steps` everything is compiled before the time limit starts. `on_phase` is told
    in a few words what is being done, `on_progress` every improvement.

    `workers` threads run arms side by side; with `steps` the result does not depend on their number. `options` are
    those of the method: `TecclOptions` for milp, lp and astar, which use one chunk unless `chunks` is given;
    `TacclOptions` for taccl, which tries multiples of the chunk count of its sketch; `ScclOptions` for sccl, which
    chooses the number of chunks unless `chunks` is given.
    """
    limit_s = _checked_limit(time_limit_s)
    target = runtime_profile(runtime) if isinstance(runtime, str) else runtime
    task = _task(topology, collective, size_bytes, root, method, chunks, target, sms, dict(options or {}))
    problem, first = task.problem, task.problem.demand
    if chunks is not None and steps is None:
        _check_chunks(chunks, first, limit_s)
    lanes = split_trunks(problem.topology) if target.is_ideal else None  # methods plan one transfer at a time on a link
    searched = problem if lanes is None else Problem(lanes.topology, first)
    watch, params = MemoryWatch(), AutoParams()
    lowering = LoweringTime()
    budget = Budget(limit_s, steps, should_stop=lambda: should_stop() or watch(), kept_s=lowering)
    context = SearchContext(budget, seed=seed, options=task.options)
    fitting = params.max_deliveries if steps is not None else most_deliveries(problem.topology, first)
    planned = searched if target.is_ideal else planning_problem(problem, target)
    names = _names(method, searched) if target.is_ideal else _names_for(method, problem, target)
    programs = target.limits is not None and target.limits.one_sided
    loader = MethodLoader(names, repeatable=steps is not None, programs=programs)
    carrier: Carrier | None = None
    more: Callable[[], dict[str, Method]] = loader.more
    methods = loader.first(on_phase)
    if not target.is_ideal:
        assert task.sms is not None
        carrier = Carrier(target, problem.topology, task.sms)
        adapt = partial(_on_the_runtime, carrier, _inner(context))
        methods, more = adapt(methods), lambda: adapt(loader.more())
    if lanes is not None:
        methods, more = on_the_machine(methods, topology), lambda: on_the_machine(loader.more(), topology)
    context.notes |= loader.notes
    if loader.all_first:
        context.budget.started = time.monotonic()
    bounds = BoundSearch(_bounded(topology, target, problem), context, gap, largest_group(topology, target))
    overlap = 2 if first.reduces and not target.is_ideal else 1  # a GPU sends one chunk while it reduces the other
    wanted = gap if method != "auto" else None
    useful = partial(_useful_chunks, problem=planned, gap=wanted, context=context, least=overlap)
    least, most = _least_chunk(min_chunk_bytes, first, target), min(params.max_deliveries, fitting)
    counts = ChunkCounts(task.demand_of, least, most, for_runtime=not target.is_ideal)
    search = PortfolioSearch(searched.topology, counts, methods, context, workers, cache(useful), params, more, carrier)
    best, trace, interrupted = _searched(search, bounds, loader, lowering, on_progress)
    interrupted = interrupted or should_stop()
    bound = bounds.result(None if interrupted else best)
    if target.is_ideal and not topology.has_overheads:
        bound = _better_bound(bound, context.incumbents)
    context.notes |= watch.notes(most < params.max_deliveries)
    if best is None:
        raise NothingFoundError(
            f"no schedule found in {context.budget.elapsed_s:.1f} s; the lower bound is {bound.us:g} us"
        )
    found, later = search.found(), slack(best, lean, bound.ps * (1 + gap))
    if not interrupted:
        found += with_fewer_chunks(leanest(found, best, later), later, search.schedule_with)
    if lanes is not None:
        found, best = [on_trunks(one, lanes) for one in found], _verified(on_trunks(best, lanes))
    best = leanest(found, best, later)
    lowered = None
    if not target.is_ideal:
        loader.wait_for_programs(on_phase)
        best, lowered = _with_program([best, *sorted(found, key=lambda one: one.finish_ps)], target, task.sms)
    metrics = measure(best)
    context.notes |= {"stopped": search.stopped, "methods": search.methods_tried()}
    notes = context.notes | (_losses(best, metrics, context.notes.get("optimum_us")) if _is_fluid(best.method) else {})
    seconds, memory = context.budget.elapsed_s, _peak_memory_MB()
    return Result(best, bound, metrics, seconds, memory, seed, tuple(trace), interrupted, notes, lowered, tuple(found))


@dataclass(frozen=True, slots=True)
class _SynthesisTask:
    """What is to be planned: the problem with one chunk per block, and the demand for any number of chunks.

    Its machine is as the runtime uses it, with at most `sms` threadblocks on a GPU.
    """

    problem: Problem
    demand_of: Callable[[int], Demand]
    options: dict[str, Any]
    sms: int | None


def _task(
    topology: Topology,
    collective: str | Demand | Callable[[int], Demand],
    size_bytes: int | None,
    root: int,
    method: str,
    chunks: int | None,
    target: RuntimeProfile,
    sms: int | None,
    options: dict[str, Any],
) -> _SynthesisTask:
    """Check what was asked for, and return what is to be planned."""
    if not target.is_ideal:
        sms = _check_runtime(target, topology, collective, sms)
        size_bytes = _served_size(topology, collective, size_bytes)
        topology = used_by(topology, target, in_network=True)
    if chunks is None and method != "auto" and info_of(method).epochs:
        chunks = 1
    if method != "auto" and info_of(method).own_chunks:
        options, chunks = {**options, "chunks": chunks}, 1
    check_memory(topology, collective, chunks)
    demand_of = _demand_of(topology, collective, size_bytes, chunks, root)
    if chunks is None and not isinstance(collective, Demand):
        demand_of = _multiples(demand_of, getattr(options.get("sketch"), "chunks", 1))
    first = demand_of(1)
    first.check_fits(topology)
    _check_duration(topology, first)
    return _SynthesisTask(Problem(topology, first), demand_of, options, sms)


def _searched(
    search: PortfolioSearch,
    bounds: BoundSearch,
    loader: MethodLoader,
    lowering: LoweringTime,
    on_progress: Callable[[Progress], None] | None,
) -> tuple[Schedule | None, list[Progress], bool]:
    """Run a search; return its best schedule, the trace of its improvements, and whether it was interrupted.

    Where it ends early while methods are still being compiled, it goes on with those.
    """
    best: Schedule | None = None
    trace: list[Progress] = []
    try:
        while True:
            for best in search.run():  # each verified
                found_s = search.context.budget.elapsed_s
                bounds.begin()
                lowering.see(best)
                trace.append(Progress(best.finish_us, bounds.bound.us if bounds.bound else None, best.method, found_s))
                log.debug("%s: finish %g us after %.2f s", best.method, best.finish_us, found_s)
                if on_progress:
                    on_progress(trace[-1])
            if GapReached(search.context)(search.work_s, search.best_ps):
                return best, trace, False
            if not (joining := loader.wait(search.context.budget)):
                return best, trace, False
            search.methods.update(joining)
    except KeyboardInterrupt:
        log.warning("interrupted")
        return best, trace, True


def _on_the_runtime(carrier: Carrier, inner: SearchContext, methods: dict[str, Method]) -> dict[str, Method]:
    """The methods for schedules that a runtime carries out."""
    return {
        name: on_the_runtime(
            load_method(name, every=True),
            carrier,
            inner,
            operations=info_of(name).operations,
            by_rate=info_of(name).by_rate,
            variants=info_of(name).variants,
        )
        for name in methods
    }


def _inner(context: SearchContext) -> SearchContext:
    """The context of methods that plan on another machine than the one whose times count."""
    context.incumbents.inner = Incumbents()
    budget = replace(context.budget, good_ps=0.0)
    return SearchContext(budget, context.incumbents.inner, context.seed, context.options, context.notes)


def _bounded(topology: Topology, target: RuntimeProfile, problem: Problem) -> Problem:
    """The problem of which a lower bound holds for every schedule that the runtime can carry out."""
    return problem if target.is_ideal else Problem(least_costs(topology, target), problem.demand)


def _with_program(found: list[Schedule], target: RuntimeProfile, sms: int | None) -> tuple[Schedule, Lowered]:
    """The schedule with the earliest program that the runtime can run, and that program, which is proved.

    A program is later than its schedule where threadblocks wait for each other; then others are tried, the best first.
    """
    problem, best, late = "", None, 0
    for schedule in found:
        if best is not None and (schedule.finish_ps >= best[1].program_ps or late == _MOST_LATE):
            break
        try:
            lowered = lower_for(schedule, target, sms)
        except InputError as error:
            log.debug("%s: no program: %s", schedule.method, error)
            problem = problem or str(error)
            continue
        if lowered.program is not None and len(schedule) <= _MOST_PROVED and lowered.program.findings:
            problem = problem or f"the program would be wrong: {lowered.program.findings[0]}"
            continue
        if best is None or lowered.program_ps < best[1].program_ps:
            best = schedule, lowered
        late += 1
    if best is None:
        raise NothingFoundError(f"{target.name} can run none of the schedules that were found: {problem}")
    return best


def _better_bound(bound: Bound, incumbents: Incumbents) -> Bound:
    """The bound, or a better one that a method proved."""
    ps, witness = incumbents.proved
    return Bound(ps, "rates", witness) if ps > bound.ps else bound


def _peak_memory_MB() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def _check_runtime(
    target: RuntimeProfile,
    topology: Topology,
    collective: str | Demand | Callable[[int], Demand],
    sms: int | None,
) -> int:
    """Refuse a collective that the runtime does not have; return the most threadblocks that a GPU can run at once."""
    assert target.limits is not None
    name = collective if isinstance(collective, str) else getattr(collective, "collective", "")
    if name:
        check_collective(target.limits, name)
    return min(target.limits.blocks, sms_of(topology, sms))


def _served_size(topology: Topology, collective: object, size_bytes: int | None) -> int | None:
    """The size that is planned: the next one of which every GPU's block is a multiple of 16 bytes."""
    if not isinstance(collective, str) or size_bytes is None:
        return size_bytes
    unit = ALIGNMENT_BYTES * topology.num_gpus
    return -(-size_bytes // unit) * unit


def _verified(schedule: Schedule) -> Schedule:
    """The schedule; an error where it is invalid, which would be a mistake of ours."""
    violations = verify(schedule)
    if violations:
        raise InvalidScheduleError(f"{schedule.method} made an invalid schedule: {violations[0]}")
    return schedule


def _least_chunk(min_chunk_bytes: int | None, demand: Demand, target: RuntimeProfile) -> int:
    """The least chunk in bytes; one that was asked for must not be larger than the smallest block.

    By default, what hides the costs of messages that the model does not have; where it has them, one access of a warp.
    """
    smallest = int(demand.chunk_bytes.min())
    if min_chunk_bytes is None:
        return MIN_CHUNK_BYTES if target.is_ideal else WARP_BYTES
    if min_chunk_bytes < 1:
        raise InputError(f"the least chunk must have at least 1 byte, got {min_chunk_bytes}")
    if min_chunk_bytes > smallest:
        raise InputError(f"the smallest block has {smallest} bytes, below the least chunk of {min_chunk_bytes}")
    return min_chunk_bytes


def _useful_chunks(name: str, problem: Problem, gap: float | None, context: SearchContext, least: int) -> int:
    """The number of chunks with which a method is good, or with which it alone reaches a gap; `least` if not known."""
    info = info_of(name)
    if gap is not None and info.chunks_for_gap is not None:
        return info.chunks_for_gap(problem, gap, context)
    return least if info.useful_chunks is None else max(least, info.useful_chunks(problem))


def _losses(schedule: Schedule, metrics: Metrics, optimum_us: object) -> dict[str, object]:
    """What lies between a fluid optimum and the finish: whole chunks on the busiest link, and filling the pipe."""
    busiest_us = float(metrics.link_use.max()) * schedule.finish_us
    rows: dict[str, object] = {"busiest_link_us": busiest_us, "pipeline_loss": schedule.finish_us / busiest_us - 1}
    if isinstance(optimum_us, float) and optimum_us > 0:
        rows["chunk_loss"] = busiest_us / optimum_us - 1
    return rows


def _names(method: str, problem: Problem) -> list[str]:
    """The names of the methods behind a name."""
    return portfolio(problem) if method == "auto" else [info_of(method).name]


def _names_for(method: str, problem: Problem, target: RuntimeProfile) -> list[str]:
    """The names of the methods behind a name, for a runtime: each is asked about the machine on which it plans."""
    if method != "auto":
        return _names(method, problem)
    names = portfolio(planning_problem(problem, target))
    for kind in ("operations", "by_rate"):
        planned = planning_problem(problem, target, **{kind: True})
        others = [info for info in REGISTRY.values() if getattr(info, kind) and info.name not in names]
        names += [info.name for info in others if info.suits(planned)]
    return names


def _is_fluid(method: str) -> bool:
    """Whether a schedule's method, as named in the schedule, starts from a fluid optimum."""
    return method in REGISTRY and REGISTRY[method].fluid


def _demand_of(
    topology: Topology,
    collective: str | Demand | Callable[[int], Demand],
    size_bytes: int | None,
    chunks: int | None,
    root: int,
) -> Callable[[int], Demand]:
    """The demand for a number of chunks; one that is fixed has only one number."""
    if isinstance(collective, Demand):
        fixed = collective
    elif callable(collective) and chunks is None:
        return _same_size(collective)
    elif callable(collective):
        fixed = collective(chunks or 1)
    elif size_bytes is None:
        raise InputError(f"{collective} needs a size, for example 1MB")
    elif chunks is not None:
        fixed = named_collective(collective, topology.num_gpus, size_bytes, chunks, root)
    else:
        return lambda count: named_collective(collective, topology.num_gpus, size_bytes, count, root)

    def only(count: int) -> Demand:
        if count > 1:
            raise DemandError("the chunks are given")
        return fixed

    return only


def _same_size(demand_of: Callable[[int], Demand]) -> Callable[[int], Demand]:
    """The same; an error where the size depends on the number of chunks."""
    whole = demand_of(1)

    def checked(count: int) -> Demand:
        demand = demand_of(count)
        if demand.chunk_bytes.sum() != whole.chunk_bytes.sum():
            raise InputError(
                f"{demand.collective}: with {demand.pieces} chunks per block it has {demand.chunk_bytes.sum()} bytes, "
                f"with {whole.pieces} it has {whole.chunk_bytes.sum()}; both must have the same"
            )
        return demand

    return checked


def _multiples(demand_of: Callable[[int], Demand], least: int) -> Callable[[int], Demand]:
    """The same, with the number of chunks multiplied by `least`."""
    return lambda count: demand_of(count * least)


def _checked_limit(time_limit_s: float) -> float:
    if not time_limit_s > 0:
        raise InputError(f"the time limit must be above 0 seconds, got {time_limit_s:g}")
    return time_limit_s


def _check_chunks(chunks: int, demand: Demand, limit_s: float) -> None:
    """Refuse a chunk count whose first schedule would take longer than the time limit."""
    work_s = step_work_s("greedy", demand, first=True)
    if chunks > 1 and work_s > limit_s:
        deliveries = f"{len(demand.destination_rank):,} deliveries"
        raise InputError(
            f"{chunks} chunks per block are {deliveries}, whose first schedule takes about {work_s:.0f} s; "
            "use fewer chunks, or a time limit above that"
        )


def _check_duration(topology: Topology, demand: Demand) -> None:
    """Times must fit 62 bits of picoseconds (53 days), even if every byte went over the slowest link in turn."""
    slowest = float(min(link.bandwidth_GBps for link in topology.links)) if topology.links else 1.0
    if float(demand.chunk_bytes.sum()) * 1000.0 / slowest * len(topology.nodes) > 2.0**62:
        raise DemandError(
            f"{demand.size_bytes} bytes over links of {slowest:g} GB/s may take over 53 days; check size and bandwidth"
        )
