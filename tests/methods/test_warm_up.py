"""All compiled loops that auto uses belong to the units of its methods, which are compiled before its time limit."""

import subprocess
import sys

import pytest

_LATE = """
import sys
from numba.core.registry import CPUDispatcher
import flowccl.compilation
import flowccl.synthesis.searching
from flowccl import synthesize
from flowccl.topology.machines import machine

def loaded():
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("flowccl")]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, CPUDispatcher)]
    return {(one.py_func.__name__, str(args)) for one in found for args in one.overloads}

before = []

def load_and_record(units, on_phase):
    flowccl.compilation.load(units)
    before.append(loaded())
    return 0.0

flowccl.synthesis.searching.compile_missing = load_and_record
synthesize(machine(sys.argv[1]), sys.argv[2], 64_000, runtime=sys.argv[3], steps=int(sys.argv[4]), gap=0.0)
assert before[0]
print(sorted(name for name, args in loaded() - before[0]))
"""


@pytest.mark.parametrize(
    ("name", "collective", "runtime", "steps"),
    [
        ("dgx1", "allgather", "ideal", 150),
        ("dgx1", "alltoall", "ideal", 150),
        ("dgx1", "allreduce", "ideal", 150),
        ("dgx_h100:2", "allreduce", "mscclpp", 30),
        ("dgx_h100:4", "alltoall", "mscclpp", 6),
    ],
)
def test_nothing_is_compiled_during_a_search(name, collective, runtime, steps):
    """Runs in a new process, in which nothing is loaded yet."""
    command = [sys.executable, "-c", _LATE, name, collective, runtime, str(steps)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stdout + run.stderr
