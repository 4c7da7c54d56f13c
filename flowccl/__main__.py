"""`flowccl` and `python -m flowccl` are the command line.

Ctrl-C is heard from the first moment: while the modules are still loading, nothing has been begun and the program just
ends, with the exit code of nothing found.
"""

import os
import signal
import sys


def main() -> int:
    """Load and run the command line; returns the exit code."""
    signal.signal(signal.SIGINT, _nothing_yet)
    from flowccl.cli import main as command_line

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return command_line()
    except KeyboardInterrupt:  # before the first line of a command or after its last
        return 3
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the exit code stands


def _nothing_yet(*_: object) -> None:
    os.write(2, b"flowccl: interrupted before any schedule was found\n")
    os._exit(3)


if __name__ == "__main__":
    sys.exit(main())
