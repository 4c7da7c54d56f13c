"""Schedules on numpy arrays give the results of the collective's definition."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from flowccl.demand.collectives import COLLECTIVES_BY_NAME, alltoallv, collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.errors import InputError, NothingFoundError, ScheduleError
from flowccl.run.element_layout import make_layout, part_sizes, part_start
from flowccl.run.measure import RunOptions, run_numpy, table
from flowccl.run.reference import execute
from flowccl.run.values import DTYPES, Inputs, find_dtype, largest_value
from flowccl.schedule.schedule import Schedule
from flowccl.synthesis import synthesize
from flowccl.topology.builders import star
from flowccl.topology.machines import machine
from flowccl.topology.topology import Link, Node, Topology
from flowccl.verifier.verify import verify
from tests.strategies import topologies


def wrong(schedule: Schedule, options: RunOptions) -> int:
    rows = run_numpy(schedule, options)
    return sum(timing.wrong for row in rows for timing in (row.out_of_place, row.in_place) if timing)


@pytest.mark.parametrize("name", sorted(COLLECTIVES_BY_NAME))
@pytest.mark.parametrize("chunks", [1, 3])
def test_every_collective_is_exact_for_all_dtypes_and_sizes_in_and_out_of_place(name: str, chunks: int) -> None:
    schedule = synthesize(machine("dgx1"), name, 1_000_000, chunks=chunks, steps=2, method="greedy").schedule
    dtypes = tuple(name for name, dtype in DTYPES.items() if dtype.numpy)
    sizes = (8, 40, 1000, 8 * 1009)  # from one element; not divisible; more and fewer elements than chunks
    assert wrong(schedule, RunOptions(sizes, dtypes, inplace=True, iterations=1)) == 0


def test_the_definitions_are_those_of_numpy() -> None:
    schedule = synthesize(machine("full:4"), "reduce_scatter", 4000, chunks=1, steps=1, method="greedy").schedule
    rng = np.random.default_rng(0)
    inputs = [rng.integers(-100, 100, 10) for _ in range(4)]
    outputs = execute(schedule, inputs)
    total = np.sum(inputs, axis=0)
    assert [out.tolist() for out in outputs] == [
        total[0:3].tolist(),
        total[3:6].tolist(),
        total[6:8].tolist(),
        total[8:].tolist(),
    ]
    schedule = synthesize(machine("full:4"), "alltoall", 4000, chunks=2, steps=1, method="greedy").schedule
    outputs = execute(schedule, [np.arange(8) + 10 * rank for rank in range(4)])
    assert outputs[2].tolist() == [4, 5, 14, 15, 24, 25, 34, 35]


@st.composite
def random_reductions(draw: st.DrawFn) -> Schedule:
    """Every chunk is reduced along a random tree in a random order, then broadcast along another one."""
    gpus, chunks = draw(st.integers(2, 6)), draw(st.integers(1, 3))
    topology = machine(f"full:{gpus}")
    link = {(k.src, k.dst): n for n, k in enumerate(topology.links)}
    name = draw(st.sampled_from(["reduce", "reduce_scatter", "allreduce"]))
    demand = collective(name, gpus, 6000, chunks)
    rows, now = [], 0
    for chunk in draw(st.permutations(range(len(demand)))):
        wanted = demand.destinations(chunk).tolist()
        others = [rank for rank in range(gpus) if rank != wanted[0]]
        order = [*draw(st.permutations(others)), wanted[0]]
        for i, rank in enumerate(order[:-1]):  # each rank sends its partial sum to one that has not sent yet
            now += 10**9
            rows.append((chunk, [link[rank, draw(st.sampled_from(order[i + 1 :]))]], now, True))
        have = [wanted[0]]
        for rank in draw(st.permutations(wanted[1:])):
            now += 10**9
            rows.append((chunk, [link[draw(st.sampled_from(have)), rank]], now, False))
            have.append(rank)
    return Schedule.from_transfers(topology, demand, rows)


@given(schedule=random_reductions(), count=st.integers(1, 50))
@settings(max_examples=40, deadline=None)
def test_random_reductions_are_exact(schedule: Schedule, count: int) -> None:
    assert verify(schedule) == []
    options = RunOptions((4 * count,), ("float32", "float16", "int32"), inplace=True, iterations=1)
    assert wrong(schedule, options) == 0


@given(data=st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_machines_with_switches_and_memories_are_exact(data: st.DataObject) -> None:
    topology = data.draw(topologies(max_gpus=5))
    name = data.draw(st.sampled_from(["allgather", "alltoall", "broadcast", "gather", "reduce_scatter", "allreduce"]))
    chunks, count = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 50))
    try:
        schedule = synthesize(topology, name, 10_000, chunks=chunks, method="greedy", steps=1).schedule
    except NothingFoundError:
        reject()
    assert wrong(schedule, RunOptions((4 * count,), inplace=True, iterations=1)) == 0


def test_a_switch_reduces_for_one_gpu_and_copies_for_many() -> None:
    topology = star(4, copies=True, reduces=True)
    demand = Demand.from_chunks("custom", 4, [Chunk(bytes=8, sources=(0, 1), destinations=(0, 2, 3))])
    schedule = Schedule.from_transfers(topology, demand, [(0, [0, 2, 5], 0), (0, [4, 1, 7], 10**9)])
    outputs = execute(schedule, [np.array([1, 2]), np.array([10, 20]), np.zeros(0, int), np.zeros(0, int)], count=2)
    assert [out.tolist() for out in outputs] == [[11, 22], [], [11, 22], [11, 22]]


def test_a_memory_stores_and_forwards() -> None:
    nodes = (Node(name="gpu0"), Node(name="gpu1"), Node(name="memory0", kind="memory"))
    links = (Link(src=0, dst=2, bandwidth_GBps=1), Link(src=2, dst=1, bandwidth_GBps=1))
    topology = Topology("pair", nodes, links)
    demand = collective("broadcast", 2, 1000)
    schedule = Schedule.from_transfers(topology, demand, [(0, [0], 0), (0, [1], 10**9)])
    outputs = execute(schedule, [np.arange(5.0), np.zeros(0)])
    assert outputs[1].tolist() == [0, 1, 2, 3, 4]


def test_a_send_carries_the_sum_at_its_start() -> None:
    """Data that arrives after the start of a send is not in it."""
    topology = machine("full:3:bandwidth=1:latency=0")
    link = {(k.src, k.dst): n for n, k in enumerate(topology.links)}
    demand = Demand.from_chunks("custom", 3, [Chunk(bytes=1000, sources=(0, 1, 2), destinations=(2,))])
    rows = [(0, [link[1, 0]], 0, True), (0, [link[0, 2]], 1_000_000, True)]
    inputs = [np.array([1]), np.array([10]), np.array([100])]
    assert execute(Schedule.from_transfers(topology, demand, rows), inputs, 1)[2].tolist() == [111]
    rows = [(0, [link[1, 0]], 1, True), (0, [link[0, 2]], 1_000_000, True)]
    assert execute(Schedule.from_transfers(topology, demand, rows), inputs, 1)[2].tolist() == [101]


def test_alltoallv_divides_any_size() -> None:
    demand = alltoallv([[0, 300, 100], [200, 0, 0], [100, 100, 0]])
    schedule = synthesize(machine("full:3"), demand, steps=1, method="greedy").schedule
    assert wrong(schedule, RunOptions((400, 40, 4), ("float32",), inplace=True, iterations=1)) == 0


@pytest.mark.parametrize("total", [0, 1, 7, 16, 100])
def test_parts_cover_the_total_exactly(total: int) -> None:
    sizes = part_sizes(total, 8)
    assert sum(sizes) == total
    assert [part_start(total, 8, part) for part in range(9)] == np.concatenate(([0], np.cumsum(sizes))).tolist()


@pytest.mark.parametrize("ranks", [2, 8, 100, 300])
def test_sums_of_the_inputs_are_exact_in_every_dtype(ranks: int) -> None:
    layout = make_layout(collective("reduce", ranks, 10_000), 64)
    for dtype in DTYPES.values():
        assert largest_value(dtype, ranks) * ranks <= dtype.exact
        assert 0 < Inputs(layout, dtype).expected(0).max() <= dtype.exact


def test_bad_input_is_named() -> None:
    schedule = synthesize(machine("full:4"), "allgather", 4000, chunks=1, steps=1, method="greedy").schedule
    with pytest.raises(InputError, match="needs one input for each of 4 ranks, got 2"):
        execute(schedule, [np.zeros(1)] * 2)
    with pytest.raises(ScheduleError, match="rank 1: the input must have 1 elements, got 2"):
        execute(schedule, [np.zeros(n) for n in (1, 2, 1, 1)], 4)
    with pytest.raises(InputError, match="are less than one float32; give at least 4"):
        run_numpy(schedule, RunOptions((3,)))
    with pytest.raises(InputError, match=r"numpy has no bfloat16; run it with --on gloo"):
        run_numpy(schedule, RunOptions((4,), ("bfloat16",)))
    with pytest.raises(InputError, match="unknown dtype 'float17'"):
        find_dtype("float17")


def test_the_table_has_the_columns_of_nccl_tests() -> None:
    schedule = synthesize(machine("full:4"), "allreduce", 4000, chunks=1, steps=1, method="greedy").schedule
    lines = table(run_numpy(schedule, RunOptions((4000,), iterations=1)), 4, "x").splitlines()
    assert lines[2].split()[1:6] == ["size", "count", "type", "redop", "root"]
    row = lines[4].split()
    assert row[:5] == ["4000", "1000", "float", "sum", "-1"]
    assert row[8] == "0"
    assert row[9:] == ["N/A"] * 4
    assert float(row[7]) == pytest.approx(1.5 * float(row[6]), abs=0.02)
    assert lines[5] == "# Out of bounds values : 0 OK"
