"""Importer of the XML that NCCL and RCCL write with NCCL_TOPO_DUMP_FILE, with the bandwidths that NCCL assumes.

The bandwidths are the constants in NCCL's topo.h and topo.cc (2026-06): those that NCCL plans with, which are lower
than in data sheets. The file has no link latencies; the latencies of the machines in `hardware.py` are used.
"""

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

from flowccl.errors import FileError, TopologyError
from flowccl.topology.hardware import NIC_LATENCY_US, NVSWITCH_LATENCY_US, PCIE_LATENCY_US
from flowccl.topology.importers.fabric import Fabric
from flowccl.topology.importers.imported import Imported, ImportOptions, Nic, share_nics
from flowccl.topology.importers.xml_file import number, read_xml
from flowccl.units import format_GBps

NVLINK_LATENCY_US = 0.7  # direct NVLink; that of DGX1, TE-CCL figure 14
MAX_DEPTH = 32

_NVLINK_GBps = ((60, 18.0), (70, 20.0), (80, 20.0), (86, 12.0), (90, 20.6), (100, 40.1))  # (lowest sm, GB/s per link)
_XGMI_GBps = {"90a": 36.0, "910": 36.0, "94": 48.0}  # by prefix of gcn; otherwise 24
_PCI_GTps = {"2.5": 15, "5": 30, "8": 60, "16": 120, "32": 240, "64": 480}  # 100 Mb/s per lane, net
_NVSWITCH_CLASS, _CPU_CLASS = "0x068000", "0x068001"
_NVSWITCH_BUS = "fffffff:ffff:ff"
_MODELS = {70: "V100", 80: "A100", 90: "H100", 100: "B200"}  # by compute capability


@dataclass
class _Gpu:
    element: ET.Element
    busid: str
    path: tuple[str, ...]  # names of the switches from the CPU down
    upward_GBps: float
    rank: int = -1


@dataclass
class _Found:
    """The devices in the XML tree."""

    gpus: list[_Gpu] = field(default_factory=list)
    nets: list[tuple[ET.Element, tuple[str, ...]]] = field(default_factory=list)
    cpus: list[tuple[str, ET.Element]] = field(default_factory=list)
    uplinks: dict[str, tuple[str, float]] = field(default_factory=dict)  # PCIe switch: (parent, GB/s)


def read_nccl_topo(path: Path, options: ImportOptions) -> Imported:
    """Return the host in a topology dump: NVLink, xGMI or NVSwitch links, PCIe if needed, and the NICs."""
    found = _Found()
    for cpu in read_xml(path, "system").iter("cpu"):
        name = f"cpu{len(found.cpus)}"
        found.cpus.append((name, cpu))
        _walk(path, cpu, (name,), "", 0.0, found)
    if not found.gpus:
        raise FileError(f"{path}: has no <gpu>; is it a file written with NCCL_TOPO_DUMP_FILE?")
    fabric = Fabric(len(found.gpus), _model(found, path))
    _number_gpus(path, found, fabric)
    _add_fast_links(path, found, fabric)
    _add_pcie(path, found, fabric)
    nics = _nics(path, found, fabric)
    topology = fabric.topology(path.name.split(".")[0], options.pcie)
    fabric.notes.append(
        f"latencies are not in the file: NVLink and xGMI {NVLINK_LATENCY_US:g} us, NVSwitch {NVSWITCH_LATENCY_US:g} us "
        f"per direction, PCIe {PCIE_LATENCY_US:g} us"
    )
    fabric.notes.append("bandwidths are those that NCCL plans with, lower than in data sheets")
    return Imported(topology, tuple(fabric.notes), nics)


def _walk(
    path: Path, element: ET.Element, above: tuple[str, ...], busid: str, GBps: float, found: _Found, depth: int = 0
) -> None:
    """Collect the devices below a CPU; a <pci> that contains a <pci> is a switch, any other <pci> is a device."""
    if depth > MAX_DEPTH:
        raise FileError(f"{path}: nested more than {MAX_DEPTH} levels deep")
    for child in element:
        if child.tag == "pci":
            upward = _pci_GBps(path, child)
            name = child.get("busid", "")
            if child.find("pci") is not None:
                switch = f"pcie{len(found.uplinks)}"
                found.uplinks[switch] = (above[-1], upward)
                _walk(path, child, (*above, switch), name, upward, found, depth + 1)
            else:
                _walk(path, child, above, name, upward, found, depth + 1)
        elif child.tag == "gpu":
            found.gpus.append(_Gpu(child, busid, above, GBps))
        elif child.tag == "nic":
            found.nets += [(net, above) for net in child.iter("net")]


def _pci_GBps(path: Path, pci: ET.Element) -> float:
    """Return GB/s from link_width and link_speed; width 0 (virtual machines) means 16, an unknown speed 8 GT/s."""
    width = number(pci, "link_width", path, 0.0) or 16.0
    match = re.match(r"([0-9]+(?:\.[0-9]+)?)", pci.get("link_speed", ""))
    lane = _PCI_GTps.get(match[1].removesuffix(".0"), 60) if match else 60
    return width * lane / 80


def _number_gpus(path: Path, found: _Found, fabric: Fabric) -> None:
    """Number the GPUs by `rank`, or by `dev` if there are no ranks; GPUs without a rank are not in the communicator."""
    ranked = [gpu for gpu in found.gpus if gpu.element.get("rank") is not None]
    key = "rank" if ranked else "dev"
    if ranked and len(ranked) < len(found.gpus):
        fabric.notes.append(f"{len(found.gpus) - len(ranked)} GPUs have no rank in the file and are omitted")
        found.gpus = ranked
    found.gpus.sort(key=lambda gpu: number(gpu.element, key, path, -1.0))
    keys = [number(gpu.element, key, path, -1.0) for gpu in found.gpus]
    if len(set(keys)) != len(keys):
        raise FileError(f"{path}: two GPUs have the same {key}")
    for rank, gpu in enumerate(found.gpus):
        gpu.rank = rank
    fabric.gpus = len(found.gpus)
    places = ", ".join(f"gpu{gpu.rank} = {gpu.busid}" for gpu in found.gpus)
    fabric.notes.append(f"ranks by {key}: {places}")


# -- NVLink and xGMI --------------------------------------------------------------------------------------------------


def _add_fast_links(path: Path, found: _Found, fabric: Fabric) -> None:
    by_bus = {gpu.busid.lower(): gpu for gpu in found.gpus}
    pairs: dict[tuple[str, str], float] = {}
    for gpu in found.gpus:
        for link in gpu.element:
            if link.tag in ("nvlink", "xgmi"):
                end = _other_end(link, by_bus)
                if end is not None and end != f"gpu{gpu.rank}":
                    key = (f"gpu{gpu.rank}", end)
                    pairs[key] = pairs.get(key, 0.0) + _fast_GBps(path, gpu, link)
    sharp = any(number(gpu.element, "sm", path, 0.0) >= 90 for gpu in found.gpus)
    for (a, b), GBps in pairs.items():
        if b == "nvswitch":
            fabric.switch(b, sharp=sharp)
            fabric.both(a, b, GBps, NVSWITCH_LATENCY_US)
        else:
            fabric.link(a, b, GBps, NVLINK_LATENCY_US)
    if "nvswitch" in fabric.switches:
        ability = "copies and reduces (NVLS)" if sharp else "only forwards"
        fabric.notes.append(f"all NVSwitches are modelled as one node, as in NCCL; it {ability}")
    _warn_asymmetric(pairs, found, fabric)


def _model(found: _Found, path: Path) -> str:
    """Return the GPU model, by its compute capability; empty where it is not known."""
    capability = {int(number(gpu.element, "sm", path, 0.0)) for gpu in found.gpus}
    return _MODELS.get(capability.pop(), "") if len(capability) == 1 else ""


def _other_end(link: ET.Element, by_bus: dict[str, _Gpu]) -> str | None:
    """Return the node at the other end of a link; None for the CPU and for GPUs outside the communicator."""
    target, kind = link.get("target", "").lower(), link.get("tclass", "").lower()
    if kind == _NVSWITCH_CLASS or target.startswith(_NVSWITCH_BUS):
        return "nvswitch"
    if kind == _CPU_CLASS or target not in by_bus:
        return None
    return f"gpu{by_bus[target].rank}"


def _fast_GBps(path: Path, gpu: _Gpu, link: ET.Element) -> float:
    """Return the bandwidth of `count` links, by NCCL's constants."""
    count = number(link, "count", path, 1.0)
    if count < 1:
        raise FileError(f"{path}: <{link.tag}> of GPU {gpu.busid}: count must be at least 1, got {count:g}")
    if link.tag == "xgmi":
        gcn = gpu.element.get("gcn", gpu.element.get("arch", "")).removeprefix("gfx")
        return count * next((GBps for start, GBps in _XGMI_GBps.items() if gcn.startswith(start)), 24.0)
    sm = number(gpu.element, "sm", path)
    return count * next((GBps for since, GBps in reversed(_NVLINK_GBps) if sm >= since), 18.0)


def _warn_asymmetric(pairs: dict[tuple[str, str], float], found: _Found, fabric: Fabric) -> None:
    """Warn about missing links, which are usually hardware failures."""
    for (a, b), GBps in pairs.items():
        back = GBps if b == "nvswitch" else pairs.get((b, a), 0.0)
        if back != GBps:
            rates = f"{a} -> {b} has {format_GBps(GBps)}, the reverse direction {format_GBps(back)}"
            fabric.notes.append(f"warning: asymmetric fabric: {rates}; is a link down?")
    total = {f"gpu{gpu.rank}": 0.0 for gpu in found.gpus}
    for (a, _), GBps in pairs.items():
        total[a] += GBps
    most = max(total.values())
    for name, GBps in total.items():
        if GBps < most:
            fabric.notes.append(
                f"warning: {name} has {format_GBps(GBps)} of NVLink or xGMI, other GPUs have {format_GBps(most)}"
            )


# -- PCIe and NICs ----------------------------------------------------------------------------------------------------


def _add_pcie(path: Path, found: _Found, fabric: Fabric) -> None:
    """Add GPUs below PCIe switches below CPUs, and links between CPUs. PCIe switches and CPUs only forward."""
    for name, _ in found.cpus:
        fabric.switch(name)
    for switch, (above, GBps) in found.uplinks.items():
        fabric.both(fabric.switch(switch), above, GBps, PCIE_LATENCY_US)
    for gpu in found.gpus:
        if gpu.upward_GBps <= 0:
            raise TopologyError(f"{path}: GPU {gpu.busid or gpu.rank} is not below a <pci>")
        fabric.both(f"gpu{gpu.rank}", gpu.path[-1], gpu.upward_GBps, PCIE_LATENCY_US)
    for i, (a, first) in enumerate(found.cpus):
        for b, _ in found.cpus[i + 1 :]:
            fabric.both(a, b, _socket_GBps(path, first), PCIE_LATENCY_US)


def _socket_GBps(path: Path, cpu: ET.Element) -> float:
    """Return the bandwidth between two CPUs, by NCCL's constants."""
    if cpu.get("arch") == "ppc64":
        return 32.0
    if cpu.get("arch", "x86_64") != "x86_64":
        return 6.0
    if cpu.get("vendor") == "AuthenticAMD":
        return 16.0
    model = number(cpu, "modelid", path, 0.0)
    return next((GBps for since, GBps in ((0xCF, 40.0), (0x8F, 22.0), (0x55, 10.0)) if model >= since), 6.0)


def _nics(path: Path, found: _Found, fabric: Fabric) -> tuple[Nic, ...]:
    """Return the NIC ports, each with the GPUs nearest to it on PCIe."""
    distance = {
        (n, gpu.rank): len(gpu.path) + len(above) - 2 * _common(gpu.path, above)
        for n, (_, above) in enumerate(found.nets)
        for gpu in found.gpus
    }
    gpus_of_nic = share_nics(distance, len(found.nets), len(found.gpus))
    nics: list[Nic] = []
    for (net, _), gpus in zip(found.nets, gpus_of_nic, strict=True):
        name = net.get("name") or f"net{len(nics)}"
        if not gpus:
            fabric.notes.append(f"NIC {name} is not used because every GPU has a nearer NIC")
        speed, latency = number(net, "speed", path, 0.0), number(net, "latency", path, 0.0)
        GBps = (speed if speed > 0 else 10_000.0) / 8000
        latency_us = latency if latency > 0 else NIC_LATENCY_US
        nics.append(Nic(name=name, gpus=tuple(gpus), bandwidth_GBps=GBps, latency_us=latency_us))
    return tuple(nics)


def _common(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    """Return the number of switches that two paths from the CPU down have in common."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
