"""`flowccl catalog build`: synthesize plans for many sizes and keep those that win."""

import argparse
import signal
import sys
from pathlib import Path

from flowccl.commands.parser import ENGINE, FAULTS, FOR, JSON, MACHINE, QUIET, SEED, SMS, Commands, add_command
from flowccl.commands.parts import machine_with_faults, print_result
from flowccl.commands.terminal import CountLine
from flowccl.errors import InputError

_BUILD = f"""
flowccl catalog build MACHINE --out FOLDER [options]

synthesize plans for many sizes and keep those that win

Synthesize each collective at many sizes (each twice the one before), time every plan at neighbouring
sizes, keep the few plans that win somewhere, and find by bisection where one takes over from the other.
Work is counted in steps, so equal inputs give equal files. To resume a build that was stopped, run the
same command again.

options:
  {MACHINE}
  --out! FOLDER  the folder to write
  {FOR}
  --collectives LIST [allreduce,allgather,reduce_scatter,alltoall]  collectives without a root
  --sizes LOW:HIGH [1KB:1GB]  the range of sizes
  --inplace  plans for in-place calls (default: out of place)
  --steps N [40]  steps of the search for each plan
  --tolerance FRACTION [0.01, which is 1 %]  a plan within this fraction of the fastest one may take its place
  --most N [8]  keep at most N plans of a collective
  {SEED}
  {SMS}
  {ENGINE}
  --jobs N  processes at a time (default: one per core)
  {JSON}
  {QUIET}

{FAULTS}

examples:
  flowccl catalog build dgx_h100:2 --for mscclpp --out plans
  flowccl catalog build cluster.json --collectives allreduce --sizes 64KB:256MB --inplace --out plans
  flowccl catalog build dgx_h100:4 --engine dask=tcp://10.0.0.1:8786 --out plans
"""


def add_build(parts: Commands) -> None:
    """Add `build` and its options."""
    add_command(parts, _BUILD, _build)


def _build(options: argparse.Namespace) -> int:
    """Build, and say how to resume where Ctrl-C or a signal to end (SIGTERM) stops the build."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _built(options)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C would interrupt the cleaning up
        print(f"flowccl: stopped; run the same command again to resume ({options.out})", file=sys.stderr)
        return 3
    finally:
        signal.signal(signal.SIGTERM, before)


def _built(options: argparse.Namespace) -> int:
    from flowccl.catalog.build import BuildOptions, build_catalog
    from flowccl.catalog.engine import TaskEngine
    from flowccl.catalog.files import catalog_to_json
    from flowccl.catalog.show import describe_catalog
    from flowccl.demand.collectives import collective_name
    from flowccl.runtimes.profiles import runtime_profile

    topology = machine_with_faults(options.machine, options)
    low, high = _range(options.sizes)
    chosen = BuildOptions(
        collectives=tuple(dict.fromkeys(collective_name(name) for name in options.collectives.split(","))),
        low_bytes=low,
        high_bytes=high,
        runtime=runtime_profile(options.runtime),
        inplace=options.inplace,
        steps=options.steps,
        seed=options.seed,
        sms=options.sms,
        tolerance=options.tolerance,
        most=options.most,
    )
    engine = TaskEngine.parse(options.engine, options.jobs)
    folder = Path(options.out)
    if not folder.parent.is_dir():
        raise InputError(f"--out {folder}: there is no folder {folder.parent}")
    with CountLine(options.quiet or options.verbose, "synthesizing", "cases") as line:
        result = build_catalog(topology, folder, chosen, engine, line.show, line.phase)
    for case, message in result.failed:
        print(f"flowccl: note: {case}: {message}", file=sys.stderr)
    print_result(options, catalog_to_json(result.catalog), describe_catalog(result.catalog))
    return 0


def _range(text: str) -> tuple[int, int]:
    from flowccl.units import parse_bytes

    low, colon, high = text.partition(":")
    if not colon:
        raise InputError(f"--sizes {text!r}: write the smallest and the largest size, for example 1KB:1GB")
    return parse_bytes(low), parse_bytes(high)
