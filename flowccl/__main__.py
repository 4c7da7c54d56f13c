"""The entry point of `flowccl` and `python -m flowccl`.

Ctrl-C works from the start: while the modules are being loaded, the program exits with code 3 (nothing found in time).
"""

import os
import signal
import sys


def main() -> int:
    """Load and run the command line and return the exit code."""
    signal.signal(signal.SIGINT, _exit_while_loading)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of numpy: its threads would wait in loops for a small matrix
    from flowccl.cli import main as command_line

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return command_line()
    except KeyboardInterrupt:  # before a command starts or after it ends
        return 3
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C no longer changes the exit code


def _exit_while_loading(*_: object) -> None:
    os.write(2, b"flowccl: interrupted\n")
    os._exit(3)


if __name__ == "__main__":
    sys.exit(main())
