"""The tuned numbers: named constants and parameters on which the choices of a search depend."""

import ast
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import flowccl
from flowccl.methods.registry import REGISTRY

ROOT = Path(flowccl.__file__).parent
FOLDERS = ("methods", "auto", "adapters", "synthesis", "schedule/generation")  # their constants steer the search
_TOLERANCE = 1e-6  # a number as close to 0 or to 1 as this allows for rounding
_SENTINEL = 1 << 30  # larger whole numbers, and negative ones, stand for something else
_RATIO = (0.9, 1.2)  # a number in between is a ratio: its distance from 1 counts


@dataclass(frozen=True)
class TunedNumber:
    """A number, or several in a tuple: a constant of a module, a field of parameters, or a trait of a method."""

    path: str
    owner: str
    name: str
    value: Any

    def __str__(self) -> str:
        return f"{self.path}:{f'{self.owner}.' if self.owner else ''}{self.name}"

    @property
    def is_compiled(self) -> bool:
        """Whether compiled loops use it, in which it is fixed."""
        loops = [module for name, module in sys.modules.items() if name.endswith("_kernels")]
        public = not (self.owner or self.name.startswith("_"))
        return self.path.endswith("_kernels.py") or (public and any(self.name in vars(module) for module in loops))

    def set(self, value: Any) -> None:
        """Use another value from now on, in all modules that import it."""
        module = import_module("flowccl." + self.path.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))
        if self.owner in REGISTRY:
            info = REGISTRY[self.owner]
            REGISTRY[self.owner] = replace(info, traits=replace(info.traits, **{self.name: value}))
        elif self.owner:
            vars(module)[self.owner].__init__.__kwdefaults__[self.name] = value
        else:
            old = vars(module)[self.name]
            everywhere = () if self.name.startswith("_") else list(sys.modules.items())
            for name, other in everywhere:
                if name.startswith("flowccl.") and vars(other).get(self.name) == old:
                    setattr(other, self.name, value)
            setattr(module, self.name, value)

    def scaled(self, by: float) -> Any:
        """The value times a factor; of a ratio, its distance from 1; whole numbers stay whole, and at least 1."""
        return (
            tuple(_scaled(one, by) for one in self.value) if isinstance(self.value, tuple) else _scaled(self.value, by)
        )


@cache
def tuned_numbers() -> tuple[TunedNumber, ...]:
    """All tuned numbers, in the order of the files."""
    found: list[TunedNumber] = []
    for file in sorted(ROOT.rglob("*.py")):
        path, text = file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")
        in_search = path.startswith(tuple(f"{folder}/" for folder in FOLDERS))
        if not in_search and "Params" not in text:
            continue
        tree = ast.parse(text)
        if in_search:
            found += [TunedNumber(path, "", name, value) for name, value in _constants(tree.body, str.isupper)]
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name.endswith("Params"):
                found += [TunedNumber(path, node.name, *row) for row in _constants(node.body, str.islower)]
        if path == "methods/entries.py":
            found += [TunedNumber(path, *row) for row in _traits(tree)]
    return tuple(found)


def _constants(body: list[ast.stmt], wanted: Callable[[str], bool]) -> Iterator[tuple[str, Any]]:
    """Names with numbers that are assigned in a body."""
    for node in body:
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            pairs: Iterable[tuple[ast.expr, ast.expr | None]] = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=True)
            for name, number in pairs:
                if isinstance(name, ast.Name) and wanted(name.id) and (known := _number(number)) is not None:
                    yield name.id, known


def _traits(tree: ast.Module) -> Iterator[tuple[str, str, Any]]:
    """(method, trait, number) of the traits in the entries of methods."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) != "MethodInfo":
            continue
        fields = {word.arg: word.value for word in node.keywords}
        traits = fields.get("traits")
        for word in traits.keywords if isinstance(traits, ast.Call) else ():
            if (number := _number(word.value)) is not None:
                yield ast.literal_eval(fields["name"]), str(word.arg), number


def _number(node: ast.expr | None) -> Any:
    """The tuned number that an expression is, or the tuple of them; None for others."""
    plain = (ast.Constant, ast.Tuple, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context)
    if node is None or not all(isinstance(part, plain) for part in ast.walk(node)):
        return None
    value = eval(compile(ast.Expression(node), "", "eval"))  # only literals and operators
    parts = value if isinstance(value, tuple) else (value,)
    numbers = all(type(part) in (int, float) for part in parts)
    return value if numbers and any(_is_tuned(part) for part in parts) else None


def _is_tuned(value: float) -> bool:
    if min(abs(value), abs(value - 1)) <= _TOLERANCE:
        return False
    return isinstance(value, float) or 0 < value < _SENTINEL


def _scaled(value: Any, by: float) -> Any:
    if type(value) is int:
        return max(round(value * by), 1)
    return 1 + (value - 1) * by if _RATIO[0] < value < _RATIO[1] else value * by
