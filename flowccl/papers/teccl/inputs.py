"""TE-CCL's input files: {"TopologyParams": ..., "InstanceParams": ..., "GurobiParams": ...}.

`TopologyParams` names a machine whose links are defined in TE-CCL's code. Sizes are GB per chunk, latencies are seconds
and time limits are hours. Parameters with an equivalent are mapped; for others there is a note.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from flowccl.demand.collectives import collective
from flowccl.demand.demand import Demand
from flowccl.errors import FileError
from flowccl.topology.builders import mesh
from flowccl.topology.fields import show
from flowccl.topology.hardware import dgx1, dgx2, mi250, ndv2
from flowccl.topology.importers.imported import Imported, ImportOptions
from flowccl.topology.importers.json_fields import not_negative, positive, read_object, whole
from flowccl.topology.topology import Topology

_MACHINES = ("DGX1", "DGX2", "NDv2", "AMD", "Mesh")
_MESH_GBps = 100.0  # TE-CCL's code
_COLLECTIVES = {1: "allgather", 2: "alltoall"}
_KNOWN = {
    "collective", "num_chunks", "epoch_type", "epoch_duration", "epoch_multiplier", "num_epochs", "alpha_threshold",
    "switch_copy", "objective_type", "solution_method",
}  # fmt: skip
_SILENT = {  # parameters that do not affect the schedule
    "debug", "debug_output_file", "schedule_output_file", "output_flag", "log_file", "log_to_console", "option",
    "time_limit", "mip_gap",
}  # fmt: skip
_GUROBI = {
    "feasibility_tol", "intfeas_tol", "optimality_tol", "mip_focus", "crossover", "method", "heuristics", "presolve",
}  # fmt: skip


@dataclass(frozen=True)
class TecclInput:
    """The contents of an input file; `notes` say how its machine differs, and list parameters that are ignored."""

    topology: Topology
    demand: Demand
    method: str
    options: dict[str, Any]
    time_limit_s: float | None
    notes: tuple[str, ...]


def read_teccl_input(path: str | Path) -> TecclInput:
    """Read an input file of TE-CCL."""
    data = read_object(Path(path))
    if not {"TopologyParams", "InstanceParams"} <= set(data):
        raise FileError(f"{path}: not an input file of TE-CCL; TopologyParams and InstanceParams are required")
    place, instance, gurobi = (
        _Parameters(f"{path}: {part}Params", dict(data.get(f"{part}Params", {})))
        for part in ("Topology", "Instance", "Gurobi")
    )
    topology, notes = _machine(place)
    if not instance.values.get("switch_copy", True):
        nodes = [node if node.stores else replace(node, copies=False) for node in topology.nodes]
        topology = replace(topology, nodes=tuple(nodes))
    demand = _demand(place, instance, topology)
    method = "astar" if instance.values.get("objective_type", 3) == 4 else "milp"
    if demand.collective == "alltoall":
        method = "lp"
    limit_s = gurobi.number("time_limit", 0) * 3600 if "time_limit" in gurobi.values else None
    options = _options(place, instance, gurobi, topology)
    return TecclInput(topology, demand, method, options, limit_s, (*notes, *_ignored(instance.values, gurobi.values)))


def read_teccl(path: Path, _options: ImportOptions) -> Imported:
    """Return the machine that `TopologyParams` names; each chassis is a host."""
    params = read_object(path).get("TopologyParams")
    if not isinstance(params, dict):
        raise FileError(f'{path}: "TopologyParams" is missing; is it an input file of TE-CCL?')
    topology, notes = _machine(_Parameters(f"{path}: TopologyParams", params))
    if "chunk_size" in params:
        notes.append("chunk_size and the other parameters are not part of the machine: give synth a size")
    return Imported(topology, tuple(notes))


@dataclass(frozen=True)
class _Parameters:
    """One part of the file."""

    where: str
    values: dict[str, Any]

    def whole(self, name: str, default: int, most: int = 1_000_000) -> int:
        return whole(self.values.get(name, default), f"{self.where}.{name}", 1, most)

    def number(self, name: str, default: Any, check: Callable[[Any, str], float] = not_negative) -> float:
        return check(self.values.get(name, default), f"{self.where}.{name}")

    def choice(self, name: str, choices: Any, words: str, default: Any = None) -> Any:
        value = self.values.get(name, default)
        if isinstance(value, list | dict) or value not in choices:
            raise FileError(f"{self.where}.{name} must be {words}, got {show(value)}")
        return value


def _machine(place: _Parameters) -> tuple[Topology, list[str]]:
    """The machine, and how it differs from that of TE-CCL's code."""
    name = place.choice("name", _MACHINES, f"one of {', '.join(_MACHINES)}")
    chassis = place.whole("chassis", 1, 1000)
    notes = [f"{name} is a predefined machine: links and bandwidths are those of TE-CCL's paper and code"]
    if name == "NDv2":
        notes.append("all 8 GPUs of a chassis own data; TE-CCL's code replaces the first of them by a switch")
        return ndv2(chassis), notes
    if name == "DGX2":
        if chassis != 2:
            notes.append("TE-CCL's code always builds 2 chassis of DGX2; this machine has the number in the file")
        return dgx2(chassis), notes
    if name == "DGX1" and chassis > 1:
        notes.append("chassis is ignored: TE-CCL's DGX1 is one chassis")
    if name == "Mesh":
        notes.append(
            "the machine is a grid; TE-CCL's code also links the end of each row with the start of the next row"
        )
    side = place.whole("side_length", 4, 1000)
    build: dict[str, Callable[[], Topology]]
    build = {"DGX1": dgx1, "AMD": partial(mi250, chassis), "Mesh": partial(mesh, side, side, bandwidth_GBps=_MESH_GBps)}
    return _with_latency(build[name](), place, notes), notes


def _with_latency(topology: Topology, place: _Parameters, notes: list[str]) -> Topology:
    """The machine with the latency in seconds of links between GPUs, and that of links to switches; default 0."""
    given = place.values.get("alpha", [0, 0])
    if not isinstance(given, list) or len(given) != 2:
        raise FileError(f"{place.where}.alpha must be two numbers, got {show(given)}")
    if "alpha" not in place.values:
        notes.append("the file has no alpha: latency 0, as in TE-CCL")
    latency = [round(not_negative(value, f"{place.where}.alpha") * 1e6, 6) for value in given]
    kinds = [node.kind for node in topology.nodes]
    links = tuple(
        replace(link, latency_us=latency["switch" in (kinds[link.src], kinds[link.dst])]) for link in topology.links
    )
    return topology if links == topology.links else replace(topology, name=f"{topology.name} of TE-CCL", links=links)


def _demand(place: _Parameters, instance: _Parameters, topology: Topology) -> Demand:
    number = instance.choice("collective", _COLLECTIVES, "1 (allgather) or 2 (alltoall)", 1)
    chunks = instance.whole("num_chunks", 1)
    size = round(place.number("chunk_size", 1) * 1e9)
    if size < 1:
        raise FileError(f"{place.where}.chunk_size must be at least a byte (1e-9 GB), got {place.values['chunk_size']}")
    return collective(_COLLECTIVES[number], topology.num_gpus, size * chunks * topology.num_gpus, chunks)


def _options(place: _Parameters, instance: _Parameters, gurobi: _Parameters, topology: Topology) -> dict[str, Any]:
    given = instance.values.get("num_epochs", -1)
    iterative = instance.values.get("solution_method", 1) == 2
    return {
        "epoch": _epoch(place, instance, topology),
        "epochs": ("search" if iterative else "auto") if given == -1 else instance.whole("num_epochs", 1),
        # Binary search minimizes the epochs, whatever the objective of each solve.
        "objective": "paper" if instance.values.get("objective_type", 3) == 3 and not iterative else "epochs",
        "latency_threshold": instance.number("alpha_threshold", 0.1),
        "early_stop": gurobi.number("mip_gap", 1e-4),
    }


def _epoch(place: _Parameters, instance: _Parameters, topology: Topology) -> str:
    kind = instance.choice("epoch_type", (1, 2, 3), "1 (fastest), 2 (slowest) or 3 (given)", 1)
    times = instance.number("epoch_multiplier", 1, positive)
    if kind == 3:
        return f"{instance.number('epoch_duration', None) * 1e6 * times!r}us"
    if kind == 1:
        return "fast" if times == 1 else f"{times:g}x"
    slowest = min(link.bandwidth_GBps for link in topology.links)
    return "slow" if times == 1 else f"{place.number('chunk_size', 1) * 1e6 / slowest * times!r}us"


def _ignored(instance: dict[str, Any], gurobi: dict[str, Any]) -> list[str]:
    notes = [f"{name}: ignored, has no equivalent here" for name in instance if name not in _KNOWN | _SILENT]
    if settings := [name for name in gurobi if name in _GUROBI]:
        notes.append(f"{', '.join(settings)}: ignored, settings of Gurobi")
    return notes + [f"{name}: ignored, unknown parameter" for name in gurobi if name not in _GUROBI | _SILENT]
