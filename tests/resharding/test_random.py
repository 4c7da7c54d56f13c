"""Random layouts: plans verify, move every byte to its place, and keep to their memory."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowccl import machine, verify
from flowccl.errors import DemandError
from flowccl.resharding.plan_search import ReshardParams
from flowccl.resharding.planning import reshard
from flowccl.resharding.running import check_on_numpy
from flowccl.resharding.traffic import traffic
from tests.resharding.random_layouts import layout_pairs

MACHINES = ("dgx1", "ring:8", "ndv2:1", "mesh:2x4", "star:8", "dgx_h100:1")
QUICK = ReshardParams(min_piece_bytes=7, most_deliveries=300, per_round=(1, 2), depth_weights=(0.3,))


def plan_and_run(pair, name, slices):
    source, target = pair
    found = traffic(source, target)
    if not found.moved:
        with pytest.raises(DemandError, match="every rank already has what it wants; no plan is needed"):
            reshard(machine(name), source, target)
        return
    result = reshard(machine(name), source, target, time_limit_s=0.2, params=QUICK)
    assert verify(result.result.schedule) == []
    assert result.result.schedule.finish_ps >= result.result.bound.ps
    wrong, total = check_on_numpy(replace(result.plan, slices=slices))
    assert (wrong, total > 0) == (0, True)


@pytest.mark.slow
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(layout_pairs(), st.sampled_from(MACHINES), st.sampled_from([1, 2, 5]))
def test_random_layouts_arrive_byte_by_byte(pair, name, slices):
    plan_and_run(pair, name, slices)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(layout_pairs(), st.sampled_from(MACHINES), st.sampled_from([1, 2, 3, 5]))
def test_300_random_layouts_arrive_byte_by_byte(pair, name, slices):
    plan_and_run(pair, name, slices)
