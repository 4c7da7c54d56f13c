"""`flowccl export | check-export`: files for runtimes, and their proof."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from flowccl.commands.parts import Commands, natural, positive
from flowccl.errors import InputError, InvalidScheduleError

if TYPE_CHECKING:
    from flowccl.export.proof.program import Finding, Program

_ORDERS = 3  # runs of `--numbers`
EXPORT_TARGETS = ("msccl", "executor", "rccl", "mscclpp", "chakra", "teccl", "msccl-json")


def add(commands: Commands) -> None:
    """The two commands and their options."""
    export = commands.add_parser(
        "export",
        help="write a schedule for a runtime",
        description="Write a schedule as a file that a runtime loads. The file is proved before it is written.",
        epilog=(
            "examples:\n"
            "  flowccl export ag.json --to msccl --out ag.xml\n"
            "  flowccl export ar.json --to mscclpp --inplace --instances 2 --out ar-plan.json\n"
            "  flowccl export ag-1MB.json ag-64MB.json --to executor --out msccl-algorithms\n"
            "\nSeveral schedules make a folder of files with disjoint size ranges, as MSCCL_ALGO_DIR wants them."
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    export.add_argument("schedule", metavar="SCHEDULE", nargs="+", help="a schedule written by synth")
    export.add_argument("--to", required=True, choices=EXPORT_TARGETS, help="the runtime or format")
    export.add_argument("--out", metavar="PATH", required=True, help="the file (chakra: its beginning), or the folder")
    export.add_argument("--inplace", action="store_true", help="for calls in place (default: out of place)")
    export.add_argument("--instances", metavar="N", type=positive, default=1, help="parallel copies of each chunk")
    export.add_argument("--proto", choices=("Simple", "LL", "LL128"), default="Simple", help="default: Simple")
    export.add_argument("--min-bytes", metavar="SIZE", default="0", help="smallest buffer it is used for (default: 0)")
    export.add_argument("--max-bytes", metavar="SIZE", default="0", help="largest buffer; 0 is any (default: 0)")
    check = commands.add_parser(
        "check-export",
        help="prove an exported file",
        description="Read a file as the runtime would, and prove it: results, races, deadlocks, limits.",
        epilog="example:\n  flowccl check-export ag.xml --to msccl --machine ndv2:2 --size 1MB",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    check.add_argument("file", metavar="FILE", help="XML, an MSCCL++ plan, or the beginning of Chakra traces")
    check.add_argument("--to", required=True, choices=EXPORT_TARGETS, help="the runtime that would load it")
    check.add_argument("--root", metavar="RANK", type=natural, help="of broadcast, reduce ... (default: 0)")
    check.add_argument("--machine", metavar="MACHINE", help="also estimate the finish on this machine")
    check.add_argument("--size", metavar="SIZE", help="of the buffer, for the estimate")
    check.add_argument("--numbers", action="store_true", help="also run it on numpy arrays, and compare the results")
    check.add_argument("--json", action="store_true", help="print one JSON object")
    export.set_defaults(run=_export)
    check.set_defaults(run=_check_export)


def _export(options: argparse.Namespace) -> int:
    from flowccl.export import Options, export, export_directory
    from flowccl.schedule.files import load_schedule
    from flowccl.units import parse_bytes
    from flowccl.verifier.verify import verify

    low, high = (0 if text == "0" else parse_bytes(text) for text in (options.min_bytes, options.max_bytes))
    chosen = Options(options.inplace, options.instances, options.proto, low, high)
    schedules = [load_schedule(name) for name in options.schedule]
    for name, schedule in zip(options.schedule, schedules, strict=True):
        violations = verify(schedule)
        if violations:
            raise InvalidScheduleError(f"{name} is not exported, for it is invalid: {violations[0]}")
    if len(schedules) > 1 or Path(options.out).is_dir():
        paths = export_directory(schedules, options.to, options.out, chosen)
    else:
        paths = export(schedules[0], options.to, options.out, chosen)
    for path in paths:
        print(path)
    if any(schedule.has_messages for schedule in schedules):
        print(f"note: {_together(options.to)}", file=sys.stderr)
    return 0


def _together(target: str) -> str:
    """What a format makes of chunks that the schedule sends in one message."""
    if target in ("chakra", "teccl", "msccl-json"):
        return f"{target} knows no sends of several chunks: those that travel together are one send each"
    return "chunks that travel together are one step where they lie side by side at both ends, else one step each"


def _check_export(options: argparse.Namespace) -> int:
    from flowccl.export import LISTINGS, check
    from flowccl.export.proof.estimate import estimate_ps
    from flowccl.topology.files import read_machine
    from flowccl.units import parse_bytes, ps_to_us

    if (options.machine is None) != (options.size is None):
        raise InputError("the estimate needs both --machine and --size")
    if options.to in LISTINGS:
        return _check_listing(options)
    program, findings = check(options.file, options.to, options.root)
    if options.numbers:
        if not program.modes:
            raise InputError(f"{options.file} does not say what it computes, so --numbers has nothing to compare with")
        findings += _numbers(program)
    finish_us = None
    if options.machine is not None and not findings:
        finish_us = ps_to_us(estimate_ps(program, read_machine(options.machine), parse_bytes(options.size)))
    steps = f"{len(program.operations)} steps"
    _say(findings, options.json, finish_us, steps)
    if findings or options.json:
        return 1 if findings else 0
    what = f"{program.num_gpus} gpus, {program.chunks} chunks, {steps}"
    if program.modes:
        print(f"PROVED: {program.collective} on {what}: results, order, no deadlock, limits of {options.to}")
    else:
        print(f"PROVED: {what}: pairs, no deadlock; what is computed is not in the file")
    if options.numbers:
        print(f"ran on numpy in {_ORDERS} orders: every element is exact")
    if finish_us is not None:
        print(f"finish {finish_us:g} us on {options.machine}")
    return 0


def _numbers(program: "Program") -> "list[Finding]":
    """What runs of the file on real numbers find, each in another order of its threadblocks."""
    from flowccl.run.replay import replay

    found = [finding for seed in range(_ORDERS) for finding in replay(program, seed=seed)]
    return list(dict.fromkeys(found))


def _say(findings: "list[Finding]", as_json: bool, finish_us: float | None, where: str) -> None:
    """What was found, in words or as JSON; nothing in words where all is proved."""
    if as_json:
        found = [{"kind": finding.kind, "message": finding.message} for finding in findings]
        print(json.dumps({"proved": not findings, "findings": found, "finish_us": finish_us}))
        return
    for finding in findings:
        print(finding)
    if findings:
        print(f"WRONG: {len(findings)} finding{'s' if len(findings) > 1 else ''} in {where}")


def _check_listing(options: argparse.Namespace) -> int:
    """Formats of schedules: no buffers, no threadblocks, so neither numbers nor an estimate."""
    from flowccl.export import check_listing

    if options.numbers or options.machine is not None:
        raise InputError(f"{options.to} lists sends without buffers: leave --numbers, --machine and --size out")
    listing, findings = check_listing(options.file, options.to)
    _say(findings, options.json, None, f"{listing.sends} sends")
    if findings or options.json:
        return 1 if findings else 0
    print(f"PROVED: {listing.about}, {listing.sends} sends: each has its data, and all results are complete")
    return 0
