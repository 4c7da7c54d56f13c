"""Compiled loops: load them, compile them in the foreground, or in a process of its own in the background.

`python -m flowccl.compilation UNIT...` compiles units, each the loops that some methods share. The machine code lands
in the cache on disk, from which every process loads it. Where FLOWCCL_COMPILE=foreground is set, nothing is compiled
in the background.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from flowccl.compile_cache import folder, is_compiled, lock, record_compiled
from flowccl.methods.registry import REGISTRY, load_method

if TYPE_CHECKING:
    from flowccl.problem import Problem
    from flowccl.search.context import SearchContext


PROGRAMS = "programs"
"""The unit of the loops that read, time and prove programs of MSCCL++; no method runs them."""


def units_of(names: Iterable[str]) -> list[str]:
    """The units of compiled loops that these methods run, each once."""
    return list(dict.fromkeys(unit for name in names for unit in REGISTRY[name].loops))


def is_ready(name: str) -> bool:
    """Whether all compiled loops of a method are in the cache."""
    return all(map(is_compiled, REGISTRY[name].loops))


def in_background() -> bool:
    """Whether loops may be compiled in the background."""
    return os.environ.get("FLOWCCL_COMPILE") != "foreground" and folder() is not None


def compile_in_background(units: Iterable[str]) -> list[str]:
    """Start a process of low priority that compiles the units that are not in the cache; return these.

    The process goes on after this one has ended, so that the next one finds the loops compiled.
    """
    missing = [unit for unit in units if not is_compiled(unit)]
    if missing:
        command = [sys.executable, "-m", "flowccl.compilation", *missing]
        nowhere = subprocess.DEVNULL
        subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)
    return missing


def compile_now(unit: str) -> None:
    """Compile a unit, or load it, by running its method on a small machine; record that it is in the cache."""
    _run_small(unit)
    if not is_compiled(unit):
        from flowccl.compiled import loaded_files

        record_compiled(unit, loaded_files())


def warm_up(names: Iterable[str]) -> None:
    """Load the compiled loops of these methods; a new installation compiles them first."""
    for unit in units_of(names):
        compile_now(unit)


def compile_programs() -> None:
    """Compile or load the loops that prove and time programs of MSCCL++; call it before a time limit starts."""
    compile_now(PROGRAMS)


def wait_for_programs(on_phase: Callable[[str], None]) -> None:
    """Wait while a process in the background compiles the loops of programs; `on_phase` is told so."""
    if not is_compiled(PROGRAMS):
        on_phase(f"compiling, once: {PROGRAMS}")
        with lock(PROGRAMS, wait=True):
            return


def main(units: Sequence[str]) -> int:
    """Compile units one after the other; skip those that are compiled, or that another process compiles now."""
    if hasattr(os, "nice"):
        os.nice(10)
    for unit in units:
        with lock(unit, wait=False) as is_mine:
            if not is_mine:
                continue
            with lock("compiler", wait=True):  # one process at a time, since each occupies a processor
                if not is_compiled(unit):
                    compile_now(unit)
    return 0


def _run_small(unit: str) -> None:
    """Run a method on two hosts of two GPUs, in all the ways in which a synthesis runs it; or make a program."""
    from flowccl.schedule.generation.list_scheduling import list_schedule
    from flowccl.search.context import SearchContext

    context = SearchContext.with_limit(1.0)
    if unit == PROGRAMS:
        _make_program(context)
        return
    problem = _small_problem("allreduce" if REGISTRY[unit].allreduce else "allgather")
    for _ in range(2):  # lns builds and improves, then continues from the incumbent
        for found in filter(None, islice(load_method(unit)(problem, context), 2)):
            list_schedule(found)
            context.incumbents.report(found)
        context.incumbents.publish()


def _make_program(context: "SearchContext") -> None:
    """Lower a schedule, time its program and prove it."""
    from flowccl.export.program import program_for

    found = next(filter(None, load_method("direct")(_small_problem("allgather"), context)))
    program = program_for(found)
    _ = program.program_ps, program.findings


def _small_problem(collective_name: str) -> "Problem":
    """A collective on two hosts of two GPUs."""
    from flowccl.demand.collectives import collective
    from flowccl.problem import Problem
    from flowccl.topology.topology import Link, Node, Topology

    gpus = tuple(Node(name=f"gpu{rank}", host=f"host{rank // 2}") for rank in range(4))
    ends = [(a, b) for a in range(4) for b in range(4) if a != b]
    links = tuple(Link(src=a, dst=b, bandwidth_GBps=4.0 if a // 2 == b // 2 else 1.0) for a, b in ends)
    return Problem(Topology("warm-up", gpus, links), collective(collective_name, 4, 64))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
