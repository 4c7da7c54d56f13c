"""Schedule JSON in and out; docs/schedule.md describes the format.

A file holds everything: the machine, the demand, the routes and the transfers, one column each.
"""

from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.files import check_header, demand_from_json, demand_to_json, int_column
from flowccl.errors import InputError, ScheduleError
from flowccl.files import json_format, read_json, write_json
from flowccl.schedule.schedule import Schedule
from flowccl.topology.fields import check_keys, show, text_field
from flowccl.topology.files import topology_from_json, topology_to_json
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology

FORMAT = "flowccl-schedule"
VERSION = 1
MAX_FILE_BYTES = 2_000_000_000  # unpacked

_NEEDED = dict.fromkeys(("topology", "demand", "transfers"), "{}") | {"routes": "[[0], [1, 2]]"}
_KEYS = ("$schema", "format", "version", "flowccl", "method", "fingerprint", *_NEEDED)
_COLUMNS = ("chunk", "route", "start_ps", "reduce", "message")
_MAX_PS = 2**60  # some 13 days; sums of a few such times still fit in 64 bits


def save_schedule(schedule: Schedule, path: str | Path) -> None:
    """Write a schedule with its machine and its demand as JSON; compressed where the name ends in .gz."""
    write_json(path, schedule_to_json(schedule))


def load_schedule(path: str | Path, topology: Topology | None = None) -> Schedule:
    """The schedule in a JSON file (.json or .json.gz); refused where it was made for another machine than this.

    One in compact form is written out, unless it is too large.
    """
    if json_format(path) == "flowccl-compact-schedule":
        from flowccl.schedule.compact import load_compact

        return load_compact(path, topology).expanded()
    return schedule_from_json(read_json(path, MAX_FILE_BYTES), str(path), topology)


def schedule_to_json(schedule: Schedule) -> dict[str, Any]:
    """A schedule as a value for JSON."""
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
    return {
        "format": FORMAT,
        "version": VERSION,
        "flowccl": _flowccl_version(),
        "method": schedule.method,
        "fingerprint": schedule.topology.fingerprint,
        "topology": topology_to_json(schedule.topology),
        "demand": demand_to_json(schedule.demand),
        "routes": [links[a:b] for a, b in pairwise(bounds)],
        "transfers": transfers,
    }


def schedule_from_json(value: Any, name: str = "schedule", topology: Topology | None = None) -> Schedule:
    """The schedule in a JSON value; `name` is the file it comes from, for messages."""
    try:
        check_header(value, FORMAT, VERSION)
        check_keys(value, "", _KEYS, _NEEDED)
        method = text_field(value.get("method", ""), "", "method")
        machine = topology_from_json(value["topology"], "topology")
        _check_fingerprint(value.get("fingerprint"), machine, topology)
        demand = demand_from_json(value["demand"], "demand")
        routes = _routes(value["routes"], len(machine.links))
        columns = _transfers(value["transfers"], len(demand), len(routes))
        return Schedule(machine, demand, routes, **columns, method=method)
    except InputError as error:
        raise ScheduleError(f"{name}: {error}") from None


def _check_fingerprint(stored: Any, machine: Topology, wanted: Topology | None) -> None:
    if stored is not None and text_field(stored, "", "fingerprint") != machine.fingerprint:
        raise ScheduleError(
            f"fingerprint: is {stored}, but the machine in the file has {machine.fingerprint}; the machine was changed "
            "after the schedule was made (leave the fingerprint out to load it all the same)"
        )
    if wanted is not None and wanted.fingerprint != machine.fingerprint:
        raise ScheduleError(
            f"made for another machine: {machine.name}, its fingerprint is {machine.fingerprint}, "
            f"this one's ({wanted.name}) is {wanted.fingerprint}"
        )


def _routes(rows: Any, num_links: int) -> Routes:
    if not isinstance(rows, list):
        raise ScheduleError(f"routes: must be a list of lists of links, got {show(rows)}")
    for number, row in enumerate(rows):
        if not isinstance(row, list) or not row:
            got = "none" if isinstance(row, list) else show(row)
            raise ScheduleError(f"routes[{number}]: must be a list of one or more links, got {got}")
    ptr = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
    flat = list(chain.from_iterable(rows))
    try:
        link = int_column(flat, "routes", 0, num_links - 1)
    except InputError:
        for number, row in enumerate(rows):  # again, for the place
            int_column(row, f"routes[{number}]", 0, num_links - 1)
        raise
    return Routes(ptr, link.astype(np.int32))


def _transfers(value: Any, chunks: int, routes: int) -> dict[str, NDArray[Any]]:
    """The columns of the table of transfers."""
    check_keys(value, "transfers", _COLUMNS, dict.fromkeys(_COLUMNS[:3], "[0]"))
    ranges = {"chunk": (0, chunks - 1), "route": (0, routes - 1), "start_ps": (-_MAX_PS, _MAX_PS)}
    columns: dict[str, NDArray[Any]] = {}
    for key, (low, high) in ranges.items():
        columns[key] = int_column(value[key], f"transfers.{key}", low, high)
    columns["reduce"] = _flags(value.get("reduce", False), len(columns["chunk"]))
    if "message" in value:
        columns["message"] = int_column(value["message"], "transfers.message", -1, 2**31 - 1)
    for key, column in columns.items():
        if len(column) != len(columns["chunk"]):
            raise ScheduleError(f"transfers.{key}: has {len(column)} entries, chunk has {len(columns['chunk'])}")
    return columns


def _flags(value: Any, count: int) -> NDArray[np.bool_]:
    """One flag for all transfers, or one each."""
    if isinstance(value, bool):
        return np.full(count, value, dtype=np.bool_)
    if not isinstance(value, list):
        raise ScheduleError(f"transfers.reduce: must be true, false or a list of them, got {show(value)}")
    if set(map(type, value)) - {bool}:
        at = next(n for n, entry in enumerate(value) if type(entry) is not bool)
        raise ScheduleError(f"transfers.reduce[{at}]: must be true or false, got {show(value[at])}")
    return np.array(value, dtype=np.bool_)


def _flowccl_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    try:
        return version("flowccl")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "unknown"
