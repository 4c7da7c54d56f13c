"""Importer of TE-CCL's input file. It names a machine whose links are defined in TE-CCL's code."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from flowccl.errors import FileError
from flowccl.topology.builders import mesh
from flowccl.topology.fields import show
from flowccl.topology.hardware import dgx1, dgx2, mi250, ndv2
from flowccl.topology.importers.imported import Imported, ImportOptions
from flowccl.topology.importers.json_fields import not_negative, read_object, whole
from flowccl.topology.topology import Topology

_NAMES = ("DGX1", "DGX2", "NDv2", "AMD", "Mesh")
_MESH_GBps = 100.0  # TE-CCL's code


def read_teccl(path: Path, _options: ImportOptions) -> Imported:
    """Return the machine that `TopologyParams` names; each chassis is a host."""
    params = read_object(path).get("TopologyParams")
    if not isinstance(params, dict):
        raise FileError(f'{path}: "TopologyParams" is missing; is it an input file of TE-CCL?')
    name = params.get("name")
    if name not in _NAMES:
        raise FileError(f"{path}: TopologyParams.name must be one of {', '.join(_NAMES)}, got {show(name)}")
    chassis = whole(params.get("chassis", 1), f"{path}: TopologyParams.chassis", 1, 1000)
    notes = [f"{name} is a predefined machine: links and bandwidths are those of TE-CCL's paper and code"]
    latency = _latencies(path, params, name, notes)
    if name == "DGX1":
        topology = _with_latency(dgx1(), latency)
        if chassis > 1:
            notes.append("chassis is ignored: TE-CCL's DGX1 is one chassis")
    elif name == "DGX2":
        topology = dgx2(chassis)
        if chassis != 2:
            notes.append("TE-CCL's code always builds 2 chassis of DGX2; this machine has the number in the file")
    elif name == "NDv2":
        topology = ndv2(chassis)
        notes.append("all 8 GPUs of a chassis own data; TE-CCL's code replaces the first of them by a switch")
    elif name == "AMD":
        topology = _with_latency(mi250(chassis), latency)
    else:
        side = whole(params.get("side_length", 4), f"{path}: TopologyParams.side_length", 1, 1000)
        topology = _with_latency(mesh(side, side, bandwidth_GBps=_MESH_GBps), latency)
        notes.append(
            "the machine is a grid; TE-CCL's code also links the end of each row with the start of the next row"
        )
    if "chunk_size" in params:
        notes.append("chunk_size and the other parameters are not part of the machine: give synth a size")
    return Imported(topology, tuple(notes))


def _latencies(path: Path, params: dict[str, Any], name: str, notes: list[str]) -> tuple[float, float]:
    """Return the latencies in us of links between GPUs and of links to switches; TE-CCL's are in seconds, default 0."""
    if name in ("DGX2", "NDv2"):
        return 0.0, 0.0  # fixed in TE-CCL's code, and the same in our machines
    given = params.get("alpha", [0, 0])
    if not isinstance(given, list) or len(given) != 2:
        raise FileError(f"{path}: TopologyParams.alpha must be two numbers, got {show(given)}")
    if "alpha" not in params:
        notes.append("the file has no alpha: latency 0, as in TE-CCL")
    first, second = (not_negative(value, f"{path}: TopologyParams.alpha") * 1e6 for value in given)
    return round(first, 6), round(second, 6)


def _with_latency(topology: Topology, latency: tuple[float, float]) -> Topology:
    kinds = [node.kind for node in topology.nodes]
    links = [
        replace(link, latency_us=latency[kinds[link.src] == "switch" or kinds[link.dst] == "switch"])
        for link in topology.links
    ]
    same = tuple(links) == topology.links
    return topology if same else replace(topology, name=f"{topology.name} of TE-CCL", links=tuple(links))
