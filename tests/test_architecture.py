"""The house keeps its own rules (architecture.md): who may import whom, one name per thing, everything documented."""

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import flowccl

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "flowccl"
MODULES = sorted(PACKAGE.rglob("*.py"))

GROUND = {"errors", "units", "version", "files", "kernels"}  # what everybody may use
MACHINE = GROUND | {"topology"}
DEMAND = MACHINE | {"demand"}
ANSWER = DEMAND | {"schedule"}
JUDGE = ANSWER | {"check"}
ROOMS = {  # room: what it may import, besides itself
    "errors": set(),
    "units": {"errors"},
    "version": set(),
    "files": {"errors", "units"},
    "kernels": set(),
    "solver": {"errors", "units"},
    "topology": GROUND,
    "demand": MACHINE,
    "schedule": DEMAND,
    "check": ANSWER | {"solver"},
    "methods": JUDGE | {"solver"},
    "export": ANSWER,
    "run": ANSWER | {"export"},
    "profile": ANSWER | {"run"},
    "plot": JUDGE,
    "result": JUDGE,
    "show": JUDGE | {"result", "tenants"},
    "synthesis": JUDGE | {"methods", "result"},
    "compact": JUDGE | {"methods"},
}
ONLY_IN = {  # package: where it may be imported
    "highspy": ("solver/highs.py",),
    "gurobipy": ("solver/gurobi.py",),
    "torch": ("run/", "torch.py"),
    "mpi4py": ("run/",),
    "matplotlib": ("plot/",),
}


def where(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room(path: Path) -> str:
    return where(path).split("/")[0].removesuffix(".py")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[tuple[str, ast.stmt]]:
    """Every imported module by its full name, anywhere in the file, with the statement."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{where(path)}: imports are absolute"
            names = [node.module or ""]
            if node.module == "flowccl":
                names = [f"flowccl.{alias.name}" for alias in node.names]
            yield from ((name, node) for name in names)


def test_there_are_modules_to_look_at():
    assert len(MODULES) > 40
    assert set(ROOMS) <= {room(path) for path in MODULES}


@pytest.mark.parametrize("path", MODULES, ids=where)
def test_imports_point_back_to_the_left(path):
    here = room(path)
    if here not in ROOMS:  # the front of the house: cli and the commands behind it
        return
    for name, _ in imports(path):
        package, _, rest = name.partition(".")
        if package == "flowccl":
            other = rest.split(".")[0]
            assert other == here or other in ROOMS[here], f"{here} must not import {name}"


def test_only_the_command_line_knows_the_command_line():
    for path in MODULES:
        if room(path) not in ("cli", "commands", "__main__"):
            for name, _ in imports(path):
                assert not name.startswith(("flowccl.cli", "flowccl.commands")), where(path)


@pytest.mark.parametrize("package", ONLY_IN)
def test_heavy_packages_live_in_one_place(package):
    found = [where(path) for path in MODULES for name, _ in imports(path) if name.split(".")[0] == package]
    assert found
    assert [at for at in found if not at.startswith(ONLY_IN[package])] == []


def test_numba_is_imported_in_one_place_and_used_only_by_kernels():
    for path in MODULES:
        for name, _ in imports(path):
            assert name.split(".")[0] != "numba" or where(path) == "kernels.py", where(path)
            assert name != "flowccl.compiled" or path.stem.endswith("kernels"), where(path)


def test_slow_packages_are_loaded_where_they_are_used():
    """At the top of a module that `import flowccl` loads, they would make it slow; test_cli looks at the result."""
    slow = {"highspy", "gurobipy", "matplotlib", "mpi4py"}
    for path in MODULES:
        at_start = room(path) in ("topology", "demand", "schedule", "check") and not path.stem.endswith("kernels")
        tree = parsed(path)
        for name, node in imports(path):
            if node in tree.body:
                assert name.split(".")[0] not in slow | ({"scipy"} if at_start else set()), f"{where(path)}: {name}"
                assert not (at_start and name.startswith("flowccl") and name.endswith("kernels")), where(path)


def test_only_the_command_line_prints():
    for path in MODULES:
        if room(path) in ("cli", "commands") or where(path).startswith("run/"):  # its children print
            continue
        for node in ast.walk(parsed(path)):
            assert not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"), where(path)


def test_asserts_only_tell_the_type_checker_that_something_is_there():
    """Input is checked with errors that name it; python -O would leave asserts out."""
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Assert):
                assert ast.unparse(node.test).endswith(" is not None"), f"{where(path)}: {ast.unparse(node)}"


def test_all_matches_the_public_names():
    """What a type checker sees, what is imported when asked for, and `__all__` are the same names."""
    checked = next(node for node in parsed(PACKAGE / "__init__.py").body if isinstance(node, ast.If))
    seen = {alias.name for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(flowccl.__all__) == set(flowccl._MODULE_OF)
    assert list(flowccl.__all__) == sorted(flowccl.__all__, key=lambda name: (not name.isupper(), name))
    for name in flowccl.__all__:
        assert hasattr(flowccl, name)
    with pytest.raises(AttributeError, match="has no attribute 'synthesise'"):
        flowccl.synthesise  # noqa: B018


def test_importing_the_package_loads_nothing_large():
    """So that Ctrl-C is heard from the first moment, see `__main__`."""
    asked = "import sys, flowccl; print('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.parametrize("name", [name for name in flowccl.__all__ if name != "VERSION"])
def test_every_public_name_is_documented(name):
    thing = getattr(flowccl, name)
    assert inspect.getdoc(thing), name
    if not inspect.isclass(thing):
        return
    for member, value in vars(thing).items():
        is_code = callable(value) or isinstance(value, property | classmethod | staticmethod) or hasattr(value, "func")
        if is_code and not member.startswith("_"):
            function = getattr(value, "func", None) or getattr(value, "fget", None) or getattr(value, "__func__", value)
            assert function.__doc__, f"{name}.{member}"


@pytest.mark.parametrize("path", MODULES, ids=where)
def test_every_module_says_what_it_is(path):
    assert ast.get_docstring(parsed(path))


def test_every_folder_of_tests_and_of_the_package_is_a_package():
    for top in (ROOT / "tests", PACKAGE):
        folders = {path.parent for path in top.rglob("*.py")}
        assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_test_folders_mirror_the_package():
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert folders <= rooms
