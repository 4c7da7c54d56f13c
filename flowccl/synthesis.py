"""The wire: choose a method, synthesize, verify, bound."""

import logging
import resource
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from flowccl.auto.bound_search import BoundSearch
from flowccl.auto.portfolio import portfolio
from flowccl.auto.search import FIRST_STEPS, PortfolioSearch
from flowccl.compilation import warm_up
from flowccl.demand.collectives import collective as named_collective
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError, InputError, NothingFoundError
from flowccl.methods.registry import REGISTRY, info_of, load_method
from flowccl.problem import Problem
from flowccl.result import Progress, Result
from flowccl.schedule.metrics import Metrics, measure
from flowccl.schedule.schedule import Schedule
from flowccl.search.budget import Budget
from flowccl.search.context import Method, SearchContext
from flowccl.topology.topology import Topology

log = logging.getLogger(__name__)

_MOST_FOR_ALL = 5_000  # up to so many (chunk, destination) pairs, auto asks all its methods before it stops


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
    seed: int = 0,
    steps: int | None = None,
    workers: int = 2,
    options: Mapping[str, Any] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Result:
    """A verified schedule of a collective on a machine, with a proved lower bound.

    `collective` is a name with `size_bytes` (as nccl-tests counts), a Demand, or a function that makes the Demand for a
    number of chunks. `chunks` is the number of pieces of each block; None tries several. Stops when the finish is
    within `gap` of the bound (of 0.5 % or less: small problems go on for seconds while they get better), after
    `time_limit_s`, after `steps` runs of the search, or when `should_stop()` is true; the best so far is returned,
    always verified. The context starts when the compiled loops are loaded; a new
    installation compiles them first, once. `workers` searches make steps side by side; with `steps` the result does not
    depend on them. `options` are those of the method: `TecclOptions` for milp, lp and astar, which take one chunk
    unless `chunks` says otherwise; `TacclOptions` for taccl, which tries multiples of what its sketch says.
    """
    limit_s = _checked_limit(time_limit_s)
    if chunks is None and method != "auto" and info_of(method).epochs:
        chunks = 1
    demand_of = _demand_of(topology, collective, size_bytes, chunks, root)
    if chunks is None and not isinstance(collective, Demand):
        demand_of = _multiples(demand_of, getattr((options or {}).get("sketch"), "chunks", 1))
    first = demand_of(1)
    first.check_fits(topology)
    _check_duration(topology, first)
    began = time.monotonic()
    problem = Problem(topology, first)
    methods = _chosen(method, problem)
    chosen_s = time.monotonic() - began
    warm_up(methods)
    all_first = len(first.destination_rank) <= _MOST_FOR_ALL
    context = SearchContext(Budget(limit_s, steps, should_stop=should_stop), seed=seed, options=options or {})
    context.budget.started -= chosen_s  # only loading is free
    bounds = BoundSearch(problem, context, gap)
    trace: list[Progress] = []
    best: Schedule | None = None
    interrupted = False
    try:
        useful = _useful_chunks(method, problem, gap, context) if chunks is None and isinstance(collective, str) else 1
        first_steps = 1 if method != "auto" and info_of(method).traits.slow_second_step else FIRST_STEPS
        search = PortfolioSearch(topology, demand_of, methods, context, workers, all_first, first_steps, useful)
        for best in search.run():  # each verified
            found_s = context.budget.elapsed_s
            bounds.begin()
            trace.append(Progress(best.finish_us, bounds.bound.us if bounds.bound else None, best.method, found_s))
            log.debug("%s: finish %g us after %.2f s", best.method, best.finish_us, found_s)
            if on_progress:
                on_progress(trace[-1])
    except KeyboardInterrupt:
        interrupted = True
        log.warning("interrupted")
    interrupted = interrupted or should_stop()
    bound = bounds.result(None if interrupted else best)
    if best is None:
        raise NothingFoundError(
            f"no schedule found in {context.budget.elapsed_s:.1f} s; the lower bound is {bound.us:g} us"
        )
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
    metrics = measure(best)
    notes = context.notes | (_losses(best, metrics, context.notes.get("optimum_us")) if _is_fluid(best.method) else {})
    return Result(best, bound, metrics, context.budget.elapsed_s, memory, seed, tuple(trace), interrupted, notes)


def _useful_chunks(method: str, problem: Problem, gap: float, context: SearchContext) -> int:
    """The number of chunks for this gap, where the method has a formula for it; else 1."""
    formula = None if method == "auto" else info_of(method).chunks_for_gap
    return 1 if formula is None else formula(problem, gap, context)


def _losses(schedule: Schedule, metrics: Metrics, optimum_us: object) -> dict[str, object]:
    """What lies between a fluid optimum and the finish: whole chunks on the busiest link, and filling the pipe."""
    busiest_us = float(metrics.link_use.max()) * schedule.finish_us
    rows: dict[str, object] = {"busiest_link_us": busiest_us, "pipeline_loss": schedule.finish_us / busiest_us - 1}
    if isinstance(optimum_us, float) and optimum_us > 0:
        rows["chunk_loss"] = busiest_us / optimum_us - 1
    return rows


def _chosen(method: str, problem: Problem) -> dict[str, Method]:
    """The methods behind a name."""
    names = portfolio(problem) if method == "auto" else [method]
    return {name: load_method(name) for name in names}


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
        return collective
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


def _multiples(demand_of: Callable[[int], Demand], least: int) -> Callable[[int], Demand]:
    """The same, for so many times the number of chunks."""
    return lambda count: demand_of(count * least)


def _checked_limit(time_limit_s: float) -> float:
    if not time_limit_s > 0:
        raise InputError(f"the time limit must be above 0 seconds, got {time_limit_s:g}")
    return time_limit_s


def _check_duration(topology: Topology, demand: Demand) -> None:
    """Times must fit 62 bits of picoseconds (53 days), even if every byte went over the slowest link in turn."""
    slowest = float(min(link.bandwidth_GBps for link in topology.links)) if topology.links else 1.0
    if float(demand.chunk_bytes.sum()) * 1000.0 / slowest * len(topology.nodes) > 2.0**62:
        raise DemandError(
            f"{demand.size_bytes} bytes over links of {slowest:g} GB/s may take over 53 days; check size and bandwidth"
        )
