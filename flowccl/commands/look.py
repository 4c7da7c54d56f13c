"""`flowccl verify | show | machines | plot`: judge, describe and draw what is there."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from flowccl.commands.parts import Commands, schedule_file

if TYPE_CHECKING:
    from flowccl.schedule.compact import CompactSchedule
    from flowccl.verifier.violation import Violation


def add(commands: Commands) -> None:
    """The four commands and their options."""
    verify = commands.add_parser("verify", help="judge a schedule", description="List every violation in a schedule.")
    verify.add_argument("schedule", metavar="FILE", help="a schedule written by synth")
    verify.add_argument("--machine", metavar="MACHINE", help="insist that the schedule is for this machine")
    verify.add_argument("--json", action="store_true", help="print one JSON object")
    show = commands.add_parser("show", help="describe a machine or a schedule", description="What is in it, in words.")
    show.add_argument("what", metavar="MACHINE|FILE", help="a machine's name, or a JSON file of either")
    machines = commands.add_parser("machines", help="list the machines known by name", description="Machines by name.")
    machines.add_argument("--json", action="store_true", help="print one JSON list")
    plot = commands.add_parser("plot", help="draw a schedule's timeline or a machine", description="Draw a picture.")
    plot.add_argument("what", metavar="MACHINE|FILE", help="a machine's name, or a JSON file of either")
    plot.add_argument("--out", metavar="FILE", help="png, svg or pdf (default: a png named after the input)")
    verify.set_defaults(run=_verify)
    show.set_defaults(run=_show)
    machines.set_defaults(run=_machines)
    plot.set_defaults(run=_plot)


def _verify(options: argparse.Namespace) -> int:
    from flowccl.bounds.lower_bound import lower_bound
    from flowccl.files import json_format
    from flowccl.schedule.compact import FORMAT, load_compact
    from flowccl.schedule.files import load_schedule
    from flowccl.topology.files import read_machine
    from flowccl.verifier.verify import verify

    wanted = read_machine(options.machine) if options.machine else None
    if json_format(options.schedule) == FORMAT:
        return _verify_compact(load_compact(options.schedule, wanted), options.json)
    schedule = load_schedule(options.schedule, wanted)
    violations = verify(schedule)
    _say(violations, options.json, f"in {len(schedule)} transfers")
    if violations or options.json:
        return 1 if violations else 0
    bound = lower_bound(schedule.topology, schedule.demand)
    times = f"finish {schedule.finish_us:g} us, lower bound {bound.us:g} us"
    print(f"VALID: {len(schedule)} transfers, {times}, gap {schedule.finish_ps / max(bound.ps, 1) - 1:.2%}")
    return 0


def _say(violations: "list[Violation]", as_json: bool, where: str) -> None:
    """What the judge found, in words or as JSON; nothing in words where all is good."""
    if as_json:
        found = [{"kind": v.kind, "message": v.message, "transfers": list(v.transfers)} for v in violations]
        print(json.dumps({"valid": not violations, "violations": found}))
        return
    for violation in violations:
        print(violation)
    if violations:
        print(f"INVALID: {len(violations)} violation{'s' if len(violations) > 1 else ''} {where}")


def _verify_compact(compact: "CompactSchedule", as_json: bool) -> int:
    from flowccl.verifier.compact import alike_bound, verify_whole

    violations = verify_whole(compact)
    _say(violations, as_json, "in compact form")
    if violations or as_json:
        return 1 if violations else 0
    bound = alike_bound(compact.topology, compact.collective, compact.size_bytes)
    times = f"finish {compact.finish_us:g} us, lower bound {bound.us:g} us"
    many = f"{len(compact.one)} transfers of gpu0's data, {len(compact)} in all"
    print(f"VALID: {many}, {times}, gap {compact.one.finish_ps / max(bound.ps, 1) - 1:.2%}")
    return 0


def _show(options: argparse.Namespace) -> int:
    from flowccl.show import describe_schedule, describe_topology
    from flowccl.topology.files import read_machine

    schedule = schedule_file(options.what)
    print(describe_topology(read_machine(options.what)) if schedule is None else describe_schedule(schedule))
    return 0


def _machines(options: argparse.Namespace) -> int:
    from flowccl.topology.machines import MACHINES, machine

    if options.json:
        rows = [{"pattern": k.pattern, "example": k.example, "about": k.about} for k in MACHINES.values()]
        print(json.dumps(rows))
        return 0
    width = max(len(kind.pattern) for kind in MACHINES.values())
    for kind in MACHINES.values():
        print(f"{kind.pattern:<{width}}  {kind.about}")
        print(f"{'':<{width}}  e.g. {kind.example} ({machine(kind.example).num_gpus} gpus)")
    print(
        "\nOptions follow behind colons: ring:8:bandwidth=50GB/s:latency=0.5us. A JSON file describes other machines."
    )
    return 0


def _plot(options: argparse.Namespace) -> int:
    from flowccl.bounds.lower_bound import lower_bound
    from flowccl.plot.machine import plot_topology
    from flowccl.plot.timeline import plot_timeline
    from flowccl.topology.files import read_machine

    schedule = schedule_file(options.what)
    if schedule is not None:
        out = options.out or str(Path(options.what).with_suffix("").with_suffix(".png"))
        plot_timeline(schedule, out, lower_bound_us=lower_bound(schedule.topology, schedule.demand).us)
    else:
        topology = read_machine(options.what)
        out = options.out or topology.name.replace(":", "-").replace("/", "-") + ".png"
        plot_topology(topology, out)
    print(out)
    return 0
