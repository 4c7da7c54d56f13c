"""To a runtime: a schedule becomes a file that MSCCL, RCCL, MSCCL++ or a simulator loads.

    export(schedule, "msccl", "ag.xml")        write it, within the limits of the target
    check("ag.xml", "msccl")                   read the file back and prove it

`TARGETS` is the table of all targets.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from flowccl.errors import InputError, InvalidScheduleError
from flowccl.export.formats.chakra import chakra_traces
from flowccl.export.formats.listings import LISTINGS, check_listing, prove_listing
from flowccl.export.formats.msccl_json import msccl_json
from flowccl.export.formats.msccl_xml import msccl_xml
from flowccl.export.formats.mscclpp_json import mscclpp_plan
from flowccl.export.formats.read_chakra import parse_chakra, read_chakra
from flowccl.export.formats.read_mscclpp import parse_mscclpp, read_mscclpp
from flowccl.export.formats.read_xml import parse_xml, read_xml
from flowccl.export.formats.teccl import teccl_json
from flowccl.export.lowering.buffers import layout_of
from flowccl.export.proof.interpreter import interpret
from flowccl.export.proof.program import Finding, Program
from flowccl.files import write_bytes
from flowccl.schedule.schedule import Schedule

__all__ = [
    "LISTINGS",
    "READERS",
    "TARGETS",
    "Finding",
    "Options",
    "Program",
    "check",
    "check_listing",
    "export",
    "export_directory",
    "make",
    "parse",
]


@dataclass(frozen=True, slots=True)
class Options:
    """How to export; each target says which of them it knows."""

    inplace: bool = False
    instances: int = 1
    protocol: str = "Simple"
    min_bytes: int = 0
    max_bytes: int = 0


def _xml(dialect: str, schedule: Schedule, options: Options) -> list[bytes]:
    return [
        msccl_xml(
            schedule,
            dialect,
            inplace=options.inplace,
            instances=options.instances,
            protocol=options.protocol,
            min_bytes=options.min_bytes,
            max_bytes=options.max_bytes,
        )
    ]


def _mscclpp(schedule: Schedule, options: Options) -> list[bytes]:
    plan = mscclpp_plan(
        schedule,
        inplace=options.inplace,
        instances=options.instances,
        protocol=options.protocol,
        min_bytes=options.min_bytes,
        max_bytes=options.max_bytes,
    )
    return [_json(plan, None)]


def _plain(target: str, write: Callable[[Schedule], Any], schedule: Schedule, options: Options) -> list[bytes]:
    """Formats of schedules, not of programs: they know no buffers, so they take no options."""
    if options != Options():
        raise InputError(f"{target} takes none of --inplace, --instances, --proto, --min-bytes, --max-bytes")
    made = write(schedule)
    return made if isinstance(made, list) else [_json(made, 1)]


def _json(value: Any, indent: int | None) -> bytes:
    return (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode()


TARGETS: dict[str, Callable[[Schedule, Options], list[bytes]]] = {
    "msccl": partial(_xml, "msccl"),
    "executor": partial(_xml, "executor"),
    "rccl": partial(_xml, "rccl"),
    "mscclpp": _mscclpp,
    "chakra": partial(_plain, "chakra", chakra_traces),
    "teccl": partial(_plain, "teccl", teccl_json),
    "msccl-json": partial(_plain, "msccl-json", msccl_json),
}
"""Each makes the contents of the file, or of one file per rank."""

READERS: dict[str, Callable[[str | Path], Program]] = {
    "msccl": partial(read_xml, dialect="msccl"),
    "executor": partial(read_xml, dialect="executor"),
    "rccl": partial(read_xml, dialect="rccl"),
    "mscclpp": read_mscclpp,
    "chakra": read_chakra,
}
"""The formats that can be proved."""

_ENDING = {"msccl": ".xml", "executor": ".xml", "rccl": ".xml", "msccl-json": ".msccl.json"}


def export(schedule: Schedule, target: str, path: str | Path, options: Options | None = None) -> list[Path]:
    """Write a schedule for a target; returns the files written. Chakra writes PATH.0.et, PATH.1.et, ...

    Nothing that the interpreter finds wrong is written.
    """
    made = make(schedule, target, options or Options())
    paths = [Path(path)] if target != "chakra" else [Path(f"{path}.{rank}.et") for rank in range(len(made))]
    return _write_all(dict(zip(paths, made, strict=True)))


def _write_all(contents: dict[Path, bytes]) -> list[Path]:
    """Write all files, or leave none of them."""
    written: list[Path] = []
    try:
        for path, content in contents.items():
            write_bytes(path, content)
            written.append(path)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        raise
    return written


def make(schedule: Schedule, target: str, options: Options) -> list[bytes]:
    """The contents of the file, or of one file per rank; proved where the format can be."""
    if target not in TARGETS:
        raise InputError(f"unknown target {target!r}; known are {', '.join(TARGETS)}")
    made = TARGETS[target](schedule, options)
    if target in READERS:
        name = f"the file for {target}"
        program = parse(made, target, name)
        if target != "chakra":  # it says its root itself
            program.root = layout_of(schedule.demand, 1, False).root
        findings = interpret(program)
        if findings:
            raise InvalidScheduleError(f"{name} would be wrong, please report it: {findings[0]}")
    elif findings := prove_listing(made[0], target):
        raise InvalidScheduleError(f"the file for {target} would be wrong, please report it: {findings[0]}")
    return made


def parse(made: list[bytes], target: str, name: str) -> Program:
    """The program in the contents of a file, or of one file per rank; `name` is for errors."""
    if target == "chakra":
        return parse_chakra(made, name)
    return parse_mscclpp(made[0], name) if target == "mscclpp" else parse_xml(made[0], name, target)


def export_directory(
    schedules: Sequence[Schedule], target: str, folder: str | Path, options: Options | None = None
) -> list[Path]:
    """Write several schedules of one collective each for their own range of sizes, as MSCCL_ALGO_DIR wants them.

    A schedule is used from its own size (the smallest from `min_bytes`) up to the next larger one of its collective
    (the largest up to `max_bytes`). Nothing is written unless all of them can be.
    """
    options = options or Options()
    if target not in _ENDING or target == "msccl-json":
        raise InputError(f"a folder of size ranges is for msccl, executor and rccl, not for {target}")
    folder = Path(folder)
    stray = [file.name for file in folder.iterdir() if file.suffix != ".xml"] if folder.is_dir() else []
    if stray:
        raise InputError(f"{folder}: holds {stray[0]}; the loaders parse every file of the folder, so keep only XML")
    if not folder.is_dir() and (folder.exists() or not folder.parent.is_dir()):
        raise InputError(f"{folder}: must be a folder, or a new one in a folder that exists")
    made: dict[str, bytes] = {}
    for schedule, low, high in _ranges(schedules, options):
        chosen = replace(options, min_bytes=low, max_bytes=high)
        place = "in" if options.inplace else "out"
        name = f"{schedule.demand.collective}-{schedule.demand.num_gpus}-{place}-{low:016d}.xml"
        made[name] = make(schedule, target, chosen)[0]
    folder.mkdir(exist_ok=True)
    return _write_all({folder / name: content for name, content in made.items()})


def _ranges(schedules: Sequence[Schedule], options: Options) -> list[tuple[Schedule, int, int]]:
    """Every schedule with its disjoint range of sizes, both ends included; 0 is no upper end."""
    groups: dict[tuple[str, int], list[Schedule]] = {}
    for schedule in schedules:
        groups.setdefault((schedule.demand.collective, schedule.demand.num_gpus), []).append(schedule)
    result = []
    for (name, _), group in groups.items():
        group.sort(key=lambda schedule: schedule.demand.size_bytes)
        sizes = [schedule.demand.size_bytes for schedule in group]
        if len(set(sizes)) < len(sizes):
            raise InputError(f"two schedules of {name} are for the same size; the ranges must differ")
        lows = [options.min_bytes, *sizes[1:]]
        highs = [*(size - 1 for size in sizes[1:]), options.max_bytes]
        if options.min_bytes > sizes[0]:
            raise InputError(f"--min-bytes {options.min_bytes} is above the smallest size, {sizes[0]}")
        result += list(zip(group, lows, highs, strict=True))
    return result


def check(path: str | Path, target: str, root: int | None = None) -> tuple[Program, list[Finding]]:
    """Read a file as the target would, and prove it; what is wrong with it is in the list.

    `root` is that of the collective where the file does not say it; 0 where it is left out.
    """
    if target not in READERS:
        raise InputError(f"files for {target} hold no program to interpret; known are {', '.join(READERS)}")
    program = READERS[target](path)
    if root is not None:
        program.root = root
    return program, interpret(program)
