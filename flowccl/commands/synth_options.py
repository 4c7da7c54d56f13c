"""The options of `flowccl synth`, and the help that teaches them."""

import argparse
from typing import Any

from flowccl.commands.parts import Commands, Parser, natural, positive


def add_synth(commands: Commands) -> Parser:
    """The command and its options."""
    synth = commands.add_parser(
        "synth",
        help="synthesize a schedule",
        description="Synthesize a schedule, verify it, and prove how far from the best it is.",
        epilog=(
            "examples:\n"
            "  flowccl synth ndv2:2 allgather --size 1MB\n"
            "  flowccl synth torus:8x8:bandwidth=50GB/s alltoall --size 16MB --time-limit 30 --out a2a.json.gz\n"
            "  flowccl synth dgx1 my-demand.json --json\n"
            "  flowccl synth ndv2:2 allgather --size 1MB --method taccl --sketch sk1-ndv2-n2.json\n"
            "  flowccl synth torus:4x4 allreduce --size 1MB --group 0-7 --relay none --late gpu3=20us\n"
            "  flowccl synth dgx_h100:4 alltoallv --matrix bytes.csv\n"
            "  flowccl synth torus:4x4 --tenants tenants.json\n"
            "  flowccl synth torus:200x200 allgather --size 1GB --out compact.json.gz"
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
        help="auto, greedy, routed, woven, trees, fluid, mirrored, milp, lp, astar, taccl, exchange, in-switch, "
        "ring, tree ... (default: auto)",
    )
    synth.add_argument("--root", metavar="RANK", type=int, default=0, help="of broadcast, scatter, gather, reduce")
    synth.add_argument("--time-limit", metavar="SECONDS", type=float, default=10.0, help="default: 10")
    synth.add_argument(
        "--gap",
        type=float,
        default=0.005,
        help="stop when the finish is so close to the floor (default: 0.005; a small problem goes on for seconds "
        "while it gets better, unless more than that is given)",
    )
    synth.add_argument("--seed", type=natural, default=0, help="of all random choices (default: 0)")
    synth.add_argument("--steps", metavar="N", type=positive, help="stop after N runs of the search (repeatable)")
    synth.add_argument(
        "--workers", metavar="N", type=positive, default=2, help="searches side by side; with --steps all the same"
    )
    synth.add_argument("--out", metavar="FILE", help="write the schedule here (.json or .json.gz)")
    synth.add_argument(
        "--compact",
        action="store_true",
        help="one source's transfers and the group that moves them; the rule for allgather and alltoall of 2,000 gpus",
    )
    synth.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    synth.add_argument("--quiet", action="store_true", help="no progress line")
    _add_epochs(synth)
    _add_taccl(synth)
    return synth


def _add_crowd(synth: Parser) -> None:
    """Who takes part, who is late, who else is there."""
    group = synth.add_argument_group("groups, late data and tenants")
    group.add_argument("--group", metavar="RANKS", help="only these GPUs take part, e.g. 0-7,16-23")
    group.add_argument("--relay", metavar="all|none|RANKS", help="others that may pass chunks on (default: all)")
    adding = "GPUs add up what arrives at this rate, one after the other, e.g. 200GB/s (default: in no time)"
    group.add_argument("--reduce-GBps", metavar="RATE", dest="reduce_GBps", help=adding)
    late = "its data comes late, e.g. gpu3=20us; may be given several times"
    group.add_argument("--late", metavar="GPU=TIME", action="append", default=[], help=late)
    group.add_argument("--matrix", metavar="FILE", help="of alltoallv: bytes from each rank to each, JSON or CSV")
    group.add_argument("--tenants", metavar="FILE", help="several demands at once, a JSON list, instead of COLLECTIVE")


def _add_epochs(synth: Parser) -> None:
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
    add("--round-epochs", "round_epochs", "of astar: epochs in a round", metavar="N", type=positive)
    add("--solver", "solver", "who solves (default: highs)", choices=("highs", "gurobi"))
    add("--threads", "threads", "of the solver", metavar="N", type=positive)


def _add_taccl(synth: Parser) -> None:
    """Options of the method after TACCL; those that are not given are not in the namespace."""
    group = synth.add_argument_group("taccl", "routes by a program, then order, then which chunks travel together")

    def add(flag: str, to: str, text: str, **more: Any) -> None:
        group.add_argument(flag, dest=f"taccl_{to}", default=argparse.SUPPRESS, help=text, **more)

    add("--sketch", "sketch", "what may be used and how, ours or TACCL's (default: from the machine)", metavar="FILE")
    stages = ("milp", "fast")
    add("--routing", "routing", "the path encoding, or quick ways only (default: milp)", choices=stages)
    add("--contiguity", "contiguity", "the contiguity encoding, or by trial (default: milp)", choices=stages)
    add("--routing-limit", "routing_limit_s", "of the path encoding (default: half)", metavar="SECONDS", type=float)
    add("--contiguity-limit", "contiguity_limit_s", "of the contiguity encoding", metavar="SECONDS", type=float)


def taccl_options(options: argparse.Namespace) -> dict[str, Any]:
    """Those of `TacclOptions` that were given."""
    prefix = "taccl_"
    return {name.removeprefix(prefix): value for name, value in vars(options).items() if name.startswith(prefix)}


def epoch_options(options: argparse.Namespace) -> dict[str, Any]:
    """Those of `TecclOptions` that were given."""
    prefix = "teccl_"
    return {name.removeprefix(prefix): value for name, value in vars(options).items() if name.startswith(prefix)}


def _epochs(text: str) -> int | str:
    return text if text in ("auto", "search") else positive(text)


def _chunks(text: str) -> int | None:
    return None if text == "auto" else positive(text)
