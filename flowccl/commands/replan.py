"""`flowccl replan`: new plans after links were lost or became slow."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from flowccl.commands.parser import FAULTS, JSON, QUIET, Commands, add_command, natural
from flowccl.commands.parts import check_writable, print_result
from flowccl.commands.terminal import LiveLine
from flowccl.errors import InputError

if TYPE_CHECKING:
    from flowccl.faults.replan import Replanned
    from flowccl.schedule.schedule import Schedule

_HELP = f"""
flowccl replan CATALOG|SCHEDULE --without LINK | --slow LINK=RATE [options]

new plans after links were lost or became slow

Say which plans use a faulty link and how late each would be, and make a new plan for each of them.
Only what uses the faulty link gets other paths; quick methods are tried too, and the earliest plan is
returned. Every new plan is verified and comes with its lower bound. For a catalog, --out is the catalog
of the faulty machine.

options:
  CATALOG|SCHEDULE  a folder of `catalog build`, or a schedule file
  --out PATH  write the new schedule here; for a catalog, the folder of the new catalog
  --steps N [1; 0: repair only]  steps of each method that is tried beside the repair
  {JSON}
  {QUIET}

{FAULTS}

examples:
  flowccl replan ar.json --without 'gpu3 <-> rail3' --out ar-without-rail3.json
  flowccl replan plans --slow 'gpu3 -> rail3=100Gb/s' --out repaired
"""


def add(commands: Commands) -> None:
    """Add the command and its options."""
    add_command(commands, _HELP, _replan, steps=natural)


def _replan(options: argparse.Namespace) -> int:
    from flowccl.catalog.files import load_catalog
    from flowccl.faults.replan import replan
    from flowccl.faults.replanned import save_replanned
    from flowccl.schedule.files import save_schedule

    given = Path(options.catalog)
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
    rows = [{"plan": name} | result.to_json() for name, result in results.items()]
    print_result(options, rows, "\n".join(_words(name, result) for name, result in results.items()))
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
