"""What the commands share: words for errors, checked numbers, the progress line, Ctrl-C."""

import argparse
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from flowccl.errors import InputError

if TYPE_CHECKING:
    from flowccl.result import Progress
    from flowccl.schedule.schedule import Schedule


class Parser(argparse.ArgumentParser):
    """argparse with our words for errors."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is; exit 2."""
        self.exit(2, f"flowccl: error: {message}\nTry: {self.prog} --help\n")


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


def positive(text: str) -> int:
    """A whole number from 1."""
    value = natural(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return value


def natural(text: str) -> int:
    """A whole number from 0."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, got {text!r}") from None
    if value < 0:
        raise argparse.ArgumentTypeError(f"must not be negative, got {text}")
    return value


class ProgressLine:
    """One line on a terminal that is written over and over."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled

    def show(self, progress: "Progress") -> None:
        """Write it anew."""
        if not self.enabled or progress.finish_us is None:
            return
        gap = "" if progress.gap is None else f", gap {progress.gap:.2%}"
        text = f"{progress.elapsed_s:6.1f} s  best {progress.finish_us:g} us ({progress.method})"
        bound = "" if progress.lower_bound_us is None else f", floor {progress.lower_bound_us:g} us"
        sys.stderr.write(f"\r\033[K{text}{bound}{gap}  (Ctrl-C keeps the best)")
        sys.stderr.flush()

    def clear(self) -> None:
        """Leave nothing of it."""
        if self.enabled:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()


class StopSignal:
    """Ctrl-C asks the search to stop with its best; a second one ends the program."""

    before: Any = None  # who had the signal; given back at the end

    def __init__(self) -> None:
        self.stopping = False
        if threading.current_thread() is threading.main_thread():  # others get no signals
            StopSignal.before = StopSignal.before or signal.getsignal(signal.SIGINT)
            signal.signal(signal.SIGINT, self._on_signal)

    @classmethod
    def restore(cls) -> None:
        """Give the signal back to who had it."""
        if cls.before is not None:
            signal.signal(signal.SIGINT, cls.before)
            cls.before = None

    def _on_signal(self, *_: object) -> None:
        if self.stopping:
            raise KeyboardInterrupt
        self.stopping = True

    def asked(self) -> bool:
        """Whether to stop."""
        return self.stopping


def check_writable(path: Path) -> None:
    """Say now, not after the work, that the file cannot be written."""
    if path.is_dir():
        raise InputError(f"--out {path}: is a folder; give a file name")
    if not path.parent.is_dir():
        raise InputError(f"--out {path}: there is no folder {path.parent}")
    if not path.name.endswith((".json", ".json.gz")):
        raise InputError(f"--out {path}: the name must end in .json or .json.gz")


def schedule_file(text: str) -> "Schedule | None":
    """The schedule in a file, or None where the text is something else."""
    from flowccl.files import json_format
    from flowccl.schedule.files import load_schedule

    known = json_format(text) in ("flowccl-schedule", "flowccl-compact-schedule")
    return load_schedule(text) if known else None
