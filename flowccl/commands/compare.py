"""`flowccl compare`: many sizes, several methods, published results."""

import argparse
import json
from typing import TYPE_CHECKING

from flowccl.commands.parts import Commands, StopSignal, natural

if TYPE_CHECKING:
    from flowccl.compare import Comparison


def add(commands: Commands) -> None:
    """The command and its options."""
    compare = commands.add_parser(
        "compare",
        help="auto beside the classics and published results, for many sizes",
        description="One table, and with --out one picture (algbw against size), finishes in us.",
        epilog="example:\n  flowccl compare ndv2:2 allgather --sizes 1KB:1GB --time-limit 5 --out ndv2x2.png",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    compare.add_argument("machine", metavar="MACHINE", help="a name (see `flowccl machines`) or a JSON file")
    compare.add_argument("collective", metavar="COLLECTIVE", help="allgather, alltoall, allreduce, ...")
    compare.add_argument("--sizes", metavar="SIZES", default="1KB:1GB", help="1KB:1GB (default) or 1KB,1MB,64MB")
    compare.add_argument(
        "--methods",
        metavar="A,B,...",
        default="auto,ring,recursive-doubling,direct,tree,milp,lp",
        help="default: auto,ring,recursive-doubling,direct,tree,milp,lp; those that do not apply are left empty",
    )
    compare.add_argument("--time-limit", metavar="SECONDS", type=float, default=10.0, help="of each run (default: 10)")
    compare.add_argument("--seed", type=natural, default=0, help="of all random choices (default: 0)")
    compare.add_argument("--out", metavar="FILE", help="the picture: png, svg or pdf")
    compare.add_argument("--json", action="store_true", help="print one JSON list instead of the table")
    compare.set_defaults(run=_compare)


def _compare(options: argparse.Namespace) -> int:
    from flowccl.compare import compare, header, line, parse_sizes
    from flowccl.plot.comparison import plot_comparison
    from flowccl.plot.picture import check_suffix
    from flowccl.topology.files import read_machine

    topology, sizes, methods = read_machine(options.machine), parse_sizes(options.sizes), options.methods.split(",")
    if options.out is not None:
        check_suffix(options.out)
    shown: list[str] = []

    def show(row: "Comparison") -> None:
        if not shown:
            shown.append(header(list(row.finish_us)))
            print(shown[0])
        print(line(row), flush=True)

    rows = compare(
        topology,
        options.collective,
        sizes,
        methods,
        time_limit_s=options.time_limit,
        seed=options.seed,
        on_row=None if options.json else show,
        should_stop=StopSignal().asked,
    )
    if options.json:
        print(json.dumps([row.to_json() for row in rows]))
    if options.out is not None and rows:
        columns = ["floor", *rows[0].finish_us]
        algbw = {column: [row.algbw_GBps(column) for row in rows] for column in columns}
        title = f"{options.collective} on {topology.name}, {topology.num_gpus} GPUs"
        plot_comparison(title, [row.size_bytes for row in rows], algbw, options.out)
        if not options.json:
            print(f"picture: {options.out}")
    return 0
