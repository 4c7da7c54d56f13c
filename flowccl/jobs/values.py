"""Values of logs: numbers, lists of numbers and sizes of tensors, read with care because logs may be damaged."""

import json
import re
from functools import lru_cache
from typing import Any

_INTEGER = re.compile(r"-?\d{1,19}")


def whole(value: Any, default: int = -1) -> int:
    """Return a whole number, also from text; the default where it is none."""
    if isinstance(value, bool) or value is None:
        return default
    if isinstance(value, int):
        return value if abs(value) < 2**62 else default
    if isinstance(value, float):
        return int(value) if abs(value) < 2**62 else default  # false for nan
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value)
    return default


def number(value: Any) -> float | None:
    """Return a finite number, also from text; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if abs(found) < 1e18 else None  # false for nan


def nanoseconds(us: Any, base_ns: int = 0) -> int:
    """Return microseconds as whole nanoseconds behind a base; -1 where it is no number."""
    found = number(us)
    if found is None or found < 0:
        return -1
    return base_ns + round(found * 1000)


def integers(value: Any) -> tuple[int, ...] | None:
    """Return a list of whole numbers, also from text such as "[1, 2]" or "1,2"; None where it is not complete.

    PyTorch cuts long lists and writes "..." at their end: such a list is not complete.
    """
    if isinstance(value, str):
        return _integers_of_text(value)
    if not isinstance(value, list | tuple):
        return None
    if all(type(item) is int for item in value):
        return tuple(value)
    return None


@lru_cache(maxsize=4096)  # logs repeat lists of ranks very often
def _integers_of_text(text: str) -> tuple[int, ...] | None:
    text = text.strip()
    if not text or "..." in text:
        return None
    try:
        value = json.loads(text if text.startswith("[") else f"[{text}]")
    except (ValueError, RecursionError):
        return None
    return integers(value) if isinstance(value, list) else None


def elements(dims: Any) -> int:
    """Return the number of elements of a tensor, or of all tensors of a list, from its sizes; -1 where unknown."""
    if not isinstance(dims, list | tuple):
        return -1
    if dims and all(isinstance(item, list | tuple) for item in dims):
        counts = [elements(item) for item in dims]
        return -1 if min(counts) < 0 else sum(counts)
    count = 1
    for item in dims:
        if type(item) is not int or item < 0:
            return -1
        count *= item
    return count if dims else -1


def proportional(total: int, parts: tuple[int, ...]) -> tuple[int, ...]:
    """Return a number of bytes divided as the parts are; empty where it does not divide evenly.

    >>> proportional(40, (1, 3))
    (10, 30)
    """
    everything = sum(parts)
    if everything <= 0 or min(parts) < 0 or total % everything:
        return ()
    return tuple(part * (total // everything) for part in parts)
