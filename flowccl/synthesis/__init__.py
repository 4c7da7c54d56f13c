"""Synthesis: prepare, search, choose, result.

options.py    SearchOptions
prepare.py    what is to be planned, on which machine
searching.py  the search: budget, methods, lower bound, portfolio
choice.py     which of the schedules found is returned
compact.py, tenants.py, trade_off.py: very large machines, several demands at once, time against messages
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flowccl.errors import NothingFoundError
from flowccl.methods.registry import REGISTRY
from flowccl.result import Progress, Result, peak_memory_MB
from flowccl.schedule.metrics import Metrics, measure
from flowccl.schedule.schedule import Schedule
from flowccl.synthesis.choice import chosen
from flowccl.synthesis.options import SearchOptions
from flowccl.synthesis.prepare import Wanted, prepare
from flowccl.synthesis.searching import TaskSearch
from flowccl.topology.files import read_machine
from flowccl.topology.topology import Topology
from flowccl.units import parse_bytes


def synthesize(
    topology: Topology | str,
    collective: Wanted,
    size_bytes: int | str | None = None,
    search: SearchOptions | None = None,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    on_phase: Callable[[str], None] = lambda text: None,
    should_stop: Callable[[], bool] = lambda: False,
    began_s: float | None = None,
    **changed: Any,
) -> Result:
    """Return a verified schedule of a collective on a machine, with a proved lower bound.

    `topology` is a machine, its name ("ndv2:2") or its file. `collective` is a name with `size_bytes` (as nccl-tests
    counts; 1_048_576 or "1MiB"), a Demand, or a function that makes the Demand for a number of chunks per block.
    `search` are the options of the search; a field of `SearchOptions` that is given as a keyword replaces that of
    `search`: `synthesize("dgx1", "allgather", "1MB", time_limit_s=5)`.

    The search stops when the completion time is within `gap` of the lower bound, after `time_limit_s`, after `steps`
    counted steps, when `should_stop()` is true, or when no method has anything more to try; the result says which.

    The search, the choice, the program and the lower bound together end within the time limit and a tenth of it, at
    least 3 s; what does not fit is left out, and the result says what. A new installation first compiles the loops of
    the methods that suit the problem, once, on all processors; that time does not count. `on_phase` receives a few
    words on what is being done, `on_progress` every improvement. `began_s` is when the caller began, by
    `time.monotonic()`; the default is now.
    """
    began_s = time.monotonic() if began_s is None else began_s
    topology = read_machine(topology) if isinstance(topology, str) else topology
    size_bytes = parse_bytes(size_bytes) if isinstance(size_bytes, str) else size_bytes
    task = prepare(topology, collective, size_bytes, replace(search or SearchOptions(), **changed))
    searching = TaskSearch(task, on_phase, should_stop, began_s)
    searching.run(on_progress)
    context, bound = searching.context, searching.bound()
    context.notes |= searching.watch.notes(searching.has_fewer_chunks)
    if searching.best is None:
        raise NothingFoundError(
            f"no schedule found in {context.budget.elapsed_s:.1f} s; the lower bound is {bound.us:g} us"
        )
    best, lowered, found = chosen(searching, searching.best, bound)
    metrics = measure(best, None if lowered is None else lowered.program_ps)
    context.notes |= {"stopped": searching.portfolio.stopped, "methods": searching.portfolio.methods_tried()}
    notes = context.notes | _losses(best, metrics, context.notes.get("optimum_us"))
    return Result(
        schedule=best,
        bound=bound,
        metrics=metrics,
        synthesis_s=context.budget.elapsed_s,
        peak_memory_MB=peak_memory_MB(),
        seed=task.options.seed,
        trace=tuple(searching.trace),
        interrupted=searching.interrupted,
        details=notes,
        lowered=lowered,
        found=tuple(found),
    )


def _losses(schedule: Schedule, metrics: Metrics, optimum_us: object) -> dict[str, object]:
    """What lies between a fluid optimum and the finish: whole chunks on the busiest link, and filling the pipe.

    Nothing for a method that does not start from a fluid optimum.
    """
    if schedule.method not in REGISTRY or not REGISTRY[schedule.method].fluid:
        return {}
    busiest_us = float(metrics.link_use.max()) * schedule.finish_us
    rows: dict[str, object] = {"busiest_link_us": busiest_us, "pipeline_loss": schedule.finish_us / busiest_us - 1}
    if isinstance(optimum_us, float) and optimum_us > 0:
        rows["chunk_loss"] = busiest_us / optimum_us - 1
    return rows
