"""`flowccl verify | show | machines | plot`: check, describe and draw schedules and machines."""

import argparse
import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from flowccl.commands.parser import FAULTS, JSON, Commands, add_command
from flowccl.commands.parts import check_no_faults, optional_machine, schedule_file
from flowccl.commands.terminal import print_text

if TYPE_CHECKING:
    from flowccl.bounds.lower_bound import Bound
    from flowccl.schedule.schedule import Schedule
    from flowccl.topology.faults import Fault
    from flowccl.topology.topology import Topology
    from flowccl.verifier.violation import Violation

_VERIFY = f"""
flowccl verify FILE [options]

check that a schedule is correct

Check a schedule with the independent verifier: every destination gets its data, no link or limit is
overloaded, no node sends data that it does not have yet, no buffer overflows. Print every violation,
or the completion time, the lower bound and the gap.

exit code 0: the schedule is valid; 1: it is invalid.

options:
  FILE  a schedule file written by `flowccl synth`
  --machine MACHINE  also check that the schedule is for this machine
  {JSON}

{FAULTS}

examples:
  flowccl verify ag.json
  flowccl verify ag.json --machine ndv2:2 --json
"""
_SHOW = f"""
flowccl show MACHINE|FILE [options]

describe a machine or a schedule

Print the nodes, links and limits of a machine, or the completion time, the bandwidth and the busiest
links of a schedule.

options:
  MACHINE|FILE  a machine name, a topology file or a schedule file

{FAULTS}

examples:
  flowccl show ndv2:2
  flowccl show ag.json
  flowccl show dgx_h100:2 --without 'gpu3 <-> rail3' --slow 'gpu4 <-> rail4=100Gb/s'
"""
_MACHINES = f"""
flowccl machines [--json]

list the built-in machines

List the built-in machines with the pattern of their names and an example.

options:
  {JSON}

examples:
  flowccl machines
  flowccl show torus:4x4:bandwidth=50GB/s:latency=0.5us
"""
_PLOT = f"""
flowccl plot MACHINE|FILE [--out FILE] [options]

draw the timeline of a schedule, or a machine

Draw the timeline of a schedule (links over time), or the nodes and links of a machine.

options:
  MACHINE|FILE  a machine name, a topology file or a schedule file
  --out FILE  .png, .svg or .pdf file (default: a .png named after the input)

{FAULTS}

examples:
  flowccl plot ag.json --out ag.png
  flowccl plot dgx_a100:2 --out machine.svg
"""


def add(commands: Commands) -> None:
    """Add the four commands and their options."""
    for text, run in ((_VERIFY, _verify), (_SHOW, _show), (_MACHINES, _machines), (_PLOT, _plot)):
        add_command(commands, text, run)


def _verify(options: argparse.Namespace) -> int:
    from flowccl.units import ps_to_us
    from flowccl.wording import counted, percent

    violations, place, transfers, finish_ps, bound = _verified(options.file, optional_machine(options))
    if options.json:
        rows = [{"kind": v.kind, "message": v.message, "transfers": list(v.transfers)} for v in violations]
        print(json.dumps({"valid": not rows, "violations": rows}))
    elif violations:
        print(*violations, sep="\n")
        print_text(f"INVALID: {counted(len(violations), 'violation')} {place}")
    else:
        bound_ps = bound().ps
        times = f"completion time {ps_to_us(finish_ps):g} us, lower bound {ps_to_us(bound_ps):g} us"
        print_text(f"VALID: {transfers}, {times}, gap {percent(finish_ps / max(bound_ps, 1) - 1)}")
    return 1 if violations else 0


def _verified(
    path: str, machine: "Topology | None"
) -> "tuple[Sequence[Violation], str, str, int, Callable[[], Bound]]":
    """The violations of a schedule in a file, where they are, its transfers in words, its end, and its lower bound."""
    from flowccl.files import json_format
    from flowccl.resharding.plan_files import load_plan
    from flowccl.schedule import files
    from flowccl.verifier.bound import bound_of
    from flowccl.verifier.compact import symmetric_bound, verify_whole
    from flowccl.verifier.repaired import repaired_bound, verify_repaired
    from flowccl.verifier.verify import verify
    from flowccl.wording import counted

    kind = json_format(path)
    if kind == files.COMPACT_FORMAT:
        whole = files.load_compact(path, machine)
        many = f"{counted(len(whole.one), 'transfer')} of gpu0's data, {len(whole)} in total"
        bound = partial(symmetric_bound, whole.topology, whole.collective, whole.size_bytes)
        return verify_whole(whole), "in the compact form", many, whole.one.finish_ps, bound
    if kind == files.REPAIRED_FORMAT:
        repaired = files.load_repaired(path, machine)
        many = f"{counted(repaired.transfers_of_one_source, 'transfer')} of gpu0's data"
        many = f"{many} and {counted(repaired.num_exceptions, 'exception')}, {len(repaired)} in total"
        bound = partial(repaired_bound, repaired)
        return verify_repaired(repaired), "in the repaired form", many, repaired.finish_ps, bound
    # loading a plan also checks that its chunks bring every byte
    is_plan = kind == files.PLAN_FORMAT
    schedule = load_plan(path, machine).schedule if is_plan else files.load_schedule(path, machine)
    many = counted(len(schedule), "transfer")
    return verify(schedule), f"in {many}", many, schedule.finish_ps, partial(bound_of, schedule)


def _given(options: argparse.Namespace) -> "tuple[Schedule | None, Topology | None, tuple[Fault, ...]]":
    """The schedule, or the machine and its faults."""
    from flowccl.topology.faults import find_faults
    from flowccl.topology.files import read_machine

    schedule = schedule_file(options.machine)
    if schedule is not None:
        check_no_faults(options, f"{options.machine} is a schedule; faults need a machine")
        return schedule, None, ()
    whole = read_machine(options.machine)
    return None, whole, find_faults(whole, without=options.without, slow=options.slow)


def _show(options: argparse.Namespace) -> int:
    from flowccl.show import describe_schedule, describe_topology

    schedule, whole, faults = _given(options)
    if schedule is not None:
        print_text(describe_schedule(schedule))
    if whole is not None:
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
    from flowccl.verifier.bound import bound_of

    schedule, whole, faults = _given(options)
    out = options.out
    if schedule is not None:
        out = out or str(Path(options.machine).with_suffix("").with_suffix(".png"))
        plot_timeline(schedule, out, lower_bound_us=bound_of(schedule).us)
    if whole is not None:
        out = out or re.sub(r"[^\w.]+", "-", ", ".join([whole.name, *map(str, faults)])) + ".png"
        plot_topology(whole, out, faults)
    print(out)
    return 0
