"""The command line: `flowccl synth | verify | show | plot | run | export | ...`. `commands` has one module for each.

Exit codes: 0 good, 1 a schedule is invalid, 2 bad input, 3 nothing found in time.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from flowccl.commands import advise, compare, export, importing, look, profile, run, synth
from flowccl.commands.parts import Parser, StopSignal
from flowccl.errors import FlowcclError, InputError, InvalidScheduleError, NothingFoundError
from flowccl.version import VERSION

_EXIT = ((InvalidScheduleError, 1), (NothingFoundError, 3), (InputError, 2), (FlowcclError, 2))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.DEBUG if options.verbose else logging.ERROR, format="%(message)s")
    try:
        return int(options.run(options))
    except FlowcclError as error:
        print(f"flowccl: error: {error}", file=sys.stderr)
        return next(code for kind, code in _EXIT if isinstance(error, kind))
    except KeyboardInterrupt:
        print("flowccl: interrupted before any schedule was found", file=sys.stderr)
        return 3
    except BrokenPipeError:  # the reader of our output is gone, as in `flowccl machines | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    finally:
        StopSignal.restore()


def _parser() -> Parser:
    """The options of all commands."""
    result = Parser(
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
    for module in (synth, look, compare, advise, run, profile, importing, export):
        module.add(commands)
    return result
