"""Method packed-trees: rates of trees, whole chunks on them, and periodic pipelines."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flowccl.demand.collectives import collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.errors import DemandError
from flowccl.methods.rates.network import PricedNetwork
from flowccl.methods.rates.pricing_kernels import cheapest_trees
from flowccl.methods.rates.rounding import dealt
from flowccl.methods.rates.sequence import in_sequence
from flowccl.methods.rates.trees import fewer_trees, tree_rates
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.schedule.files import schedule_from_json, schedule_to_json
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.builders import full, line, ring, star
from flowccl.topology.files import load_topology
from flowccl.topology.topology import Limit, Topology
from flowccl.verifier.verify import verify

DATA = Path(__file__).parents[1] / "data"


def _first(topology, name, size, chunks, steps=12):
    """The best schedule of a few steps, verified."""
    problem = Problem(topology, collective(name, topology.num_gpus, size, chunks))
    found = None
    for _, schedule in zip(
        range(steps), load_method("packed-trees")(problem, SearchContext.with_limit(1000.0)), strict=False
    ):
        found = schedule or found
        assert schedule is None or verify(schedule) == []
    return found


def _with_limit(topology: Topology, GBps: float) -> Topology:
    """All links out of gpu0 share a bandwidth."""
    out = tuple(k for k, link in enumerate(topology.links) if link.src == 0)
    return replace(topology, limits=(Limit(name="gpu0 out", links=out, bandwidth_GBps=GBps),))


@pytest.mark.parametrize(
    ("topology", "us_per_MB"),
    [  # of an allgather: bytes that enter the slowest GPU, over its bandwidth
        (ring(4, bandwidth_GBps=25), 0.75 / 0.05),
        (line(4, bandwidth_GBps=25), 0.75 / 0.025),
        (star(5, bandwidth_GBps=10), 0.8 / 0.01),
        (full(4, bandwidth_GBps=10), 0.75 / 0.03),
    ],
)
def test_the_rates_of_an_allgather_reach_the_known_optimum(topology, us_per_MB):
    count = topology.num_gpus
    rates = tree_rates(PricedNetwork(topology), np.full(count, 1 / count), 1000.0)
    assert rates.time * 1000 == pytest.approx(us_per_MB, rel=0.01)
    assert rates.bound <= rates.time * (1 + 1e-6)
    assert rates.bound >= rates.time * 0.99


def test_roots_of_an_allreduce_get_data_by_their_bandwidth():
    """On a star with one slow GPU, its port carries all data once in each direction: others are the roots."""
    whole = star(4, bandwidth_GBps=100)
    links = tuple(replace(k, bandwidth_GBps=10.0) if 0 in (k.src, k.dst) else k for k in whole.links)
    rates = tree_rates(PricedNetwork(replace(whole, links=links)), None, 1000.0)
    assert rates.time == pytest.approx(0.1, rel=0.01)  # one unit of data over 10 GB/s


def test_a_limit_counts_as_much_as_a_link():
    topology = _with_limit(full(4, bandwidth_GBps=10), 5.0)
    rates = tree_rates(PricedNetwork(topology), np.full(4, 0.25), 1000.0)
    assert rates.time == pytest.approx(0.05, rel=0.01)  # a quarter of the data leaves gpu0 once, over 5 GB/s


def test_only_what_must_be_full_is_full():
    """Two PCIe hosts: the link between them is busy all the time, the ports of GPUs 91 % of it, and none above 95 %."""
    topology = load_topology(DATA / "machines" / "pcie_hosts.json")
    network = PricedNetwork(topology)
    rates = tree_rates(network, np.full(8, 1 / 8), 1000.0)
    busy = np.array(rates.load).T @ rates.even / network.capacity / rates.time
    between = np.array([kind == "nic" for kind in topology.link_kinds])
    assert busy[between].min() > 0.99
    assert busy[~between].max() < 0.95


@pytest.mark.parametrize("name", ["allgather", "reduce_scatter", "allreduce", "broadcast", "reduce"])
def test_schedules_are_valid_with_and_without_limits(name):
    for topology in (star(4, bandwidth_GBps=10), _with_limit(full(4, bandwidth_GBps=10), 5.0)):
        assert _first(topology, name, 4_000_000, 8) is not None


def test_an_allgather_of_many_chunks_comes_close_to_the_rates():
    found = _first(ring(4, bandwidth_GBps=25, latency_us=0), "allgather", 4_000_000, 64)
    assert found.finish_us <= 60 * 1.05


def test_a_reduce_scatter_takes_as_long_as_an_allgather_of_the_reversed_machine():
    topology = _with_limit(full(4, bandwidth_GBps=10), 5.0)
    links = tuple(replace(k, bandwidth_GBps=7.0) if k.src == 1 else k for k in topology.links)
    topology = replace(topology, links=links)
    there = _first(topology, "reduce_scatter", 4_000_000, 8)
    back = _first(topology.reversed, "allgather", 4_000_000, 8)
    assert there.finish_ps == back.finish_ps


def test_an_allreduce_on_a_ring_is_two_halves_that_fill_quickly():
    """A chunk goes around once in each half: with pairs of trees it would wait for both directions of every link."""
    found = _first(ring(4, bandwidth_GBps=25, latency_us=0), "allreduce", 4_000_000, 32)
    assert found.finish_us <= 120 * 1.06


def test_a_slow_gpu_is_no_root_where_pairs_of_trees_are_faster():
    """Over its port of 10 GB/s go 1 MB in each direction; in halves it would also carry what it is the root of."""
    whole = star(4, bandwidth_GBps=100, latency_us=0)
    links = tuple(replace(k, bandwidth_GBps=10.0) if 0 in (k.src, k.dst) else k for k in whole.links)
    found = _first(replace(whole, links=links), "allreduce", 1_000_000, 32)
    assert found.finish_us <= 100 * 1.1


def test_a_schedule_after_another_starts_when_its_chunk_has_arrived():
    """The chunk takes 5 us to send and 5 us of latency to GPU 1, which sends it to GPU 2."""
    topology = line(3, bandwidth_GBps=1, latency_us=5)
    link = {(k.src, k.dst): i for i, k in enumerate(topology.links)}
    demand = Demand.from_chunks("custom", 3, [Chunk(bytes=5_000, sources=(0,), destinations=(1, 2))])
    parts = [Schedule.from_transfers(topology, demand, [(0, (link[ends],), 0)]) for ends in ((0, 1), (1, 2))]
    both = in_sequence(*parts, demand)
    assert both.start_ps.tolist() == [0, 10_000_000]
    assert verify(both) == []


def test_of_equal_rates_few_chunks_take_shallow_trees():
    """On a star every tree has the same load; with two chunks a chain of five GPUs would fill four times."""
    topology = star(6, bandwidth_GBps=10, latency_us=0)
    rates = tree_rates(PricedNetwork(topology), np.eye(6)[0], 1000.0)
    amounts = fewer_trees(PricedNetwork(topology), rates, np.eye(6)[0], 2, 1_000_000)
    depth = np.array([tree.depth for tree in rates.trees])
    assert depth[amounts[-1] > 1e-6].max() <= depth[amounts[0] > 1e-6].max()


def test_rates_of_transfers_are_kept_in_files():
    found = _first(star(4, bandwidth_GBps=10), "allgather", 4_000_000, 1000, steps=2)
    assert found.rate_GBps.any()
    assert schedule_from_json(schedule_to_json(found)) == found


def test_other_demands_are_refused():
    with pytest.raises(DemandError, match="packed-trees is for data that all GPUs receive or reduce; got alltoall"):
        _first(ring(4), "alltoall", 4_000_000, 1)


def test_cheapest_trees_are_as_cheap_as_those_of_a_search_over_all_parents():
    from itertools import product

    random = np.random.default_rng(0)
    for _ in range(20):
        price = random.integers(1, 20, (4, 4)).astype(np.float64)
        for root, parent in enumerate(cheapest_trees(price, np.arange(4), 0.0)):
            others = [node for node in range(4) if node != root]
            costs = []
            for parents in product(range(4), repeat=3):
                up = dict(zip(others, parents, strict=True))
                if all(_reaches(up, node, root) for node in others):
                    costs.append(sum(price[up[node], node] for node in others))
            assert sum(price[parent[node], node] for node in others) == min(costs)


def _reaches(up: dict[int, int], node: int, root: int) -> bool:
    for _ in range(4):
        if node == root:
            return True
        node = up[node]
    return False


def test_items_are_dealt_by_weight_and_interleaved():
    assert dealt(np.array([2.0, 1.0]), 6).tolist() == [0, 1, 0, 0, 1, 0]
