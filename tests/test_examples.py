"""Every script in examples/ runs without errors and warnings."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
WITH_TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="the extra torch is not installed")
SLOW = dict.fromkeys(("train_through_a_slow_link", "train_with_profiler"), (pytest.mark.slow, WITH_TORCH))


@pytest.mark.parametrize(
    "script", [pytest.param(path, id=path.stem, marks=SLOW.get(path.stem, ())) for path in EXAMPLES]
)
def test_example_runs(script, tmp_path):
    command = [sys.executable, "-W", "error", str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
