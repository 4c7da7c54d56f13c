"""Importer of the matrix that `nvidia-smi topo -m` prints. It has no speeds, so the user must give the GPU model."""

import re
from dataclasses import dataclass
from pathlib import Path

from flowccl.errors import FileError, InputError
from flowccl.files import read_bytes
from flowccl.topology.hardware import NIC_LATENCY_US, NVSWITCH_LATENCY_US, PCIE_LATENCY_US
from flowccl.topology.importers.fabric import Fabric
from flowccl.topology.importers.imported import Imported, ImportOptions, Nic, share_nics
from flowccl.topology.importers.nccl_topo import NVLINK_LATENCY_US
from flowccl.units import format_GBps

MAX_BYTES = 1_000_000
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NEAR = {"PIX": 0, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": 4}
_SOCKETS_GBps = 10.0  # between CPUs: NCCL's constant for Intel Skylake; the matrix does not name the CPU


@dataclass(frozen=True)
class _Model:
    """A GPU model: GB/s per NVLink in NCCL, number of NVLinks, GB/s of PCIe x16, and whether NVSwitch reduces."""

    nvlink_GBps: float
    nvlinks: int
    pcie_GBps: float
    sharp: bool = False


MODELS = {
    "p100": _Model(18.0, 4, 12.0),
    "v100": _Model(20.0, 6, 12.0),
    "a100": _Model(20.0, 12, 24.0),
    "h100": _Model(20.6, 18, 48.0, sharp=True),
    "h200": _Model(20.6, 18, 48.0, sharp=True),
    "b200": _Model(40.1, 18, 48.0, sharp=True),
}


def read_nvidia_smi(path: Path, options: ImportOptions) -> Imported:
    """Return the host in the output of `nvidia-smi topo -m`."""
    name = (options.gpu or "").lower()
    if name not in MODELS:
        got = f", got {options.gpu}" if options.gpu else ""
        raise InputError(
            f"nvidia-smi does not print link speeds: give the GPU model with --gpu {'|'.join(MODELS)}{got}"
        )
    model = MODELS[name]
    names, cells = _matrix(path)
    gpus = [n for n in names if n.startswith("GPU")]
    links = _nvlinks(path, gpus, cells)
    fabric = Fabric(len(gpus), name.upper())
    fabric.notes.append(
        f"an NVLink of {name} has {format_GBps(model.nvlink_GBps)} per direction, the value that NCCL plans with"
    )
    _add_nvlinks(fabric, links, len(gpus), model)
    _add_pcie(fabric, gpus, cells, model)
    fabric.notes.append(
        f"latencies are not in the file: NVLink {NVLINK_LATENCY_US:g} us, NVSwitch {NVSWITCH_LATENCY_US:g} us "
        f"per direction, PCIe {PCIE_LATENCY_US:g} us"
    )
    nics = _nics(fabric, names, gpus, cells)
    return Imported(fabric.topology(path.name.split(".")[0], options.pcie), tuple(fabric.notes), nics)


def _matrix(path: Path) -> tuple[list[str], dict[tuple[str, str], str]]:
    """Return the column names, and the cells by row and column."""
    text = _ANSI.sub("", read_bytes(path, MAX_BYTES).decode(errors="replace"))
    lines = [line.split() for line in text.splitlines() if line.strip()]
    header = next((words for words in lines if words[0] == "GPU0" and words[1:2] != ["X"]), None)
    if header is None:
        raise FileError(f"{path}: has no header line with GPU0; is it the output of nvidia-smi topo -m?")
    names = header[: header.index("CPU")] if "CPU" in header else header
    cells: dict[tuple[str, str], str] = {}
    for words in lines:
        row = words[0]
        if words is header or row not in names:
            continue
        if len(words) < len(names) + 1:
            raise FileError(f"{path}: row {row} has {len(words) - 1} cells, the header has {len(names)}")
        cells |= {(row, column): cell for column, cell in zip(names, words[1:], strict=False)}
    for row in names:
        if (row, row) not in cells:
            raise FileError(f"{path}: there is no row {row}")
    known = re.compile(r"X|NV[0-9]+|PIX|PXB|PHB|NODE|SYS|SOC")
    for (row, column), cell in cells.items():
        if not known.fullmatch(cell):
            raise FileError(f"{path}: row {row}, column {column}: unknown cell {cell[:20]!r}")
    return names, cells


def _nvlinks(path: Path, gpus: list[str], cells: dict[tuple[str, str], str]) -> dict[tuple[int, int], int]:
    """Return the number of NVLinks between every two GPUs that have any."""
    links = {}
    for i, a in enumerate(gpus):
        for j, b in enumerate(gpus):
            if cells[a, b].startswith("NV"):
                links[i, j] = int(cells[a, b][2:])
            if cells[a, b] != cells[b, a]:
                raise FileError(f"{path}: {a} to {b} is {cells[a, b]}, but {b} to {a} is {cells[b, a]}")
    return links


def _add_nvlinks(fabric: Fabric, links: dict[tuple[int, int], int], gpus: int, model: _Model) -> None:
    """Add one switch if all pairs show the same number and a GPU has too few links for all pairs; else direct links."""
    numbers = set(links.values())
    same = len(numbers) == 1 and len(links) == gpus * (gpus - 1)
    if same and max(numbers) * (gpus - 1) > model.nvlinks:
        count = max(numbers)
        fabric.switch("nvswitch", sharp=model.sharp)
        for rank in range(gpus):
            fabric.both(f"gpu{rank}", "nvswitch", count * model.nvlink_GBps, NVSWITCH_LATENCY_US)
        ability = "copies and reduces (NVLS)" if model.sharp else "only forwards"
        fabric.notes.append(f"NV{count} on every pair: one NVSwitch with {count} links per GPU; it {ability}")
        return
    for (a, b), count in links.items():
        fabric.link(f"gpu{a}", f"gpu{b}", count * model.nvlink_GBps, NVLINK_LATENCY_US)
    if links:
        fabric.notes.append(
            "NVLinks connect GPUs directly, because the pairs differ or a GPU has enough links for all pairs"
        )


def _add_pcie(fabric: Fabric, gpus: list[str], cells: dict[tuple[str, str], str], model: _Model) -> None:
    """Add a switch for GPUs connected by PIX or PXB, a CPU for PHB or NODE, and links between CPUs for SYS."""

    def groups(farthest: int) -> list[int]:
        """Return the first GPU in the connected component of each GPU; edges have at most this distance."""
        first = list(range(len(gpus)))
        for i, a in enumerate(gpus):
            for j, b in enumerate(gpus[:i]):
                if _NEAR.get(cells[a, b], 9) <= farthest:
                    first = [min(first[i], first[j]) if f in (first[i], first[j]) else f for f in first]
        return first

    switches, sockets = groups(1), groups(3)
    cpu = {head: fabric.switch(f"cpu{n}") for n, head in enumerate(sorted(set(sockets)))}
    for n, head in enumerate(sorted(set(switches))):
        fabric.both(fabric.switch(f"pcie{n}"), cpu[sockets[head]], model.pcie_GBps, PCIE_LATENCY_US)
        for rank in (r for r, h in enumerate(switches) if h == head):
            fabric.both(f"gpu{rank}", f"pcie{n}", model.pcie_GBps, PCIE_LATENCY_US)
    names = list(cpu.values())
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            fabric.both(a, b, _SOCKETS_GBps, PCIE_LATENCY_US)


def _nics(fabric: Fabric, names: list[str], gpus: list[str], cells: dict[tuple[str, str], str]) -> tuple[Nic, ...]:
    """Return every NIC with the GPUs nearest to it."""
    nics = [name for name in names if not name.startswith("GPU")]
    distance = {(n, g): _NEAR.get(cells[nic, gpu], 5) for n, nic in enumerate(nics) for g, gpu in enumerate(gpus)}
    gpus_of_nic = share_nics(distance, len(nics), len(gpus))
    idle = [nic for nic, ranks in zip(nics, gpus_of_nic, strict=True) if not ranks]
    if idle:
        fabric.notes.append(f"not used because every GPU has a nearer NIC: {', '.join(idle)}")
    return tuple(
        Nic(name=nic, gpus=tuple(ranks), bandwidth_GBps=None, latency_us=NIC_LATENCY_US)
        for nic, ranks in zip(nics, gpus_of_nic, strict=True)
    )
