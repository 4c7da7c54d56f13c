"""Checks of the fields of JSON files; every message gives the position of the field."""

import json
from collections.abc import Callable
from typing import Any

from flowccl.errors import InputError, TopologyError
from flowccl.topology.machines import nearest
from flowccl.units import parse_bytes


def check_keys(value: Any, place: str, known: tuple[str, ...], needed: dict[str, str]) -> None:
    """Refuse values that are not objects, unknown keys, and missing keys (`needed` maps each to an example value)."""
    where = f"{place}: " if place else ""
    if not isinstance(value, dict):
        raise TopologyError(f"{where}must be an object, got {show(value)}")
    for key in value:
        if key not in known:
            hint = nearest(key, known) or f"; known keys are {', '.join(known)}"
            raise TopologyError(f"{where}unknown key {show(key)}{hint}")
    for key, example in needed.items():
        if key not in value:
            raise TopologyError(f'{where}"{key}" is missing; write for example "{key}": {example}')


def entry_count(fields: dict[str, Any], place: str, patterns: tuple[str, ...], most: int, message: str) -> int | None:
    """Return the number of nodes or links that an entry with "count" defines; None if it has no "count"."""
    count = fields.get("count")
    if "count" in fields and (type(count) is not int or count < 1):
        raise TopologyError(f"{place}: count must be a whole number of at least 1, got {show(count)}")
    if (count or 1) > most:
        raise TopologyError(f"{place}: {message}")
    if count is not None and not any("{}" in str(fields[key]) for key in patterns):
        raise TopologyError(f'{place}: count needs {{}} in {" or ".join(patterns)} for the number, as in "gpu{{}}"')
    return count


def text_field(value: Any, place: str, key: str) -> str:
    """Return a string that can be written to a file."""
    where = f"{place}: " if place else ""
    if not isinstance(value, str):
        raise TopologyError(f"{where}{key} must be a string, got {show(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise TopologyError(f"{where}{key} must be a string that can be encoded as UTF-8, got {show(value)}") from None
    return value


def numbered(pattern: str, number: str, place: str, key: str) -> str:
    """Return a string of an entry with "count", with {} replaced by the number."""
    if len(pattern) > 1000:
        raise TopologyError(f"{place}: {key} with count must be at most 1,000 characters, got {len(pattern):,}")
    return pattern.replace("{}", number)


def flag_field(value: Any, place: str, key: str) -> bool:
    """Return a Boolean."""
    if not isinstance(value, bool):
        raise TopologyError(f"{place}: {key} must be true or false, got {show(value)}")
    return value


def quantity_field(parse: Callable[[str | float, str], float], value: Any, place: str, key: str) -> float:
    """Return a bandwidth or a time, parsed by `parse` of flowccl.units."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TopologyError(f"{place}: {key} must be a number or a string with a unit, got {show(value)}")
    try:
        return parse(value, key)
    except OverflowError:
        raise TopologyError(f"{place}: {key} is too large, got {show(value)}") from None
    except InputError as error:
        raise TopologyError(f"{place}: {error}") from None


def buffer_field(value: Any, place: str) -> int:
    """Return the bytes of a buffer."""
    if type(value) is int and 0 <= value <= 2**60:  # exact; 0 is allowed and means that the node cannot forward data
        return value
    return int(quantity_field(lambda size, _: parse_bytes(size), value, f"{place}: buffer", "size"))


def show(value: Any) -> str:
    """Return a JSON value for a message: strings and numbers as written, shortened if long; others by type."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list" if value else "an empty list"
    if not isinstance(value, str | int | float | None):
        return f"a Python {type(value).__name__}"
    text = json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace").decode()
    return text if len(text) <= 60 else f"{text[:57]}..."
