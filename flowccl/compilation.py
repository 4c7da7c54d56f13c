"""Compiled loops: load them; those that are missing are compiled first, by one process per processor.

`python -m flowccl.compilation [UNIT...]` compiles units, each the loops that some methods share; without names it
compiles everything. The machine code lands in the cache on disk, from which every process loads it.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING

from flowccl.compile_cache import folder, is_compiled, record_compiled
from flowccl.errors import DemandError
from flowccl.methods.registry import REGISTRY, load_method

if TYPE_CHECKING:
    from flowccl.problem import Problem
    from flowccl.search.context import SearchContext


PROGRAMS = "programs"
"""The unit of the loops that read, time and prove programs of MSCCL++; no method runs them."""
_SMALL_S = 100.0  # for a small problem, also while its loops are compiled: a method that stops early leaves some out
_LOADED = set[str]()  # units of which this process has the machine code
_LOADING = Lock()
_HELPER = "FLOWCCL_COMPILES_FOR_ANOTHER"  # set in processes that help another one


def units_of(names: Iterable[str], *, programs: bool = False) -> list[str]:
    """The units of compiled loops that these methods run, and that of programs if wanted; each once."""
    units = [unit for name in names for unit in REGISTRY[name].loops]
    return list(dict.fromkeys([*units, *([PROGRAMS] if programs else [])]))


def all_units() -> list[str]:
    """The units of all methods, and that of programs."""
    return units_of(REGISTRY, programs=True)


def compile_missing(units: Sequence[str], on_phase: Callable[[str], None] = lambda text: None) -> float:
    """Compile the units that are not in the cache, in a new installation. Return the seconds that it took.

    Where several are missing, other processes compile the last ones while this one compiles the first ones. No loop is
    compiled twice, since each has a lock.
    """
    missing = [unit for unit in units if not is_compiled(unit)]
    if not missing:
        return 0.0
    began = time.monotonic()
    on_phase(f"compiling, once per installation: {', '.join(missing)}")
    helpers = _helpers(missing)
    load(missing)
    for helper in helpers:
        helper.wait()
    return time.monotonic() - began


def load(units: Iterable[str]) -> None:
    """Load the compiled loops of some units, each once in this process; those that are missing are compiled."""
    with _LOADING:
        for unit in units:
            if unit not in _LOADED:
                compile_now(unit)
                _LOADED.add(unit)


def load_loops(units: Sequence[str]) -> None:
    """Load the compiled loops of some units; a new installation compiles them first."""
    compile_missing(units)
    load(units)


def warm_up(names: Iterable[str]) -> None:
    """Load the compiled loops of these methods; a new installation compiles them first."""
    load_loops(units_of(names))


def compile_now(unit: str) -> None:
    """Compile a unit, or load it, by running its method on a small machine; record that it is in the cache."""
    _run_small(unit)
    if not is_compiled(unit):
        from flowccl.compiled import loaded_files

        record_compiled(unit, loaded_files())


def main(arguments: Sequence[str]) -> int:
    """Compile units that are not in the cache; all of them if none is named."""
    known = all_units()
    parser = _parser(known)
    units = parser.parse_args(arguments).units
    for unit in units:
        if unit not in known:
            parser.error(f"there is no unit {unit!r}; the units are {', '.join(known)}")
    load_loops(units or known)
    return 0


def _parser(units: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of `python -m flowccl.compilation`."""
    parser = argparse.ArgumentParser(
        prog="python -m flowccl.compilation",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "Compile the loops of the methods ahead of their first use, with one process per processor.\n"
            "Units that are in the cache are only loaded."
        ),
        epilog=(
            f"units:\n  {', '.join(units)}\n\nexamples:\n"
            "  python -m flowccl.compilation                  everything, for example in the image of a container\n"
            "  python -m flowccl.compilation hierarchical     the loops that one method needs"
        ),
    )
    parser.add_argument("units", metavar="UNIT", nargs="*", help="the loops that some methods share (default: all)")
    return parser


def processors() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _helpers(missing: Sequence[str]) -> list[subprocess.Popen[bytes]]:
    """Processes that compile the missing units, each in another order; none where one processor or unit is left."""
    if _HELPER in os.environ or folder() is None:
        return []
    count = min(processors(), len(missing))
    orders = [[*missing[n:], *missing[:n]] for n in (len(missing) * part // count for part in range(1, count))]
    nowhere = subprocess.DEVNULL
    return [
        subprocess.Popen(
            [sys.executable, "-m", "flowccl.compilation", *order],
            stdin=nowhere,
            stdout=nowhere,
            stderr=nowhere,
            env=os.environ | {_HELPER: "1"},
        )
        for order in orders
    ]


def _run_small(unit: str) -> None:
    """Run a method on two hosts of two GPUs, in all the ways in which a synthesis runs it; or make a program."""
    from flowccl.schedule.generation.list_scheduling import list_schedule
    from flowccl.search.context import SearchContext

    context = SearchContext.with_limit(_SMALL_S)
    if unit == PROGRAMS:
        _make_program(context)
        return
    method = REGISTRY[unit]
    names = ["allreduce"] if method.allreduce else ["allgather", "alltoall"]
    if method.reductions == "native" and not method.allreduce:  # an allreduce has loops of its own
        names.append("allreduce")
    for problem in map(_small_problem, names):
        with suppress(DemandError):  # not for this collective
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
