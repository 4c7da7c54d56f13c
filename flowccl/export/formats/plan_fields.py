"""Fields of MSCCL++ plans, with messages that say where a plan is malformed."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


class PlanError(Exception):
    """A part of the plan is missing or malformed."""


def field_of(value: Any, key: str, kind: type, where: str) -> Any:
    """Return a field of a kind."""
    if not isinstance(value, dict):
        raise PlanError(f"{where}: must be an object")
    if key not in value:
        raise PlanError(f"{where}: {key} is missing")
    found = value[key]
    if type(found) is not kind:
        raise PlanError(f"{where}: {key} must be {_WORDS[kind]}, got {str(found)[:40]!r}")
    return found


_WORDS: dict[type, str] = {int: "a whole number", str: "text", list: "a list", bool: "true or false", dict: "an object"}


def numbers_of(value: Any, key: str, where: str, low: int, high: int) -> list[int]:
    """Return a list of whole numbers within limits."""
    found: list[Any] = field_of(value, key, list, where)
    for number in found:
        if type(number) is not int or not low <= number <= high:
            raise PlanError(f"{where}: {key} must contain whole numbers, {low} to {high}, got {str(number)[:40]!r}")
    return found


def number_of(value: Any, key: str, where: str, low: int = 0, high: int = 2**62) -> int:
    """Return a whole number within limits."""
    found: int = field_of(value, key, int, where)
    if not low <= found <= high:
        raise PlanError(f"{where}: {key} must be {low} to {high}, got {found}")
    return found


def blocks_of(plan: Any, ranks: int) -> NDArray[np.int64]:
    """Return the chunks that each rank sends to each other one, in a plan of an alltoallv."""
    rows = field_of(plan, "block_chunks", list, "plan")
    if len(rows) != ranks or any(type(row) is not list or len(row) != ranks for row in rows):
        raise PlanError(f"plan: block_chunks must have {ranks} rows of {ranks} numbers")
    for row in rows:
        numbers_of({"block_chunks": row}, "block_chunks", "plan", 0, 2**31 - 1)
    return np.array(rows, dtype=np.int64).reshape(ranks, ranks)
