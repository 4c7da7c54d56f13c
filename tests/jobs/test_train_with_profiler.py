"""The training script of the examples on real processes: the audit reads every collective that the script issued."""

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from flowccl.jobs import read_logs

SCRIPT = Path(__file__).parents[2] / "examples" / "train_with_profiler.py"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the extra torch is not installed")
def test_every_collective_of_ddp_fsdp2_and_alltoall_is_read_with_its_bytes(tmp_path):
    subprocess.run([sys.executable, str(SCRIPT), str(tmp_path)], check=True, timeout=200, capture_output=True)
    table = read_logs(sorted(tmp_path.glob("trace*.json"))).calls
    rows = zip(table.names(), table.size_bytes.tolist(), table.group.tolist(), table.rank.tolist(), strict=True)
    found = Counter((rank, name, size, table.groups[group].size) for name, size, group, rank in rows)
    issued = {
        (rank, *row[:3]): row[3]
        for rank in range(8)
        for row in json.loads((tmp_path / f"issued{rank}.txt").read_text())
    }
    assert found == issued
    assert len(issued) >= 8 * 4
