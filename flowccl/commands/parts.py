"""Parts shared by the commands: the argument parser, checked numbers, Ctrl-C, checks of file names."""

import argparse
import math
import re
import signal
import threading
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from flowccl.commands.terminal import print_error
from flowccl.errors import InputError

if TYPE_CHECKING:
    from flowccl.schedule.schedule import Schedule
    from flowccl.topology.topology import Topology

_LONGEST_S = 1e9  # about 30 years; larger values overflow the timers of the operating system


class Parser(argparse.ArgumentParser):
    """argparse with the error messages and the help layout of flowccl."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": _layout} | options)
        self.late_epilog: Callable[[], str] | None = None
        self._negative_number_matcher = re.compile(r"-\.?\d")  # "-1MB" is a value, which its option then refuses

    def format_help(self) -> str:
        """The help text, with the epilog of `late_epilog`, which is called only where help is asked for."""
        if self.late_epilog is not None:
            self.epilog = self.late_epilog()
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Print the message and the command that shows the help, then exit with code 2."""
        print_error(f"{message}\nTry: {self.prog} --help")
        self.exit(2)

    def knows(self, word: str) -> bool:
        """Whether the word is an option of this parser, possibly abbreviated or with a value behind "="."""
        option = word.partition("=")[0]
        return any(known.startswith(option) for known in self._option_string_actions)

    def unknown(self, words: list[str]) -> NoReturn:
        """Refuse arguments that the parser does not know; suggest the most similar option."""
        known = list(self._option_string_actions)
        option = next((word.partition("=")[0] for word in words if word.startswith("-") and word != "-"), None)
        if option is None:
            linked = [flag for flag in ("--link", "--without", "--slow") if flag in known]
            split = "-" in words or "->" in words or "<->" in words  # what a shell makes of an unquoted link
            hint = f"; quote a link: {linked[0]} 'gpu0 -> rail0'" if split and linked else ""
            self.error(f"unexpected argument {words[0]!r}{hint}")
        near = get_close_matches(option, known, 1, 0.6)
        self.error(f"unknown option {option}" + (f"; did you mean {near[0]}?" if near else ""))


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


def _layout(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, max_help_position=30)


def protocol(text: str) -> str:
    """Parse a protocol, in upper or lower case."""
    known = {name.lower(): name for name in ("auto", "Simple", "LL", "LL128")}
    if text.lower() not in known:
        raise argparse.ArgumentTypeError(f"must be {', '.join(known.values())}, got {text!r}")
    return known[text.lower()]


def positive(text: str) -> int:
    """A whole number, at least 1."""
    value = natural(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value


def natural(text: str) -> int:
    """A whole number, at least 0."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, got {text}")
    return value


def seconds(text: str) -> float:
    """A time limit: a number of seconds above 0."""
    value = _number(text)
    if not 0 < value <= _LONGEST_S:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1e9 seconds, got {text}")
    return value


def fraction(text: str) -> float:
    """A relative gap or share such as 0.01: a finite number, at least 0."""
    value = _number(text, " (0.01 is 1 %)")
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"must be a finite number, at least 0 (0.01 is 1 %), got {text}")
    return value


def _number(text: str, hint: str = "") -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number{hint}, got {text!r}") from None


class StopSignal:
    """The handler of Ctrl-C: the first one stops the search, which returns its best schedule; a second one exits."""

    before: Any = None  # the previous handler, restored at the end

    def __init__(self) -> None:
        self.stopping = False
        if threading.current_thread() is threading.main_thread():  # other threads receive no signals
            StopSignal.before = StopSignal.before or signal.getsignal(signal.SIGINT)
            signal.signal(signal.SIGINT, self._on_signal)

    @classmethod
    def restore(cls) -> None:
        """Restore the previous handler."""
        if cls.before is not None:
            signal.signal(signal.SIGINT, cls.before)
            cls.before = None

    def _on_signal(self, *_: object) -> None:
        if self.stopping:
            raise KeyboardInterrupt
        self.stopping = True

    def asked(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self.stopping


def add_faults(parser: argparse.ArgumentParser) -> None:
    """Add the options for faults of the machine, --without and --slow."""
    group = parser.add_argument_group("faults of the machine")
    group.add_argument(
        "--without",
        metavar="LINK",
        action="append",
        default=[],
        help="this link is lost: 'gpu3 -> rail3', or 'gpu3 <-> rail3' for both directions; repeat the option "
        "for several links",
    )
    group.add_argument(
        "--slow",
        metavar="LINK=RATE",
        action="append",
        default=[],
        help="this link has only this bandwidth, e.g. 'gpu3 <-> rail3=100Gb/s'; repeat the option for several links",
    )


def machine_with_faults(text: str, options: argparse.Namespace) -> "Topology":
    """The machine with this name or in this file, with the faults of --without and --slow."""
    from flowccl.topology.faults import with_faults
    from flowccl.topology.files import read_machine

    return with_faults(read_machine(text), without=options.without, slow=options.slow)


def optional_machine(options: argparse.Namespace) -> "Topology | None":
    """The machine of --machine with its faults; None without --machine, and faults are then refused."""
    if options.machine is None:
        check_no_faults(options, "needs --machine, the machine with the fault")
        return None
    return machine_with_faults(options.machine, options)


def check_no_faults(options: argparse.Namespace, reason: str) -> None:
    """Refuse --without and --slow where no machine is given; `reason` says why, and what to do."""
    if options.without or options.slow:
        raise InputError(f"{'--without' if options.without else '--slow'}: {reason}")


def check_writable(path: Path) -> None:
    """Refuse an output path that cannot be written, before the work begins."""
    if path.is_dir():
        raise InputError(f"--out {path}: is a folder; give a file name")
    if not path.parent.is_dir():
        raise InputError(f"--out {path}: there is no folder {path.parent}")
    if not path.name.endswith((".json", ".json.gz")):
        raise InputError(f"--out {path}: the name must end in .json or .json.gz")


def schedule_file(text: str) -> "Schedule | None":
    """The schedule in a file, or None if the text does not name a schedule file."""
    from flowccl.files import json_format
    from flowccl.schedule.files import load_schedule

    kinds = ("schedule", "compact-schedule", "repaired-schedule", "reshard-plan")
    return load_schedule(text) if json_format(text) in [f"flowccl-{kind}" for kind in kinds] else None
