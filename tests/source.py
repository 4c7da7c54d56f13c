"""The modules of the package, each read and parsed once."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "flowccl"
MODULES = sorted(PACKAGE.rglob("*.py"))


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(text(path))


@cache
def nodes(path: Path, *kinds: type[ast.AST]) -> list[ast.AST]:
    """All nodes of these kinds; of all kinds without them."""
    if not kinds:
        return list(ast.walk(parsed(path)))
    return [node for node in nodes(path) if isinstance(node, kinds)]
