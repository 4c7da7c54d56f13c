"""`flowccl audit`: from the logs of a job to what every collective took, could take, and which plans are worth it."""

import argparse
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowccl.commands.parts import Commands, StopSignal, fraction, natural, positive, seconds
from flowccl.commands.terminal import LiveLine, print_text
from flowccl.errors import InputError

if TYPE_CHECKING:
    from flowccl.jobs.audit import Audit
    from flowccl.jobs.building import BuiltPlan
    from flowccl.jobs.calls import Calls


def add(commands: Commands) -> None:
    """Add the command and its options."""
    audit = commands.add_parser(
        "audit",
        help="compare the collectives of a real job with what its hardware allows",
        usage="flowccl audit LOGS... --machine MACHINE [options]",
        description=(
            "Read logs of a job, and print one row for each kind of calls (collective, size, group): what they took,\n"
            "what NCCL's model predicts, the best plan found, the proved lower bound of the hardware, and what the\n"
            "plan saves. LOGS are files or folders: PyTorch profiler traces, flight recorder dumps and execution\n"
            "traces, NCCL Inspector and NCCL_DEBUG logs, output of nccl-tests, torchcomms clog files, or CSV\n"
            "(collective,bytes,ranks,count,microseconds). Formats are recognized; give one file per rank."
        ),
        epilog=(
            "examples:\n"
            "  flowccl audit traces/ --machine dgx_h100:4 --for mscclpp --report job.html\n"
            "  flowccl audit trace-*.json.gz --machine cluster.json --searched 0       bounds only, no search\n"
            "  flowccl audit calls.csv --machine dgx_h100:1 --what-if 'gpu3 <-> nvswitch0=100GB/s'\n"
            "  flowccl audit nccl-tests.txt --machine dgx_h100:2 --fit                 bandwidth and latency from it\n"
            "\nexit codes:\n"
            "  0: success; 2: bad input, or nothing in the logs was readable"
        ),
    )
    audit.add_argument("logs", metavar="LOGS", nargs="+", help="files or folders")
    audit.add_argument(
        "--machine", metavar="MACHINE", required=True, help="a name (see `flowccl machines`) or a topology file"
    )
    audit.add_argument(
        "--format",
        metavar="FORMAT",
        help="the format of all files, where it is not recognized: profiler, flight recorder, execution trace, "
        "inspector, nccl-tests, clog, NCCL log, csv",
    )
    audit.add_argument(
        "--rank-map",
        metavar="GPUS",
        help="the GPU of each rank, e.g. 8-15,0-7, or a file with it (default: ranks in the order of the GPUs)",
    )
    audit.add_argument(
        "--steps", metavar="N", type=positive, help="training steps in the logs (default: found from the logs)"
    )
    audit.add_argument("--rows", metavar="N", type=positive, default=20, help="rows of the table (default: 20)")
    audit.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    audit.add_argument("--report", metavar="FILE", help="write a page for the browser (.html)")
    audit.add_argument("--quiet", action="store_true", help="do not show the progress line")
    _add_plans(audit)
    _add_questions(audit)
    audit.set_defaults(run=_audit)


def _add_plans(audit: argparse.ArgumentParser) -> None:
    plans = audit.add_argument_group("plans")
    plans.add_argument(
        "--for",
        dest="runtime",
        metavar="RUNTIME",
        default="mscclpp",
        help="mscclpp, msccl, executor, rccl, ideal, or a profile file (default: mscclpp)",
    )
    plans.add_argument(
        "--time-limit", metavar="SECONDS", type=seconds, default=5.0, help="time of each search for a plan (default: 5)"
    )
    plans.add_argument(
        "--searched",
        metavar="N",
        type=natural,
        default=20,
        help="search plans for at most N kinds of calls, those that could gain most (default: 20; 0: none)",
    )
    plans.add_argument(
        "--worth",
        metavar="FRACTION",
        type=fraction,
        default=0.05,
        help="a plan is worth it if it saves this part of the time of its calls (default: 0.05)",
    )
    plans.add_argument("--sms", metavar="N", type=positive, help="SMs of a GPU, where the machine names no GPU model")
    plans.add_argument(
        "--catalog", metavar="FOLDER", help="build a catalog of plans in this folder, for the rows that are worth it"
    )
    plans.add_argument(
        "--engine",
        metavar="ENGINE",
        default="local",
        help="where catalogs are built: local, dask=ADDRESS, ray (default: local)",
    )


def _add_questions(audit: argparse.ArgumentParser) -> None:
    questions = audit.add_argument_group("other machines")
    questions.add_argument(
        "--what-if",
        metavar="LINK=RATE",
        action="append",
        default=[],
        help="what if this link had another bandwidth, e.g. 'gpu3 <-> rail3=100Gb/s'; repeat for several links",
    )
    questions.add_argument("--slow", metavar="LINK=RATE", action="append", default=[], help="the same as --what-if")
    questions.add_argument(
        "--without", metavar="LINK", action="append", default=[], help="what if this link were lost; repeat for several"
    )
    questions.add_argument(
        "--fit",
        action="store_true",
        help="estimate latency and bandwidth of NVLink and NIC from the calls, with confidence intervals",
    )


def _audit(options: argparse.Namespace) -> int:
    from flowccl.files import write_bytes
    from flowccl.jobs.audit import audit
    from flowccl.jobs.placing import rank_map
    from flowccl.jobs.reading import read_logs
    from flowccl.jobs.what_if import changed
    from flowccl.report.audit_page import audit_html
    from flowccl.runtimes.profiles import runtime_profile
    from flowccl.topology.files import read_machine

    _check_outputs(options)
    topology, runtime = read_machine(options.machine), runtime_profile(options.runtime)
    places = rank_map(options.rank_map, topology.num_gpus)
    changes = [*options.what_if, *options.slow]
    other = changed(topology, changes, options.without) if changes or options.without else None
    progress, stop = LiveLine(options.quiet or options.verbose), StopSignal()
    try:
        logs = read_logs(options.logs, options.format, lambda path: progress.phase(f"reading {path}"))
        run = partial(
            audit,
            logs.calls,
            runtime=runtime,
            places=places,
            steps=options.steps,
            time_limit_s=options.time_limit,
            searched=options.searched,
            worth=options.worth,
            sms=options.sms,
            notes=[*logs.notes, *logs.failed],
            on_phase=progress.phase,
            should_stop=stop.asked,
        )
        found = run(topology)
        second = None if other is None else run(other)
        built = _catalogs(found, options, progress)
        if options.report is not None:
            progress.phase("writing the report")
            write_bytes(options.report, audit_html(found).encode())
    finally:
        progress.clear()
    if options.json:
        print(json.dumps(_as_json(found, second, built, options), allow_nan=False))
        return 0
    _print(found, second, built, logs.calls, options)
    return 0


def _print(
    found: "Audit", second: "Audit | None", built: "list[BuiltPlan]", calls: "Calls", options: argparse.Namespace
) -> None:
    from flowccl.jobs.fit import fitted
    from flowccl.jobs.reading import notes_in_words, read_in_words, skipped_in_words
    from flowccl.jobs.what_if import MachineComparison
    from flowccl.jobs.words import describe

    print_text(describe(found, options.rows))
    print_text(f"read         {read_in_words(calls)}")
    for line in skipped_in_words(calls.sources):
        print_text(f"skipped      {line}")
    for line in notes_in_words(calls.sources):
        print_text(f"note         {line}")
    if second is not None:
        print_text("\n" + MachineComparison(found, second).describe())
    if options.fit:
        print_text("\n" + "\n".join(f"fit          {line.in_words()}" for line in fitted(found.rows, found.topology)))
    if options.catalog is not None and not built:
        print_text(f"catalog      nothing is built: no plan saves {100 * options.worth:g} % of the time of its calls")
    for plan in built:
        print_text(f"catalog      {plan.folder}{': ' + plan.error if plan.error else ''}")
    if options.report is not None:
        print_text(f"report       {options.report}")


def _as_json(found: "Audit", second: "Audit | None", built: "list[BuiltPlan]", options: argparse.Namespace) -> Any:
    from flowccl.jobs.fit import fitted
    from flowccl.jobs.what_if import MachineComparison
    from flowccl.jobs.words import to_json

    value = to_json(found) | {"catalogs": [asdict(plan) for plan in built]}
    if second is not None:
        before, after = MachineComparison(found, second).totals()
        name = second.topology.name
        value["what_if"] = {"machine": name, "before": asdict(before), "after": asdict(after)}
    if options.fit:
        value["fit"] = [asdict(line) for line in fitted(found.rows, found.topology)]
    return value


def _catalogs(found: "Audit", options: argparse.Namespace, progress: LiveLine) -> "list[BuiltPlan]":
    from flowccl.catalog.engine import TaskEngine
    from flowccl.jobs.building import build_worthwhile

    if options.catalog is None:
        return []
    engine = TaskEngine.parse(options.engine)

    def show(done: int, total: int) -> None:
        progress.phase(f"building catalogs: {done + 1} of {total}")

    return build_worthwhile(found, Path(options.catalog), engine, options.sms, show)


def _check_outputs(options: argparse.Namespace) -> None:
    """Refuse outputs that cannot be written, and parts that are none, before the work begins."""
    if options.worth > 1:
        raise InputError(f"--worth {options.worth:g}: a plan cannot save more than all of the time; 0.05 is 5 %")
    for option, text in (("--report", options.report), ("--catalog", options.catalog)):
        if text is not None and not Path(text).absolute().parent.is_dir():
            raise InputError(f"{option} {text}: there is no folder {Path(text).parent}")
    if options.report is not None and not options.report.endswith(".html"):
        raise InputError(f"--report {options.report}: the name must end in .html")
