"""Read and write schedules as JSON, in full and in compact form; docs/schedule.md describes the format.

A file contains the machine, the demand, the routes and the transfers, one column each.
"""

from collections.abc import Collection
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.demand.files import check_header, demand_from_json, demand_to_json, int_column, int_value
from flowccl.errors import InputError, ScheduleError
from flowccl.files import json_format, read_json, write_json
from flowccl.runtimes.execution import Execution
from flowccl.runtimes.limits import PROTOCOLS
from flowccl.runtimes.profiles import profile_from_json, profile_to_json
from flowccl.schedule.compact import COMPACT, CompactSchedule
from flowccl.schedule.repaired import PHASES, RepairedPhase, RepairedSchedule
from flowccl.schedule.schedule import Schedule
from flowccl.topology.fields import check_keys, show, text_field
from flowccl.topology.files import topology_from_json, topology_to_json
from flowccl.topology.routes import Routes
from flowccl.topology.symmetry.regular_groups import RegularGroup, rotation_group
from flowccl.topology.topology import Topology

FORMAT = "flowccl-schedule"
COMPACT_FORMAT = "flowccl-compact-schedule"
REPAIRED_FORMAT = "flowccl-repaired-schedule"
PLAN_FORMAT = "flowccl-reshard-plan"
"""Plans between layouts contain a schedule; package `resharding` reads the rest."""
VERSION = 1
RUNTIME_VERSION = 2
_PLAN_OF_MSCCLPP = (
    "is a plan of MSCCL++, not a schedule; `flowccl check-export FILE --to mscclpp` proves it, "
    "`flowccl run FILE --on mscclpp` runs it"
)
"""Schedules for a runtime say how each message is issued; all others are written in version 1."""
_MAX_FILE_BYTES = 2_000_000_000  # uncompressed

_NEEDED = dict.fromkeys(("topology", "demand", "transfers"), "{}") | {"routes": "[[0], [1, 2]]"}
_KEYS = ("$schema", "format", "version", "flowccl", "method", "fingerprint", "runtime", "execution", *_NEEDED)
_COMPACT_KEYS = ("format", "version", "collective", "size_bytes", "inside", "order", "schedule")
_REPAIRED_KEYS = (*_COMPACT_KEYS[:6], "fingerprint", "topology", "phases")
_PHASE_KEYS = ("schedule", "owner", "routes", "transfers")
_COLUMNS = ("chunk", "route", "start_ps", "reduce", "message")
_RUNTIME_COLUMNS = ("issuer", "receiver", "work_from_ps", "rate_GBps")
_EXECUTION = {"sms": 1, "width": 1, "posters": 0, "loops": 1, "receivers": 1}
_MAX_PS = 2**60  # about 13 days; the total of a few such times still fits in 64 bits


def save_schedule(schedule: Schedule, path: str | Path) -> None:
    """Write a schedule with its machine and its demand as JSON; compressed if the name ends in .gz."""
    write_json(path, schedule_to_json(schedule))


def load_schedule(path: str | Path, topology: Topology | None = None) -> Schedule:
    """Return the schedule in a JSON file (.json or .json.gz); raise ScheduleError if it was made for another machine.

    A compact or repaired schedule is expanded, unless it has too many transfers.
    """
    if json_format(path) == COMPACT_FORMAT:
        return load_compact(path, topology).expanded()
    if json_format(path) == REPAIRED_FORMAT:
        return load_repaired(path, topology).expanded()
    if json_format(path) == PLAN_FORMAT:
        return schedule_from_json(read_json(path, _MAX_FILE_BYTES).get("schedule"), str(path), topology)
    return schedule_from_json(read_json(path, _MAX_FILE_BYTES), str(path), topology)


def save_compact(compact: CompactSchedule | RepairedSchedule, path: str | Path) -> None:
    """Write a compact or repaired schedule with its machine as JSON; compressed if the name ends in .gz."""
    if isinstance(compact, RepairedSchedule):
        write_json(path, _repaired_to_json(compact))
        return
    value = {
        "format": COMPACT_FORMAT,
        "version": VERSION,
        "collective": compact.collective,
        "size_bytes": compact.size_bytes,
        "inside": list(compact.group.inside),
        "order": list(compact.group.order),
        "schedule": schedule_to_json(compact.one),
    }
    write_json(path, value)


def load_compact(path: str | Path, topology: Topology | None = None) -> CompactSchedule:
    """Return the compact schedule in a JSON file; raise ScheduleError if it was made for another machine."""
    value = read_json(path, _MAX_FILE_BYTES)
    try:
        size_bytes, rotations = _head(value, COMPACT_FORMAT, _COMPACT_KEYS, COMPACT)
        one = schedule_from_json(value["schedule"], "schedule", topology)
        return CompactSchedule(value["collective"], size_bytes, one, _group(one.topology, rotations))
    except InputError as error:
        raise ScheduleError(f"{path}: {error}") from None


def load_repaired(path: str | Path, topology: Topology | None = None) -> RepairedSchedule:
    """Return the repaired schedule in a JSON file; raise ScheduleError if it was made for another machine."""
    value = read_json(path, _MAX_FILE_BYTES)
    try:
        size_bytes, rotations = _head(value, REPAIRED_FORMAT, _REPAIRED_KEYS, PHASES)
        machine = topology_from_json(value["topology"], "topology")
        _check_fingerprint(value["fingerprint"], machine, topology)
        if not isinstance(value["phases"], list):
            raise ScheduleError(f"phases: must be a list, got {show(value['phases'])}")
        phases, reversed_first = [], value["collective"] in ("reduce_scatter", "allreduce")
        forward = "allgather" if reversed_first else value["collective"]
        for number, phase in enumerate(value["phases"]):
            place = machine.reversed if reversed_first and number == 0 else machine
            phases.append(_phase_from_json(phase, f"phases[{number}]", place, forward, size_bytes, rotations))
    except InputError as error:
        raise ScheduleError(f"{path}: {error}") from None
    return RepairedSchedule(value["collective"], size_bytes, tuple(phases))


def _head(value: Any, kind: str, keys: tuple[str, ...], collectives: Collection[str]) -> tuple[int, list[list[int]]]:
    """The size and the rotations of a file, which has these keys and one of these collectives."""
    check_header(value, kind, VERSION)
    check_keys(value, "", keys, dict.fromkeys(keys[2:], "..."))
    if value["collective"] not in collectives:
        raise ScheduleError(f"collective: must be {' or '.join(collectives)}, got {show(value['collective'])}")
    size, *rotations = (_positive(value[key], key) for key in ("size_bytes", "inside", "order"))
    return size[0], rotations


def _group(machine: Topology, rotations: list[list[int]], place: str = "") -> RegularGroup:
    """The group that the rotations (inside hosts, order of hosts) generate."""
    group = rotation_group(machine, *map(tuple, rotations))
    if group is None:
        raise ScheduleError(f"{place}inside, order: these rotations are no symmetries of {machine.name}")
    return group


def _repaired_to_json(repaired: RepairedSchedule) -> dict[str, Any]:
    group = repaired.phases[0].group
    phases = []
    for phase in repaired.phases:
        exceptions = schedule_to_json(phase.exceptions)
        columns = {name: exceptions[name] for name in ("routes", "transfers")}
        phases.append({"schedule": schedule_to_json(phase.whole.one), "owner": phase.owner.tolist(), **columns})
    return {
        "format": REPAIRED_FORMAT,
        "version": VERSION,
        "collective": repaired.collective,
        "size_bytes": repaired.size_bytes,
        "inside": list(group.inside),
        "order": list(group.order),
        "fingerprint": repaired.topology.fingerprint,
        "topology": topology_to_json(repaired.topology),
        "phases": phases,
    }


def _phase_from_json(
    value: Any, name: str, machine: Topology, kind: str, size_bytes: int, rotations: list[list[int]]
) -> RepairedPhase:
    """A phase on a machine; the group of the whole machine is that of these rotations."""
    check_keys(value, name, _PHASE_KEYS, dict.fromkeys(_PHASE_KEYS, "..."))
    one = schedule_from_json(value["schedule"], f"{name}.schedule")
    group = _group(one.topology, rotations, f"{name}: ")
    routes = _routes(value["routes"], len(machine.links))
    columns = _transfers(value["transfers"], len(one.demand), len(routes), for_runtime=False)
    owner = int_column(value["owner"], f"{name}.owner", 0, machine.num_gpus - 1).astype(np.int32)
    if len(owner) != len(columns["chunk"]):
        raise ScheduleError(f"{name}.owner: has {len(owner)} entries, chunk has {len(columns['chunk'])}")
    exceptions = Schedule(machine, one.demand, routes, **columns, method=one.method, execution=None)
    return RepairedPhase(CompactSchedule(kind, size_bytes, one, group), machine, exceptions, owner)


def schedule_to_json(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as a JSON value."""
    bounds = schedule.routes.ptr.tolist()
    links = schedule.routes.link.tolist()
    transfers: dict[str, Any] = {
        "chunk": schedule.chunk.tolist(),
        "route": schedule.route.tolist(),
        "start_ps": schedule.start_ps.tolist(),
    }
    if np.any(schedule.reduce):
        transfers["reduce"] = True if np.all(schedule.reduce) else schedule.reduce.tolist()
    if schedule.has_messages:
        transfers["message"] = schedule.message.tolist()
    if schedule.execution is not None:
        transfers |= {name: getattr(schedule, name).tolist() for name in _RUNTIME_COLUMNS}
    elif schedule.rate_GBps.any():
        transfers["rate_GBps"] = schedule.rate_GBps.tolist()
    return {
        "format": FORMAT,
        "version": VERSION if schedule.execution is None else RUNTIME_VERSION,
        "flowccl": _flowccl_version(),
        "method": schedule.method,
        **({} if schedule.execution is None else _execution_to_json(schedule.execution)),
        "fingerprint": schedule.topology.fingerprint,
        "topology": topology_to_json(schedule.topology),
        "demand": demand_to_json(schedule.demand),
        "routes": [links[a:b] for a, b in pairwise(bounds)],
        "transfers": transfers,
    }


def schedule_from_json(value: Any, name: str = "schedule", topology: Topology | None = None) -> Schedule:
    """Return the schedule in a JSON value; `name` is the file name for error messages."""
    try:
        if isinstance(value, dict) and "format" not in value and {"collective", "gpus"} <= value.keys():
            raise ScheduleError(_PLAN_OF_MSCCLPP)
        check_header(value, FORMAT, VERSION, RUNTIME_VERSION)
        version = value["version"]
        check_keys(value, "", _KEYS, _NEEDED | ({"execution": "{}"} if version == RUNTIME_VERSION else {}))
        method = text_field(value.get("method", ""), "", "method")
        machine = topology_from_json(value["topology"], "topology")
        _check_fingerprint(value.get("fingerprint"), machine, topology)
        demand = demand_from_json(value["demand"], "demand")
        routes = _routes(value["routes"], len(machine.links))
        columns = _transfers(value["transfers"], len(demand), len(routes), for_runtime=version == RUNTIME_VERSION)
        execution = _execution_from_json(value) if version == RUNTIME_VERSION else None
        return Schedule(machine, demand, routes, **columns, method=method, execution=execution)
    except InputError as error:
        raise ScheduleError(f"{name}: {error}") from None


def _check_fingerprint(stored: Any, machine: Topology, wanted: Topology | None) -> None:
    if stored is not None and text_field(stored, "", "fingerprint") != machine.fingerprint:
        raise ScheduleError(
            f"fingerprint: is {stored}, but the machine in the file has {machine.fingerprint}; the machine was changed "
            "after the schedule was made (remove the fingerprint to load the schedule anyway)"
        )
    if wanted is not None and wanted.fingerprint != machine.fingerprint:
        raise ScheduleError(
            f"made for another machine: {machine.name} with fingerprint {machine.fingerprint}, "
            f"not {wanted.name} with fingerprint {wanted.fingerprint}"
        )


def _routes(rows: Any, num_links: int) -> Routes:
    if not isinstance(rows, list):
        raise ScheduleError(f"routes: must be a list of lists of links, got {show(rows)}")
    for number, row in enumerate(rows):
        if not isinstance(row, list) or not row:
            got = "none" if isinstance(row, list) else show(row)
            raise ScheduleError(f"routes[{number}]: must be a list of one or more links, got {got}")
    ptr = pointers([len(row) for row in rows])
    flat = list(chain.from_iterable(rows))
    try:
        link = int_column(flat, "routes", 0, num_links - 1)
    except InputError:
        for number, row in enumerate(rows):  # again, to name the route in the message
            int_column(row, f"routes[{number}]", 0, num_links - 1)
        raise
    return Routes(ptr, link.astype(np.int32))


def _execution_to_json(execution: Execution) -> dict[str, Any]:
    numbers = {name: getattr(execution, name) for name in _EXECUTION}
    return {
        "runtime": profile_to_json(execution.profile),
        "execution": {**numbers, "protocol": execution.protocol},
    }


def _execution_from_json(value: dict[str, Any]) -> Execution:
    place, row = "execution", value["execution"]
    check_keys(row, place, (*_EXECUTION, "protocol"), {"sms": "132"})
    numbers = {name: int_value(row, name, low, 2**20, max(low, 1), place) for name, low in _EXECUTION.items()}
    protocol = text_field(row.get("protocol", "Simple"), place, "protocol")
    if protocol not in PROTOCOLS:
        raise ScheduleError(f"execution: protocol must be {' or '.join(PROTOCOLS)}, got {show(protocol)}")
    return Execution(profile_from_json(value["runtime"]), **numbers, protocol=protocol)


def _transfers(value: Any, chunks: int, routes: int, *, for_runtime: bool) -> dict[str, NDArray[Any]]:
    """The columns of the table of transfers."""
    known = _COLUMNS + (_RUNTIME_COLUMNS if for_runtime else ("rate_GBps",))
    check_keys(value, "transfers", known, dict.fromkeys(_COLUMNS[:3], "[0]"))
    ranges = {"chunk": (0, chunks - 1), "route": (0, routes - 1), "start_ps": (-_MAX_PS, _MAX_PS)}
    columns: dict[str, NDArray[Any]] = {}
    for key, (low, high) in ranges.items():
        columns[key] = int_column(value[key], f"transfers.{key}", low, high)
    columns["reduce"] = _flags(value.get("reduce", False), len(columns["chunk"]))
    if "message" in value:
        columns["message"] = int_column(value["message"], "transfers.message", -1, 2**31 - 1)
    for key in ("issuer", "receiver"):
        if key in value:
            columns[key] = int_column(value[key], f"transfers.{key}", -1, 2**20)
    if "work_from_ps" in value:
        columns["work_from_ps"] = int_column(value["work_from_ps"], "transfers.work_from_ps", -1, _MAX_PS)
    if "rate_GBps" in value:
        columns["rate_GBps"] = _rates(value["rate_GBps"])
    for key, column in columns.items():
        if len(column) != len(columns["chunk"]):
            raise ScheduleError(f"transfers.{key}: has {len(column)} entries, chunk has {len(columns['chunk'])}")
    return columns


def _rates(value: Any) -> NDArray[np.float64]:
    """Rates in GB/s, 0 for the highest one that is possible."""
    if not isinstance(value, list):
        raise ScheduleError(f"transfers.rate_GBps: must be a list of numbers, got {show(value)}")
    for number, entry in enumerate(value):
        if type(entry) not in (int, float) or not 0 <= entry < float("inf"):
            raise ScheduleError(f"transfers.rate_GBps[{number}]: must be a number of at least 0, got {show(entry)}")
    return np.array(value, dtype=np.float64)


def _flags(value: Any, count: int) -> NDArray[np.bool_]:
    """One flag for all transfers, or one per transfer."""
    if isinstance(value, bool):
        return np.full(count, value, dtype=np.bool_)
    if not isinstance(value, list):
        raise ScheduleError(f"transfers.reduce: must be true, false or a list of them, got {show(value)}")
    if set(map(type, value)) - {bool}:
        at = next(n for n, entry in enumerate(value) if type(entry) is not bool)
        raise ScheduleError(f"transfers.reduce[{at}]: must be true or false, got {show(value[at])}")
    return np.array(value, dtype=np.bool_)


def _positive(value: Any, key: str) -> list[int]:
    """Positive integers from one number or a list."""
    numbers = value if isinstance(value, list) else [value]
    if not numbers or any(type(number) is not int or number < 1 for number in numbers):
        raise ScheduleError(f"{key}: must be a positive whole number or a list of them, got {show(value)}")
    return numbers


def _flowccl_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version("flowccl")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"
