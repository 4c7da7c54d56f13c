"""`flowccl replan`: new plans after links were lost or became slow."""

import argparse
import gc
import json
from pathlib import Path
from typing import TYPE_CHECKING

from flowccl.commands.parts import Commands, add_faults, check_writable, natural
from flowccl.commands.terminal import LiveLine, print_text
from flowccl.errors import InputError

if TYPE_CHECKING:
    from flowccl.faults.replan import Replanned
    from flowccl.schedule.schedule import Schedule


def add(commands: Commands) -> None:
    """Add the command and its options."""
    replan = commands.add_parser(
        "replan",
        help="new plans after links were lost or became slow",
        usage="flowccl replan CATALOG|SCHEDULE --without LINK | --slow LINK=RATE [options]",
        description=(
            "Say which plans use a faulty link and how late each would be, and make a new plan for each of them.\n"
            "Only what uses the faulty link gets other paths; quick methods are tried too, and the earliest plan is\n"
            "returned. Every new plan is verified and comes with its lower bound. For a catalog, --out is the catalog\n"
            "of the faulty machine."
        ),
        epilog=(
            "examples:\n"
            "  flowccl replan ar.json --without 'gpu3 <-> rail3' --out ar-without-rail3.json\n"
            "  flowccl replan plans --slow 'gpu3 -> rail3=100Gb/s' --out repaired"
        ),
    )
    replan.add_argument("plans", metavar="CATALOG|SCHEDULE", help="a folder of `catalog build`, or a schedule file")
    replan.add_argument(
        "--out", metavar="PATH", help="write the new schedule here; for a catalog, the folder of the new catalog"
    )
    replan.add_argument(
        "--steps",
        metavar="N",
        type=natural,
        default=1,
        help="steps of each method that is tried beside the repair (default: 1; 0: repair only)",
    )
    replan.add_argument("--json", action="store_true", help="print one JSON list instead of text")
    replan.add_argument("--quiet", action="store_true", help="do not show the progress line")
    add_faults(replan)
    replan.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    gc.disable()  # it would take a tenth of the time of this short command
    try:
        return _replan(options)
    finally:
        gc.enable()


def _replan(options: argparse.Namespace) -> int:
    from flowccl.catalog.files import load_catalog
    from flowccl.faults.replan import replan
    from flowccl.faults.replanned import save_replanned
    from flowccl.schedule.files import save_schedule

    given = Path(options.plans)
    schedules = _schedules(given)
    out = None if options.out is None else Path(options.out)
    if out is not None:
        _check_out(out, given.is_dir())
    progress = LiveLine(options.quiet or options.verbose)
    results: dict[str, Replanned] = {}
    try:
        for name, schedule in schedules.items():
            progress.phase(name)
            results[name] = replan(
                schedule, without=options.without, slow=options.slow, steps=options.steps, in_parallel=True
            )
    finally:
        progress.clear()
    if out is not None and given.is_dir():
        save_replanned(given, load_catalog(given), results, out, without=options.without, slow=options.slow)
    elif out is not None:
        save_schedule(next(iter(results.values())).schedule, out)
    if options.json:
        print(json.dumps([{"plan": name} | result.to_json() for name, result in results.items()]))
    else:
        print_text("\n".join(_words(name, result) for name, result in results.items()))
    return 0


def _schedules(given: Path) -> "dict[str, Schedule]":
    """The schedules of a catalog by the names of their plans, or the one in a file."""
    from flowccl.catalog.files import load_catalog, load_plan_schedule
    from flowccl.schedule.files import load_schedule

    if not given.is_dir():
        return {given.name.split(".")[0]: load_schedule(given)}
    catalog = load_catalog(given)
    if not catalog.plans:
        raise InputError(f"{given}: the catalog has no plans")
    return {plan.name: load_plan_schedule(given, plan, catalog.machine.ranks) for plan in catalog.plans}


def _check_out(out: Path, is_folder: bool) -> None:
    if not is_folder:
        check_writable(out)
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"--out {out}: must be a new or an empty folder")
    elif not out.parent.is_dir():
        raise InputError(f"--out {out}: there is no folder {out.parent}")


def _words(name: str, result: "Replanned") -> str:
    from flowccl.units import format_us
    from flowccl.wording import counted, percent

    used = f"{result.affected} of {counted(result.transfers, 'transfer')} use it"
    late = "cannot run" if result.late_us is None else f"{format_us(result.late_us)} as it is"
    gap = percent(result.after_us / max(result.bound.us, 1e-9) - 1)
    above = f"{gap} above the lower bound"
    if result.program_us is not None:
        above += f", its program {format_us(result.program_us)}"
    return (
        f"{name}: {', '.join(map(str, result.faults))}: {used}; {format_us(result.before_us)} before, {late}; "
        f"new plan {format_us(result.after_us)} ({result.schedule.method}), {above}; verified"
    )
