"""Reading XML safely: with a size limit, and without document type and entity declarations."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

from flowccl.errors import FileError
from flowccl.files import read_bytes

MAX_BYTES = 4_000_000  # the dump of a host has about 50 KB


def read_xml(path: Path, root: str) -> ET.Element:
    """Return the root element of an XML file; its tag must be `root`."""
    try:
        text = read_bytes(path, MAX_BYTES).decode()
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: not XML: byte {error.start} is not UTF-8") from None
    found = re.search(r"<!(?!--)", text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        raise FileError(f"{path}: line {line}: <!DOCTYPE and <!ENTITY are refused; remove them")
    try:
        top = ET.fromstring(text)
    except (ET.ParseError, ValueError) as error:
        raise FileError(f"{path}: not XML: {error}") from None
    if top.tag != root:
        raise FileError(f"{path}: must begin with <{root}>, got <{str(top.tag)[:60]}>")
    return top


def number(element: ET.Element, key: str, path: Path, default: float | None = None) -> float:
    """Return the finite number in an attribute; a prefix of 0x means hexadecimal."""
    text = element.get(key)
    if text is None and default is not None:
        return default
    try:
        value = float(int(text or "", 16) if str(text).startswith("0x") else float(str(text)))
    except (ValueError, OverflowError):
        value = float("nan")
    if not abs(value) < 1e15:
        raise FileError(f"{path}: <{element.tag}>: {key} must be a number, got {str(text)[:60]!r}")
    return value
