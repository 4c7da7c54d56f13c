"""Files that PyTorch 2.11 and NCCL 2.28 wrote on one H200 (`tests/gpu/nccl_trace.py`), cut to what readers use.

There is one rank. Its calls move nothing, so the readers skip them; copies in which the group has two ranks are read.
"""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from flowccl.errors import InputError
from flowccl.jobs import read_logs
from tests.gpu.nccl_trace import FORMATS, STEPS, compared, of_two

JOB = Path(__file__).parents[1] / "data" / "nccl_job"
FACTS = json.loads((JOB / "issued0.json").read_text())


@pytest.fixture
def two_ranks(tmp_path):
    shutil.copytree(JOB, tmp_path / "job")
    return of_two(tmp_path / "job")


@pytest.mark.parametrize("name", FORMATS)
def test_every_call_is_found(two_ranks, name):
    assert compared(two_ranks, FACTS, name)


@pytest.mark.parametrize("name", FORMATS)
def test_a_lost_call_is_missed(two_ranks, name):
    """The comparison itself can fail."""
    more = [*FACTS["issued"], ["allgather", 16_384, 16_384], ["broadcast", 4_000, 4_000]]
    assert not compared(two_ranks, {**FACTS, "issued": more}, name)


@pytest.mark.parametrize("name", FORMATS)
def test_calls_of_one_rank_are_skipped_and_counted(name):
    with pytest.raises(InputError, match=r"x a (group|communicator) of one rank moves nothing"):
        read_logs([JOB / name])


def test_calls_without_a_kernel_are_kept_without_a_time(two_ranks):
    """NCCL copies the data of one rank: only averages and uneven alltoalls have a kernel."""
    table = read_logs([two_ranks / "profiler"]).calls
    timed = Counter(n for n, took in zip(table.names(), table.duration_ns.tolist(), strict=True) if took >= 0)
    assert timed == {"allreduce": STEPS, "alltoallv": STEPS}
    assert table.sources[0].notes == ("21 calls have no kernel in the trace, and so no time",)
    assert min(table.duration_ns[table.duration_ns >= 0]) == 1408


def test_an_alltoall_without_splits_is_even(two_ranks):
    """PyTorch names both kinds `all_to_allv`."""
    for name in ("profiler", "execution_trace"):
        calls = Counter(read_logs([two_ranks / name]).calls.names())
        assert calls["alltoall"] == calls["alltoallv"] == STEPS


def test_kernels_of_one_call_are_one_row(two_ranks):
    path = two_ranks / "profiler" / "trace0.json"
    trace = json.loads(path.read_text())
    kernels = [event for event in trace["traceEvents"] if event["name"].startswith("ncclDevKernel")]
    again = [{**event, "ts": event["ts"] + 10} for event in kernels]
    path.write_text(json.dumps({**trace, "traceEvents": trace["traceEvents"] + again}))
    table = read_logs([two_ranks / "profiler"]).calls
    assert len(table) == len(FACTS["issued"])
    assert sorted(table.duration_ns[table.duration_ns >= 0])[-1] == pytest.approx(13_488, abs=2)


def test_the_flight_recorder_has_times_of_the_gpu_but_starts_of_the_host(two_ranks):
    table = read_logs([two_ranks / "flight_recorder"]).calls
    assert (table.duration_ns >= 0).sum() == 9
    assert (table.start_ns > 0).all()
    assert (table.moving_since_ns() == -1).all()
