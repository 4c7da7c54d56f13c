"""Functions by name, imported when they are first used: so a table in the core can list what papers/ adds."""

from importlib import import_module
from typing import Any


def load(name: str) -> Any:
    """The object that "package.module:object" names."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
