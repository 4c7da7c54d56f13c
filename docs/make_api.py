"""Write docs/api.md, the API reference, from the signatures and docstrings of the public names: `make docs`."""

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import flowccl

PAGE = Path(__file__).with_name("api.md")
SECTIONS = {  # heading: module: names
    "Synthesis": {"flowccl": "synthesize SearchOptions Result Progress"},
    "Machines": {"flowccl": "machine read_machine with_faults load_topology save_topology Topology Node Link Limit"},
    "Demands": {"flowccl": "collective load_demand Demand Chunk"},
    "Weights between layouts": {
        "flowccl": "reshard ReshardResult ReshardPlan Layout load_layout save_layout load_plan save_plan",
    },
    "Schedules": {"flowccl": "Schedule load_schedule save_schedule left_shift prune reverse concatenate"},
    "Verification, lower bounds, metrics": {"flowccl": "verify Violation lower_bound Bound measure Metrics"},
    "Errors": {"flowccl": "FlowcclError"},
    "Import of machines": {"flowccl.topology.importers": "import_machine ImportOptions Imported"},
    "Explanation": {"flowccl.explain": "explain Explanation PathStep LinkOnPath Gain finish_if_faster describe"},
    "Reports": {"flowccl.report": "save_report report_html"},
    "Export": {
        "flowccl.export": "export export_directory ExportOptions check RuntimeProgram Finding check_listing",
    },
    "Logs of jobs": {
        "flowccl.jobs": "read_logs read_file Logs Calls Group LogSource",
        "flowccl.jobs.audit": "audit Audit",
        "flowccl.jobs.rows": "AuditRow",
    },
    "Execution": {"flowccl.run.reference": "execute"},
    "Writing a method": {
        "flowccl.methods.method_info": "MethodInfo",
        "flowccl.methods.registry": "register",
        "flowccl.problem": "Problem",
        "flowccl.search.context": "SearchContext",
        "flowccl.search.budget": "Budget",
    },
}
INTRODUCTION = """# API reference

`make docs` writes this page from the docstrings; edit those instead of this page. `flowccl` exports all names up to
[Errors](#errors) at its top level, for example `from flowccl import synthesize`. The other sections name the module to
import from.
"""


def page() -> str:
    """Return the whole page."""
    public = set(flowccl.__all__) - {"VERSION"}
    listed = {name for modules in SECTIONS.values() for name in modules.get("flowccl", "").split()}
    if listed != public:
        raise SystemExit(f"docs/make_api.py: correct SECTIONS for {', '.join(sorted(listed ^ public))}")
    parts = [INTRODUCTION]
    for heading, modules in SECTIONS.items():
        parts.append(f"## {heading}\n")
        for module, names in modules.items():
            if module != "flowccl":
                parts.append(f"From `{module}`:\n")
            parts += [part for name in names.split() for part in described(getattr(import_module(module), name))]
        if heading == "Errors":
            parts.append("\n".join(subclasses(flowccl.FlowcclError, 0)) + "\n")
    parts.append("## Version\n\n`flowccl.VERSION`, also `flowccl.__version__`, is the version as a string.\n")
    return "\n".join(parts)


def described(thing: type | object) -> Iterator[str]:
    """Yield the Markdown of one function or class."""
    source = definition(thing)
    yield f"### {source.name}\n"
    if isinstance(source, ast.FunctionDef):
        yield code(signature(source))
        yield prose(source)
        return
    tables = [base for base in getattr(thing, "__mro__", ())[1:] if dataclasses.is_dataclass(base)]
    body = [node for table in tables[::-1] for node in definition(table).body] + source.body
    fields = [f"    {ast.unparse(node)}" for node in body if isinstance(node, ast.AnnAssign)]
    bases = ", ".join(ast.unparse(base) for base in source.bases if not tables)
    first = f"class {source.name}({bases})" if bases else f"class {source.name}"
    yield code("\n".join([f"{first}:", *fields] if fields else [first]))
    yield prose(source)
    members = [node for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]
    if members:
        yield "\n".join(f"- {member(node)}" for node in members) + "\n"


def member(node: ast.FunctionDef) -> str:
    """Return the Markdown of one method or property of a class, on one line."""
    kinds = {ast.unparse(decorator) for decorator in node.decorator_list}
    text = " ".join((ast.get_docstring(node) or "").split())
    if kinds & {"property", "cached_property"}:
        return f"`{node.name}: {annotation(node.returns)}`. {text}"
    listed = arguments(node.args)[0 if "staticmethod" in kinds else 1 :]
    return f"`{node.name}({', '.join(listed)}) -> {annotation(node.returns)}`. {text}"


def signature(node: ast.FunctionDef) -> str:
    """Return the signature of a function; on several lines if it is long."""
    listed = arguments(node.args)
    line = f"{node.name}({', '.join(listed)}) -> {annotation(node.returns)}"
    if len(line) <= 120:
        return line
    return "\n".join(
        [f"{node.name}(", *(f"    {argument}," for argument in listed), f") -> {annotation(node.returns)}"]
    )


def arguments(node: ast.arguments) -> list[str]:
    """Return the arguments of a function as text, with annotations and defaults."""
    before = [None] * (len(node.args) - len(node.defaults))
    listed = [argument(*pair) for pair in zip(node.args, [*before, *node.defaults], strict=True)]
    by_name = [argument(*pair) for pair in zip(node.kwonlyargs, node.kw_defaults, strict=True)]
    return [*listed, "*", *by_name] if by_name else listed


def argument(node: ast.arg, default: ast.expr | None) -> str:
    """Return one argument as text."""
    name = f"{node.arg}: {annotation(node.annotation)}" if node.annotation else node.arg
    return name if default is None else f"{name} = {ast.unparse(default)}"


def annotation(node: ast.expr | None) -> str:
    """Return a type as text, without the quotes of forward references."""
    return "None" if node is None else re.sub(r"'([A-Za-z]\w*(\[.*\])?)'", r"\1", ast.unparse(node))


def prose(node: ast.FunctionDef | ast.ClassDef) -> str:
    """Return the docstring as Markdown; paragraphs that are tables of names become code blocks."""
    paragraphs = (ast.get_docstring(node) or "").split("\n\n")
    return "\n".join(code(one) if re.match(r"\S+ {2,}\S", one) else f"{one}\n" for one in paragraphs)


def subclasses(error: type, depth: int) -> Iterator[str]:
    """Yield the tree of errors as a nested list."""
    yield f"{'  ' * depth}- `{error.__name__}`: {inspect.getdoc(error)}"
    for below in error.__subclasses__():
        if below.__module__ == "flowccl.errors":
            yield from subclasses(below, depth + 1)


def code(text: str) -> str:
    """Return a code block."""
    return f"```text\n{text}\n```\n"


def definition(thing: object) -> ast.FunctionDef | ast.ClassDef:
    """Return the definition of a function or a class in its source."""
    module = inspect.getmodule(thing)
    name = getattr(thing, "__name__", "")
    for node in definitions(module):
        if node.name == name:
            return node
    raise SystemExit(f"docs/make_api.py: {name} is not defined in {module}")


@cache
def definitions(module: ModuleType) -> list[ast.FunctionDef | ast.ClassDef]:
    """Return all functions and classes of a module."""
    body = ast.parse(inspect.getsource(module)).body
    return [node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
