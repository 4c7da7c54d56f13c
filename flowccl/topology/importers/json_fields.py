"""Checks of the fields of other tools' JSON files."""

import math
from pathlib import Path
from typing import Any

from flowccl.errors import FileError
from flowccl.files import read_json
from flowccl.topology.fields import show

MAX_BYTES = 64_000_000


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    value = read_json(path, MAX_BYTES)
    if not isinstance(value, dict):
        raise FileError(f"{path}: must contain a JSON object, got {show(value)}")
    return value


def whole(value: Any, where: str, low: int, high: int) -> int:
    """Return a whole number from `low` to `high`."""
    if type(value) is not int or not low <= value <= high:
        raise FileError(f"{where}: must be a whole number, {low} to {high}, got {show(value)}")
    return value


def positive(value: Any, where: str) -> float:
    """Return a number above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise FileError(f"{where}: must be a number above 0, got {show(value)}")
    return float(value)


def not_negative(value: Any, where: str) -> float:
    """Return a number of at least 0."""
    return 0.0 if type(value) in (int, float) and value == 0 else positive(value, where)
