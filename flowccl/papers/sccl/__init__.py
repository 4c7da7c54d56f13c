"""Method `sccl`: least steps and rounds, after Cai et al., "Synthesizing Optimal Collective Algorithms", PPoPP 2021.

options.py   chunks, steps and rounds that the user asks for
graph.py     the machine as edges with capacities per round; lower bounds on steps and rounds
program.py   the integer program of one instance
decide.py    find a plan, or prove that there is none
phases.py    reductions by inversion, allreduce by composition; plans as schedules
front.py     the Pareto front
"""

from collections.abc import Iterator
from dataclasses import asdict

import numpy as np

from flowccl.errors import DemandError, InputError, NothingFoundError
from flowccl.papers.sccl.front import Found, StepSearch
from flowccl.papers.sccl.options import ScclOptions
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext


def sccl(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Yield the earliest schedule on the Pareto front of steps and rounds per chunk; the notes have the whole front."""
    demand, options = problem.demand, ScclOptions.of(context.options)
    if np.ptp(demand.chunk_bytes) > 1:
        sizes = f"{demand.chunk_bytes.min()} to {demand.chunk_bytes.max()} bytes"
        raise DemandError(f"method sccl needs blocks of equal size; {demand.collective} has blocks of {sizes}")
    search = StepSearch(problem.topology, demand, options, context)
    decided = list(search.run())
    _check_found(decided, options, search, context)
    front = [(found, found.schedule) for found in decided if found.schedule is not None]
    best, schedule = min(front, key=lambda pair: pair[1].finish_ps)
    context.notes |= {
        "chunks": best.instance.chunks,
        "steps": best.instance.steps,
        "rounds": best.instance.rounds,
        "rounds_per_step": list(best.rounds_per_step),
        "front": [{**asdict(found.instance), "finish_us": one.finish_us} for found, one in front],
        "infeasible": [str(found.instance) for found in decided if found.infeasible],
        "undecided": [str(one.instance) for one in decided if one.schedule is None and not one.infeasible],
        "rounds_bound": str(search.least_rounds),
        "steps_bound": f"at least {search.least_steps * search.parts} steps: {search.far}",
    }
    yield schedule


def _check_found(decided: list[Found], options: ScclOptions, search: StepSearch, context: SearchContext) -> None:
    """Raise an error that says what was proved, where no instance has a plan."""
    if any(found.schedule is not None for found in decided):
        return
    proved = [str(found.instance) for found in decided if found.infeasible]
    if decided and len(proved) == len(decided) and options.steps is not None:
        words = "instance" if len(proved) == 1 else "instances"
        raise InputError(
            f"sccl: proved infeasible: {words} (chunks, steps, rounds) {', '.join(proved)}; "
            "give more steps or rounds, or fewer chunks"
        )
    refuted = f"proved infeasible: {', '.join(proved)}; " if proved else ""
    raise NothingFoundError(
        f"sccl: no plan found in {context.budget.elapsed_s:.1f} s; {refuted}{search.least_rounds}; "
        f"at least {search.least_steps * search.parts} steps: {search.far}"
    )
