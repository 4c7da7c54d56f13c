"""Fields of a topology JSON file: each is checked, and the message says where it is."""

import json
from collections.abc import Callable
from typing import Any

from flowccl.errors import InputError, TopologyError
from flowccl.topology.machines import nearest
from flowccl.units import parse_bytes


def check_keys(value: Any, place: str, known: tuple[str, ...], needed: dict[str, str]) -> None:
    """Refuse what is no object, has a key that is not known, or lacks one that is needed (given with an example)."""
    where = f"{place}: " if place else ""
    if not isinstance(value, dict):
        raise TopologyError(f"{where}must be an object, got {show(value)}")
    for key in value:
        if key not in known:
            hint = nearest(key, known) or f"; known are {', '.join(known)}"
            raise TopologyError(f"{where}unknown key {show(key)}{hint}")
    for key, example in needed.items():
        if key not in value:
            raise TopologyError(f'{where}"{key}" is missing; write for example "{key}": {example}')


def entry_count(fields: dict[str, Any], place: str, patterns: tuple[str, ...], room: int, bound: str) -> int | None:
    """How many nodes or links an entry with "count" makes; None where it has no "count"."""
    count = fields.get("count")
    if "count" in fields and (type(count) is not int or count < 1):
        raise TopologyError(f"{place}: count must be a whole number from 1, got {show(count)}")
    if (count or 1) > room:
        raise TopologyError(f"{place}: {bound}")
    if count is not None and not any("{}" in str(fields[key]) for key in patterns):
        raise TopologyError(f'{place}: count needs {{}} in {" or ".join(patterns)} for the number, as in "gpu{{}}"')
    return count


def text_field(value: Any, place: str, key: str) -> str:
    """A text that can be written to a file."""
    where = f"{place}: " if place else ""
    if not isinstance(value, str):
        raise TopologyError(f"{where}{key} must be a text, got {show(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise TopologyError(f"{where}{key} must be text that can be written as UTF-8, got {show(value)}") from None
    return value


def numbered(pattern: str, number: str, place: str, key: str) -> str:
    """A text of an entry with "count", with the number in the place of {}."""
    if len(pattern) > 1000:
        raise TopologyError(f"{place}: {key} with count must be at most 1,000 characters, got {len(pattern):,}")
    return pattern.replace("{}", number)


def flag_field(value: Any, place: str, key: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise TopologyError(f"{place}: {key} must be true or false, got {show(value)}")
    return value


def quantity_field(parse: Callable[[str | float, str], float], value: Any, place: str, key: str) -> float:
    """A bandwidth or a time, as `parse` of flowccl.units reads it."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TopologyError(f"{place}: {key} must be a number or a text with a unit, got {show(value)}")
    try:
        return parse(value, key)
    except OverflowError:
        raise TopologyError(f"{place}: {key} is too large, got {show(value)}") from None
    except InputError as error:
        raise TopologyError(f"{place}: {error}") from None


def buffer_field(value: Any, place: str) -> int:
    """Bytes of a buffer."""
    if type(value) is int and 0 <= value <= 2**60:  # exact, and 0 is allowed: keeps nothing for others
        return value
    return int(quantity_field(lambda size, _: parse_bytes(size), value, f"{place}: buffer", "size"))


def show(value: Any) -> str:
    """A JSON value in a message: texts and numbers as they are, cut where long; others by their kind."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list" if value else "an empty list"
    if not isinstance(value, str | int | float | None):
        return f"a Python {type(value).__name__}"
    text = json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace").decode()
    return text if len(text) <= 60 else f"{text[:57]}..."
