"""Output for people: plain text in pipes and files, colours and a live progress line on terminals.

rich draws both. This module imports it on first use, so that `flowccl --help` starts fast.
"""

import os
import sys
import time
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Self, TextIO

from flowccl.wording import percent

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.table import Table

    from flowccl.result import Progress

_BAR_WIDTH = 12
_WIDTH_WITH_METHOD, _WIDTH_WITH_HINT = 100, 130  # columns of the terminal; narrower lines leave the part out
_STYLES = (  # regular expression, colour
    (r"(?m)^[a-z]+( [a-z]+)*(?=\s{2,}\S)", "cyan"),  # the label at the start of a line
    (r"(?m)^(VALID|PROVED)\b|\boptimal(?=:)", "green"),
    (r"(?m)^(INVALID|WRONG)\b", "red"),
)


def print_text(text: str) -> None:
    """Print to standard output, with colours if it is a terminal."""
    if not _has_colours(sys.stdout):
        print(text)
        return
    from rich.console import Console
    from rich.text import Text

    coloured = Text(text)
    for pattern, colour in _STYLES:
        coloured.highlight_regex(pattern, colour)
    Console(file=sys.stdout, highlight=False).print(coloured, soft_wrap=True)


def print_error(message: str) -> None:
    """Print "flowccl: error: ..." to standard error; "error" is red if it is a terminal."""
    if not _has_colours(sys.stderr):
        print(f"flowccl: error: {message}", file=sys.stderr)
        return
    from rich.console import Console
    from rich.text import Text

    text = Text.assemble("flowccl: ", ("error", "red"), f": {message}")
    Console(file=sys.stderr, highlight=False).print(text, soft_wrap=True)


def _has_colours(stream: TextIO) -> bool:
    return _is_terminal(stream) and not os.environ.get("NO_COLOR")


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class LiveLine:
    """One line on standard error that is redrawn in place: spinner, phase, progress bar, elapsed time, facts.

    The line appears with the first `phase`, and is removed at the end of a `with` block. It is drawn only if standard
    error is a terminal and `quiet` is false.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.enabled = _is_terminal(sys.stderr) and not quiet
        self.started = time.monotonic()
        self.facts: list[str] = []
        self._text = ""
        self._live: Live | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def phase(self, text: str) -> None:
        """Name the current phase; draws the line if it is not on the screen."""
        self._text = text
        if self.enabled and self._live is None:
            self._live = self._start()

    def clear(self) -> None:
        """Remove the line from the screen. The next `phase` draws it again."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def done(self) -> float | None:
        """The completed part of the work, from 0 to 1; None if it is unknown."""
        return None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the line was made."""
        return time.monotonic() - self.started

    def _start(self) -> "Live":
        from rich.console import Console
        from rich.live import Live
        from rich.spinner import Spinner

        self._spinner = Spinner("dots", style="cyan")
        console = Console(file=sys.stderr, no_color=bool(os.environ.get("NO_COLOR")))
        live = Live(
            self,
            console=console,
            refresh_per_second=8,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        live.start()
        return live

    def __rich__(self) -> "Table":
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        done = self.done()
        bar = ProgressBar(1.0, min(done or 0.0, 1.0), _BAR_WIDTH, pulse=done is None)
        texts = [Text(f"{self.elapsed_s:.1f} s"), *(Text(fact, style="green") for fact in self.facts)]
        row: list[RenderableType] = [self._spinner, Text(self._text, style="cyan"), bar, *texts]
        table = Table.grid(padding=(0, 1))
        for _ in row:
            table.add_column(no_wrap=True)
        table.add_row(*row)
        return table


class ProgressLine(LiveLine):
    """The live line of a synthesis: best completion time, lower bound and gap; the bar fills up to the time limit."""

    def __init__(self, quiet: bool = False, time_limit_s: float | None = None) -> None:
        super().__init__(quiet)
        self.time_limit_s = time_limit_s
        self._search_started: float | None = None

    def show(self, progress: "Progress") -> None:
        """Report the best schedule so far."""
        if not self.enabled or progress.finish_us is None:
            return
        self._search_started = time.monotonic() - progress.elapsed_s
        width = get_terminal_size().columns
        method = f" ({progress.method})" if width >= _WIDTH_WITH_METHOD else ""
        self.facts = [f"best {progress.finish_us:.6g} us{method}"]
        if progress.lower_bound_us is not None:
            self.facts.append(f"lower bound {progress.lower_bound_us:.6g} us")
        if progress.gap is not None:
            self.facts.append(f"gap {percent(progress.gap)}")
        if width >= _WIDTH_WITH_HINT:
            self.facts.append("Ctrl-C: keep the best")
        self.phase("searching")

    def done(self) -> float | None:
        """The used part of the time limit; None before the search starts."""
        if self._search_started is None or self.time_limit_s is None:
            return None
        return (time.monotonic() - self._search_started) / self.time_limit_s


class CountLine(LiveLine):
    """The live line of work that has a known number of parts, with an estimate of the time that is left."""

    def __init__(self, quiet: bool, phase: str, unit: str, hint: str = "") -> None:
        super().__init__(quiet)
        self.words = (phase, unit, hint)
        self._done = 0.0

    def show(self, done: int, total: int, before: int = 0) -> None:
        """Report the finished parts, of which some were finished `before`."""
        phase, unit, hint = self.words
        self._done = done / max(total, 1)
        self.facts = [f"{done} of {total} {unit}"]
        if done > before and total > done:
            self.facts.append(f"about {self.elapsed_s / (done - before) * (total - done):.0f} s left")
        self.facts += [hint] if hint else []
        self.phase(phase)

    def done(self) -> float | None:
        """The finished part."""
        return self._done
