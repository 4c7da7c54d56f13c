"""Random layouts: plans verify, and move every byte to where a gather and a scatter on numpy bring it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowccl import machine, verify
from flowccl.errors import DemandError
from flowccl.resharding.baselines import baseline_us
from flowccl.resharding.layout import Layout, Mesh, Placement, TensorLayout, TensorRange
from flowccl.resharding.plan_search import ReshardParams
from flowccl.resharding.planning import reshard
from flowccl.resharding.running import check_on_numpy, run_on_numpy
from flowccl.resharding.traffic import traffic
from tests.resharding.gather_scatter import gathered, scattered
from tests.resharding.random_layouts import layout_pairs

MACHINES = ("dgx1", "ring:8", "ndv2:1", "mesh:2x4", "star:8", "dgx_h100:1")
QUICK = ReshardParams(min_piece_bytes=7, most_deliveries=300, per_round=(1, 2), depth_weights=(0.3,))
GAP = 0.01
SETTINGS = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def check_like_gather_and_scatter(plan):
    """Run a plan on random bytes, and compare all targets with those of a gather and a scatter."""
    random = np.random.default_rng(0)
    whole = {one.name: random.integers(0, 256, one.bytes, dtype=np.uint8) for one in plan.source.tensors}
    sources = scattered(plan.source, whole)
    expected = scattered(plan.target, gathered(plan.source, sources))
    targets = {rank: {name: ~part for name, part in parts.items()} for rank, parts in expected.items()}
    run_on_numpy(plan, sources, targets)
    for rank, parts in expected.items():
        for name, part in parts.items():
            assert np.array_equal(targets[rank][name], part), (rank, name)


def plan_and_run(pair, name, slices):
    source, target = pair
    found = traffic(source, target)
    if not found.moved:
        with pytest.raises(DemandError, match="every rank already has what it wants; no plan is needed"):
            reshard(machine(name), source, target)
        return
    result = reshard(machine(name), source, target, gap=GAP, time_limit_s=0.2, params=QUICK)
    assert verify(result.result.schedule) == []
    assert result.result.schedule.finish_ps >= result.result.bound.ps
    for baseline, us in baseline_us(machine(name), found).items():
        assert us is None or result.finish_us <= us, baseline
    plan = replace(result.plan, slices=slices)
    wrong, total = check_on_numpy(plan)
    assert (wrong, total > 0) == (0, True)
    check_like_gather_and_scatter(plan)


@settings(max_examples=3, derandomize=True, **SETTINGS)
@given(layout_pairs(), st.sampled_from(MACHINES), st.sampled_from([1, 2, 5]))
def test_random_layouts_arrive_byte_by_byte(pair, name, slices):
    plan_and_run(pair, name, slices)


@pytest.mark.slow
@settings(max_examples=300, **SETTINGS)
@given(layout_pairs(), st.sampled_from(MACHINES), st.sampled_from([1, 2, 3, 5]))
def test_300_random_layouts_arrive_byte_by_byte(pair, name, slices):
    plan_and_run(pair, name, slices)


def bytes_on(name, size, *ranks):
    """A tensor of bytes that some ranks have whole."""
    return TensorLayout(name, (size,), 1, "uint8", ranges=tuple(TensorRange(rank, 0, size) for rank in ranks))


def test_empty_slices_of_relayed_chunks_do_not_travel():
    """Half a byte: rank 1 relays the second tensor, whose first slice is empty, beside bytes of its own."""
    source = Layout((bytes_on("own", 4, 1), bytes_on("relayed", 1, 0)))
    target = Layout((bytes_on("own", 4, 2), bytes_on("relayed", 1, 2)))
    plan_and_run((source, target), "line:3", 2)


def test_cells_that_are_empty_in_all_tensors_are_not_planned():
    """A row and a column on 2 x 2 ranks: the last rank has no byte of either."""
    square, one = Mesh((2, 2), (0, 1, 2, 3)), Mesh((1,), (4,))
    shapes = {"row": (1, 4), "column": (4, 1)}
    source = [
        TensorLayout(name, shape, 1, "int8", square, (Placement(0), Placement(1))) for name, shape in shapes.items()
    ]
    target = [TensorLayout(name, shape, 1, "int8", one, (Placement(),)) for name, shape in shapes.items()]
    plan_and_run((Layout(source), Layout(target)), "ring:8", 1)
