"""`torchrun -m flowccl.torch train.py ...`: run a program as FLOWCCL_CATALOG asks, where torch loads no extensions."""

import logging
import os
import runpy
import sys

from flowccl.torch.environment import CATALOG, is_set
from flowccl_autoload import autoload

_USAGE = "usage: torchrun [options] -m flowccl.torch train.py [arguments], or -m flowccl.torch -m module [arguments]"


def main(arguments: list[str]) -> None:
    """Run a program, a file or `-m` and a module, as if Python had started it."""
    if not arguments or arguments[0] in ("-h", "--help") or arguments == ["-m"]:
        sys.exit(_USAGE)
    if not is_set():
        logging.getLogger("flowccl.torch").warning("flowccl: %s is not set; the library serves all calls", CATALOG)
    autoload()
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    if not os.path.isfile(arguments[0]):
        sys.exit(f"flowccl: {arguments[0]}: no such file\n{_USAGE}")
    sys.argv = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
