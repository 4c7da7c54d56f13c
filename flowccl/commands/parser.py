"""The parser of the command line: a command is declared by its help text."""

import argparse
import math
import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, NoReturn, TypeAlias

from flowccl.commands.terminal import print_error

_LONGEST_S = 1e9  # about 30 years; larger values overflow the timers of the operating system

MACHINE = "MACHINE  a name (see `flowccl machines`) or a topology file"
JSON = "--json  print JSON instead of text"
QUIET = "--quiet  do not show the progress line"
SEED = "--seed N [0]  seed of all random choices"
SMS = "--sms N  SMs of a GPU, where the machine names no GPU model"
ENGINE = (
    "--engine ENGINE [local]  where catalogs are built: local (processes), dask=ADDRESS or ray; all give the same files"
)
FOR = "--for:runtime RUNTIME [mscclpp]  mscclpp, msccl, executor, rccl, ideal, or a profile file"
FAULTS = """faults of the machine:
  --without LINK ...  this link is lost: 'gpu3 -> rail3', or 'gpu3 <-> rail3' for both directions; repeat the option
      for several links
  --slow LINK=RATE ...  this link has only this bandwidth, e.g. 'gpu3 <-> rail3=100Gb/s'; repeat the option for several
      links"""
"""Options that several commands have."""


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

    def flag(self, dest: str) -> str:
        """The option that sets an attribute."""
        return next(action.option_strings[0] for action in self._actions if action.dest == dest)

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


# -- types of values ----------------------------------------------------------------------------------------------


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


_TYPES: dict[str, Any] = {"N": positive, "RANK": natural, "SECONDS": seconds, "FRACTION": fraction, "seed": natural}

# -- declarations -------------------------------------------------------------------------------------------------


def add_command(
    commands: Commands, text: str, run: Callable[[argparse.Namespace], int], only_given: str = "", **kinds: Any
) -> Parser:
    """Add a command that is declared by a text of paragraphs: usage, summary, description, options, epilog.

    A paragraph of options has a title and then one option per line, indented by two spaces: its declaration, two
    spaces, and its help, which goes on in lines that are indented more. A declaration is a flag, without a value or
    with a METAVAR, or the METAVAR of a positional argument:

        --flag:dest       the attribute, where it is not named as the option is; --no-flag sets it to false
        --flag! VALUE     required
        VALUE+ VALUE?     several values, an optional value; `VALUE ...`: the option may be repeated; A B: two values
        a|b|c             choices
        VALUE [1, more]   the default, which is a part of the help

    The METAVAR determines the type; `kinds` has other types, or choices, by attributes. Attributes that begin with one
    of the words of `only_given` exist only where the option is given.
    """
    usage, summary, *paragraphs = text.strip().split("\n\n")
    names = re.findall(r"flowccl (?:catalog )?([a-z-]+)", usage)
    before, groups, after = list[str](), list[str](), list[str]()
    for paragraph in paragraphs:
        is_group = re.search(r"\n  (--|[A-Z])", paragraph) is not None
        (groups if is_group else after if groups else before).append(paragraph)
    found: dict[str, Any] = {
        "usage": usage.replace("\n", "\n       "),
        "description": "\n\n".join(before),
        "epilog": "\n\n".join(after),
    }
    parser = commands.add_parser(names[0], help=summary.replace("%", "%%"), **found)
    for paragraph in groups:
        head, *lines = paragraph.splitlines()
        title, _, about = head.partition(":")
        group = parser if title == "options" else parser.add_argument_group(title, about.strip() or None)
        for option in re.split(r"\n(?=  \S)", "\n".join(lines)):
            declaration, _, words = option[2:].partition("  ")
            _add_option(group, declaration, re.sub(r"\s+", " ", words), tuple(only_given.split()), kinds)
    parser.set_defaults(run=run)
    return parser


def _add_option(
    group: "argparse._ActionsContainer",
    declaration: str,
    words: str,
    only_given: tuple[str, ...],
    kinds: dict[str, Any],
) -> None:
    """Add one option to a parser or a group."""
    declaration, _, default = declaration.partition(" [")
    flag, _, metavar = declaration.partition(" ") if declaration.startswith("--") else ("", "", declaration)
    made: dict[str, Any] = {"required": True} if "!" in flag else {}
    flag, _, dest = flag.replace("!", "").partition(":")
    dest = dest or (flag.removeprefix("--") or metavar.partition("|")[0].lower().rstrip("?+")).replace("-", "_")
    if default:
        default = default.removesuffix("]")
        words, made["default"] = f"{words} (default: {default})", re.split("[,;] ", default)[0]
    if metavar.endswith(" ..."):
        metavar, made["action"], made["default"] = metavar.removesuffix(" ..."), "append", []
    if metavar[-1:] in ("?", "+"):
        metavar, made["nargs"] = metavar[:-1], metavar[-1]
        if flag and made["nargs"] == "?":
            made["const"] = ""  # given without a value
    kind = kinds.get(dest, _TYPES.get(dest, _TYPES.get(metavar)))
    if isinstance(kind, tuple) or (re.fullmatch(r"[a-z-]+(\|[a-z-]+)+", metavar) and kind is None):
        made["choices"], kind = (kind or metavar.split("|")), None
        metavar = "" if "|" in metavar else metavar
    if " " in metavar:
        made["nargs"], made["metavar"] = 2, tuple(metavar.split())
    elif metavar:
        made["metavar"] = metavar
    elif "choices" not in made:
        made["action"] = "store_false" if flag.startswith("--no-") else "store_true"
    if kind is not None:
        made["type"] = kind
    if only_given and dest.startswith(only_given):
        made["default"] = argparse.SUPPRESS
    made["help"] = words.replace("%", "%%")
    if flag:
        group.add_argument(flag, dest=dest, **made)
    else:
        group.add_argument(dest, **made)
