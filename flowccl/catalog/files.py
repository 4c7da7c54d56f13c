"""Read and write catalog.json; docs/catalog.md describes the format, catalog.schema.json defines it."""

import hashlib
from dataclasses import MISSING, fields
from math import lcm
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_type_hints

from flowccl.catalog.model import BuildSettings, ByteRange, Catalog, CatalogPlan, MachineId, Rule, TimePoint
from flowccl.demand.files import check_header
from flowccl.errors import FileError, InputError
from flowccl.files import json_bytes, make_folder, parse_json, read_bytes, read_json, write_bytes, write_json
from flowccl.schedule.files import schedule_from_json, schedule_to_json
from flowccl.schedule.schedule import Schedule
from flowccl.topology.fields import check_keys, show
from flowccl.topology.files import load_topology
from flowccl.topology.topology import Topology

FORMAT = "flowccl-catalog"
VERSION = 1
FILE = "catalog.json"
_MAX_FILE_BYTES = 50_000_000
_MAX_PLAN_BYTES = 2_000_000_000
_LARGEST = 2**62
_TABLES = {"plans": CatalogPlan, "rules": Rule, "times": TimePoint}
_KEYS = ("$schema", "format", "version", "machine", "runtime", "costs", "settings", "fallback", *_TABLES)
SUFFIX = {"mscclpp": ".json", "ideal": ".json", "msccl": ".xml", "executor": ".xml", "rccl": ".xml"}
FALLBACK = "library"
"""The value of `fallback`: calls that no rule matches run the library's own algorithm."""

Record = TypeVar("Record")
_WORDS = {
    str: "text",
    int: "a whole number",
    float: "a number of at least 0",
    bool: "true or false",
    ByteRange: 'a range such as "[1000,64000)"',
}


def catalog_to_json(catalog: Catalog) -> dict[str, Any]:
    """Return a catalog as a JSON value, the same for equal catalogs."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "machine": _to_json(catalog.machine),
        "runtime": catalog.runtime,
        "costs": catalog.costs,
        "settings": _to_json(catalog.settings),
        **{key: [_to_json(row) for row in getattr(catalog, key)] for key in _TABLES},
        "fallback": FALLBACK,
    }


def catalog_from_json(value: Any, name: str = FILE) -> Catalog:
    """Return the catalog in a JSON value; `name` is the file name for error messages."""
    try:
        check_header(value, FORMAT, VERSION)
        check_keys(value, "", _KEYS, {"machine": "{}", "runtime": '"mscclpp"', "plans": "[]", "rules": "[]"})
        if value.get("fallback", FALLBACK) != FALLBACK:
            raise InputError(f"fallback: must be {FALLBACK!r}, got {show(value['fallback'])}")
        tables: dict[str, tuple[Any, ...]] = {}
        for key, kind in _TABLES.items():
            rows = value.get(key, [])
            if not isinstance(rows, list):
                raise InputError(f"{key}: must be a list, got {show(rows)}")
            tables[key] = tuple(_read(kind, row, f"{key}[{number}]") for number, row in enumerate(rows))
        machine = _read(MachineId, value["machine"], "machine")
        settings = _read(BuildSettings, value.get("settings"), "settings")
        runtime, costs = _value(str, value["runtime"], "runtime"), value.get("costs", {})
        if not isinstance(costs, dict):
            raise InputError(f"costs: must be an object, got {show(costs)}")
        return Catalog(machine, runtime, settings, **tables, costs=costs)
    except InputError as error:
        raise FileError(f"{name}: {error}") from None


def save_catalog(catalog: Catalog, folder: Path) -> None:
    """Write catalog.json; the files that it names are written before."""
    write_json(folder / FILE, catalog_to_json(catalog), indent=1)


def save_plan_files(
    folder: Path,
    schedule: Schedule,
    content: bytes,
    runtime: str,
    names: tuple[str, str],
    times_us: tuple[float, float],
) -> CatalogPlan:
    """Write the file for the runtime and the schedule; return the entry of the plan.

    `names` are those of the plan and of the file of the schedule, `times_us` the time of the program and the bound.
    """
    demand, data = schedule.demand, json_bytes(schedule_to_json(schedule))
    file, schedule_file = f"plans/{names[0]}{SUFFIX[runtime]}", f"schedules/{names[1]}.json"
    for path, written in ((file, content), (schedule_file, data)):
        make_folder((folder / path).parent)
        write_bytes(folder / path, written)
    return CatalogPlan(
        names[0],
        demand.collective,
        demand.size_bytes,
        demand.pieces,
        plan_alignment(schedule, runtime, content),
        runtime,
        file,
        sha256_of(content),
        schedule_file,
        sha256_of(data),
        *times_us,
    )


def load_catalog(folder: str | Path) -> Catalog:
    """Return the catalog in a folder."""
    path = Path(folder)
    if path.is_file():
        raise FileError(f"{path}: is a file, not the folder of a catalog")
    if not path.is_dir():
        raise FileError(f"{path}: no such folder; `flowccl catalog build` writes one")
    if not (path / FILE).exists():
        raise FileError(f"{path}: contains no {FILE}; `flowccl catalog build` writes it when all cases are finished")
    return catalog_from_json(read_json(path / FILE, _MAX_FILE_BYTES), str(path / FILE))


def load_machine(folder: str | Path, catalog: Catalog) -> Topology:
    """Return the machine of a catalog; refuse a file that was changed after the build."""
    path = _inside(Path(folder), catalog.machine.file)
    topology = load_topology(path)
    if topology.fingerprint != catalog.machine.fingerprint:
        raise FileError(
            f"{path}: has fingerprint {topology.fingerprint}, the catalog is for {catalog.machine.fingerprint}: "
            "the machine was changed after the build; build the catalog again"
        )
    if topology.num_gpus != catalog.machine.ranks:
        raise FileError(f"{path}: has {topology.num_gpus} GPUs, the catalog says {catalog.machine.ranks}")
    return topology


def load_plan_file(folder: str | Path, plan: CatalogPlan) -> bytes:
    """Return the contents of the file for the runtime; refuse a missing or changed file."""
    return _checked(Path(folder), plan.file, plan.sha256, plan.name)


def load_plan_schedule(folder: str | Path, plan: CatalogPlan, ranks: int) -> Schedule:
    """Return the schedule of a plan; refuse a missing or changed file, and one that is not what the catalog says."""
    path = Path(folder) / plan.schedule
    data = _checked(Path(folder), plan.schedule, plan.schedule_sha256, plan.name)
    schedule = schedule_from_json(parse_json(data, str(path)), str(path))
    demand = schedule.demand
    found = (demand.collective, demand.size_bytes, demand.pieces, demand.num_ranks)
    if found != (plan.collective, plan.size_bytes, plan.chunks, ranks):
        raise FileError(f"{path}: is not the schedule that the catalog describes as {plan.name}; build it again")
    if plan.alignment_bytes % alignment_of(schedule):
        raise FileError(
            f"plan {plan.name}: alignment_bytes is {plan.alignment_bytes}, the schedule needs a multiple of "
            f"{alignment_of(schedule)}"
        )
    return schedule


def alignment_of(schedule: Schedule) -> int:
    """Return the bytes of which a call's size must be a multiple: 16 for every chunk of the whole buffer."""
    from flowccl.runtimes.profiles import ALIGNMENT_BYTES

    demand = schedule.demand
    blocks = 1 if demand.collective in ("broadcast", "reduce") else demand.num_ranks
    return ALIGNMENT_BYTES * blocks * demand.pieces


def plan_alignment(schedule: Schedule, runtime: str, content: bytes) -> int:
    """Return the bytes of which the sizes of a plan's calls must be a multiple; `content` is its file."""
    unit = alignment_of(schedule)
    return lcm(unit, chunk_alignment(parse_json(content, "the plan"))) if runtime == "mscclpp" else unit


def chunk_alignment(plan: Any) -> int:
    """Return the bytes of which MSCCL++'s executor wants the size of a call to be a multiple.

    Every chunk of a buffer must be aligned, and an export may divide the chunks of a schedule. The input of allgathers
    and the output of reduce-scatters are one block of the whole size.
    """
    gpus, unit = plan["gpus"], int(plan.get("buffer_alignment", 16))
    parts = {"allgather": (len(gpus), 1), "reduce_scatter": (1, len(gpus))}.get(plan["collective"], (1, 1))
    sides = zip(("input_chunks", "output_chunks"), parts, strict=True)
    return lcm(*(unit * blocks * int(gpu[side]) for side, blocks in sides for gpu in gpus if gpu[side]))


def sha256_of(data: bytes) -> str:
    """Return the SHA-256 of bytes in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def _checked(folder: Path, file: str, expected: str, plan: str) -> bytes:
    path = _inside(folder, file)
    try:
        data = read_bytes(path, _MAX_PLAN_BYTES)
    except FileError as error:
        raise FileError(f"plan {plan}: {error}") from None
    if sha256_of(data) != expected:
        raise FileError(f"plan {plan}: {path} was changed after the build; build the catalog again")
    return data


def _inside(folder: Path, file: str) -> Path:
    """The path of a file of the folder; names that lead out of it are refused."""
    path = folder / file
    if Path(file).is_absolute() or not path.resolve().is_relative_to(folder.resolve()):
        raise FileError(f"{file!r}: must be a path inside {folder}")
    return path


# -- records ----------------------------------------------------------------------------------------------------


def _to_json(record: Any) -> dict[str, Any]:
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {key: str(value) if isinstance(value, ByteRange) else value for key, value in values.items()}


def _read(kind: type[Record], value: Any, place: str) -> Record:
    """The record of a JSON object; every field is checked against its type."""
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    needed = {name: "..." for name, field in known.items() if field.default is MISSING}
    check_keys(value, place, tuple(known), needed)
    types = get_type_hints(kind)
    read = {key: _value(types[key], entry, f"{place}.{key}") for key, entry in value.items()}
    try:
        return kind(**read)
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def _value(kind: Any, value: Any, place: str) -> Any:
    """The value, if it has the type."""
    if isinstance(kind, UnionType):
        return None if value is None else _value(get_args(kind)[0], value, place)
    if kind is ByteRange and isinstance(value, str):
        return ByteRange.parse(value)
    if kind is float and type(value) in (int, float) and 0 <= value < _LARGEST:
        return value
    if kind is int and type(value) is int and 0 <= value < _LARGEST:
        return value
    if kind in (str, bool) and type(value) is kind:
        return value
    raise InputError(f"{place}: must be {_WORDS[kind]}, got {show(value)}")
