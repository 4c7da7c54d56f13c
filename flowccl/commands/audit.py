"""`flowccl audit`: from the logs of a job to what every collective took, could take, and which plans are worth it."""

import argparse
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowccl.commands.parser import ENGINE, FOR, JSON, QUIET, SMS, Commands, add_command, natural
from flowccl.commands.parts import StopSignal
from flowccl.commands.terminal import LiveLine, print_text
from flowccl.errors import InputError

if TYPE_CHECKING:
    from flowccl.jobs.audit import Audit
    from flowccl.jobs.building import BuiltPlan
    from flowccl.jobs.calls import Calls

_HELP = f"""
flowccl audit LOGS... --machine MACHINE [options]

compare the collectives of a real job with what its hardware allows

Read logs of a job, and print one row for each kind of calls (collective, size, group): what they took,
what NCCL's model predicts, the best plan found, the proved lower bound of the hardware, and what the
plan saves. LOGS are files or folders: PyTorch profiler traces, flight recorder dumps and execution
traces, NCCL Inspector and NCCL_DEBUG logs, output of nccl-tests, torchcomms clog files, or CSV
(collective,bytes,ranks,count,microseconds). Formats are recognized; give one file per rank.

options:
  LOGS+  files or folders
  --machine! MACHINE  a name (see `flowccl machines`) or a topology file
  --format FORMAT  the format of all files, where it is not recognized: profiler, flight recorder, execution trace,
      inspector, nccl-tests, clog, NCCL log, csv
  --rank-map GPUS  the GPU of each rank, e.g. 8-15,0-7, or a file with it (default: ranks in the order of the GPUs)
  --steps N  training steps in the logs (default: found from the logs)
  --rows N [20]  rows of the table
  {JSON}
  --report FILE  write a page for the browser (.html)
  {QUIET}

plans:
  {FOR}
  --time-limit SECONDS [5]  time of each search for a plan
  --searched N [20; 0: none]  search plans for at most N kinds of calls, those that could gain most
  --worth FRACTION [0.05]  a plan is worth it if it saves this part of the time of its calls
  {SMS}
  --catalog FOLDER  build a catalog of plans in this folder, for the rows that are worth it
  {ENGINE}

other machines:
  --what-if LINK=RATE ...  what if this link had another bandwidth, e.g. 'gpu3 <-> rail3=100Gb/s'; repeat for several
      links
  --slow LINK=RATE ...  the same as --what-if
  --without LINK ...  what if this link were lost; repeat for several
  --fit  estimate latency and bandwidth of NVLink and NIC from the calls, with confidence intervals

examples:
  flowccl audit traces/ --machine dgx_h100:4 --for mscclpp --report job.html
  flowccl audit trace-*.json.gz --machine cluster.json --searched 0       bounds only, no search
  flowccl audit calls.csv --machine dgx_h100:1 --what-if 'gpu3 <-> nvswitch0=100GB/s'
  flowccl audit nccl-tests.txt --machine dgx_h100:2 --fit                 bandwidth and latency from it

exit codes:
  0: success; 2: bad input, or nothing in the logs was readable
"""


def add(commands: Commands) -> None:
    """Add the command and its options."""
    add_command(commands, _HELP, _audit, searched=natural)


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
