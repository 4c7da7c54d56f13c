"""Memory of runs in stages: what real processes use beside their tensors is what the plan prints."""

import importlib.util

import pytest

from flowccl import machine
from flowccl.resharding.planning import reshard
from flowccl.resharding.steps import step_table
from tests.resharding import cases

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")

BUCKET = 256_000_000
ROWS, COLUMNS = (((4,), range(4), (cases.shard(dim),)) for dim in (0, 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["full:4", "ring:4"])  # direct messages; messages that ranks relay
def test_runs_in_buckets_of_256_MB_use_the_memory_that_is_printed(name):
    """1.2 GB of tensors: without stages, a rank would need 450 MB or more.

    The peak counts all memory of the process but pages of program files, which are mapped when code first runs.
    """
    from flowccl.torch.resharding_run import run_on_gloo

    source, target = cases.layouts(24, (5000, 5000), ROWS, COLUMNS)
    whole = reshard(machine(name), source, target)
    found = reshard(machine(name), source, target, bucket_bytes=BUCKET)
    assert whole.staging_bytes > BUCKET >= found.staging_bytes
    assert found.finish_us <= 1.10 * whole.finish_us
    table, rows = step_table(found.plan), run_on_gloo(found.plan)
    assert max(table.memory_bytes(row.rank) for row in rows) == found.staging_bytes
    for row in rows:
        print(
            f"rank {row.rank}: {row.memory_bytes} bytes used, {table.memory_bytes(row.rank)} planned, {row.seconds} s"
        )
    assert [row.wrong for row in rows] == [0] * 4
    for row in rows:
        assert row.memory_bytes == pytest.approx(table.memory_bytes(row.rank), rel=0.10)
