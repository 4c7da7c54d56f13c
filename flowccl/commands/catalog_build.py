"""`flowccl catalog build`: synthesize plans for many sizes and keep those that win."""

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from flowccl.commands.parts import Parser, add_faults, fraction, machine_with_faults, natural, positive
from flowccl.commands.terminal import LiveLine, print_text
from flowccl.errors import InputError

if TYPE_CHECKING:
    from flowccl.catalog.sweep import SweepProgress

_DEFAULT_STEPS = 40


def add_build(parts: "argparse._SubParsersAction[Parser]") -> None:
    """Add `build` and its options."""
    build = parts.add_parser(
        "build",
        help="synthesize plans for many sizes and keep those that win",
        usage="flowccl catalog build MACHINE --out FOLDER [options]",
        description=(
            "Synthesize each collective at many sizes (each twice the one before), time every plan at neighbouring\n"
            "sizes, keep the few plans that win somewhere, and find by bisection where one takes over from the other.\n"
            "Work is counted in steps, so equal inputs give equal files. To resume a build that was stopped, run the\n"
            "same command again."
        ),
        epilog=(
            "examples:\n"
            "  flowccl catalog build dgx_h100:2 --for mscclpp --out plans\n"
            "  flowccl catalog build cluster.json --collectives allreduce --sizes 64KB:256MB --inplace --out plans\n"
            "  flowccl catalog build dgx_h100:4 --engine dask=tcp://10.0.0.1:8786 --out plans"
        ),
    )
    build.add_argument("machine", metavar="MACHINE", help="a name (see `flowccl machines`) or a topology file")
    build.add_argument("--out", metavar="FOLDER", required=True, help="the folder to write")
    build.add_argument(
        "--for",
        dest="runtime",
        metavar="RUNTIME",
        default="mscclpp",
        help="mscclpp, msccl, executor, rccl, ideal, or a profile file (default: mscclpp)",
    )
    build.add_argument(
        "--collectives",
        metavar="LIST",
        default="allreduce,allgather,reduce_scatter,alltoall",
        help="collectives without a root (default: allreduce,allgather,reduce_scatter,alltoall)",
    )
    build.add_argument("--sizes", metavar="LOW:HIGH", default="1KB:1GB", help="the range of sizes (default: 1KB:1GB)")
    build.add_argument("--inplace", action="store_true", help="plans for in-place calls (default: out of place)")
    build.add_argument(
        "--steps",
        metavar="N",
        type=positive,
        default=_DEFAULT_STEPS,
        help=f"steps of the search for each plan (default: {_DEFAULT_STEPS})",
    )
    build.add_argument(
        "--tolerance",
        metavar="FRACTION",
        type=fraction,
        default=0.01,
        help="a plan within this fraction of the fastest one may take its place (default: 0.01, which is 1 %%)",
    )
    _add_work(build)
    build.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    build.add_argument("--quiet", action="store_true", help="do not show the progress line")
    add_faults(build)
    build.set_defaults(run=_build)


def _add_work(build: Parser) -> None:
    """Options of how much is done, and where."""
    build.add_argument(
        "--most", metavar="N", type=positive, default=8, help="keep at most N plans of a collective (default: 8)"
    )
    build.add_argument("--seed", metavar="N", type=natural, default=0, help="seed of all random choices (default: 0)")
    build.add_argument("--sms", metavar="N", type=positive, help="SMs of a GPU, where the machine names no GPU model")
    build.add_argument(
        "--engine",
        metavar="ENGINE",
        default="local",
        help="where the work is done: local (processes), dask=ADDRESS or ray; all give the same files (default: local)",
    )
    build.add_argument("--jobs", metavar="N", type=positive, help="processes at a time (default: one per core)")


class SweepLine(LiveLine):
    """The live line of a sweep: finished cases, and the time that is left."""

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(quiet)
        self._done = 0.0

    def show(self, progress: "SweepProgress") -> None:
        """Report the finished cases and the estimate of the remaining time."""
        new, left = progress.finished - progress.before, progress.total - progress.finished
        self._done = progress.finished / max(progress.total, 1)
        self.facts = [f"{progress.finished} of {progress.total} cases"]
        if new and left:
            self.facts.append(f"about {(time.monotonic() - self.started) / new * left:.0f} s left")
        self.phase("synthesizing")

    def done(self) -> float | None:
        """The finished part of the cases."""
        return self._done


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
    progress = SweepLine(options.quiet or options.verbose)
    try:
        result = build_catalog(topology, folder, chosen, engine, progress.show, progress.phase)
    finally:
        progress.clear()
    for case, message in result.failed:
        print(f"flowccl: note: {case}: {message}", file=sys.stderr)
    print_text(json.dumps(catalog_to_json(result.catalog)) if options.json else describe_catalog(result.catalog))
    return 0


def _range(text: str) -> tuple[int, int]:
    from flowccl.units import parse_bytes

    low, colon, high = text.partition(":")
    if not colon:
        raise InputError(f"--sizes {text!r}: write the smallest and the largest size, for example 1KB:1GB")
    return parse_bytes(low), parse_bytes(high)
