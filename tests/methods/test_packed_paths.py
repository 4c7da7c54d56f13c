"""Method packed-paths: rates of paths for an alltoall, and chunks on them."""

from dataclasses import replace

import numpy as np
import pytest

from flowccl.demand.collectives import collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.errors import DemandError
from flowccl.methods.rates.network import PricedNetwork
from flowccl.methods.rates.paths import path_rates
from flowccl.methods.rates.trees import tree_rates
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.search.context import SearchContext
from flowccl.topology.builders import fat_tree, ring, star, torus
from flowccl.topology.topology import Limit
from flowccl.verifier.verify import verify


def _best(topology, demand, steps=6):
    """The best schedule of a few steps, verified."""
    found = None
    steps_of = load_method("packed-paths")(Problem(topology, demand), SearchContext.with_limit(1000.0))
    for _, schedule in zip(range(steps), steps_of, strict=False):
        found = schedule or found
        assert schedule is None or verify(schedule) == []
    return found


def test_a_rearrangeable_network_reaches_the_bandwidth_of_the_gpus():
    """In a fat tree, every permutation has a route without conflict: 15 MB of 16 leave a GPU at 25 GB/s."""
    found = _best(fat_tree(4, bandwidth_GBps=25, latency_us=0), collective("alltoall", 16, 16_000_000, 1), steps=2)
    assert found.finish_us == pytest.approx(600, rel=1e-3)


def test_relayed_chunks_form_pipelines():
    found = _best(torus(3, 3, bandwidth_GBps=25, latency_us=0), collective("alltoall", 9, 16_000_000, 8))
    assert found.finish_us <= 213.34 * 1.01


@pytest.mark.parametrize("chunks", [1, 3])
def test_limits_are_respected(chunks):
    whole = star(4, bandwidth_GBps=10)
    out = tuple(k for k, link in enumerate(whole.links) if link.src in (0, 1))
    topology = replace(whole, limits=(Limit(name="nic", links=out, bandwidth_GBps=10.0),))
    found = _best(topology, collective("alltoall", 4, 4_000_000, chunks))
    assert found.finish_us == pytest.approx(600 + 1.4, rel=1e-3)  # 6 blocks of 1 MB leave gpu0 and gpu1 over 10 GB/s


def test_uneven_pairs_get_rates_by_their_bytes():
    rows = [(0, 1, 4_000_000), (0, 2, 1_000_000), (1, 2, 2_000_000), (2, 0, 3_000_000)]
    chunks = [Chunk(bytes=size, sources=(a,), destinations=(b,)) for a, b, size in rows]
    demand = Demand.from_chunks("custom", 3, chunks)
    found = _best(star(3, bandwidth_GBps=10, latency_us=0), demand)
    assert found.finish_us == pytest.approx(500, rel=1e-3)  # 5 MB leave gpu0


def test_the_rates_of_a_ring_are_optimal():
    data = np.full((5, 5), 1 / 20)
    np.fill_diagonal(data, 0.0)
    rates = path_rates(PricedNetwork(ring(5, bandwidth_GBps=25)), data, 1000.0)
    assert rates.time == pytest.approx(30 / 20 / 10 / 25, rel=0.01)  # 30 hops of 1/20 over 10 links
    assert rates.bound == pytest.approx(rates.time, rel=0.01)


def test_other_demands_are_refused():
    with pytest.raises(DemandError, match="packed-paths is for chunks with one destination each; got allgather"):
        _best(ring(4), collective("allgather", 4, 4_000_000, 1))


@pytest.mark.parametrize("find", [path_rates, tree_rates])
def test_a_program_that_is_not_solved_in_time_is_given_up(find):
    """The dual simplex takes minutes for an alltoall on a torus of 64 GPUs, where the search had 2 s."""
    data = np.full((9, 9), 1 / 72)
    np.fill_diagonal(data, 0.0)
    with pytest.raises(DemandError, match="found no rates in 0 s"):
        find(PricedNetwork(torus(3, 3)), data if find is path_rates else data.sum(axis=1), 0.0)
