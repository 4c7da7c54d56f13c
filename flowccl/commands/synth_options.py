"""The options of `flowccl synth`, and its help text."""

import argparse
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from flowccl.commands.parts import Commands, Parser, add_faults, fraction, natural, positive, seconds
from flowccl.commands.synth_reshard import add_reshard_options

_EXAMPLES = """examples:
  flowccl synth ndv2:2 allgather --size 1MB
  flowccl synth torus:8x8:bandwidth=50GB/s alltoall --size 16MB --time-limit 30 --out a2a.json.gz
  flowccl synth dgx_h100:2 allreduce --size 1MiB --for mscclpp --out plan.json
  flowccl synth dgx1 my-demand.json --json
  flowccl synth dgx_h100:4 allreduce --size 64MB --without 'gpu3 <-> rail3'
  flowccl synth ndv2:2 allgather --size 1MB --method taccl --sketch sk1-ndv2-n2.json
  flowccl synth dgx1 allgather --size 1MB --method sccl --chunks 6 --sccl-steps 3 --sccl-rounds 7
  flowccl synth torus:4x4 allreduce --size 1MB --group 0-7 --relay none --late gpu3=20us
  flowccl synth dgx_h100:4 alltoallv --matrix bytes.csv
  flowccl synth dgx_h100:4 dispatch --routing routing.npy --token-bytes 7168
  flowccl synth torus:4x4 --tenants tenants.json
  flowccl synth dgx_h100:3 reshard --from trainer.json --to engine.json --bucket 256MB --out plan.json
  flowccl synth torus:200x200 allgather --size 1GB --out compact.json.gz

{methods}

exit codes:
  0: success; 1: the schedule is invalid; 2: bad input; 3: nothing found in time"""


def _epilog() -> str:
    """Examples, the methods of the registry, and the exit codes; the registry is imported when help is asked for."""
    return _EXAMPLES.format(methods="\n".join(["methods:", *_methods()]))


def _methods() -> Iterator[str]:
    """The names of all methods: those of `auto`, the baselines that `auto` leaves out, and those of papers."""
    from flowccl.methods.registry import REGISTRY

    kinds: dict[str, list[str]] = {"auto": [], "baselines": [], "papers": []}
    for name, info in REGISTRY.items():
        kinds["auto" if info.in_auto else "baselines" if info.baseline else "papers"].append(name)
    heads = {
        "auto": "the default: a portfolio of ",
        "baselines": "textbook algorithms outside auto: ",
        "papers": "methods of published papers: ",
    }
    for kind, names in kinds.items():
        yield textwrap.fill(
            heads[kind] + ", ".join(names),
            110,
            initial_indent=f"  {kind:<11}",
            subsequent_indent=" " * 13,
            break_on_hyphens=False,
        )
    yield "  docs/methods has a page on each of them"


def add_synth(commands: Commands) -> Parser:
    """Add the command and its options."""
    synth = commands.add_parser(
        "synth",
        help="synthesize a schedule",
        usage="flowccl synth MACHINE COLLECTIVE --size SIZE [options]",
        description=(
            "Synthesize a schedule for a collective on a machine, verify it, and print its completion time, a proved\n"
            "lower bound and the gap between the two. The first run after an installation compiles the methods, which\n"
            "takes about a minute. Ctrl-C stops the search and keeps the best schedule so far."
        ),
    )
    synth.late_epilog = _epilog
    synth.add_argument(
        "machine", metavar="MACHINE", nargs="?", help="a name (see `flowccl machines`) or a topology file (.json)"
    )
    synth.add_argument(
        "collective",
        metavar="COLLECTIVE",
        nargs="?",
        help="allgather, alltoall, alltoallv, broadcast, scatter, gather, reduce, reduce_scatter, allreduce, "
        "dispatch, combine, reshard (see below), or a demand file (.json)",
    )
    synth.add_argument(
        "--size", metavar="SIZE", help="buffer size as nccl-tests counts it, e.g. 1MB (10^6 bytes) or 1MiB (2^20)"
    )
    synth.add_argument(
        "--chunks",
        metavar="N",
        type=_chunks,
        default=None,
        help="chunks per block, or auto; a block is the data of one rank, or of one pair of ranks (default: auto)",
    )
    synth.add_argument("--method", metavar="METHOD", default="auto", help="see the methods below (default: auto)")
    synth.add_argument(
        "--root",
        metavar="RANK",
        type=natural,
        default=0,
        help="root of broadcast, scatter, gather, reduce (default: 0)",
    )
    synth.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    synth.add_argument("--out", metavar="FILE", help="write the schedule here (.json or .json.gz)")
    synth.add_argument(
        "--compact",
        action="store_true",
        help="write only the transfers of one source and the symmetry group (default on more than 2,000 GPUs)",
    )
    _add_runtime(synth)
    synth.add_argument("--quiet", action="store_true", help="do not show the progress line")
    _add_search(synth)
    add_faults(synth)
    _add_groups(synth)
    _add_moe(synth)
    add_reshard_options(synth)
    synth.set_defaults(flags=_add_epochs(synth) | _add_taccl(synth) | _add_sccl(synth))
    return synth


def _add_runtime(synth: Parser) -> None:
    """Options of what the schedule is made for."""
    synth.add_argument(
        "--for",
        dest="runtime",
        metavar="RUNTIME",
        default="ideal",
        help="make the schedule for a runtime: mscclpp, msccl, executor, rccl, or a profile file (.json); the search "
        "then counts its message costs and keeps its limits (default: ideal, in which messages cost nothing)",
    )
    synth.add_argument(
        "--sms", metavar="N", type=positive, help="with --for: SMs of a GPU, where the machine names no GPU model"
    )
    synth.add_argument(
        "--trade-off",
        metavar="PICTURE",
        nargs="?",
        const="",
        help="also print how much earlier schedules with more messages per GPU end; with a file name (.png, .svg, "
        ".pdf), also draw it",
    )


def _add_search(synth: Parser) -> None:
    """Options of the search: when it stops, and how it uses the computer."""
    group = synth.add_argument_group("search")
    group.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=seconds,
        default=10.0,
        help="time of the search in seconds (default: 10)",
    )
    group.add_argument(
        "--gap",
        metavar="GAP",
        type=fraction,
        default=0.005,
        help="stop once the gap to the lower bound is at most this, which --lean then keeps; 0.01 is 1 %% (default: "
        "0.005)",
    )
    group.add_argument(
        "--lean",
        metavar="FRACTION",
        type=fraction,
        default=0.005,
        help="of all schedules within this fraction of the best one, return that with the fewest transfers, and stop "
        "once doubling the work would gain less (default: 0.005, which is 0.5 %%; 0: always the fastest)",
    )
    group.add_argument(
        "--min-chunk",
        metavar="SIZE",
        help="do not divide blocks into chunks smaller than this (default: 4KB; with --for 512B); 1B: the fastest "
        "schedule, however small its chunks are",
    )
    group.add_argument("--seed", metavar="N", type=natural, default=0, help="seed of all random choices (default: 0)")
    group.add_argument(
        "--steps", metavar="N", type=positive, help="stop after N steps of the search; makes runs repeatable"
    )
    group.add_argument(
        "--workers",
        metavar="N",
        type=positive,
        default=2,
        help="threads of the search (default: 2); with --steps, the result does not depend on it",
    )


def _add_groups(synth: Parser) -> None:
    """Options on the participating GPUs, late data and tenants."""
    group = synth.add_argument_group("process groups, late data, tenants")
    group.add_argument("--group", metavar="RANKS", help="ranks that take part, e.g. 0-7,16-23 (default: all)")
    group.add_argument(
        "--relay", metavar="RANKS", help="other ranks that may forward chunks: all, none or ranks (default: all)"
    )
    group.add_argument(
        "--reduce-GBps",
        metavar="RATE",
        dest="reduce_GBps",
        help="rate at which a GPU reduces arriving data, e.g. 200GB/s (default: reductions take no time)",
    )
    group.add_argument(
        "--late",
        metavar="GPU=TIME",
        action="append",
        default=[],
        help="the data of this GPU is available only after this time, e.g. gpu3=20us; repeat for several GPUs",
    )
    group.add_argument("--tenants", metavar="FILE", help="a JSON list of demands that share the machine; no COLLECTIVE")


def _add_moe(synth: Parser) -> None:
    """Options of alltoallv, dispatch and combine."""
    group = synth.add_argument_group(
        "alltoallv, dispatch, combine", "mixture of experts, see docs/moe.md; --routing (below) names the routing file"
    )
    group.add_argument("--matrix", metavar="FILE", help="for alltoallv: bytes from each rank to each rank, JSON or CSV")
    group.add_argument(
        "--placement", metavar="FILE", help="rank or ranks of each expert, a JSON list (default: even, in rank order)"
    )
    group.add_argument(
        "--experts",
        metavar="N",
        type=positive,
        help="number of experts, without --placement (default: the highest one in --routing, plus 1)",
    )
    group.add_argument("--token-bytes", metavar="SIZE", help="bytes of a token that is sent to the experts")
    group.add_argument(
        "--combine-bytes", metavar="SIZE", help="bytes of a token that comes back (default: as --token-bytes)"
    )


def _add_epochs(synth: Parser) -> dict[str, str]:
    """Options of the methods on a time grid, by name; the namespace contains only those that are given."""
    flags: dict[str, str] = {}
    group = synth.add_argument_group(
        "milp, lp, astar", "methods on a grid of epochs (time steps of equal length), after TE-CCL"
    )
    group.add_argument("--from-teccl", metavar="FILE", help="a TE-CCL input file in place of MACHINE and COLLECTIVE")
    group.add_argument("--buffer-limit", metavar="SIZE", help="buffer of every node for forwarded data, e.g. 1MB")

    def add(flag: str, to: str, text: str, **more: Any) -> None:
        flags[to] = flag
        group.add_argument(flag, dest=f"teccl_{to}", default=argparse.SUPPRESS, help=text, **more)

    add(
        "--epoch",
        "epoch",
        "length of an epoch: the time of a chunk on the fastest link (fast) or the slowest one (slow), a multiple of "
        "fast such as 2x, or a time such as 0.5us (default: fast)",
        metavar="LENGTH",
    )
    add("--epochs", "epochs", "number of epochs, search or auto (default: auto)", metavar="N", type=_epochs)
    add("--no-copy", "copy", "nodes forward a chunk only once", action="store_false")
    add(
        "--no-buffers", "buffers", "GPUs do not store chunks for others, but forward them at once", action="store_false"
    )
    add("--hyper-edges", "hyper_edges", "replace switches by direct links of their neighbours", action="store_true")
    add(
        "--objective",
        "objective",
        "fewest epochs, or the objective of the TE-CCL paper (default: epochs)",
        choices=("epochs", "paper"),
    )
    add(
        "--latency-threshold",
        "latency_threshold",
        "ignore latencies below this fraction of an epoch (default: 0)",
        metavar="FRAC",
        type=fraction,
    )
    add(
        "--early-stop",
        "early_stop",
        "stop at this gap on the grid, e.g. 0.3 (default: 0)",
        metavar="GAP",
        type=fraction,
    )
    add("--no-start", "warm_start", "do not start from a plan of greedy and reroute", action="store_false")
    add("--round-epochs", "round_epochs", "for astar: epochs per round (default: auto)", metavar="N", type=positive)
    add("--solver", "solver", "LP and MILP solver (default: highs)", choices=("highs", "gurobi"))
    add("--threads", "threads", "threads of the solver (default: the solver's)", metavar="N", type=positive)
    return flags


def _add_taccl(synth: Parser) -> dict[str, str]:
    """Options of the method after TACCL, by name; the namespace contains only those that are given."""
    flags: dict[str, str] = {}
    group = synth.add_argument_group(
        "taccl", "three stages: routing, ordering, contiguity (which chunks share a message)"
    )

    def add(flag: str, to: str, text: str, **more: Any) -> None:
        flags[to] = flag
        group.add_argument(flag, dest=f"taccl_{to}", default=argparse.SUPPRESS, help=text, **more)

    add("--sketch", "sketch", "sketch file of flowccl or TACCL (default: derived from the machine)", metavar="FILE")
    stages = ("milp", "fast")
    words = "milp, or fast: shortest paths one by one (default: milp); for dispatch and combine: the file with the "
    words += "experts of each token, npy, npz or parquet"
    add("--routing", "routing", words, metavar="{milp,fast} or FILE")
    add("--contiguity", "contiguity", "MILP, or merging messages one by one (default: milp)", choices=stages)
    limit = {"metavar": "SECONDS", "type": seconds}
    add("--routing-limit", "routing_limit_s", "time limit of routing (default: half of --time-limit)", **limit)
    add("--contiguity-limit", "contiguity_limit_s", "time limit of contiguity (default: the remaining time)", **limit)
    return flags


def _add_sccl(synth: Parser) -> dict[str, str]:
    """Options of the method after SCCL, by name; the namespace contains only those that are given."""
    flags: dict[str, str] = {}
    group = synth.add_argument_group(
        "sccl", "schedules of the fewest steps and rounds; --chunks gives the chunks per block"
    )

    def add(flag: str, to: str, text: str, number: Callable[[str], int] = positive) -> None:
        flags[to] = flag
        group.add_argument(flag, dest=f"sccl_{to}", default=argparse.SUPPRESS, help=text, metavar="N", type=number)

    add("--sccl-steps", "steps", "number of steps (default: all that are Pareto-optimal)")
    add("--sccl-rounds", "rounds", "rounds of all steps together (default: all that are Pareto-optimal)")
    add("--sccl-extra-rounds", "extra_rounds", "at most this many rounds more than steps (default: 4)", natural)
    return flags


def sccl_options(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of `ScclOptions` that the user gave."""
    return _with_prefix(options, "sccl_")


def taccl_options(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of `TacclOptions` that the user gave."""
    return _with_prefix(options, "taccl_")


def epoch_options(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of `TecclOptions` that the user gave."""
    return _with_prefix(options, "teccl_")


def _with_prefix(options: argparse.Namespace, prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in vars(options).items() if name.startswith(prefix)}


def _epochs(text: str) -> int | str:
    return text if text in ("auto", "search") else positive(text)


def _chunks(text: str) -> int | None:
    return None if text == "auto" else positive(text)
