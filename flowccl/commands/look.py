"""`flowccl verify | show | machines | plot`: check, describe and draw schedules and machines."""

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from flowccl.commands.parts import Commands, add_faults, check_no_faults, optional_machine, schedule_file
from flowccl.commands.terminal import print_text

if TYPE_CHECKING:
    from flowccl.schedule.compact import CompactSchedule
    from flowccl.schedule.repaired import RepairedSchedule
    from flowccl.verifier.violation import Violation


def add(commands: Commands) -> None:
    """Add the four commands and their options."""
    verify = commands.add_parser(
        "verify",
        help="check that a schedule is correct",
        description=(
            "Check a schedule with the independent verifier: every destination gets its data, no link or limit is\n"
            "overloaded, no node sends data that it does not have yet, no buffer overflows. Print every violation,\n"
            "or the completion time, the lower bound and the gap.\n"
            "\nexit code 0: the schedule is valid; 1: it is invalid."
        ),
        epilog="examples:\n  flowccl verify ag.json\n  flowccl verify ag.json --machine ndv2:2 --json",
    )
    verify.add_argument("schedule", metavar="FILE", help="a schedule file written by `flowccl synth`")
    verify.add_argument("--machine", metavar="MACHINE", help="also check that the schedule is for this machine")
    verify.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    show = commands.add_parser(
        "show",
        help="describe a machine or a schedule",
        description=(
            "Print the nodes, links and limits of a machine, or the completion time, the bandwidth and the busiest\n"
            "links of a schedule."
        ),
        epilog=(
            "examples:\n  flowccl show ndv2:2\n  flowccl show ag.json\n"
            "  flowccl show dgx_h100:2 --without 'gpu3 <-> rail3' --slow 'gpu4 <-> rail4=100Gb/s'"
        ),
    )
    show.add_argument("what", metavar="MACHINE|FILE", help="a machine name, a topology file or a schedule file")
    machines = commands.add_parser(
        "machines",
        help="list the built-in machines",
        description="List the built-in machines with the pattern of their names and an example.",
        epilog="examples:\n  flowccl machines\n  flowccl show torus:4x4:bandwidth=50GB/s:latency=0.5us",
    )
    machines.add_argument("--json", action="store_true", help="print one JSON list instead of text")
    plot = commands.add_parser(
        "plot",
        help="draw the timeline of a schedule, or a machine",
        description="Draw the timeline of a schedule (links over time), or the nodes and links of a machine.",
        epilog="examples:\n  flowccl plot ag.json --out ag.png\n  flowccl plot dgx_a100:2 --out machine.svg",
    )
    plot.add_argument("what", metavar="MACHINE|FILE", help="a machine name, a topology file or a schedule file")
    plot.add_argument("--out", metavar="FILE", help=".png, .svg or .pdf file (default: a .png named after the input)")
    for parser in (verify, show, plot):
        add_faults(parser)
    verify.set_defaults(run=_verify)
    show.set_defaults(run=_show)
    machines.set_defaults(run=_machines)
    plot.set_defaults(run=_plot)


def _verify(options: argparse.Namespace) -> int:
    from flowccl.files import json_format
    from flowccl.schedule.files import (
        COMPACT_FORMAT,
        PLAN_FORMAT,
        REPAIRED_FORMAT,
        load_compact,
        load_repaired,
        load_schedule,
    )
    from flowccl.verifier.bound import bound_of
    from flowccl.verifier.verify import verify
    from flowccl.wording import counted

    wanted = optional_machine(options)
    if json_format(options.schedule) == COMPACT_FORMAT:
        return _verify_compact(load_compact(options.schedule, wanted), options.json)
    if json_format(options.schedule) == REPAIRED_FORMAT:
        return _verify_repaired(load_repaired(options.schedule, wanted), options.json)
    if json_format(options.schedule) == PLAN_FORMAT:
        from flowccl.resharding.plan_files import load_plan

        schedule = load_plan(options.schedule, wanted).schedule  # also checks that its chunks bring every byte
    else:
        schedule = load_schedule(options.schedule, wanted)
    violations = verify(schedule)
    _print_violations(violations, options.json, f"in {counted(len(schedule), 'transfer')}")
    if violations or options.json:
        return 1 if violations else 0
    bound = bound_of(schedule)
    print_text(f"VALID: {counted(len(schedule), 'transfer')}, {_times(schedule.finish_ps, bound.ps)}")
    return 0


def _times(finish_ps: int, bound_ps: int) -> str:
    """Completion time, lower bound and gap."""
    from flowccl.units import ps_to_us
    from flowccl.wording import percent

    times = f"completion time {ps_to_us(finish_ps):g} us, lower bound {ps_to_us(bound_ps):g} us"
    return f"{times}, gap {percent(finish_ps / max(bound_ps, 1) - 1)}"


def _print_violations(violations: "list[Violation]", as_json: bool, where: str) -> None:
    """Print the violations as text or JSON; as text, print nothing for a valid schedule."""
    from flowccl.wording import counted

    if as_json:
        found = [{"kind": v.kind, "message": v.message, "transfers": list(v.transfers)} for v in violations]
        print(json.dumps({"valid": not violations, "violations": found}))
        return
    for violation in violations:
        print(violation)
    if violations:
        print_text(f"INVALID: {counted(len(violations), 'violation')} {where}")


def _verify_compact(compact: "CompactSchedule", as_json: bool) -> int:
    from flowccl.verifier.compact import symmetric_bound, verify_whole
    from flowccl.wording import counted

    violations = verify_whole(compact)
    _print_violations(violations, as_json, "in the compact form")
    if violations or as_json:
        return 1 if violations else 0
    bound = symmetric_bound(compact.topology, compact.collective, compact.size_bytes)
    many = f"{counted(len(compact.one), 'transfer')} of gpu0's data, {len(compact)} in total"
    print_text(f"VALID: {many}, {_times(compact.one.finish_ps, bound.ps)}")
    return 0


def _verify_repaired(repaired: "RepairedSchedule", as_json: bool) -> int:
    from flowccl.verifier.repaired import repaired_bound, verify_repaired
    from flowccl.wording import counted

    violations = verify_repaired(repaired)
    _print_violations(violations, as_json, "in the repaired form")
    if violations or as_json:
        return 1 if violations else 0
    many = f"{counted(repaired.transfers_of_one_source, 'transfer')} of gpu0's data"
    many = f"{many} and {counted(repaired.num_exceptions, 'exception')}, {len(repaired)} in total"
    print_text(f"VALID: {many}, {_times(repaired.finish_ps, repaired_bound(repaired).ps)}")
    return 0


def _show(options: argparse.Namespace) -> int:
    from flowccl.show import describe_schedule, describe_topology
    from flowccl.topology.faults import find_faults
    from flowccl.topology.files import read_machine

    schedule = schedule_file(options.what)
    if schedule is not None:
        check_no_faults(options, f"{options.what} is a schedule; faults need a machine")
        print_text(describe_schedule(schedule))
        return 0
    whole = read_machine(options.what)
    faults = find_faults(whole, without=options.without, slow=options.slow)
    print_text(describe_topology(whole, faults))
    return 0


def _machines(options: argparse.Namespace) -> int:
    from flowccl.topology.machines import MACHINES, machine
    from flowccl.wording import counted

    if options.json:
        rows = [{"pattern": k.pattern, "example": k.example, "about": k.about} for k in MACHINES.values()]
        print(json.dumps(rows))
        return 0
    width = max(len(kind.pattern) for kind in MACHINES.values())
    for kind in MACHINES.values():
        print(f"{kind.pattern:<{width}}  {kind.about}")
        print(f"{'':<{width}}  example: {kind.example} ({counted(machine(kind.example).num_gpus, 'GPU')})")
    print(
        "\nOptions follow after colons: ring:8:bandwidth=50GB/s:latency=0.5us. "
        "For any other machine, write a topology file (docs/topology.md)."
    )
    return 0


def _plot(options: argparse.Namespace) -> int:
    from flowccl.plot.machine import plot_topology
    from flowccl.plot.timeline import plot_timeline
    from flowccl.topology.faults import find_faults
    from flowccl.topology.files import read_machine
    from flowccl.verifier.bound import bound_of

    schedule = schedule_file(options.what)
    if schedule is not None:
        check_no_faults(options, f"{options.what} is a schedule; faults need a machine")
        out = options.out or str(Path(options.what).with_suffix("").with_suffix(".png"))
        plot_timeline(schedule, out, lower_bound_us=bound_of(schedule).us)
    else:
        whole = read_machine(options.what)
        faults = find_faults(whole, without=options.without, slow=options.slow)
        name = ", ".join([whole.name, *map(str, faults)])
        out = options.out or re.sub(r"[^\w.]+", "-", name) + ".png"
        plot_topology(whole, out, faults)
    print(out)
    return 0
