"""Parts shared by the commands: machines, schedules and results, Ctrl-C, checks of file names."""

import argparse
import json
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowccl.commands.terminal import print_text
from flowccl.errors import InputError, InvalidScheduleError

if TYPE_CHECKING:
    from flowccl.schedule.schedule import Schedule
    from flowccl.topology.topology import Topology


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


def check_writable(out: str | Path | None) -> None:
    """Refuse an output path that cannot be written, before the work begins; None is no output."""
    if out is None:
        return
    path = Path(out)
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


def valid_schedule(path: str, what: str = "run") -> "Schedule":
    """The schedule in a file; an invalid one is refused."""
    from flowccl.schedule.files import load_schedule

    schedule = load_schedule(path)
    check_valid(schedule, path, what)
    return schedule


def check_valid(schedule: "Schedule", path: str, what: str = "run") -> None:
    """Refuse an invalid schedule."""
    from flowccl.verifier.verify import verify

    violations = verify(schedule)
    if violations:
        raise InvalidScheduleError(f"{path} is invalid and is not {what}: {violations[0]}")


def print_result(options: argparse.Namespace, value: Any, text: str) -> None:
    """Print a JSON value where --json is given, else the text."""
    if options.json:
        print(json.dumps(value))
    else:
        print_text(text)
