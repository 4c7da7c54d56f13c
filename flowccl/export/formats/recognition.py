"""Recognizing files: when a reader refuses a file, say what the file is instead of quoting the first missing key."""

from pathlib import Path
from typing import Any

from flowccl.errors import FileError
from flowccl.files import parse_json, read_bytes

_MAX_BYTES = 256_000_000
_XML = ("msccl", "executor", "rccl")
_NAMES = {
    "msccl": "an MSCCL XML file",
    "executor": "an MSCCL XML file",
    "rccl": "an MSCCL XML file",
    "mscclpp": "an MSCCL++ execution plan",
    "msccl-json": "an msccl-tools JSON file",
    "teccl": "a TE-CCL result",
    "chakra": "a set of Chakra traces",
}
_KEYS = {
    "mscclpp": "collective, protocol, gpus ...",
    "msccl-json": "collective, steps ...",
    "teccl": "6-Demand_Met, 7-Flows ...",
}
_OWN = "flowccl-"  # the "format" of flowccl's own files begins with this


def explain_mismatch(path: str | Path, target: str) -> str | None:
    """Return why a file is not an exported file for a target; None if the file seems to be one, or is unreadable."""
    try:
        data = read_bytes(Path(path), _MAX_BYTES)
        if data.lstrip()[:5] == b"<algo":
            return None if target in _XML else _other_target(path, _XML, target)
        if data.lstrip()[:1] not in (b"{", b"["):
            return None
        value = parse_json(data, str(path))
    except FileError:
        return None
    own = _own_format(value)
    if own is not None:
        fix = "export it first: flowccl export" if own.endswith("schedule") else "give a file that flowccl export wrote"
        return f"{path} is a flowccl {own}, not an exported program; {fix}"
    found = _json_target(value)
    if found is None:
        name, keys = _NAMES[target], _KEYS.get(target)
        problem = f"not {name}" if keys is None else f"without the keys of {name} ({keys})"
        return f"{path} is not an exported program: it is JSON, {problem}"
    return None if found == target else _other_target(path, (found,), target)


def _other_target(path: str | Path, found: tuple[str, ...], target: str) -> str:
    options = " or ".join(f"--to {name}" for name in found)
    return f"{path} is {_NAMES[found[0]]}, not {_NAMES[target]}; check it with {options}"


def _own_format(value: Any) -> str | None:
    """Return the kind of a file that flowccl itself reads, such as "topology"; None for other files."""
    said = value.get("format") if isinstance(value, dict) else None
    return said.removeprefix(_OWN).replace("-", " ") if isinstance(said, str) and said.startswith(_OWN) else None


def _json_target(value: Any) -> str | None:
    """Return the target whose JSON format a value seems to have, though it may be incomplete."""
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("gpus"), list) or {"collective", "protocol", "inplace"} <= value.keys():
        return "mscclpp"
    if "msccl_type" in value or {"collective", "steps"} <= value.keys():
        return "msccl-json"
    return "teccl" if "7-Flows" in value else None
