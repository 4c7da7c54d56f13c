"""All compiled loops that auto uses are loaded before its time limit starts."""

import subprocess
import sys

import pytest

_LATE = """
import sys
from numba.core.registry import CPUDispatcher
import flowccl.synthesis.searching
from flowccl import synthesize
from flowccl.topology.machines import machine

def loaded():
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("flowccl")]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, CPUDispatcher)]
    return {(one.py_func.__name__, str(args)) for one in found for args in one.overloads}

before, load = [], flowccl.synthesis.searching.load_loops

def load_and_record(units, on_phase):
    before.append(load(units, on_phase) is None or loaded())
    return 0.0

flowccl.synthesis.searching.load_loops = load_and_record
synthesize(machine(sys.argv[1]), sys.argv[2], 64_000, steps=150, gap=0.0)
assert before[0]
print(sorted(name for name, args in loaded() - before[0]))
"""


@pytest.mark.parametrize("collective", ["allgather", "alltoall", "allreduce"])
def test_nothing_is_compiled_after_the_start(collective):
    """Runs in a new process, in which nothing is loaded yet."""
    run = subprocess.run([sys.executable, "-c", _LATE, "dgx1", collective], capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stdout + run.stderr
