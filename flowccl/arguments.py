"""The options of the command line, and the help that teaches them."""

import argparse
from typing import Any, NoReturn

EXPORT_TARGETS = ("msccl", "executor", "rccl", "mscclpp", "chakra", "teccl", "msccl-json")


class _Parser(argparse.ArgumentParser):
    """argparse with our words for errors."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"flowccl: error: {message}\nTry: {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """The options of all commands."""
    from flowccl.version import VERSION

    result = _Parser(
        prog="flowccl",
        description="Synthesizes collective communication schedules for GPU machines: verified, with a proved floor.",
        epilog=(
            "examples:\n"
            "  flowccl synth ndv2:2 allgather --size 1MB --out ag.json\n"
            "  flowccl synth my-cluster.json alltoall --size 64MB --json\n"
            "  flowccl verify ag.json\n"
            "  flowccl plot ag.json --out ag.png\n"
            "  flowccl export ag.json --to msccl --out ag.xml\n"
            "  flowccl machines\n"
            "\nexit codes: 0 good, 1 a schedule is invalid, 2 bad input, 3 nothing found in time"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--version", action="version", version=f"flowccl {VERSION}")
    result.add_argument("--verbose", action="store_true", help="log what happens to stderr")
    commands = result.add_subparsers(title="commands", required=True, metavar="COMMAND", dest="command")
    _add_synth(commands)
    _add_others(commands)
    _add_compare(commands)
    _add_advise(commands)
    _add_run(commands)
    _add_import(commands)
    _add_export(commands)
    return result


def _add_synth(commands: "argparse._SubParsersAction[_Parser]") -> None:
    synth = commands.add_parser(
        "synth",
        help="synthesize a schedule",
        description="Synthesize a schedule, verify it, and prove how far from the best it is.",
        epilog=(
            "examples:\n"
            "  flowccl synth ndv2:2 allgather --size 1MB\n"
            "  flowccl synth torus:8x8:bandwidth=50GB/s alltoall --size 16MB --time-limit 30 --out a2a.json.gz\n"
            "  flowccl synth dgx1 my-demand.json --json\n"
            "  flowccl synth torus:4x4 allreduce --size 1MB --group 0-7 --relay none --late gpu3=20us\n"
            "  flowccl synth dgx_h100:4 alltoallv --matrix bytes.csv\n"
            "  flowccl synth torus:4x4 --tenants tenants.json"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    synth.add_argument("machine", metavar="MACHINE", nargs="?", help="a name (see `flowccl machines`) or a JSON file")
    synth.add_argument(
        "collective",
        metavar="COLLECTIVE",
        nargs="?",
        help="allgather, alltoall, broadcast, scatter, gather, reduce, reduce_scatter, allreduce, or a JSON file",
    )
    synth.add_argument("--size", metavar="SIZE", help="bytes as nccl-tests counts them, e.g. 1MB (decimal) or 1MiB")
    _add_crowd(synth)
    synth.add_argument(
        "--chunks", metavar="N|auto", type=_chunks, default=None, help="pieces of each block of data (default: auto)"
    )
    synth.add_argument(
        "--method",
        default="auto",
        help="auto, greedy, routed, milp, lp, astar, exchange, in-switch, ring, tree ... (default: auto)",
    )
    synth.add_argument("--root", metavar="RANK", type=int, default=0, help="of broadcast, scatter, gather, reduce")
    synth.add_argument("--time-limit", metavar="SECONDS", type=float, default=10.0, help="default: 10")
    synth.add_argument(
        "--gap", type=float, default=0.005, help="stop when the finish is so close to the floor (default: 0.005)"
    )
    synth.add_argument("--seed", type=_natural, default=0, help="of all random choices (default: 0)")
    synth.add_argument("--steps", metavar="N", type=_positive, help="stop after N runs of the search (repeatable)")
    synth.add_argument("--out", metavar="FILE", help="write the schedule here (.json or .json.gz)")
    synth.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    synth.add_argument("--quiet", action="store_true", help="no progress line")
    _add_epochs(synth)


def _add_crowd(synth: _Parser) -> None:
    """Who takes part, who is late, who else is there."""
    group = synth.add_argument_group("groups, late data and tenants")
    group.add_argument("--group", metavar="RANKS", help="only these GPUs take part, e.g. 0-7,16-23")
    group.add_argument("--relay", metavar="all|none|RANKS", help="others that may pass chunks on (default: all)")
    late = "its data comes late, e.g. gpu3=20us; may be given several times"
    group.add_argument("--late", metavar="GPU=TIME", action="append", default=[], help=late)
    group.add_argument("--matrix", metavar="FILE", help="of alltoallv: bytes from each rank to each, JSON or CSV")
    group.add_argument("--tenants", metavar="FILE", help="several demands at once, a JSON list, instead of COLLECTIVE")


def _add_epochs(synth: _Parser) -> None:
    """Options of the methods on a grid of epochs; those that are not given are not in the namespace."""
    group = synth.add_argument_group("milp, lp and astar", "methods on a grid of epochs, after TE-CCL")
    group.add_argument("--from-teccl", metavar="FILE", help="run an input file of TE-CCL, which says what and where")
    group.add_argument("--buffer-limit", metavar="SIZE", help="what every node may keep for others, e.g. 1MB")

    def add(flag: str, to: str, text: str, **more: Any) -> None:
        group.add_argument(flag, dest=f"teccl_{to}", default=argparse.SUPPRESS, help=text, **more)

    add("--epoch", "epoch", "length of an epoch (default: fast)", metavar="fast|slow|2x|TIME")
    add("--epochs", "epochs", "how many (default: auto)", metavar="N|search|auto", type=_epochs)
    add("--no-copy", "copy", "nodes send on one copy of what they get", action="store_false")
    add("--no-buffers", "buffers", "gpus pass on at once what they do not keep", action="store_false")
    add("--hyper-edges", "hyper_edges", "direct ways in place of plain switches", action="store_true")
    add("--objective", "objective", "fewest epochs, or the paper's sum (default: epochs)", choices=("epochs", "paper"))
    add("--latency-threshold", "latency_threshold", "ignore latency below this share of an epoch", type=float)
    add("--early-stop", "early_stop", "stop at this gap on the grid, e.g. 0.3", metavar="GAP", type=float)
    add("--no-start", "warm_start", "no plan of greedy and routed to start from", action="store_false")
    add("--round-epochs", "round_epochs", "of astar: epochs in a round", metavar="N", type=_positive)
    add("--solver", "solver", "who solves (default: highs)", choices=("highs", "gurobi"))
    add("--threads", "threads", "of the solver", metavar="N", type=_positive)


def epoch_options(options: argparse.Namespace) -> dict[str, Any]:
    """Those of `TecclOptions` that were given."""
    prefix = "teccl_"
    return {name.removeprefix(prefix): value for name, value in vars(options).items() if name.startswith(prefix)}


def _epochs(text: str) -> int | str:
    return text if text in ("auto", "search") else _positive(text)


def _add_others(commands: "argparse._SubParsersAction[_Parser]") -> None:
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


def _add_compare(commands: "argparse._SubParsersAction[_Parser]") -> None:
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
        default="auto,ring,recursive-doubling,direct,tree",
        help="default: auto,ring,recursive-doubling,direct,tree",
    )
    compare.add_argument("--time-limit", metavar="SECONDS", type=float, default=10.0, help="of each run (default: 10)")
    compare.add_argument("--seed", type=_natural, default=0, help="of all random choices (default: 0)")
    compare.add_argument("--out", metavar="FILE", help="the picture: png, svg or pdf")
    compare.add_argument("--json", action="store_true", help="print one JSON list instead of the table")


def _add_advise(commands: "argparse._SubParsersAction[_Parser]") -> None:
    advise = commands.add_parser(
        "advise",
        help="say which links bind, and what more bandwidth would give",
        description="The fluid optimum of a collective, what binds it, and a sweep of one bandwidth.",
        epilog=(
            "examples:\n"
            "  flowccl advise dgx_a100:4 allgather --size 1GB\n"
            "  flowccl advise dgx_a100:4 alltoall --size 1GB --link 'gpu0 -> rail0' --bandwidths 25,50,100"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    advise.add_argument("machine", help="a machine by name, or a topology file")
    advise.add_argument("collective", help="allgather, alltoall, allreduce, broadcast, ...")
    advise.add_argument("--size", required=True, help="whole buffer, as nccl-tests counts it, for example 1GB")
    advise.add_argument("--root", type=_natural, default=0, help="for broadcast, reduce, scatter, gather")
    advise.add_argument("--link", help="a link whose bandwidth to sweep, with all that are alike: 'gpu0 -> rail0'")
    advise.add_argument("--bandwidths", default="", help="the bandwidths to try, in GB/s: 25,50,100")
    advise.add_argument("--json", action="store_true", help="print one JSON object")


def _add_run(commands: "argparse._SubParsersAction[_Parser]") -> None:
    run = commands.add_parser(
        "run",
        help="run a schedule on real bytes",
        description="Run a schedule, check the result against the definition, print nccl-tests' columns.",
        epilog=(
            "examples:\n"
            "  flowccl run ag.json --on numpy --size 1MB 28 --dtype float32 float16 --inplace\n"
            "  flowccl run ag.json --on gloo\n"
            "  flowccl run ag.json --on mpi --size 16MB --iterations 20"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("schedule", metavar="FILE", help="a schedule written by synth")
    run.add_argument("--on", choices=("numpy", "gloo", "mpi"), default="numpy", help="default: numpy, in one process")
    run.add_argument("--ranks", metavar="N", type=_positive, help="processes (default: one per rank of the schedule)")
    run.add_argument("--size", metavar="SIZE", nargs="+", help="bytes as nccl-tests counts (default: the schedule's)")
    run.add_argument("--dtype", metavar="TYPE", nargs="+", default=["float32"], help="default: float32")
    run.add_argument("--inplace", action="store_true", help="also in place")
    run.add_argument("--iterations", metavar="N", type=_positive, default=5, help="timed calls (default: 5)")


def _add_import(commands: "argparse._SubParsersAction[_Parser]") -> None:
    reader = commands.add_parser(
        "import",
        help="read a machine from another tool's file",
        description="Turn another tool's description of a machine into a topology file; says what was assumed.",
        epilog=(
            "examples:\n"
            "  flowccl import topo.xml --from nccl-topo --out host.json\n"
            "  flowccl import topo.xml --from nccl-topo --hosts 4 --network rail:50GBps --out cluster.json\n"
            "  flowccl import topo.txt --from nvidia-smi --gpu h100 --out host.json\n"
            "  flowccl import topo-ndv2-1MB.json --from taccl --sketch sk1-ndv2-n2.json --out ndv2x2.json"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    reader.add_argument("file", metavar="FILE", help="what the other tool wrote")
    kinds = ("nccl-topo", "nvidia-smi", "taccl", "teccl", "networkx")
    reader.add_argument("--from", dest="kind", choices=kinds, required=True, help="the kind of file")
    reader.add_argument("--out", metavar="FILE", required=True, help="write the machine here (.json or .json.gz)")
    reader.add_argument("--hosts", metavar="N", type=_positive, help="so many copies of the host")
    reader.add_argument("--network", metavar="NET", help="joined by rail:50GBps (one switch per NIC) or switch:50GBps")
    reader.add_argument("--gpu", metavar="MODEL", help="for nvidia-smi: p100, v100, a100, h100, h200 or b200")
    reader.add_argument("--sketch", metavar="FILE", help="for taccl: the sketch, with the hosts and their links")
    reader.add_argument("--scale", metavar="N", type=float, help="for taccl: what its microseconds were multiplied by")
    reader.add_argument("--pcie", action="store_true", help="keep PCIe links also where faster ones join all GPUs")


def _add_export(commands: "argparse._SubParsersAction[_Parser]") -> None:
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
    export.add_argument("--instances", metavar="N", type=_positive, default=1, help="parallel copies of each chunk")
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
    check.add_argument("file", metavar="FILE", help="an XML file or an MSCCL++ plan, by flowccl or anybody else")
    check.add_argument("--to", required=True, choices=EXPORT_TARGETS, help="the runtime that would load it")
    check.add_argument("--root", metavar="RANK", type=_natural, default=0, help="of broadcast, reduce ...; default: 0")
    check.add_argument("--machine", metavar="MACHINE", help="also estimate the finish on this machine")
    check.add_argument("--size", metavar="SIZE", help="of the buffer, for the estimate")
    check.add_argument("--json", action="store_true", help="print one JSON object")


def _chunks(text: str) -> int | None:
    return None if text == "auto" else _positive(text)


def _positive(text: str) -> int:
    value = _natural(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value


def _natural(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, got {text}")
    return value
