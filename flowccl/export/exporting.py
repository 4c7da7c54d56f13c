"""Writing a schedule for a target, and proving a file that was written for one."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from flowccl import by_name
from flowccl.errors import FileError, InputError, InvalidScheduleError
from flowccl.export.formats.chakra import chakra_traces
from flowccl.export.formats.listings import prove_listing
from flowccl.export.formats.msccl_json import msccl_json
from flowccl.export.formats.msccl_xml import msccl_xml
from flowccl.export.formats.perfetto import schedule_trace
from flowccl.export.formats.read_chakra import parse_chakra, read_chakra
from flowccl.export.formats.read_mscclpp import parse_mscclpp, read_mscclpp
from flowccl.export.formats.read_xml import parse_xml, read_xml
from flowccl.export.formats.recognition import explain_mismatch
from flowccl.export.garbage import few_collections
from flowccl.export.lowering.buffers import layout_of
from flowccl.export.program import Program, program_for
from flowccl.export.proof.interpreter import interpret
from flowccl.export.proof.program import Finding, RuntimeProgram
from flowccl.files import write_bytes
from flowccl.runtimes.limits import MSCCLPP_LIMITS, check_protocol
from flowccl.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """Options of an export. A target that does not support an option refuses it.

    `protocol` is one of the target's; "auto" is that of a schedule for MSCCL++, else the faster one, and Simple for
    other targets. `sms` limits the threadblocks of a GPU: only one on each of its SMs is resident.
    """

    inplace: bool = False
    instances: int = 1
    protocol: str = "auto"
    min_bytes: int = 0
    max_bytes: int = 0
    sms: int | None = None


def _xml(dialect: str, schedule: Schedule, options: ExportOptions) -> list[bytes]:
    protocol = "Simple" if options.protocol == "auto" else options.protocol
    return [msccl_xml(schedule, dialect, **asdict(replace(options, protocol=protocol)))]


def _mscclpp(schedule: Schedule, options: ExportOptions) -> list[bytes]:
    return [_program(schedule, options).data]


def _program(schedule: Schedule, options: ExportOptions) -> Program:
    given = asdict(options)
    if given.pop("instances") != 1:
        raise InputError("mscclpp takes no --instances: its schedules say how many threadblocks carry a message")
    check_protocol(MSCCLPP_LIMITS, "Simple" if options.protocol == "auto" else options.protocol)
    return program_for(schedule, **given)


def _plain(target: str, write: Callable[[Schedule], Any], schedule: Schedule, options: ExportOptions) -> list[bytes]:
    """Write a format of schedules rather than programs: such formats have no buffers, so they take no options."""
    if replace(options, sms=None) != ExportOptions():
        raise InputError(f"{target} takes none of --inplace, --instances, --proto, --min-bytes, --max-bytes")
    made = write(schedule)
    return made if isinstance(made, list) else [_json(made, 1)]


def _teccl(schedule: Schedule) -> Any:
    return by_name.load("flowccl.papers.teccl.result_file:teccl_json")(schedule)


def _json(value: Any, indent: int | None) -> bytes:
    return (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode()


TARGETS: dict[str, Callable[[Schedule, ExportOptions], list[bytes]]] = {
    "msccl": partial(_xml, "msccl"),
    "executor": partial(_xml, "executor"),
    "rccl": partial(_xml, "rccl"),
    "mscclpp": _mscclpp,
    "chakra": partial(_plain, "chakra", chakra_traces),
    "teccl": partial(_plain, "teccl", _teccl),
    "msccl-json": partial(_plain, "msccl-json", msccl_json),
}
"""The writer of each target: it returns the contents of the file, or of one file per rank."""

READERS: dict[str, Callable[[str | Path], RuntimeProgram]] = {
    "msccl": partial(read_xml, dialect="msccl"),
    "executor": partial(read_xml, dialect="executor"),
    "rccl": partial(read_xml, dialect="rccl"),
    "mscclpp": read_mscclpp,
    "chakra": read_chakra,
}
"""The reader of each target whose files are programs that the interpreter can prove."""

_FOLDER_TARGETS = ("msccl", "executor", "rccl")


@dataclass(frozen=True, slots=True)
class Exported:
    """The written files of a schedule, and their program; None if the format has no program."""

    schedule: Schedule
    paths: list[Path]
    program: RuntimeProgram | None


def export(schedule: Schedule, target: str, path: str | Path, options: ExportOptions | None = None) -> list[Path]:
    """Write a schedule for a target and return the written files. Chakra writes PATH.0.et, PATH.1.et, ...

    The contents are proved first; contents with a finding are not written.
    """
    return export_file(schedule, target, path, options or ExportOptions()).paths


def export_file(
    schedule: Schedule,
    target: str,
    path: str | Path,
    options: ExportOptions,
    on_phase: Callable[[str], None] = lambda text: None,
) -> Exported:
    """Write a schedule for a target, as `export` does, and return the files and their program."""
    made, program = prove(schedule, target, options, on_phase)
    paths = [Path(path)] if target != "chakra" else [Path(f"{path}.{rank}.et") for rank in range(len(made))]
    return Exported(schedule, _write_all(dict(zip(paths, made, strict=True))), program)


def _write_all(contents: dict[Path, bytes]) -> list[Path]:
    """Write all files; if one cannot be written, remove the others."""
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


def make(schedule: Schedule, target: str, options: ExportOptions) -> list[bytes]:
    """Return the proved contents of the file, or of one file per rank."""
    return prove(schedule, target, options)[0]


def prove(
    schedule: Schedule, target: str, options: ExportOptions, on_phase: Callable[[str], None] = lambda text: None
) -> tuple[list[bytes], RuntimeProgram | None]:
    """Return the proved contents, and the program that was read back; None if the format has no program.

    `on_phase` receives a few words on what is being done.
    """
    if target == "perfetto":  # a trace for people, with nothing to prove
        return _plain(target, lambda shown: [schedule_trace(shown)], schedule, options), None
    if target not in TARGETS:
        raise InputError(f"unknown target {target!r}; known targets: {', '.join(TARGETS)}, perfetto")
    program = None
    with few_collections():
        on_phase("lowering")
        if target == "mscclpp":
            lowered = _program(schedule, options)
            made, program = [lowered.data], lowered.parsed
            on_phase("proving")
            findings = list(lowered.findings)
        elif target in READERS:
            made = TARGETS[target](schedule, options)
            on_phase("reading the file again")
            program = parse(made, target, f"the file for {target}")
            if target != "chakra":  # a Chakra trace names its root, the other formats do not
                program.root = layout_of(schedule.demand, 1, False).root
            on_phase("proving")
            findings = interpret(program)
        else:
            made = TARGETS[target](schedule, options)
            findings = prove_listing(made[0], target)
    if findings:
        raise InvalidScheduleError(f"the file for {target} would be wrong, please report this: {findings[0]}")
    return made, program


def parse(made: list[bytes], target: str, name: str) -> RuntimeProgram:
    """Return the program in the contents of a file, or of one file per rank; error messages call the file `name`."""
    if target == "chakra":
        return parse_chakra(made, name)
    return parse_mscclpp(made[0], name) if target == "mscclpp" else parse_xml(made[0], name, target)


def export_directory(
    schedules: Sequence[Schedule], target: str, folder: str | Path, options: ExportOptions | None = None
) -> list[Path]:
    """Write a folder of files with disjoint size ranges, as MSCCL_ALGO_DIR expects, and return the files.

    Each schedule serves the sizes from its own size (the smallest schedule: from `min_bytes`) up to the next larger
    schedule of the same collective (the largest schedule: up to `max_bytes`). Either all files are written or none.
    """
    return [path for one in export_folder(schedules, target, folder, options or ExportOptions()) for path in one.paths]


def export_folder(
    schedules: Sequence[Schedule],
    target: str,
    folder: str | Path,
    options: ExportOptions,
    on_phase: Callable[[str], None] = lambda text: None,
) -> list[Exported]:
    """Write a folder of files, as `export_directory` does, and return each schedule's file and program."""
    if target not in _FOLDER_TARGETS:
        raise InputError(f"a folder of size ranges is for msccl, executor and rccl, not for {target}")
    folder = Path(folder)
    stray = [file.name for file in folder.iterdir() if file.suffix != ".xml"] if folder.is_dir() else []
    if stray:
        raise InputError(f"{folder}: contains {stray[0]}; the loaders parse every file of the folder, so keep only XML")
    if not folder.is_dir() and (folder.exists() or not folder.parent.is_dir()):
        raise InputError(f"{folder}: must be a folder, or a new folder inside an existing one")
    made: dict[Path, bytes] = {}
    written = []
    for schedule, low, high in _size_ranges(schedules, options):
        chosen = replace(options, min_bytes=low, max_bytes=high)
        place = "in" if options.inplace else "out"
        name = f"{schedule.demand.collective}-{schedule.demand.num_gpus}-{place}-{low:016d}.xml"
        contents, program = prove(schedule, target, chosen, on_phase)
        made[folder / name] = contents[0]
        written.append(Exported(schedule, [folder / name], program))
    folder.mkdir(exist_ok=True)
    _write_all(made)
    return written


def _size_ranges(schedules: Sequence[Schedule], options: ExportOptions) -> list[tuple[Schedule, int, int]]:
    """Return every schedule with its range of sizes, both ends included; 0 means no upper end."""
    groups: dict[tuple[str, int], list[Schedule]] = {}
    for schedule in schedules:
        groups.setdefault((schedule.demand.collective, schedule.demand.num_gpus), []).append(schedule)
    result = []
    for (name, _), group in groups.items():
        group.sort(key=lambda schedule: schedule.demand.size_bytes)
        sizes = [schedule.demand.size_bytes for schedule in group]
        if len(set(sizes)) < len(sizes):
            raise InputError(f"two schedules of {name} are for the same size; their sizes must differ")
        lows = [options.min_bytes, *sizes[1:]]
        highs = [*(size - 1 for size in sizes[1:]), options.max_bytes]
        if options.min_bytes > sizes[0]:
            raise InputError(f"--min-bytes {options.min_bytes} is above the smallest size, {sizes[0]}")
        result += list(zip(group, lows, highs, strict=True))
    return result


def check(path: str | Path, target: str, root: int | None = None) -> tuple[RuntimeProgram, list[Finding]]:
    """Read a file as the target would and prove it: return the program and everything that is wrong with it.

    `root` is the root of the collective if the file does not name it; the default is 0.
    """
    if target not in READERS:
        raise InputError(f"files for {target} contain no program to interpret; known targets: {', '.join(READERS)}")
    try:
        program = READERS[target](path)
    except FileError as error:
        raise FileError(explain_mismatch(path, target) or str(error)) from None
    if root is not None:
        program.root = root
    return program, interpret(program)
