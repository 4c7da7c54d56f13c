"""Jobs that our clock simulates, in every format: what is read is what was simulated, and no bound is above it."""

import pytest

from flowccl import machine
from flowccl.jobs.audit import audit
from flowccl.jobs.kinds import kinds_of
from flowccl.jobs.matching import matched
from flowccl.jobs.reading import read_logs
from flowccl.jobs.steps import exposure
from flowccl.runtimes.profiles import PROFILES
from tests.jobs.simulated import WRITERS, simulate, write_csv, write_profiler

WHOLE_US = {"inspector": 1.5}  # the Inspector writes whole microseconds, others nanoseconds


def made(hosts: int, steps: int = 3):
    """A cluster, and steps in which groups inside hosts, groups on rails and all GPUs communicate."""
    world = tuple(range(8 * hosts))
    rails = [tuple(range(rail, 8 * hosts, 8)) for rail in range(8)]
    inside = [tuple(range(8 * host, 8 * host + 8)) for host in range(hosts)]
    step = [
        [("allreduce", 4_194_304, group) for group in inside],
        [("allgather", 1_048_576, group) for group in rails],
        [("reduce_scatter", 2_097_152, group) for group in rails],
        [("allreduce", 67_108_864, world)],
        [("alltoall", 262_144, group) for group in inside],
    ]
    topology = machine(f"dgx_h100:{hosts}")
    return topology, simulate(topology, step, steps)


@pytest.fixture(scope="module")
def job():
    return made(2)


def exact_of(calls):
    return {(call.collective, call.size_bytes, call.group): call.duration_ns / 1000 for call in calls}


@pytest.mark.parametrize("name", WRITERS)
def test_measured_equals_the_simulation_in_every_format(job, name, tmp_path):
    topology, calls = job
    WRITERS[name](calls, tmp_path, topology.num_gpus)
    table = read_logs([tmp_path]).calls
    found = matched(table)
    kinds = kinds_of(table, found, exposure(table).alone_ns)
    exact = exact_of(calls)
    assert {(kind.collective, kind.size_bytes, kind.group) for kind in kinds} == exact.keys()
    for kind in kinds:
        expected = exact[kind.collective, kind.size_bytes, kind.group]
        assert kind.measured_ns / 1000 == pytest.approx(expected, abs=WHOLE_US.get(name, 0.0015))
        assert kind.count == 3
    assert not found.unmatched


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_no_bound_is_above_the_simulation_and_gains_are_measured_minus_plan(name, tmp_path):
    topology, calls = made(4)
    WRITERS[name](calls, tmp_path, topology.num_gpus)
    found = audit(read_logs([tmp_path]).calls, topology, PROFILES["ideal"], searched=2, time_limit_s=1)
    _check(found, calls, WHOLE_US.get(name, 0.0015))


def test_no_bound_is_above_the_simulation(job, tmp_path):
    topology, calls = job
    write_csv(calls, tmp_path, topology.num_gpus)
    _check(audit(read_logs([tmp_path]).calls, topology, PROFILES["ideal"], searched=2, time_limit_s=1), calls, 0.0015)


def _check(found, calls, whole_us):
    exact = exact_of(calls)
    assert len(found.rows) == len(exact)
    for row in found.rows:
        measured = exact[row.kind.collective, row.kind.size_bytes, row.kind.group]
        assert row.measured_us == pytest.approx(measured, abs=whole_us)
        assert row.bound.us <= measured
        assert row.bound_us <= measured + whole_us
        assert not row.below_bound
        if row.plan is not None:
            assert row.plan.us >= row.bound.us * (1 - 1e-9)
            assert row.saved_us == pytest.approx((row.measured_us - row.plan.us) * row.calls_per_step)
    assert sum(row.plan is not None for row in found.rows) >= 2
    assert found.saved_us <= found.possible_us * (1 + 1e-9)
    assert 2.9 < found.steps.count < 3.1


def test_clocks_are_aligned_and_waiting_is_separate(job, tmp_path):
    topology, calls = job
    offsets = [((-1) ** rank) * 1000 * rank * 37 for rank in range(topology.num_gpus)]
    write_profiler(calls, tmp_path, topology.num_gpus, offsets)
    table = read_logs([tmp_path]).calls
    found = matched(table)
    shift = found.clocks.offset_ns - [offsets[rank] for rank in found.clocks.ranks.tolist()]
    assert abs(shift - shift[0]).max() < 5
    assert found.clocks.uncertainty_ns < 5
    exact = exact_of(calls)
    for kind in kinds_of(table, found, exposure(table).alone_ns):
        expected = exact[kind.collective, kind.size_bytes, kind.group]
        assert kind.measured_ns / 1000 == pytest.approx(expected, abs=0.01)
        assert 0 < kind.waiting_ns < 5000
