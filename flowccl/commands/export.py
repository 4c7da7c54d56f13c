"""`flowccl export | check-export`: write files for runtimes, and prove them correct."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from flowccl.commands.parser import FAULTS, JSON, SMS, Commands, add_command, protocol
from flowccl.commands.parts import check_no_faults, check_valid, machine_with_faults
from flowccl.commands.terminal import LiveLine, print_text
from flowccl.commands.trace import trace_of_program
from flowccl.errors import InputError

if TYPE_CHECKING:
    from flowccl.export.exporting import Exported
    from flowccl.export.proof.program import Finding, RuntimeProgram

_ORDERS = 3  # orders of the threadblocks that --numbers runs
EXPORT_TARGETS = ("msccl", "executor", "rccl", "mscclpp", "chakra", "teccl", "msccl-json")
_EXPORT = f"""
flowccl export SCHEDULE [SCHEDULE ...] --to TARGET --out PATH [options]

write a schedule for a runtime

Write a schedule as a file that a runtime or simulator loads. Before it is written, the file is proved
correct: results, races, deadlocks and the limits of the runtime.

targets:
  msccl       MSCCL (XML)                  executor    msccl-executor-nccl (XML)
  rccl        RCCL (XML)                   mscclpp     MSCCL++ execution plan (JSON)
  chakra      Chakra traces (ASTRA-sim)    teccl       TE-CCL schedule (JSON)
  msccl-json  msccl-tools schedule (JSON)  perfetto    trace for Perfetto and chrome://tracing

options:
  SCHEDULE+  a schedule file written by `flowccl synth`
  --to! TARGET  see the targets above
  --out! PATH  the file (chakra: the prefix of the file names) or the folder
  --inplace  for in-place calls (default: out of place)
  --instances N [1]  split each chunk into N parallel parts
  --proto NAME [auto]  protocol: Simple, LL, LL128 (not mscclpp), or auto: for mscclpp that of the schedule, else the
      faster one; for all others Simple
  --min-bytes SIZE [0]  smallest buffer for which the runtime uses the file
  --max-bytes SIZE [0]  largest such buffer; 0: no limit, for msccl 128MiB
  {SMS}
  --allow-oversubscribed  write a program with more threadblocks than SMs, which may hang (default: an error)
  {JSON}
  --machine MACHINE  perfetto, for an exported file: the machine
  --size SIZE  perfetto, for an exported file: the buffer size, e.g. 1MB

{FAULTS}

examples:
  flowccl export ag.json --to msccl --out ag.xml
  flowccl export ar.json --to mscclpp --inplace --instances 2 --out ar-plan.json
  flowccl export ag-1MB.json ag-64MB.json --to executor --out msccl-algorithms
  flowccl export ag.json --to perfetto --out ag-trace.json
  flowccl export ag.xml --to perfetto --machine ndv2:2 --size 1MB --out program-trace.json

Several schedules are written to a folder, with disjoint size ranges, for use as MSCCL_ALGO_DIR.
"""
_CHECK = f"""
flowccl check-export FILE --to TARGET [options]

prove that an exported file is correct

Read a file as the runtime does and prove it correct: the results, no races, no deadlocks, the limits of
the runtime. Works for files of flowccl and of other tools.

exit code 0: proved; 1: at least one error was found.

options:
  FILE  the XML or JSON file; for chakra, the prefix of the trace file names
  --to! TARGET  the format: {", ".join(EXPORT_TARGETS)}
  --root RANK  root of broadcast, reduce ... (default: 0)
  --machine MACHINE  also estimate the completion time on this machine; needs --size
  --size SIZE  buffer size of the estimate, e.g. 1MB
  --numbers  also run the file on numpy arrays and check the results
  {JSON}

{FAULTS}

examples:
  flowccl check-export ag.xml --to msccl
  flowccl check-export ag.xml --to msccl --machine ndv2:2 --size 1MB --numbers
"""


def add(commands: Commands) -> None:
    """Add the two commands and their options."""
    add_command(commands, _EXPORT, _export, to=(*EXPORT_TARGETS, "perfetto"), proto=protocol)
    add_command(commands, _CHECK, _check_export, to=EXPORT_TARGETS)


def _export(options: argparse.Namespace) -> int:
    from flowccl.export.exporting import ExportOptions, export_file, export_folder
    from flowccl.runtimes.machine import known_sms
    from flowccl.schedule.files import load_schedule
    from flowccl.units import parse_bytes

    if options.to == "perfetto" and trace_of_program(options):
        return 0
    if options.machine is not None or options.size is not None:
        raise InputError("--machine and --size are for --to perfetto with an exported file")
    check_no_faults(options, "a schedule is for one machine; synthesize it for the machine with the fault")
    limits = ("--min-bytes", options.min_bytes), ("--max-bytes", options.max_bytes)
    low, high = (0 if text == "0" else parse_bytes(text, name) for name, text in limits)
    schedules = [load_schedule(name) for name in options.schedule]
    for name, schedule in zip(options.schedule, schedules, strict=True):
        _check_plan(name, schedule.demand.collective, options.to)
        check_valid(schedule, name, "exported")
    found = [known_sms(schedule.topology, options.sms) for schedule in schedules]
    sms = min((number for number in found if number is not None), default=None)
    limit = None if options.allow_oversubscribed else sms
    chosen = ExportOptions(options.inplace, options.instances, options.proto, low, high, limit)
    with LiveLine() as line:
        if len(schedules) > 1 or Path(options.out).is_dir():
            written = export_folder(schedules, options.to, options.out, chosen, line.phase)
        else:
            written = [export_file(schedules[0], options.to, options.out, chosen, line.phase)]
    _print_exported(written, options, sms)
    if options.to != "perfetto" and any(schedule.has_messages for schedule in schedules):
        print(f"note: {_message_note(options.to)}", file=sys.stderr)
    return 0


def _check_plan(name: str, collective: str, target: str) -> None:
    """Refuse a plan between layouts that is no collective of the target."""
    from flowccl.files import json_format
    from flowccl.runtimes.limits import LIMITS
    from flowccl.schedule.files import PLAN_FORMAT

    if target in LIMITS and collective == "custom" and json_format(name) == PLAN_FORMAT:
        raise InputError(
            f"{name}: a plan between layouts runs with flowccl.torch.reshard; {target} loads only those that "
            f"`flowccl synth MACHINE reshard --for {target}` made"
        )


def _print_exported(written: "list[Exported]", options: argparse.Namespace, sms: int | None) -> None:
    """Print the written files, what their programs do, and warnings."""
    from flowccl.export.report import report_of
    from flowccl.runtimes.limits import LIMITS

    rows = []
    for one in written:
        row: dict[str, object] = {"files": [str(path) for path in one.paths]}
        report = None
        if one.program is not None and options.to in LIMITS:
            report = report_of(one.schedule, one.program, options.to, sms)
            row |= report.to_json()
        rows.append(row)
        if not options.json:
            print(*one.paths, sep="\n")
            for line in () if report is None else report.lines():
                print(f"  {line}")
        named = f"{one.paths[0]}: " if len(written) > 1 else ""
        for warning in () if report is None else report.warnings:
            print(f"warning: {named}{warning}", file=sys.stderr)
    if options.json:
        print(json.dumps(rows[0] if len(rows) == 1 else {"exports": rows}))


def _message_note(target: str) -> str:
    """How a format represents chunks that the schedule sends in one message."""
    if target in ("chakra", "teccl", "msccl-json"):
        return f"{target} has no sends of several chunks: each chunk of a message becomes a send of its own"
    return "chunks of one message become one step if they are contiguous at both ends, else one step each"


def _check_export(options: argparse.Namespace) -> int:
    from flowccl.export import LISTINGS, check
    from flowccl.export.proof.estimate import estimate_ps
    from flowccl.runtimes.profiles import PROFILES
    from flowccl.units import parse_bytes, ps_to_us
    from flowccl.wording import counted

    if (options.machine is None) != (options.size is None):
        raise InputError("the estimate needs both --machine and --size")
    if options.machine is None:
        check_no_faults(options, "needs --machine, the machine with the fault, and --size")
    if options.to in LISTINGS:
        return _check_listing(options)
    program, findings = check(options.file, options.to, options.root)
    if options.numbers:
        if not program.modes:
            raise InputError(f"{options.file} does not say which collective it computes: leave --numbers out")
        findings += _numbers(program)
    finish_us = None
    if options.machine is not None and not findings:
        topology, size = machine_with_faults(options.machine, options), parse_bytes(options.size)
        finish_us = ps_to_us(estimate_ps(program, topology, size, PROFILES.get(options.to)))
    steps = counted(len(program.operations), "step")
    _print_findings(findings, options.json, finish_us, steps)
    if findings or options.json:
        return 1 if findings else 0
    what = f"{counted(program.num_gpus, 'GPU')}, {counted(program.chunks, 'chunk')}, {steps}"
    if program.modes:
        proved = f"correct results, no races, no deadlock, within the limits of {options.to}"
        print_text(f"PROVED: {program.collective} on {what}: {proved}")
    else:
        proved = "sends match receives, no deadlock; the file does not say which collective it computes"
        print_text(f"PROVED: {what}: {proved}")
    if options.numbers:
        print(f"run on numpy in {_ORDERS} orders: every element is correct")
    if finish_us is not None:
        print(f"estimated completion time {finish_us:g} us on {options.machine}")
    return 0


def _numbers(program: "RuntimeProgram") -> "list[Finding]":
    """The errors in runs of the file on real numbers, each in another order of the threadblocks."""
    from flowccl.run.replay import replay

    found = [finding for seed in range(_ORDERS) for finding in replay(program, seed=seed)]
    return list(dict.fromkeys(found))


def _print_findings(findings: "list[Finding]", as_json: bool, finish_us: float | None, where: str) -> None:
    """Print the errors as text or JSON; as text, print nothing if there is none."""
    from flowccl.wording import counted

    if as_json:
        found = [{"kind": finding.kind, "message": finding.message} for finding in findings]
        print(json.dumps({"proved": not findings, "findings": found, "finish_us": finish_us}))
        return
    for finding in findings:
        print(finding)
    if findings:
        print_text(f"WRONG: {counted(len(findings), 'error')} in {where}")


def _check_listing(options: argparse.Namespace) -> int:
    """Check a list of sends: it has no buffers and threadblocks, so there are no numbers and no estimate."""
    from flowccl.export import check_listing
    from flowccl.wording import counted

    if options.numbers or options.machine is not None:
        raise InputError(f"{options.to} has no buffers: leave --numbers, --machine and --size out")
    listing, findings = check_listing(options.file, options.to)
    _print_findings(findings, options.json, None, counted(listing.sends, "send"))
    if findings or options.json:
        return 1 if findings else 0
    sends = counted(listing.sends, "send")
    print_text(f"PROVED: {listing.about}, {sends}: every send has its data, and all results are complete")
    return 0
