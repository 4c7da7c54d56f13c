"""Plans between real DTensors of gloo processes: every byte, and the same error on all ranks."""

import importlib.util
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


def run_ranks(ranks, elements, pairs=None):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(word) for word in (ranks, port, elements, *([] if pairs is None else [pairs]))]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.resharding.torch_program", str(rank), *words],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    ends = [process.communicate(timeout=280) for process in started]
    assert [process.returncode for process in started] == [0] * ranks, ends[0][1][-2000:] + ends[-1][1][-2000:]
    return [out.strip().splitlines()[-1] for out, _ in ends]  # gloo may print lines too


def test_four_ranks():
    assert run_ranks(4, 20_000, 2) == ["ok 2"] * 4


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "pairs"), [(4, 10), (6, 5), (8, 5)])
def test_pairs_of_layouts_of_200_MB(ranks, pairs):
    """The seven tensors, the largest of 24 million elements, have 206 MB together."""
    assert run_ranks(ranks, 24_000_000) == [f"ok {pairs}"] * ranks
