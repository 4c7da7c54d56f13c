"""The planner: known optima, random machines against both verifiers, baselines, determinism, bad inputs."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.moe_baselines import BASELINES, baseline_us
from benchmarks.moe_workloads import WORKLOADS, Shape, matrix
from flowccl.bounds.lower_bound import lower_bound
from flowccl.demand.collectives import alltoallv
from flowccl.errors import DemandError, InputError, TopologyError
from flowccl.moe.blocks import Blocks
from flowccl.moe.lane_kernels import blocks_of
from flowccl.moe.plan_params import COARSE, DENSE, LINKS, OWN, WHOLE
from flowccl.moe.planner import Planner
from flowccl.moe.search import improved
from flowccl.topology.faults import with_faults
from flowccl.topology.machines import machine
from flowccl.verifier.verify import verify
from tests.moe.machines import random_cluster, random_matrix
from tests.slow_replay import slow_replay


def test_one_message_takes_its_bytes_and_latency() -> None:
    sizes = np.zeros((4, 4), dtype=np.int64)
    sizes[0, 1] = 1_000_000
    plan = Planner(machine("rail:4x1")).plan(sizes)
    assert plan.finish_us == pytest.approx(80 + 2.6)  # 12.5 GB/s, two links of 1.3 us
    assert plan.lower_bound_us == pytest.approx(plan.finish_us)


def test_uniform_hosts_of_one_gpu_reach_the_bound() -> None:
    """Equal blocks are shifted permutations: no NIC ever waits."""
    plan = Planner(machine("rail:8x1")).plan(np.full((8, 8), 1_000_000, dtype=np.int64))
    assert plan.gap < 1e-6
    assert verify(plan.schedule()) == []


def test_unequal_hosts_of_one_gpu_reach_the_bound() -> None:
    """A preemptive open shop ends with its busiest machine; a part may be left over by the stages."""
    for seed in range(20):
        sizes = np.random.default_rng(seed).integers(0, 4_000_000, (6, 6))
        assert Planner(machine("rail:6x1")).plan(sizes).gap < 0.03


def test_a_hot_gpu_is_sent_through_all_cards_of_its_host() -> None:
    sizes = np.zeros((16, 16), dtype=np.int64)
    sizes[8:, 0] = 8_000_000
    plan = Planner(machine("dgx_h100:2")).plan(sizes)
    assert plan.finish_us < 1.06 * 64e6 / 400e3  # eight NICs of 50 GB/s
    crossing = plan.messages.pair[plan.messages.first[1] : plan.messages.first[2]]
    assert set(plan.layout.paths.dst[crossing].tolist()) == set(range(8))


def test_gpus_that_pass_on_data_at_the_same_time_pass_it_to_different_gpus() -> None:
    """With nearly equal loads, all GPUs of a host pass on data at once; without turns the end was 3 % later."""
    data = matrix("top 8 of 256", Shape(64), seed=7)
    planner = Planner(machine("dgx_h100:8"))
    plan = planner.plan(data)
    assert plan.gap < 0.01
    assert baseline_us("fast", planner, data) > 0.99 * plan.finish_us


def test_lanes_avoid_gpus_whose_links_inside_the_host_are_busy() -> None:
    """GPU 2 receives so much inside its host that others relay the data of GPU 0 to the other host."""
    sizes = np.zeros((16, 16), dtype=np.int64)
    sizes[0, 8:] = 4_000_000
    sizes[1, 2] = 40_000_000
    planner = Planner(machine("dgx_h100:2"))
    usual, by_load = planner.plan(sizes, params=DENSE), planner.plan(sizes, params=LINKS)
    assert usual.relayed_bytes[2] == 4_000_000
    assert by_load.relayed_bytes[2] < 3_000_000
    assert verify(by_load.schedule()) == []


@pytest.mark.parametrize("workload", WORKLOADS)
def test_plans_of_all_workloads_are_valid_and_near_the_bound(workload: str) -> None:
    data = matrix(workload, Shape(32))
    plan = Planner(machine("dgx_h100:4")).plan(data)
    assert verify(plan.schedule()) == []
    assert plan.schedule().finish_ps == plan.finish_ps
    assert 0 <= plan.gap < 0.12


@pytest.mark.parametrize("fault", ["lost", "slow", "spine"])
def test_faults_and_trunks(fault: str) -> None:
    whole = machine("dgx_h100:4")
    topology = {
        "lost": with_faults(whole, without=["gpu3 <-> rail3"]),
        "slow": with_faults(whole, slow=["gpu3 <-> rail3=25GB/s"]),
        "spine": machine("dgx_h100:4:network=fat-tree:leaf_hosts=2:oversubscription=2"),
    }[fault]
    planner = Planner(topology)
    for workload in ("uniform", "zipf 0.8", "hot expert", "uneven inside"):
        data = matrix(workload, Shape(32))
        plan = planner.plan(data)
        assert verify(plan.schedule()) == []
        assert plan.gap < 0.12
        for name in BASELINES:
            assert baseline_us(name, planner, data) > 0.97 * plan.finish_us


def check_random(seed: int) -> None:
    rng = np.random.default_rng(seed)
    topology = random_cluster(rng)
    sizes = random_matrix(rng, topology.num_gpus)
    runtime = "mscclpp" if seed % 5 == 0 else "ideal"
    planner = Planner(topology, runtime=runtime, unit_bytes=int(rng.choice([1, 16])))
    params = (None, WHOLE, OWN, COARSE, replace(WHOLE, order="shifted"), LINKS)[int(rng.integers(6))]
    plan = planner.plan(sizes, params=params)
    schedule = plan.schedule()
    assert verify(schedule) == []
    slow = slow_replay(schedule)
    assert slow.kinds == set()
    assert slow.finish_ps == schedule.finish_ps
    broken = replace(schedule, start_ps=schedule.start_ps // int(rng.integers(2, 5)))
    assert {violation.kind for violation in verify(broken)} == slow_replay(broken).kinds
    moved = np.zeros_like(sizes)
    np.add.at(moved, (schedule.demand.source, schedule.demand.destination_rank), schedule.demand.chunk_bytes)
    np.fill_diagonal(sizes, 0)
    assert (moved == sizes).all()
    assert plan.finish_ps >= schedule.finish_ps
    assert plan.bound.ps <= schedule.finish_ps
    assert lower_bound(plan.topology, schedule.demand).ps <= schedule.finish_ps


@pytest.mark.parametrize("seed", range(15))
def test_random_machines(seed: int) -> None:
    check_random(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(15, 1015, 100))
def test_a_thousand_random_machines(first: int) -> None:
    for seed in range(first, first + 100):
        check_random(seed)


def test_equal_inputs_give_equal_plans() -> None:
    data = matrix("zipf 0.9", Shape(32))
    one, other = (Planner(machine("dgx_h100:4")).plan(data) for _ in range(2))
    assert (one.messages.hop_start_ps == other.messages.hop_start_ps).all()
    assert (one.chunks.bytes == other.chunks.bytes).all()


def test_a_previous_plan_is_a_start() -> None:
    planner = Planner(machine("dgx_h100:4"))
    before = planner.plan(matrix("zipf 0.5", Shape(32)))
    plan = planner.plan(matrix("zipf 0.5", Shape(32), step=1), previous=before)
    assert verify(plan.schedule()) == []
    assert plan.gap < 0.12


def test_search_improves() -> None:
    planner, data = Planner(machine("dgx_h100:2")), matrix("rotating hotspot", Shape(16))
    ptr, source, size, to, _ = blocks_of(data, planner.layout.host_ptr, planner.layout.host_gpu)
    blocks = Blocks(ptr, source, size, np.arange(len(to) + 1), to)
    assert improved(planner, blocks, "alltoallv", 0.5).finish_ps <= planner.plan(data).finish_ps


def test_small_sizes_are_not_later_than_direct() -> None:
    for mean in (1_000, 16_000, 60_000):
        planner, data = Planner(machine("dgx_h100:4")), matrix("zipf 0.5", Shape(32), mean)
        assert planner.plan(data).finish_us <= baseline_us("direct", planner, data)


def test_stages_bring_data_before_it_is_sent_on() -> None:
    table = Planner(machine("dgx_h100:2")).plan(matrix("hot rank", Shape(16))).table
    has: dict[tuple[int, int, int], int] = {}
    for row in range(len(table.stage)):
        key = (int(table.block[row]), int(table.offset[row]))
        if table.source[row] != table.owner[row]:
            assert has[int(table.source[row]), *key] < table.stage[row]
        has.setdefault((int(table.destination[row]), *key), int(table.stage[row]))


def test_bad_inputs() -> None:
    planner = Planner(machine("rail:2x2"))
    sizes = np.ones((4, 4))
    with pytest.raises(DemandError, match=r"the byte matrix must be 4 x 4, got shape \(3, 3\)"):
        planner.plan(np.ones((3, 3), dtype=np.int64))
    with pytest.raises(DemandError, match=r"entry \[0\]\[1\] must be >= 0, got -5"):
        planner.plan(np.array([[0, -5, 0, 0]] + [[0] * 4] * 3))
    sizes[1, 2] = np.nan
    with pytest.raises(DemandError, match="the byte matrix must contain whole numbers of bytes"):
        planner.plan(sizes)
    with pytest.raises(DemandError, match=r"entry \[0\]\[1\] is too large, got 1000000000000"):
        planner.plan(np.array([[0, 10**12, 0, 0]] + [[0] * 4] * 3))
    with pytest.raises(InputError, match="unit_bytes must be at least 1, got 0"):
        Planner(machine("rail:2x2"), unit_bytes=0)
    with pytest.raises(TopologyError, match="without crossing other hosts"):
        Planner(machine("torus:4x4"))


def test_demand_is_that_of_alltoallv() -> None:
    data = matrix("burst", Shape(16))
    demand = Planner(machine("dgx_h100:2")).plan(data).demand
    assert demand.collective == "alltoallv"
    assert demand.chunk_bytes.sum() == alltoallv(data).chunk_bytes.sum()


def test_relayed_data_fits_in_the_buffers() -> None:
    """Of two hosts with rails, GPU 1 relays what GPU 0 cannot send itself; without space for that, GPU 0 sends all."""
    sizes = np.zeros((4, 4), dtype=np.int64)
    sizes[0, 2] = 1_000_000
    free = Planner(machine("rail:2x2")).plan(sizes)
    assert free.relayed_bytes.tolist() == pytest.approx([0, 500_000, 0, 500_000], rel=1e-4)
    held = Planner(machine("rail:2x2"), buffer_bytes=100_000).plan(sizes)
    assert held.relayed_bytes.max() == 0
    assert held.finish_us > free.finish_us
    assert verify(held.schedule()) == []
    sizes[0, 3] = 1_000_000  # crosses over rail 0 or rail 1, and is passed on at one of its ends
    with pytest.raises(
        DemandError, match=r"gpu\d would have to pass on \d+ bytes of others, and its buffer has 100000"
    ):
        Planner(machine("rail:2x2"), buffer_bytes=100_000).plan(sizes)
    with pytest.raises(InputError, match="buffer_bytes must not be negative, got -1"):
        Planner(machine("rail:2x2"), buffer_bytes=-1)
