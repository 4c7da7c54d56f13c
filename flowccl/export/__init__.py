"""Export: write a schedule as a file that MSCCL, RCCL, MSCCL++ or a simulator loads, and prove exported files.

    export(schedule, "msccl", "ag.xml")        write the file, within the limits of the target
    check("ag.xml", "msccl")                   read the file back and prove it

`TARGETS` lists all targets, `READERS` those whose files are programs that `check` interprets, and `LISTINGS` those
whose files are lists of sends that `check_listing` follows.
"""

from flowccl.export.exporting import (
    READERS,
    TARGETS,
    ExportOptions,
    check,
    export,
    export_directory,
    make,
    parse,
)
from flowccl.export.formats.listings import LISTINGS, check_listing
from flowccl.export.proof.program import Finding, RuntimeProgram

__all__ = [
    "LISTINGS",
    "READERS",
    "TARGETS",
    "ExportOptions",
    "Finding",
    "RuntimeProgram",
    "check",
    "check_listing",
    "export",
    "export_directory",
    "make",
    "parse",
]
