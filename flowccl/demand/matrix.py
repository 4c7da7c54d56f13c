"""Byte matrices for alltoallv from files: a JSON list of rows, or CSV with one row per line."""

from pathlib import Path
from typing import Any

from flowccl.errors import DemandError, InputError
from flowccl.files import read_bytes, read_json
from flowccl.topology.fields import show
from flowccl.units import parse_bytes

MAX_FILE_BYTES = 200_000_000


def load_matrix(path: str | Path) -> list[list[int]]:
    """Return a byte matrix: rank s sends entry [s][d] to rank d. Entries of the file may have units, such as 2MB."""
    if str(path).endswith((".json", ".json.gz")):
        rows = read_json(path, MAX_FILE_BYTES)
    else:
        try:
            text = read_bytes(Path(path), MAX_FILE_BYTES).decode()
        except UnicodeDecodeError as error:
            raise DemandError(f"{path}: not CSV: byte {error.start} is not UTF-8") from None
        rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
        raise DemandError(f"{path}: must be a matrix, given as a list of rows, got {show(rows)}")
    widths = sorted({len(row) for row in rows})
    if widths != [len(rows)]:
        shape = " or ".join(map(str, widths))
        raise DemandError(f"{path}: the byte matrix must be square, got {len(rows)} rows of {shape} entries")
    return [[_entry(cell, f"{path}: entry [{s}][{d}]") for d, cell in enumerate(row)] for s, row in enumerate(rows)]


def _entry(cell: Any, where: str) -> int:
    if cell in (0, "0", "0.0") and not isinstance(cell, bool):
        return 0
    if type(cell) is int:
        if cell < 0:
            raise DemandError(f"{where} must be >= 0, got {cell}")
        return cell
    try:
        return parse_bytes(cell)
    except InputError as error:
        raise DemandError(f"{where}: {error}") from None
