"""`flowccl compare`: several methods and published results over many sizes."""

import argparse
import json
from typing import TYPE_CHECKING

from flowccl.commands.parts import Commands, StopSignal, add_faults, machine_with_faults, natural, seconds
from flowccl.commands.synth_reshard import NAME, add_reshard_options, check_no_reshard, compare_reshard
from flowccl.commands.terminal import LiveLine

if TYPE_CHECKING:
    from flowccl.compare import Comparison


def add(commands: Commands) -> None:
    """Add the command and its options."""
    compare = commands.add_parser(
        "compare",
        help="compare methods and published results over many sizes",
        usage="flowccl compare MACHINE COLLECTIVE [options]",
        description=(
            "Synthesize a collective with several methods at many sizes, and print a table of completion times in us\n"
            "with the lower bound and, where there are some, published results. --out also plots algbw over size.\n"
            "reshard: the plan between two layouts beside broadcasts, direct messages and a ring."
        ),
        epilog=(
            "examples:\n"
            "  flowccl compare ndv2:2 allgather --sizes 1KB:1GB --time-limit 5 --out ndv2x2.png\n"
            "  flowccl compare dgx1 allreduce --sizes 1MB,64MB --methods auto,ring,tree --json\n"
            "  flowccl compare dgx_h100:2 allreduce --sizes 1MB --slow 'gpu3 <-> rail3=100Gb/s'\n"
            "  flowccl compare dgx_h100:3 reshard --from trainer.json --to engine.json"
        ),
    )
    compare.add_argument("machine", metavar="MACHINE", help="a name (see `flowccl machines`) or a topology file")
    compare.add_argument("collective", metavar="COLLECTIVE", help="allgather, alltoall, allreduce, ...")
    compare.add_argument(
        "--sizes",
        metavar="SIZES",
        default="1KB:1GB",
        help="a range (1, 4, 16, 64, 256 of each unit) or a list 1KB,1MB,64MB (default: 1KB:1GB)",
    )
    compare.add_argument(
        "--methods",
        metavar="LIST",
        default=None,
        help="methods, one column each; a dash marks a method that does not apply; reduce-scatter+allgather is the sum "
        "of the two for allreduce (default: auto, the baselines, milp and lp)",
    )
    compare.add_argument(
        "--time-limit", metavar="SECONDS", type=seconds, default=10.0, help="for each synthesis (default: 10)"
    )
    compare.add_argument("--seed", metavar="N", type=natural, default=0, help="seed of all random choices (default: 0)")
    compare.add_argument("--out", metavar="FILE", help="write the plot here (.png, .svg or .pdf)")
    compare.add_argument("--json", action="store_true", help="print one JSON list instead of the table")
    compare.add_argument("--quiet", action="store_true", help="do not show the progress line")
    add_faults(compare)
    add_reshard_options(compare)
    compare.set_defaults(run=_compare)


def _compare(options: argparse.Namespace) -> int:
    from flowccl.compare import BASELINES, compare, header, line, parse_sizes
    from flowccl.plot.comparison import plot_comparison
    from flowccl.plot.picture import check_suffix
    from flowccl.units import format_bytes

    if options.collective == NAME:
        return compare_reshard(options)
    check_no_reshard(options)
    topology = machine_with_faults(options.machine, options)
    sizes = parse_sizes(options.sizes)
    methods = options.methods.split(",") if options.methods else ["auto", *BASELINES, "milp", "lp"]
    if options.out is not None:
        check_suffix(options.out)
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
    if options.json:
        print(json.dumps([row.to_json() for row in rows]))
    if options.out is not None and rows:
        columns = ["bound", *rows[0].finish_us]
        algbw = {column: [row.algbw_GBps(column) for row in rows] for column in columns}
        title = f"{options.collective} on {topology.name}, {topology.num_gpus} GPUs"
        plot_comparison(title, [row.size_bytes for row in rows], algbw, options.out)
        if not options.json:
            print(f"plot written to {options.out}")
    return 0
