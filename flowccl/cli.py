"""The command line: `flowccl synth | verify | show | plot | run | export | ...`. `commands` has one module for each.

Exit codes: 0: success; 1: the schedule is invalid; 2: bad input; 3: nothing found in time.
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

from flowccl.commands import (
    advise,
    audit,
    catalog,
    compare,
    explain,
    export,
    importing,
    look,
    profile,
    replan,
    report,
    run,
    synth,
)
from flowccl.commands.parser import Parser
from flowccl.commands.parts import StopSignal
from flowccl.commands.terminal import print_error
from flowccl.errors import FlowcclError, InputError, InvalidScheduleError, NothingFoundError
from flowccl.version import VERSION

_EXIT = ((InvalidScheduleError, 1), (NothingFoundError, 3), (InputError, 2), (FlowcclError, 2))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    began_s = time.monotonic()
    options = _parsed(sys.argv[1:] if arguments is None else arguments)
    options.began_s = began_s
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    if options.verbose:
        logging.getLogger("flowccl").setLevel(logging.DEBUG)
    try:
        code = int(options.run(options))
        sys.stdout.flush()
        return code
    except FlowcclError as error:
        print_error(str(error))
        return next(code for kind, code in _EXIT if isinstance(error, kind))
    except KeyboardInterrupt:
        synth = " before a schedule was found" if options.command == "synth" else ""
        print(f"flowccl: interrupted{synth}", file=sys.stderr)
        return 3
    except MemoryError as error:  # numpy says how much it wanted
        print_error(f"not enough memory: {error or 'an allocation failed'}; give a smaller size or machine")
        return 2
    except BrokenPipeError:  # the reader of standard output has exited, as in `flowccl machines | head`
        _discard_output()
        return 0
    except OSError as error:  # a full disk behind standard output, or behind a file that a library writes
        print_error(f"{error.filename or 'the output'} cannot be written: {error.strerror or error}")
        _discard_output()
        return 2
    finally:
        StopSignal.restore()


def _discard_output() -> None:
    """Send what is left in the buffer of standard output nowhere, so that the interpreter does not fail as it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The parsed options; unknown ones are refused by name."""
    parser = _Parsers()
    if "" in arguments:
        before = arguments[arguments.index("") - 1] if arguments[0] else "flowccl"
        parser.whole.error(f"the argument after {before} is empty; is a variable of the shell not set?")
    first = next((word for word in arguments if word not in ("--verbose",)), "")
    if first.startswith("-") and not parser.whole.knows(first):
        parser.misplaced(first.partition("=")[0])
    if first and not first.startswith("-") and first not in parser.of_command:
        near = get_close_matches(first, parser.of_command, 1)
        hint = f"did you mean {near[0]}?" if near else f"the commands are {', '.join(parser.of_command)}"
        parser.whole.error(f"there is no command {first!r}; {hint}")
    options, unknown = parser.whole.parse_known_args(arguments)
    options.verbose = options.verbose or "--verbose" in unknown  # before the command or after it
    unknown = [word for word in unknown if word != "--verbose"]
    if unknown:
        parser.of_command[options.command].unknown(unknown)
    return options


class _Parsers:
    """The parser of the whole command line, and the parser of each command."""

    def __init__(self) -> None:
        self.whole = Parser(
            prog="flowccl",
            usage="flowccl [--verbose] COMMAND [OPTIONS]",
            description=(
                "Synthesize collective communication schedules for GPU clusters: which chunk goes over which link, "
                "and when.\nEvery schedule is verified and comes with a proved lower bound on its completion time."
            ),
            epilog=(
                "`flowccl COMMAND --help` explains a command and its options.\n"
                "\nexamples:\n"
                "  flowccl synth ndv2:2 allgather --size 1MB --out ag.json     synthesize a schedule\n"
                "  flowccl synth my-cluster.json alltoall --size 64MB --json   on a machine of your own\n"
                "  flowccl verify ag.json                                      check it independently\n"
                "  flowccl plot ag.json --out ag.png                           draw its timeline\n"
                "  flowccl export ag.json --to msccl --out ag.xml              write it for a runtime\n"
                "  flowccl machines                                            list the built-in machines\n"
                "\nexit codes:\n"
                "  0: success; 1: the schedule is invalid; 2: bad input; 3: nothing found in time"
            ),
        )
        self.whole.add_argument("--version", action="version", version=f"flowccl {VERSION}")
        self.whole.add_argument("--verbose", action="store_true", help="log every step to standard error")
        commands = self.whole.add_subparsers(
            title="commands", required=True, metavar="COMMAND", dest="command", prog="flowccl"
        )
        first = (synth, look, explain, report, compare, advise, audit)
        for module in (*first, catalog, replan, run, profile, importing, export):
            module.add(commands)
        self.of_command: dict[str, Parser] = dict(commands.choices)

    def misplaced(self, option: str) -> NoReturn:
        """Refuse an option before the command that is not an option of `flowccl` itself."""
        owners = [name for name, parser in self.of_command.items() if parser.knows(option)]
        if owners:
            self.whole.error(f"option {option} belongs after its command: flowccl {owners[0]} ... {option}")
        self.whole.error(f"unknown option {option} before the command; write flowccl COMMAND [OPTIONS]")
