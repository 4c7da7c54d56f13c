"""The wire: choose a method, synthesize, verify, bound."""

import logging
import resource
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np

from flowccl.auto.portfolio import portfolio
from flowccl.auto.search import FIRST_STEPS, Chunking
from flowccl.bounds.lower_bound import Bound, lower_bound, sharpened
from flowccl.demand.collectives import collective as named_collective
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError, InputError, NothingFoundError
from flowccl.methods import BY_FLOWS, METHODS, ON_EPOCHS, warm_up
from flowccl.methods.clock import Clock
from flowccl.methods.method import Method
from flowccl.result import Progress, Result
from flowccl.schedule.metrics import Metrics, measure
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology

log = logging.getLogger(__name__)

_MOST_FOR_ALL = 5_000  # up to so many (chunk, destination) pairs, auto asks all its methods before it stops
_SHARPEN_AFTER, _SHARPEN_FOR = 0.1, 0.2  # parts of the time limit: when a better floor is sought, and for how long
_WORTH_SHARPENING = 0.02  # the gap above which that is done


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
    always verified. The clock starts when the compiled loops are loaded; a new
    installation compiles them first, once. `workers` searches make steps side by side; with `steps` the result does not
    depend on them. `options` are those of the method: `TecclOptions` for milp, lp and astar, which take one chunk
    unless `chunks` says otherwise; `TacclOptions` for taccl, which tries multiples of what its sketch says.
    """
    limit_s = _checked_limit(time_limit_s)
    if chunks is None and method in ON_EPOCHS:
        chunks = 1
    demand_of = _demand_of(topology, collective, size_bytes, chunks, root)
    if chunks is None and not isinstance(collective, Demand):
        demand_of = _multiples(demand_of, getattr((options or {}).get("sketch"), "chunks", 1))
    first = demand_of(1)
    first.check_fits(topology)
    _check_duration(topology, first)
    began = time.monotonic()
    methods = _chosen(method, topology, first)
    chosen_s = time.monotonic() - began
    warm_up(methods)
    all_first = len(first.destination_rank) <= _MOST_FOR_ALL
    clock = Clock(limit_s, seed, steps, should_stop=should_stop, options=options or {})
    clock.started -= chosen_s  # only loading is free
    floor = _Floor(topology, first, clock, gap)
    trace: list[Progress] = []
    best: Schedule | None = None
    interrupted = False
    try:
        wanted = _wanted(method, topology, first, gap, clock) if chunks is None and isinstance(collective, str) else 1
        first_steps = 1 if method == "taccl" else FIRST_STEPS  # its second step is a solver's, which takes long
        search = Chunking(topology, demand_of, methods, clock, workers, all_first, first_steps, wanted)
        for best in search.run():  # each verified
            found_s = clock.elapsed_s
            floor.begin()
            trace.append(Progress(best.finish_us, floor.bound.us if floor.bound else None, best.method, found_s))
            log.debug("%s: finish %g us after %.2f s", best.method, best.finish_us, found_s)
            if on_progress:
                on_progress(trace[-1])
    except KeyboardInterrupt:
        interrupted = True
        log.warning("interrupted")
    interrupted = interrupted or should_stop()
    bound = floor.last(None if interrupted else best)
    if best is None:
        raise NothingFoundError(f"no schedule found in {clock.elapsed_s:.1f} s; the lower bound is {bound.us:g} us")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)
    metrics = measure(best)
    notes = clock.notes | (_losses(best, metrics, clock.notes.get("optimum_us")) if best.method in BY_FLOWS else {})
    return Result(best, bound, metrics, clock.elapsed_s, memory, seed, tuple(trace), interrupted, notes)


class _Floor:
    """The lower bound: sought beside the search, so that it does not wait; where steps are counted, before they go on.

    After a while a sharper one, which takes longer to find, where the gap is worth it.
    """

    def __init__(self, topology: Topology, demand: Demand, clock: Clock, gap: float) -> None:
        self.topology, self.demand, self.clock, self.gap = topology, demand, clock, gap
        self.bound: Bound | None = None
        self.sharp = False
        self.ended = Event()
        self.pool = ThreadPoolExecutor(1)
        self.job: Future[None] | None = None

    def begin(self) -> None:
        """There is a first schedule."""
        if self.job is None:
            self.job = self.pool.submit(self._both)
        if self.clock.steps is not None:
            self.job.result()

    def last(self, best: Schedule | None) -> Bound:
        """The best bound found; sharper yet where there is a schedule to be judged by it and that was not tried."""
        self.ended.set()
        self.pool.shutdown()
        if self.job is not None:
            self.job.result()
        bound = self.bound or self._plain()
        return self._sharper(bound, best.finish_ps) if best is not None and not self.sharp else bound

    def _both(self) -> None:
        bound = self._plain()
        limit_s = self.clock.time_limit_s
        if self.clock.steps is None and not self.ended.wait(max(_SHARPEN_AFTER * limit_s - self.clock.elapsed_s, 0.0)):
            self._sharper(bound, self.clock.best_ps)

    def _plain(self) -> Bound:
        return self._known(lower_bound(self.topology, self.demand))

    def _sharper(self, bound: Bound, finish_ps: float) -> Bound:
        self.sharp = True
        if finish_ps <= bound.ps * (1 + _WORTH_SHARPENING):
            return bound
        limit_s = _SHARPEN_FOR * self.clock.time_limit_s
        return self._known(sharpened(self.topology, self.demand, bound, int(finish_ps), limit_s))

    def _known(self, bound: Bound) -> Bound:
        """From now on we know what is good."""
        self.bound = bound
        self.clock.bound_ps, self.clock.good_ps = bound.ps, bound.ps * (1 + self.gap)
        return bound


def _wanted(method: str, topology: Topology, demand: Demand, gap: float, clock: Clock) -> int:
    """The number of chunks for this gap, where there is a formula for it: on trees."""
    from flowccl.methods.trees.amount import trees_and_rounds

    to_all = bool(np.all(np.diff(demand.destination_ptr) == demand.num_gpus - 1))
    if method not in ("trees", "fluid") or topology.limits or not (to_all or demand.reduces):
        return 1
    count, rounds = trees_and_rounds(topology, demand, gap, clock.shared)
    return count * rounds


def _losses(schedule: Schedule, metrics: Metrics, optimum_us: object) -> dict[str, object]:
    """What lies between a fluid optimum and the finish: whole chunks on the busiest link, and filling the pipe."""
    busiest_us = float(metrics.link_use.max()) * schedule.finish_us
    rows: dict[str, object] = {"busiest_link_us": busiest_us, "pipeline_loss": schedule.finish_us / busiest_us - 1}
    if isinstance(optimum_us, float) and optimum_us > 0:
        rows["chunk_loss"] = busiest_us / optimum_us - 1
    return rows


def _chosen(method: str, topology: Topology, demand: Demand) -> dict[str, Method]:
    """The methods behind a name."""
    if method == "auto":
        return {name: METHODS[name] for name in portfolio(topology, demand)}
    if method not in METHODS:
        from difflib import get_close_matches

        near = get_close_matches(method, ["auto", *METHODS], 1, 0.0)[0]
        raise InputError(f"unknown method {method!r}; nearest is {near!r}, all are auto, {', '.join(METHODS)}")
    return {method: METHODS[method]}


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
