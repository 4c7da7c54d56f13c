"""Checks at other sizes keep the transfers of the schedule; schedules for other machines are errors."""

import numpy as np
import pytest

from flowccl.demand.demand import Chunk, Demand
from flowccl.errors import InputError
from flowccl.profile.check import PredictionCheck, check_profile, table
from flowccl.profile.predict import predict_us
from flowccl.run.measure import CallTiming, Row
from flowccl.schedule.resize import resized
from flowccl.schedule.schedule import Schedule
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine
from flowccl.topology.topology import Link, Node, Topology
from flowccl.verifier.verify import verify


@pytest.mark.parametrize("name", ["dgx1", "ndv2:2"])
@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
@pytest.mark.parametrize("size", [100, 999_999, 1_000_000, 123_456_789])
def test_a_resized_schedule_is_valid_and_keeps_its_transfers(name, collective, size):
    schedule = synthesize(machine(name), collective, 1_000_000, chunks=1, steps=1, method="greedy").schedule
    other = resized(schedule, size)
    assert verify(other) == []
    assert np.array_equal(other.chunk, schedule.chunk)
    assert other.demand.size_bytes == size


def test_finish_of_resized_schedules():
    """On a unidirectional ring of 4 with 10 GB/s and 2 us, an allgather is 3 hops of 1 KB or 1 MB each."""
    links = tuple(Link(src=at, dst=(at + 1) % 4, bandwidth_GBps=10, latency_us=2) for at in range(4))
    topology = Topology("ring", tuple(Node(name=f"gpu{at}") for at in range(4)), links)
    schedule = synthesize(topology, "allgather", 4_000, chunks=1, steps=1, method="greedy").schedule
    assert schedule.finish_us == pytest.approx(3 * (0.1 + 2))
    assert resized(schedule, 4_000_000).finish_us == pytest.approx(3 * (100 + 2))


def test_a_schedule_for_another_machine_is_an_error():
    schedule = synthesize(machine("ring:4"), "allgather", 4_000, chunks=1, steps=1, method="greedy").schedule
    with pytest.raises(
        InputError, match=r"the schedule is for another machine .* for this machine with: flowccl synth MACHINE"
    ):
        check_profile(machine("ring:4:bandwidth=1GB/s"), schedule, [1000], "mpi", 1)


def test_the_faster_of_two_passes_counts_and_wrong_elements_add_up(monkeypatch):
    """Sizes are run in both directions; one size is disturbed in each pass."""
    schedule = synthesize(machine("ring:4"), "allgather", 4_000, chunks=1, steps=1, method="greedy").schedule

    def run(given, on, options):
        assert (given, on, options.sizes, options.iterations) == (schedule, "mpi", (1000, 4000, 4000, 1000), 3)
        medians = (10.0, 90.0, 40.0, 30.0)
        timings = [CallTiming(time_us=2 * us, wrong=wrong, median_us=us) for wrong, us in enumerate(medians)]
        return [Row(0, 0, "uint8", "allgather", -1, one, None) for one in timings]

    monkeypatch.setattr("flowccl.profile.check.run_schedule", run)
    rows = check_profile(machine("ring:4"), schedule, [1000, 4000], "mpi", 5)
    assert [(k.size_bytes, k.measured_us, k.mean_us, k.wrong) for k in rows] == [(1000, 10, 20, 3), (4000, 40, 80, 3)]
    assert [k.predicted_us for k in rows] == [predict_us(schedule, 1000), predict_us(schedule, 4000)]


def test_a_custom_demand_has_a_fixed_size():
    topology = machine("ring:3")
    demand = Demand.from_chunks("custom", 3, [Chunk(bytes=10, sources=(0,), destinations=(1,))])
    schedule = Schedule.from_transfers(topology, demand, [(0, [0], 0)])
    with pytest.raises(InputError, match="a custom demand given as chunks has a fixed size"):
        resized(schedule, 1000)


def test_error_and_factor_of_a_prediction():
    row = PredictionCheck(1_000_000, finish_us=80.0, predicted_us=50.0, measured_us=100.0, mean_us=120.0, wrong=0)
    assert (row.error, row.factor) == (-0.5, 2.0)
    assert table([row]).splitlines()[1].split() == [
        "1",
        "MB",
        "80",
        "us",
        "50",
        "us",
        "100",
        "us",
        "120",
        "us",
        "-50.0%",
        "2.00",
        "0",
    ]
