"""`flowccl compare`: several methods and published results over many sizes."""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from flowccl.commands.parts import (
    Commands,
    StopSignal,
    add_faults,
    check_no_faults,
    machine_with_faults,
    natural,
    schedule_file,
    seconds,
)
from flowccl.commands.synth_reshard import NAME, add_reshard_options, check_no_reshard, compare_reshard
from flowccl.commands.terminal import LiveLine, print_text
from flowccl.errors import InputError, NothingFoundError

if TYPE_CHECKING:
    from flowccl.analysis.compare import Comparison
    from flowccl.schedule.schedule import Schedule


def add(commands: Commands) -> None:
    """Add the command and its options."""
    compare = commands.add_parser(
        "compare",
        help="compare methods and published results over many sizes",
        usage="flowccl compare MACHINE COLLECTIVE [options]\n       flowccl compare SCHEDULE [--out PICTURE]",
        description=(
            "Synthesize a collective with several methods at many sizes, and print a table of completion times in us\n"
            "with the lower bound and, where there are some, published results. --out also plots algbw over size.\n"
            "\nFor a schedule file: its predicted time beside those of NCCL's ring and tree and the lower bound,\n"
            "all in the same model of the machine and the runtime; with --out also as a picture.\n\n"
            "reshard: the plan between two layouts beside broadcasts, direct messages and a ring."
        ),
        epilog=(
            "examples:\n"
            "  flowccl compare ndv2:2 allgather --sizes 1KB:1GB --time-limit 5 --out ndv2x2.png\n"
            "  flowccl compare ag.json --out ag-beside-nccl.png\n"
            "  flowccl compare dgx1 allreduce --sizes 1MB,64MB --methods auto,ring,tree --json\n"
            "  flowccl compare dgx_h100:2 allreduce --sizes 1MB --slow 'gpu3 <-> rail3=100Gb/s'\n"
            "  flowccl compare dgx_h100:3 reshard --from trainer.json --to engine.json"
        ),
    )
    compare.add_argument(
        "machine", metavar="MACHINE|FILE", help="a name (see `flowccl machines`), a topology file or a schedule file"
    )
    compare.add_argument(
        "collective", metavar="COLLECTIVE", nargs="?", help="allgather, alltoall, allreduce, ...; not with a schedule"
    )
    compare.add_argument(
        "--sizes",
        metavar="SIZES",
        help="a range LOW:HIGH, of which 1, 4, 16, 64 and 256 of each unit are taken, or a list such as 1KB,1MB,64MB "
        "(default: 1KB:1GB)",
    )
    compare.add_argument(
        "--methods",
        metavar="LIST",
        default=None,
        help="methods, one column each; a dash marks a method that does not apply; reduce-scatter+allgather is the sum "
        "of the two for allreduce (default: auto and the baselines)",
    )
    compare.add_argument(
        "--time-limit", metavar="SECONDS", type=seconds, default=3.0, help="time of each synthesis (default: 3)"
    )
    compare.add_argument("--seed", metavar="N", type=natural, default=0, help="seed of all random choices (default: 0)")
    compare.add_argument("--out", metavar="FILE", help="write the plot here (.png, .svg or .pdf)")
    compare.add_argument("--json", action="store_true", help="print one JSON list instead of the table")
    compare.add_argument("--quiet", action="store_true", help="do not show the progress line")
    add_faults(compare)
    add_reshard_options(compare)
    compare.set_defaults(run=_compare)


def _compare(options: argparse.Namespace) -> int:
    from flowccl.analysis.compare import BASELINES, compare, header, line, parse_sizes
    from flowccl.plot.comparison import plot_comparison
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
        columns = ["bound", *rows[0].finish_us]
        algbw = {column: [row.algbw_GBps(column) for row in rows] for column in columns}
        title = f"{options.collective} on {topology.name}, {topology.num_gpus} GPUs"
        plot_comparison(title, [row.size_bytes for row in rows], algbw, options.out)
        if not options.json:
            print(f"plot written to {options.out}")
    return 0


def _compare_schedule(options: argparse.Namespace, schedule: "Schedule") -> int:
    """Print the time of a schedule beside those of NCCL's ring and tree."""
    from flowccl.analysis.compare import beside_baselines
    from flowccl.plot.comparison import plot_beside_baselines
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
    progress = LiveLine(options.quiet or options.verbose)
    progress.phase("NCCL's ring and tree")
    try:
        found = beside_baselines(schedule, time_limit_s=options.time_limit, seed=options.seed)
    finally:
        progress.clear()
    demand, runtime = schedule.demand, "" if schedule.runtime is None else f" for {schedule.runtime.name}"
    title = f"{demand.collective} of {format_bytes(demand.size_bytes)} on {schedule.topology.name}{runtime}"
    print(json.dumps(asdict(found)) if options.json else "\n".join([title, *found.lines()]))
    if options.out is not None:
        plot_beside_baselines(title, found.rows(), options.out)
        if not options.json:
            print_text(f"picture written to {options.out}")
    return 0
