"""Programs in real processes, started as torchrun starts them, with the variables of flowccl."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ended:
    """What the processes wrote, together, and their exit codes."""

    text: str
    codes: list[int]


def launch(
    program: Sequence[str],
    ranks: int,
    per_rank: dict[int, dict[str, str]] | None = None,
    timeout: float = 300,
    **env: str,
) -> Ended:
    """Run `python PROGRAM` on all ranks; `env` are variables of all ranks, `per_rank` those of one rank."""
    started = []
    port = _free_port()
    for rank in range(ranks):
        given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": 1}
        usual = {key: value for key, value in os.environ.items() if not key.startswith("FLOWCCL_")}
        added = {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore", "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
        own = (per_rank or {}).get(rank, {})
        environment = usual | added | {key: str(value) for key, value in (given | place).items()} | env | own
        environment = {key: value for key, value in environment.items() if value}
        command = [sys.executable, *program]
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    try:
        texts = [process.communicate(timeout=timeout)[0].decode() for process in started]
    finally:
        for process in started:
            process.kill()
    return Ended("".join(texts), [process.returncode for process in started])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
