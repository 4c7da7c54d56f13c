"""The result and the options of an importer."""

from dataclasses import dataclass
from pathlib import Path

from flowccl.topology.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """A NIC, with the GPUs (ranks in the host) that use it. `bandwidth_GBps` is None if the file does not give it."""

    name: str
    gpus: tuple[int, ...]
    bandwidth_GBps: float | None
    latency_us: float


@dataclass(frozen=True)
class Imported:
    """A machine, the NICs of its host, and `notes`: all assumptions, as text for users."""

    topology: Topology
    notes: tuple[str, ...] = ()
    nics: tuple[Nic, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Options for data that a file may lack: the GPU model, TACCL's sketch and time scale; `pcie` keeps PCIe links.

    With `overheads`, TACCL's alphas are overheads per message, which occupy the link, as in its cost model; otherwise
    they are latencies.
    """

    gpu: str | None = None
    sketch: Path | None = None
    scale: float | None = None
    pcie: bool = False
    overheads: bool = False


def share_nics(distance: dict[tuple[int, int], int], nics: int, gpus: int) -> list[list[int]]:
    """Return the GPUs of each NIC: every GPU uses its nearest NIC, of equally near ones that with the fewest GPUs."""
    gpus_of: list[list[int]] = [[] for _ in range(nics)]
    for gpu in range(gpus if nics else 0):
        nearest = min(range(nics), key=lambda nic: (distance[nic, gpu], len(gpus_of[nic]), nic))
        gpus_of[nearest].append(gpu)
    return gpus_of
