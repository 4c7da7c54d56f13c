"""What crosses a cut, and that bounds of a large cluster take seconds."""

import time

import numpy as np
import pytest

from flowccl.bounds.commodities import Commodities
from flowccl.bounds.lower_bound import lower_bound
from flowccl.demand.collectives import collective
from flowccl.topology.machines import machine


@pytest.mark.parametrize("name", ["alltoall", "allgather", "allreduce"])
def test_the_bytes_across_a_cut_are_those_of_the_groups_across_it(name: str):
    topology = machine("dgx_h100:2")
    commodities = Commodities.of(collective(name, 16, 1_000_000), topology)
    generator = np.random.default_rng(0)
    for _ in range(10):
        far = generator.random(len(topology.nodes)) < 0.5
        assert commodities.crossing_bytes(far) == commodities.bytes[commodities.crossing(far)].sum()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alltoall", "allgather"])
def test_bounds_of_512_gpus_take_seconds(name: str):
    topology = machine("dgx_h100:64:network=fat-tree:oversubscription=2:spines=4")
    demand = collective(name, 512, 64_000_000)
    began_s = time.thread_time()
    assert lower_bound(topology, demand).ps > 0
    assert time.thread_time() - began_s < 10
