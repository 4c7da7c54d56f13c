"""Traces of exported files: the part of `flowccl export --to perfetto` that reads programs instead of schedules."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from flowccl.commands.parts import machine_with_faults
from flowccl.errors import FileError, InputError

if TYPE_CHECKING:
    from flowccl.export import RuntimeProgram


def trace_of_program(options: argparse.Namespace) -> bool:
    """Write the trace of an exported file; False, and nothing is written, if the input is a schedule."""
    from flowccl.export.formats.perfetto import program_trace
    from flowccl.export.proof.estimate import step_times
    from flowccl.files import json_format, write_bytes
    from flowccl.runtimes.profiles import PROFILES
    from flowccl.units import parse_bytes

    if len(options.schedule) > 1:
        raise InputError("perfetto: give one file; a trace shows one schedule")
    path = options.schedule[0]
    if (json_format(path) or "").startswith("flowccl-"):
        return False
    program, target = _program(path)
    if options.machine is None or options.size is None:
        raise InputError(f"{path} is an exported file: its trace needs --machine MACHINE and --size SIZE for the times")
    topology, size = machine_with_faults(options.machine, options), parse_bytes(options.size)
    times = step_times(program, topology, size, PROFILES.get(target))
    write_bytes(options.out, program_trace(program, times, topology.name, size))
    print(options.out)
    return True


def _program(path: str) -> "tuple[RuntimeProgram, str]":
    """The program in an exported file of any target, recognized by its contents, and the target."""
    from flowccl.export import READERS, check

    if not Path(path).exists() and not Path(f"{path}.0.et").exists():
        raise FileError(f"{path}: no such file")
    first = Path(path).read_bytes()[:4096].lstrip() if Path(path).is_file() else b""
    names = ("msccl", "executor", "rccl") if first[:1] == b"<" else ("mscclpp",) if first[:1] == b"{" else ("chakra",)
    problem: FileError | None = None
    for target in names:
        try:
            program, findings = check(path, target)
        except FileError as error:
            problem = problem or error
            continue
        if findings:
            raise InputError(f"{path}: {findings[0]}; `flowccl check-export {path} --to {target}` lists all errors")
        return program, target
    raise FileError(f"{path} is neither a schedule nor a file for {', '.join(READERS)}: {problem}")
