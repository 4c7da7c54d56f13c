"""NVIDIA's Multi-Process Service: without it, processes that share a GPU take turns of milliseconds."""

import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)

_CONTROL = "nvidia-cuda-mps-control"
_STOP_S = 20  # seconds for the daemon to end


@contextmanager
def shared_gpu() -> Iterator[dict[str, str]]:
    """Yield the environment variables for processes that share a GPU.

    A daemon in a folder of its own serves these processes alone, and ends with the context. If the caller's environment
    names a daemon, that one is used and left running; without the program, processes are time-sliced.
    """
    if os.environ.get("CUDA_MPS_PIPE_DIRECTORY"):
        yield {}
        return
    if shutil.which(_CONTROL) is None:
        log.warning("%s is not installed: processes take turns on the GPU, so times mean little", _CONTROL)
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="flowccl-mps-", ignore_cleanup_errors=True) as folder:
        added = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for name in added.values():
            Path(name).mkdir()
        environment = os.environ | added
        done = subprocess.run([_CONTROL, "-d"], env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            log.warning("%s did not start: processes take turns on the GPU", _CONTROL)
            yield {}
            return
        try:
            yield added
        finally:
            _stop(environment)


def _stop(environment: dict[str, str]) -> None:
    """End the daemon and its server; kill the daemon if it does not answer."""
    pid = Path(environment["CUDA_MPS_PIPE_DIRECTORY"]) / "nvidia-cuda-mps-control.pid"
    number = pid.read_text().strip() if pid.exists() else ""
    try:
        subprocess.run(
            [_CONTROL],
            input="quit -t 5\n",
            env=environment,
            capture_output=True,
            text=True,
            timeout=_STOP_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        log.warning("%s did not end and is killed", _CONTROL)
        if number.isdigit():
            os.kill(int(number), 9)
