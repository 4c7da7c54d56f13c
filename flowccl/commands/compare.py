"""`flowccl compare`: several methods and published results over many sizes."""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from flowccl.commands.parser import FAULTS, JSON, QUIET, SEED, Commands, add_command
from flowccl.commands.parts import StopSignal, check_no_faults, machine_with_faults, schedule_file
from flowccl.commands.synth_reshard import NAME, RESHARD, check_no_reshard, compare_reshard
from flowccl.commands.terminal import LiveLine, print_text
from flowccl.errors import InputError, NothingFoundError

if TYPE_CHECKING:
    from flowccl.analysis.compare import Comparison
    from flowccl.schedule.schedule import Schedule

_HELP = f"""
flowccl compare MACHINE COLLECTIVE [options]
flowccl compare SCHEDULE [--out PICTURE]

compare methods and published results over many sizes

Synthesize a collective with several methods at many sizes, and print a table of completion times in us
with the lower bound and, where there are some, published results. --out also plots algbw over size.

For a schedule file: its predicted time beside those of NCCL's ring and tree and the lower bound,
all in the same model of the machine and the runtime; with --out also as a picture.

reshard: the plan between two layouts beside broadcasts, direct messages and a ring.

options:
  MACHINE|FILE  a name (see `flowccl machines`), a topology file or a schedule file
  COLLECTIVE?  allgather, alltoall, allreduce, ...; not with a schedule
  --sizes SIZES  a range LOW:HIGH, of which 1, 4, 16, 64 and 256 of each unit are taken, or a list such as 1KB,1MB,64MB
      (default: 1KB:1GB)
  --methods LIST  methods, one column each; a dash marks a method that does not apply; reduce-scatter+allgather is the
      sum of the two for allreduce (default: auto and the baselines)
  --time-limit SECONDS [3]  time of each synthesis
  {SEED}
  --out FILE  write the plot here (.png, .svg or .pdf)
  {JSON}
  {QUIET}

{FAULTS}

{RESHARD}

examples:
  flowccl compare ndv2:2 allgather --sizes 1KB:1GB --time-limit 5 --out ndv2x2.png
  flowccl compare ag.json --out ag-beside-nccl.png
  flowccl compare dgx1 allreduce --sizes 1MB,64MB --methods auto,ring,tree --json
  flowccl compare dgx_h100:2 allreduce --sizes 1MB --slow 'gpu3 <-> rail3=100Gb/s'
  flowccl compare dgx_h100:3 reshard --from trainer.json --to engine.json
"""


def add(commands: Commands) -> None:
    """Add the command and its options."""
    add_command(commands, _HELP, _compare)


def _compare(options: argparse.Namespace) -> int:
    from flowccl.analysis.compare import BASELINES, compare, header, line, parse_sizes
    from flowccl.plot.curves import Curve, plot_curves
    from flowccl.plot.picture import check_picture
    from flowccl.units import format_bytes

    if options.collective == NAME:
        return compare_reshard(options)
    check_no_reshard(options)
    if (schedule := schedule_file(options.machine)) is not None:
        return _compare_schedule(options, schedule)
    topology = machine_with_faults(options.machine, options)
    if options.collective is None:
        raise InputError("compare needs MACHINE and COLLECTIVE, or a schedule file: flowccl compare ndv2:2 allgather")
    sizes = parse_sizes(options.sizes or "1KB:1GB")
    methods = options.methods.split(",") if options.methods else ["auto", *BASELINES]
    if options.out is not None:
        check_picture(options.out)
    shown: list[str] = []
    progress = LiveLine(options.quiet or options.verbose)

    def show(row: "Comparison") -> None:
        progress.clear()
        if not shown:
            shown.append(header(list(row.finish_us)))
            print(shown[0])
        print(line(row), flush=True)

    try:
        rows = compare(
            topology,
            options.collective,
            sizes,
            methods,
            time_limit_s=options.time_limit,
            seed=options.seed,
            on_run=lambda size, method: progress.phase(f"{format_bytes(size)}: {method}"),
            on_row=None if options.json else show,
            should_stop=StopSignal().asked,
        )
    finally:
        progress.clear()
    if not rows:
        raise NothingFoundError("interrupted before the first size was finished")
    if options.json:
        print(json.dumps([row.to_json() for row in rows]))
    if options.out is not None:
        curves = []
        for number, name in enumerate(["bound", *rows[0].finish_us]):
            points = [(row.size_bytes, GBps) for row in rows if (GBps := row.algbw_GBps(name))]
            style = {"bound": "k--", "auto": "o-"}.get(name, ("s:", "^:", "v:", "D:", "x:", "+:", "*:")[number % 7])
            label = "limit from the lower bound" if name == "bound" else name
            curves += [Curve(label, points, style)] if points else []
        title = f"{options.collective} on {topology.name}, {topology.num_gpus} GPUs"
        ticks = {row.size_bytes: format_bytes(row.size_bytes) for row in rows}
        plot_curves(title, curves, options.out, ("size", "algbw [GB/s]"), ticks)
        if not options.json:
            print(f"plot written to {options.out}")
    return 0


def _compare_schedule(options: argparse.Namespace, schedule: "Schedule") -> int:
    """Print the time of a schedule beside those of NCCL's ring and tree."""
    from flowccl.analysis.compare import beside_baselines
    from flowccl.plot.curves import plot_beside_baselines
    from flowccl.plot.picture import check_picture
    from flowccl.units import format_bytes

    check_no_faults(options, "not with a schedule, which has its machine; use flowccl replan")
    if options.collective is not None:
        raise InputError("compare with a schedule file takes no COLLECTIVE; the schedule has one")
    for flag, value in (("--sizes", options.sizes), ("--methods", options.methods)):
        if value is not None:
            raise InputError(f"{flag}: not with a schedule, which has its own size and method")
    if options.out is not None:
        check_picture(options.out)
    with LiveLine(options.quiet or options.verbose) as progress:
        progress.phase("NCCL's ring and tree")
        found = beside_baselines(schedule, time_limit_s=options.time_limit, seed=options.seed)
    demand, runtime = schedule.demand, "" if schedule.runtime is None else f" for {schedule.runtime.name}"
    title = f"{demand.collective} of {format_bytes(demand.size_bytes)} on {schedule.topology.name}{runtime}"
    print(json.dumps(asdict(found)) if options.json else "\n".join([title, *found.lines()]))
    if options.out is not None:
        plot_beside_baselines(title, found.rows(), options.out)
        if not options.json:
            print_text(f"picture written to {options.out}")
    return 0
