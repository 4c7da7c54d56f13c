"""The options of the command line, and the help that teaches them."""

import argparse
from typing import NoReturn


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
            "  flowccl synth dgx1 my-demand.json --json"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    synth.add_argument("machine", metavar="MACHINE", help="a name (see `flowccl machines`) or a JSON file")
    synth.add_argument(
        "collective",
        metavar="COLLECTIVE",
        help="allgather, alltoall, broadcast, scatter, gather, reduce, reduce_scatter, allreduce, or a JSON file",
    )
    synth.add_argument("--size", metavar="SIZE", help="bytes as nccl-tests counts them, e.g. 1MB (decimal) or 1MiB")
    synth.add_argument(
        "--chunks", metavar="N|auto", type=_chunks, default=None, help="pieces of each block of data (default: auto)"
    )
    synth.add_argument(
        "--method",
        default="auto",
        help="auto, greedy, ring, recursive-doubling, direct or tree (default: auto)",
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
