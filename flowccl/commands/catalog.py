"""`flowccl catalog build | check | show | select | export`: the plans of a machine for all sizes."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from flowccl.commands.parts import (
    Commands,
    Parser,
    add_faults,
    fraction,
    machine_with_faults,
    natural,
    optional_machine,
    positive,
)
from flowccl.commands.terminal import LiveLine, print_text
from flowccl.errors import FileError, InputError

if TYPE_CHECKING:
    from flowccl.catalog.engine import Engine
    from flowccl.catalog.model import Catalog
    from flowccl.catalog.sweep import SweepProgress
    from flowccl.topology.topology import Topology

_DEFAULT_STEPS = 40
_FAILURE_STEPS = 1  # of each quick method: what `replan` does


def add(commands: Commands) -> None:
    """Add the command and its parts."""
    catalog = commands.add_parser(
        "catalog",
        help="a folder of plans for many collectives and sizes",
        usage="flowccl catalog build|check|show|select|export ...",
        description=(
            "A catalog is a folder of plans for one machine and one runtime: for each collective and range of sizes\n"
            "the plan that is predicted to be the fastest, or the library's own algorithm where that is faster."
        ),
        epilog=(
            "examples:\n"
            "  flowccl catalog build dgx_h100:2 --for mscclpp --sizes 1KB:1GB --out plans\n"
            "  flowccl catalog check plans\n"
            "  flowccl catalog show plans --out plans.png\n"
            "  flowccl catalog select plans --collective allreduce --size 3MiB\n"
            "  flowccl catalog export plans --out for-mscclpp"
        ),
    )
    parts = catalog.add_subparsers(title="parts", required=True, metavar="PART", dest="part", prog="flowccl catalog")
    _add_build(parts)
    check = parts.add_parser(
        "check",
        help="everything that is wrong with a catalog",
        usage="flowccl catalog check FOLDER [options]",
        description=(
            "Check overlaps, holes, alignment, missing and changed files, and verify every schedule again.\n"
            "\nexit code 0: nothing is wrong; 2: something is."
        ),
    )
    check.add_argument("--machine", metavar="MACHINE", help="the machine on which the catalog is to be used")
    show = parts.add_parser(
        "show",
        help="a table of the plans, and a picture of time by size",
        usage="flowccl catalog show FOLDER [options]",
        description="Print the ranges of sizes and their plans. With --out, also plot the predicted times over size.",
    )
    show.add_argument("--collective", metavar="NAME", help="plot this collective (default: the first one)")
    show.add_argument("--out", metavar="FILE", help="write the plot here (.png, .svg or .pdf)")
    select = parts.add_parser(
        "select",
        help="which plan serves a call, and why",
        usage="flowccl catalog select FOLDER --collective NAME --size SIZE [options]",
        description="Print the plan that the rules choose for a call, its predicted time, and the reason.",
    )
    select.add_argument("--collective", metavar="NAME", required=True, help="allreduce, allgather, ...")
    select.add_argument("--size", metavar="SIZE", required=True, help="size as nccl-tests counts it, e.g. 3MiB")
    select.add_argument("--ranks", metavar="N", type=positive, help="GPUs of the call (default: all)")
    select.add_argument(
        "--machine", metavar="MACHINE", help="the machine on which the call runs (default: not checked)"
    )
    for parser in (check, select):
        add_faults(parser)
    export = parts.add_parser(
        "export",
        help="the files that the runtime loads",
        usage="flowccl catalog export FOLDER --out NEW_FOLDER [options]",
        description=(
            "Write what the runtime loads: for mscclpp the plans and a Python module that registers them with a\n"
            "selector; for msccl, executor and rccl a folder of XML files (MSCCL_ALGO_DIR). For the sizes that the\n"
            "library serves, nccl_tuner.csv configures the example tuner plugin of NCCL."
        ),
    )
    export.add_argument("--out", metavar="FOLDER", required=True, help="the new folder")
    for parser, run in ((check, _check), (show, _show), (select, _select), (export, _export)):
        parser.add_argument("folder", metavar="FOLDER", help="the folder that `flowccl catalog build` wrote")
        parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
        parser.set_defaults(run=run)


def _add_build(parts: "argparse._SubParsersAction[Parser]") -> None:
    build = parts.add_parser(
        "build",
        help="synthesize plans for many sizes and keep those that win",
        usage="flowccl catalog build MACHINE --out FOLDER [options]",
        description=(
            "Synthesize each collective at many sizes (each twice the one before), time every plan at neighbouring\n"
            "sizes, keep the few plans that win somewhere, and find by bisection where one takes over from the other.\n"
            "Work is counted in steps, so equal inputs give equal files. A build that was stopped goes on where it was."
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
        help=f"work of each synthesis in counted steps (default: {_DEFAULT_STEPS})",
    )
    build.add_argument(
        "--tolerance",
        metavar="FRACTION",
        type=fraction,
        default=0.01,
        help="a plan within this of the fastest one may take its place (default: 0.01)",
    )
    build.add_argument("--most", metavar="N", type=positive, default=8, help="plans of a collective (default: 8)")
    build.add_argument("--seed", metavar="N", type=natural, default=0, help="seed of all random choices (default: 0)")
    build.add_argument("--sms", metavar="N", type=positive, help="SMs of a GPU, where the machine names no GPU model")
    build.add_argument(
        "--engine",
        metavar="ENGINE",
        default="local",
        help="where the work is done: local (processes), dask=ADDRESS or ray; all give the same files (default: local)",
    )
    build.add_argument(
        "--failures",
        choices=("links", "nics"),
        help="also prepare plans for every failure of one link, or of one NIC; one of each symmetric kind is planned",
    )
    build.add_argument("--jobs", metavar="N", type=positive, help="processes at a time (default: one per core)")
    build.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    build.add_argument("--quiet", action="store_true", help="do not show the progress line")
    add_faults(build)
    build.set_defaults(run=_build)


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
    from flowccl.catalog.build import BuildOptions, build_catalog
    from flowccl.catalog.engine import Engine
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
    engine = Engine.parse(options.engine, options.jobs)
    folder = Path(options.out)
    if not folder.parent.is_dir():
        raise InputError(f"--out {folder}: there is no folder {folder.parent}")
    progress = SweepLine(options.quiet or options.verbose)
    try:
        result = build_catalog(topology, folder, chosen, engine, progress.show, progress.phase)
        if options.failures is not None:
            _prepare(options, folder, result.catalog, topology, engine, progress)
    except KeyboardInterrupt:
        progress.clear()
        print(f"flowccl: stopped; the same command goes on where it was ({folder})", file=sys.stderr)
        return 3
    finally:
        progress.clear()
    for case, message in result.failed:
        print(f"flowccl: note: {case}: {message}", file=sys.stderr)
    print_text(json.dumps(catalog_to_json(result.catalog)) if options.json else describe_catalog(result.catalog))
    return 0


def _prepare(
    options: argparse.Namespace,
    folder: Path,
    catalog: "Catalog",
    topology: "Topology",
    engine: "Engine",
    progress: SweepLine,
) -> None:
    """Prepare plans for single failures; say which ones no plan can serve."""
    from flowccl.catalog.failures import prepare_failures

    def show(done: int, total: int) -> None:
        progress.phase(f"failures: {done} of {total} plans")

    failures = prepare_failures(folder, catalog, topology, options.failures, engine, _FAILURE_STEPS, show)
    progress.clear()
    for failure in failures:
        if failure.refused:
            print(f"flowccl: note: no plan for {failure.name}: {failure.refused}", file=sys.stderr)


def _range(text: str) -> tuple[int, int]:
    from flowccl.units import parse_bytes

    low, colon, high = text.partition(":")
    if not colon:
        raise InputError(f"--sizes {text!r}: write the smallest and the largest size, for example 1KB:1GB")
    return parse_bytes(low), parse_bytes(high)


def _check(options: argparse.Namespace) -> int:
    from flowccl.catalog.check import check_catalog
    from flowccl.wording import counted

    machine = optional_machine(options)
    result = check_catalog(options.folder, machine)
    if options.json:
        print(json.dumps({"correct": not result.findings, "findings": list(result.findings)}))
    elif result.findings:
        print_text("\n".join([*result.findings, f"WRONG: {counted(len(result.findings), 'error')}"]))
    elif result.catalog is not None:
        plans, rules = counted(len(result.catalog.plans), "plan"), counted(len(result.catalog.rules), "rule")
        print_text(f"CORRECT: {plans}, {rules}: no overlaps, no holes, all files as built, every schedule verified")
    return 2 if result.findings else 0


def _show(options: argparse.Namespace) -> int:
    from flowccl.catalog.files import catalog_to_json, load_catalog
    from flowccl.catalog.show import describe_catalog

    catalog = load_catalog(options.folder)
    print_text(json.dumps(catalog_to_json(catalog)) if options.json else describe_catalog(catalog))
    if options.out is not None:
        _plot(catalog, _collective(catalog, options.collective), options.out)
        if not options.json:
            print(f"plot written to {options.out}")
    return 0


def _collective(catalog: "Catalog", name: str | None) -> str:
    from flowccl.demand.collectives import collective_name

    if not catalog.collectives:
        raise FileError("the catalog has no rules")
    chosen = catalog.collectives[0] if name is None else collective_name(name)
    if chosen not in catalog.collectives:
        raise InputError(f"--collective {name}: the catalog has {', '.join(catalog.collectives)}")
    return chosen


def _plot(catalog: "Catalog", collective: str, path: str) -> None:
    from flowccl.plot.catalog_times import plot_catalog

    points = [point for point in catalog.times if point.collective == collective]
    rules = [rule for rule in catalog.rules if rule.collective == collective]

    def curve(name: str) -> tuple[list[int], list[float]]:
        rows = [(p.size_bytes, getattr(p, name)) for p in points if getattr(p, name) is not None]
        return [size for size, _ in rows], [us for _, us in rows]

    plans = {}
    for rule in rules:
        rows = [p for p in points if rule.plan is not None and p.plan == rule.plan and p.program_us is not None]
        if rule.plan is not None:
            plans[rule.plan] = ([p.size_bytes for p in rows], [p.program_us or 0.0 for p in rows])
    others = {"library": curve("library_us"), "lower bound": curve("lower_bound_us")}
    edges = sorted({edge for rule in rules for edge in (rule.bytes.low, rule.bytes.high)})
    title = f"{collective} on {catalog.machine.name}, {catalog.runtime}"
    plot_catalog(title, plans, {name: rows for name, rows in others.items() if rows[0]}, edges, path)


def _select(options: argparse.Namespace) -> int:
    from flowccl.catalog.files import load_catalog, load_plan_file
    from flowccl.catalog.model import Call
    from flowccl.catalog.selection import Selector
    from flowccl.demand.collectives import collective_name
    from flowccl.units import format_us, parse_bytes

    catalog = load_catalog(options.folder)
    machine = optional_machine(options)
    fingerprint = None if machine is None else machine.fingerprint
    name, ranks = collective_name(options.collective), options.ranks or catalog.machine.ranks
    inplace = any(rule.inplace for rule in catalog.rules)
    call = Call(name, parse_bytes(options.size), ranks, inplace, fingerprint=fingerprint)
    choice = Selector(catalog).select(call)
    predicted_us = None
    if choice.plan is not None:
        load_plan_file(options.folder, choice.plan)
        predicted_us = _predicted_us(options.folder, catalog, choice.plan.name, call.size_bytes)
    if options.json:
        plan = choice.plan
        value = {"plan": plan and plan.name, "file": plan and plan.file, "program_us": predicted_us}
        print(json.dumps(value | {"reason": choice.reason}))
        return 0
    print_text(f"plan       {choice.plan.name if choice.plan else '(library)'}")
    if choice.plan is not None and predicted_us is not None:
        print_text(f"file       {Path(options.folder) / choice.plan.file}\npredicted  {format_us(predicted_us)}")
    print_text(f"reason     {choice.reason}")
    return 0


def _export(options: argparse.Namespace) -> int:
    from flowccl.catalog.files import load_catalog
    from flowccl.catalog.runtime_files import write_runtime_files

    paths = write_runtime_files(Path(options.folder), load_catalog(options.folder), Path(options.out))
    print_text(json.dumps([str(path) for path in paths]) if options.json else "\n".join(map(str, paths)))
    return 0


def _predicted_us(folder: str, catalog: "Catalog", name: str, size_bytes: int) -> float:
    """The predicted time of a plan at a size."""
    from flowccl.catalog.case import PlanTimer, runtime_of
    from flowccl.catalog.files import load_plan_schedule
    from flowccl.units import ps_to_us

    schedule = load_plan_schedule(folder, catalog.plan(name), catalog.machine.ranks)
    inplace = any(rule.inplace for rule in catalog.rules)
    return ps_to_us(PlanTimer(schedule, runtime_of(catalog.runtime, catalog.costs), inplace).time_ps(size_bytes))
