"""TE-CCL's input files: {"TopologyParams": ..., "InstanceParams": ..., "GurobiParams": ...}.

Sizes are GB per chunk and time limits are hours. Parameters with an equivalent are mapped; for others there is a note.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowccl.demand.collectives import collective
from flowccl.demand.demand import Demand
from flowccl.errors import FileError, InputError
from flowccl.files import read_json
from flowccl.topology.machines import machine
from flowccl.topology.topology import Topology

_MACHINES = {"DGX1": "dgx1", "NDv2": "ndv2:{chassis}", "DGX2": "dgx2:{chassis}", "AMD": "mi250:{chassis}"}
_MOST_BYTES = 1_000_000
_COLLECTIVES = {1: "allgather", 2: "alltoall"}
_SILENT = {  # parameters that do not affect the schedule
    "debug", "debug_output_file", "schedule_output_file", "output_flag", "log_file", "log_to_console", "option",
}  # fmt: skip
_GUROBI = {
    "feasibility_tol",
    "intfeas_tol",
    "optimality_tol",
    "mip_focus",
    "crossover",
    "method",
    "heuristics",
    "presolve",
}


@dataclass(frozen=True)
class TecclInput:
    """The contents of an input file; `notes` list the parameters that are ignored."""

    topology: Topology
    demand: Demand
    method: str
    options: dict[str, Any]
    time_limit_s: float | None
    notes: tuple[str, ...]


def read_teccl_input(path: str | Path) -> TecclInput:
    """Read an input file of TE-CCL."""
    data = read_json(path, _MOST_BYTES)
    if not isinstance(data, dict) or not {"TopologyParams", "InstanceParams"} <= set(data):
        raise FileError(f"{path}: not an input file of TE-CCL; TopologyParams and InstanceParams are required")
    place, instance, gurobi = (dict(data.get(f"{part}Params", {})) for part in ("Topology", "Instance", "Gurobi"))
    try:
        topology = _topology(place, instance)
        demand = _demand(place, instance, topology)
        options = _options(place, instance, gurobi, topology)
    except InputError as error:
        raise FileError(f"{path}: {error}") from None
    method = "astar" if instance.get("objective_type", 3) == 4 else "milp"
    if demand.collective == "alltoall":
        method = "lp"
    hours = gurobi.get("time_limit")
    limit_s = None if hours is None else float(_number("time_limit", hours, 0)) * 3600
    return TecclInput(topology, demand, method, options, limit_s, _notes(instance, gurobi))


def _topology(place: dict[str, Any], instance: dict[str, Any]) -> Topology:
    name, chassis = place.get("name", "DGX1"), _whole("chassis", place.get("chassis", 1))
    if name == "Mesh":
        side = _whole("side_length", place.get("side_length", 4))
        return machine(f"mesh:{side}x{side}")
    if name not in _MACHINES:
        raise InputError(f"TopologyParams: name must be one of {', '.join(_MACHINES)}, Mesh, got {name!r}")
    topology = machine(_MACHINES[name].format(chassis=chassis))
    if instance.get("switch_copy", True):
        return topology
    nodes = [node if node.stores else replace(node, copies=False) for node in topology.nodes]
    return replace(topology, nodes=tuple(nodes))


def _demand(place: dict[str, Any], instance: dict[str, Any], topology: Topology) -> Demand:
    number = instance.get("collective", 1)
    if number not in _COLLECTIVES:
        raise InputError(f"InstanceParams: collective must be 1 (allgather) or 2 (alltoall), got {number!r}")
    chunks = _whole("num_chunks", instance.get("num_chunks", 1))
    size = round(float(_number("chunk_size", place.get("chunk_size", 1), 0)) * 1e9)
    if size < 1:
        raise InputError(f"TopologyParams: chunk_size must be at least a byte (1e-9 GB), got {place['chunk_size']}")
    return collective(_COLLECTIVES[number], topology.num_gpus, size * chunks * topology.num_gpus, chunks)


def _options(
    place: dict[str, Any], instance: dict[str, Any], gurobi: dict[str, Any], topology: Topology
) -> dict[str, Any]:
    epochs = instance.get("num_epochs", -1)
    iterative = instance.get("solution_method", 1) == 2
    options: dict[str, Any] = {
        "epoch": _epoch(place, instance, topology),
        "epochs": ("search" if iterative else "auto") if epochs == -1 else _whole("num_epochs", epochs),
        # Binary search minimizes the epochs, whatever the objective of each solve.
        "objective": "paper" if instance.get("objective_type", 3) == 3 and not iterative else "epochs",
        "latency_threshold": float(_number("alpha_threshold", instance.get("alpha_threshold", 0.1), 0)),
        "early_stop": float(_number("mip_gap", gurobi.get("mip_gap", 1e-4), 0)),
    }
    return options


def _epoch(place: dict[str, Any], instance: dict[str, Any], topology: Topology) -> str:
    kind, times = (
        instance.get("epoch_type", 1),
        float(_number("epoch_multiplier", instance.get("epoch_multiplier", 1), 0)),
    )
    if times <= 0:
        raise InputError(f"InstanceParams: epoch_multiplier must be above 0, got {times:g}")
    if kind == 3:
        return f"{float(_number('epoch_duration', instance.get('epoch_duration'), 0)) * 1e6 * times!r}us"
    if kind not in (1, 2):
        raise InputError(f"InstanceParams: epoch_type must be 1 (fastest), 2 (slowest) or 3 (given), got {kind!r}")
    if kind == 1:
        return "fast" if times == 1 else f"{times:g}x"
    if times == 1:
        return "slow"
    slowest = min(link.bandwidth_GBps for link in topology.links)
    return f"{float(place.get('chunk_size', 1)) * 1e6 / slowest * times!r}us"


def _notes(instance: dict[str, Any], gurobi: dict[str, Any]) -> tuple[str, ...]:
    known = {
        "collective", "num_chunks", "epoch_type", "epoch_duration", "epoch_multiplier", "num_epochs", "alpha_threshold",
        "switch_copy", "objective_type", "solution_method",
    }  # fmt: skip
    notes = [f"{name}: ignored, has no equivalent here" for name in instance if name not in known | _SILENT]
    settings = [name for name in gurobi if name in _GUROBI]
    if settings:
        notes.append(f"{', '.join(settings)}: ignored, settings of Gurobi")
    notes += [
        f"{name}: ignored, unknown parameter"
        for name in gurobi
        if name not in _GUROBI | _SILENT | {"time_limit", "mip_gap"}
    ]
    return tuple(notes)


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} must be an integer of at least 1, got {value!r}")
    return value


def _number(name: str, value: object, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
        raise InputError(f"{name} must be a number of at least {least:g}, got {value!r}")
    return value
