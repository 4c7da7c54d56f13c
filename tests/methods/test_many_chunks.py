"""Compiled loops do not check array bounds; the same loops run as plain Python do."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
from flowccl import Link, Node, Topology, synthesize
gpus = 8
nodes = [Node(name=f"gpu{i}") for i in range(gpus)] + [Node(name=f"s{i}", kind="switch") for i in range(gpus)]
pairs = [(i, gpus + i) for i in range(gpus)] + [(gpus + i, gpus + i + 1) for i in range(gpus - 1)]
links = [Link(src=x, dst=y, bandwidth_GBps=25.0, latency_us=0.7) for a, b in pairs for x, y in ((a, b), (b, a))]
machine = Topology("switches in a row", tuple(nodes), tuple(links))
for method in ("greedy", "reroute", "lns"):
    for chunks in (1, 3):
        synthesize(machine, "allgather", 12_000, method=method, chunks=chunks, steps=2, time_limit_s=1000, workers=1)
"""


@pytest.mark.slow
def test_trees_through_many_switches_fit_the_arrays():
    """A tree has more hops than nodes if the path to every GPU passes plain switches."""
    plain = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], env=plain, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
