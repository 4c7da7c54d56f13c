"""What an importer gives, and what it may be told."""

from dataclasses import dataclass
from pathlib import Path

from flowccl.topology.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Nic:
    """A way out of the host: `gpus` (ranks in the host) use it. `bandwidth_GBps` is None where the file has none."""

    name: str
    gpus: tuple[int, ...]
    bandwidth_GBps: float | None
    latency_us: float


@dataclass(frozen=True)
class Imported:
    """A machine, the ways out of its host, and `notes`: everything that was assumed, in words for people."""

    topology: Topology
    notes: tuple[str, ...] = ()
    nics: tuple[Nic, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What a file may lack: the GPU's model, TACCL's sketch and time scale; and whether to keep PCIe beside NVLink.

    `setups` takes TACCL's alphas as setups, which hold the link, as in its own cost model; else they are latencies.
    """

    gpu: str | None = None
    sketch: Path | None = None
    scale: float | None = None
    pcie: bool = False
    overheads: bool = False


def share_nics(distance: dict[tuple[int, int], int], nics: int, gpus: int) -> list[list[int]]:
    """The GPUs of each NIC: every GPU takes its nearest NIC, of equally near ones that with the fewest GPUs."""
    taken: list[list[int]] = [[] for _ in range(nics)]
    for gpu in range(gpus if nics else 0):
        nearest = min(range(nics), key=lambda nic: (distance[nic, gpu], len(taken[nic]), nic))
        taken[nearest].append(gpu)
    return taken
