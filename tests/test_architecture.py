"""The architecture of CONTRIBUTING.md: import order, no cycles, one name per thing, complete docstrings."""

import ast
import inspect
import subprocess
import sys
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import flowccl
from tests.source import MODULES, PACKAGE, ROOT, nodes, parsed, text

BASE = {"arrays", "errors", "units", "version", "files", "wording", "by_name"}
DEMAND = BASE | {"topology", "demand"}
SCHEDULE = DEMAND | {"schedule"}
CHECKS = SCHEDULE | {"bounds", "verifier"}
METHODS = CHECKS | {"problem", "search", "methods"}
LAYERS = {  # package or module: the packages and modules that it may import, all of which are listed before it
    "errors": set(),
    "version": set(),
    "wording": set(),
    "by_name": set(),
    "arrays": set(),
    "portable": set(),
    "compile_cache": set(),
    "references": set(),
    "machine_code": {"compile_cache", "references"},
    "compiled": {"machine_code"},
    "units": {"errors"},
    "files": {"errors", "units"},
    "solver": {"errors"},
    "topology": BASE | {"compiled"},
    "runtimes": BASE | {"topology"},
    "demand": BASE | {"topology"},
    "schedule": DEMAND | {"compiled", "runtimes"},
    "bounds": DEMAND | {"portable", "solver"},
    "verifier": SCHEDULE | {"bounds", "runtimes"},
    "problem": DEMAND,
    "search": SCHEDULE | {"bounds", "problem"},
    "adapters": SCHEDULE | {"portable", "problem", "runtimes", "search"},
    "methods": CHECKS | {"problem", "search", "adapters", "solver", "portable", "compiled"},
    "papers": METHODS | {"compiled", "portable", "solver"},
    "memory": DEMAND,
    "export": SCHEDULE | {"compiled", "memory", "runtimes"},
    "compilation": METHODS | {"compile_cache", "compiled", "export"},
    "auto": METHODS | {"runtimes"},
    "lowered": SCHEDULE | {"export", "runtimes"},
    "result": CHECKS | {"lowered"},
    "synthesis": METHODS | {"memory", "adapters", "auto", "compilation", "lowered", "result", "runtimes"},
    "resharding": METHODS | {"adapters", "result", "runtimes", "synthesis"},
    "moe": CHECKS | {"compiled", "result", "runtimes"},
    "analysis": METHODS | {"papers", "result", "synthesis"},
    "explain": CHECKS,
    "catalog": METHODS | {"adapters", "export", "lowered", "runtimes", "result", "synthesis"},
    "faults": METHODS | {"adapters", "catalog", "export", "lowered", "result", "runtimes", "synthesis"},
    "adaptive": METHODS | {"catalog", "lowered"},
    "jobs": METHODS | {"catalog", "runtimes", "lowered", "result", "synthesis"},
    "run": SCHEDULE | {"export", "memory", "runtimes"},
    "torch": SCHEDULE | {"adaptive", "catalog", "moe", "resharding", "run"},
    "profile": SCHEDULE | {"export", "run", "runtimes"},
    "plot": SCHEDULE,
    "notebook": SCHEDULE | {"result", "plot"},
    "report": CHECKS | {"catalog", "explain", "jobs", "lowered", "plot", "runtimes"},
    "show": CHECKS | {"result", "synthesis"},
}
COMMAND_LINE = {"__init__", "__main__", "cli", "commands"}  # these may import every layer
LOADED_BY_METHODS = ("schedule/generation/job_shop.py",)  # early packages do not import these modules
ONLY_IN = {  # package of others: where it may be imported
    "highspy": ("solver/highs.py",),
    "gurobipy": ("solver/gurobi.py",),
    "numba": ("compiled.py", "machine_code.py", "references.py"),
    "torch": ("run/", "torch/"),
    "mpi4py": ("run/",),
    "matplotlib": ("plot/",),
    "joblib": ("catalog/engine.py",),
    "distributed": ("catalog/engine.py",),
    "ray": ("catalog/engine.py",),
    "bokeh": ("report/",),
}


def place(path: Path) -> str:
    """The path of a module inside the package."""
    return path.relative_to(PACKAGE).as_posix()


def layer(path: Path) -> str:
    """The package or top-level module to which a module belongs."""
    return place(path).split("/")[0].removesuffix(".py")


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


NAMES = {module_name(path) for path in MODULES}


@cache
def imports(path: Path) -> list[tuple[str, ast.stmt]]:
    """Every imported module by its full name, anywhere in the file, with the import statement."""
    found: list[tuple[str, ast.stmt]] = []
    for node in nodes(path, ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            found += [(alias.name, node) for alias in node.names]
            continue
        assert node.level == 0, f"{place(path)}: imports are absolute"
        source = node.module or ""
        full = [f"{source}.{alias.name}" for alias in node.names]
        found += [(name if name in NAMES or source == "flowccl" else source, node) for name in full]
    return found


def test_the_table_lists_every_layer_in_import_order():
    assert {layer(path) for path in MODULES} == set(LAYERS) | COMMAND_LINE
    order = list(LAYERS)
    assert [name for name, may in LAYERS.items() if may - set(order[: order.index(name)])] == []


def test_every_import_is_allowed_by_the_table():
    found = []
    for path in MODULES:
        here = layer(path)
        for name, _ in imports(path):
            package, _, rest = name.partition(".")
            other = rest.split(".")[0]
            if package == "flowccl" and here in LAYERS and other not in LAYERS[here] | {here}:
                found.append(f"{place(path)} imports {name}")
    assert found == []


def test_modules_do_not_import_each_other_in_cycles():
    """Imports inside functions and for the type checker count too."""
    graph = {
        module_name(path): {name for name, _ in imports(path) if name in NAMES} - {module_name(path)}
        for path in MODULES
        if path != PACKAGE / "__init__.py"  # the public names: the type checker sees them in every module
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))


def test_no_two_classes_share_a_name():
    found = defaultdict(list)
    for path in MODULES:
        for node in nodes(path, ast.ClassDef):
            found[node.name].append(place(path))
    assert {name: at for name, at in found.items() if len(at) > 1} == {}


def test_no_two_modules_of_compiled_loops_share_a_name():
    found = defaultdict(list)
    for path in MODULES:
        if path.stem.endswith("kernels"):
            found[path.name].append(place(path))
    assert {name: at for name, at in found.items() if len(at) > 1} == {}


@pytest.mark.parametrize("package", ONLY_IN)
def test_large_packages_are_imported_in_one_place(package):
    found = [place(path) for path in MODULES for name, _ in imports(path) if name.split(".")[0] == package]
    assert found
    assert [at for at in found if not at.startswith(ONLY_IN[package])] == []


def test_only_modules_of_compiled_loops_compile():
    found = [place(path) for path in MODULES for name, _ in imports(path) if name == "flowccl.compiled"]
    assert [at for at in found if not at.endswith("kernels.py")] == ["compilation.py"]  # which asks what was compiled


def test_slow_packages_are_loaded_where_they_are_used():
    """At the top of a module that the command line loads first, they delay its start; test_cli measures the result."""
    slow = {"highspy", "gurobipy", "matplotlib", "mpi4py"}
    found = []
    for path in MODULES:
        early = layer(path) in ("topology", "demand", "schedule", "verifier", "bounds")
        early = early and not path.stem.endswith("kernels") and place(path) not in LOADED_BY_METHODS
        for name, node in imports(path):
            if node in parsed(path).body:
                is_slow = name.split(".")[0] in slow | ({"scipy"} if early else set())
                if is_slow or (early and name.startswith("flowccl") and name.endswith("kernels")):
                    found.append(f"{place(path)} imports {name} at its top")
    assert found == []


def test_only_the_command_line_prints():
    found = []
    for path in MODULES:
        if layer(path) in ("cli", "commands") or place(path).startswith("run/"):  # the processes of `run` print
            continue
        for node in nodes(path, ast.Call):
            if getattr(node.func, "id", "") == "print":
                found.append(f"{place(path)}:{node.lineno}")
    assert found == []


def test_asserts_only_exclude_none_for_the_type_checker():
    """Input is checked with errors that name it: python -O removes asserts."""
    found = []
    for path in MODULES:
        for node in nodes(path, ast.Assert):
            if not ast.unparse(node.test).endswith(" is not None"):
                found.append(f"{place(path)}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


def test_all_matches_the_public_names():
    """The names that a type checker sees, the names that are imported on first use, and `__all__` are the same."""
    checked = next(node for node in parsed(PACKAGE / "__init__.py").body if isinstance(node, ast.If))
    seen = {alias.name for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(flowccl.__all__) == set(flowccl._MODULE_OF)
    assert list(flowccl.__all__) == sorted(flowccl.__all__, key=lambda name: (not name.isupper(), name))
    for name in flowccl.__all__:
        assert hasattr(flowccl, name)
    with pytest.raises(AttributeError, match="has no attribute 'synthesise'"):
        flowccl.synthesise  # noqa: B018


def test_no_package_hides_a_public_name():
    """Importing flowccl.X.Y sets the attribute X of flowccl, which must not replace a public function X."""
    assert {layer(path) for path in MODULES} & set(flowccl.__all__) == set()


def test_importing_the_package_loads_nothing_large():
    """`__main__` can then react to Ctrl-C from the start."""
    script = "import sys, flowccl; print('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "False\n"


def test_every_public_name_is_documented():
    missing = []
    for name in flowccl.__all__:
        thing = getattr(flowccl, name)
        if name != "VERSION" and not inspect.getdoc(thing):
            missing.append(name)
        if not inspect.isclass(thing):
            continue
        for member, value in vars(thing).items():
            is_code = callable(value) or isinstance(value, property | classmethod | staticmethod)
            function = getattr(value, "func", None) or getattr(value, "fget", None) or getattr(value, "__func__", value)
            if (is_code or hasattr(value, "func")) and not member.startswith("_") and not function.__doc__:
                missing.append(f"{name}.{member}")
    assert missing == []


def test_every_module_has_a_docstring():
    assert [place(path) for path in MODULES if not ast.get_docstring(parsed(path))] == []


def test_every_folder_of_tests_and_of_the_package_is_a_package():
    for top in (ROOT / "tests", PACKAGE):
        folders = {path.parent for path in top.rglob("*.py")}
        assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_test_folders_mirror_the_package():
    packages = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert folders - {"gpu", "simgrid"} <= packages  # what runs on a real GPU, and against a simulator


MOST_LINES, MOST_IN_FUNCTION = 400, 60


def test_files_and_functions_are_short():
    """No file is longer than 400 lines, no function longer than 60."""
    files = {place(path) for path in MODULES if len(text(path).splitlines()) > MOST_LINES}
    functions = {
        f"{place(path)}:{node.name}"
        for path in MODULES
        for node in nodes(path, ast.FunctionDef)
        if node.end_lineno - node.lineno >= MOST_IN_FUNCTION
    }
    assert files == set()
    assert functions == set()
