"""Dual prices: close to the optimum of an independent linear program, and never above a schedule."""

import numpy as np
import pytest
from scipy.optimize import linprog

from flowccl.bounds.commodities import Commodities
from flowccl.bounds.dual_prices import best_dual_prices
from flowccl.bounds.lower_bound import bounds, lower_bound
from flowccl.demand.collectives import collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.schedule.schedule import Schedule
from flowccl.synthesis import synthesize
from flowccl.topology.builders import ring
from flowccl.topology.topology import Link, Node, Topology
from flowccl.verifier.verify import verify

GB = 1_000_000_000


def random_machine(seed, gpus=7):
    random = np.random.default_rng(seed)
    pairs = {(i, (i + 1) % gpus) for i in range(gpus)}
    while len(pairs) < 2 * gpus:
        pairs.add(tuple(random.choice(gpus, 2, replace=False).tolist()))
    links = [
        Link(src=a, dst=b, bandwidth_GBps=float(random.choice([10, 25, 50])), latency_us=0.5) for a, b in sorted(pairs)
    ]
    return Topology(f"random {seed}", tuple(Node(name=f"gpu{i}") for i in range(gpus)), tuple(links))


def flow_seconds(topology, amount):
    """The least time of the multicommodity flow of all amounts (GB): one flow per source and link."""
    nodes, links = len(topology.nodes), len(topology.links)
    columns = nodes * links + 1
    balance, wanted, capacity = [], [], []
    for s in range(nodes):
        for v in range(nodes):
            if v == s:
                continue
            row = np.zeros(columns)
            for k, link in enumerate(topology.links):
                row[s * links + k] += (link.dst == v) - (link.src == v)
            balance.append(row)
            wanted.append(amount[s, v])
    for k, link in enumerate(topology.links):
        row = np.zeros(columns)
        row[[s * links + k for s in range(nodes)]] = 1
        row[-1] = -link.bandwidth_GBps
        capacity.append(row)
    cost = np.zeros(columns)
    cost[-1] = 1
    return linprog(cost, np.array(capacity), np.zeros(links), np.array(balance), np.array(wanted)).fun


@pytest.mark.parametrize("seed", range(12))
def test_dual_prices_give_the_optimum_of_the_multicommodity_flow(seed):
    topology = random_machine(seed)
    size = topology.num_gpus * GB
    demand = collective("alltoall", topology.num_gpus, size, 1)
    amount = 1.0 - np.eye(topology.num_gpus)
    best = flow_seconds(topology, amount) * 1e12
    found = best_dual_prices(Commodities.of(demand, topology)).ps
    assert 0.97 * best <= found <= best * (1 + 1e-5)  # latency is at most 10 us, of tenths of seconds


def test_a_search_for_prices_that_is_stopped_still_proves_a_bound():
    topology = random_machine(3)
    commodities = Commodities.of(collective("alltoall", topology.num_gpus, topology.num_gpus * GB, 1), topology)
    asked = []

    def should_stop():
        asked.append(True)
        return len(asked) == 5

    stopped = best_dual_prices(commodities, should_stop)
    assert len(asked) == 5
    assert 0 < stopped.ps < best_dual_prices(commodities).ps


def test_no_schedule_is_below_the_bound_and_dual_prices_alone_close_some_gaps():
    closed = 0
    for seed in range(12):
        topology = random_machine(seed)
        result = synthesize(topology, "alltoall", topology.num_gpus * 1_000_000, steps=24)
        kinds = {bound.kind: bound.ps for bound in bounds(topology, result.schedule.demand)}
        assert max(kinds.values()) <= result.schedule.finish_ps
        closed += result.gap < 0.005 and kinds["dual prices"] > kinds["cut"]
    assert closed >= 1


def test_dual_prices_are_for_demands_without_copies():
    assert best_dual_prices(Commodities.of(collective("allgather", 4, 4000, 1), ring(4))) is None
    assert lower_bound(ring(4), collective("allgather", 4, 4000, 1)).kind != "dual prices"


def test_the_first_bytes_on_a_link_may_be_of_another_commodity_than_the_last():
    """gpu1 -> gpu2 first carries data that goes on to gpu3, and in the end data that came from gpu0."""
    ends = ((0, 1, 1000.0), (1, 2, 1.0), (2, 3, 1000.0))
    links = tuple(Link(src=a, dst=b, bandwidth_GBps=rate, latency_us=5) for a, b, rate in ends)
    topology = Topology("line", tuple(Node(name=f"gpu{i}") for i in range(4)), links)
    chunks = [Chunk(bytes=10**6, sources=(1,), destinations=(3,)), Chunk(bytes=10**6, sources=(0,), destinations=(2,))]
    demand = Demand.from_chunks("custom", 4, chunks)
    transfers = [(0, [1], 0), (1, [0], 0), (0, [2], 1005 * 10**6), (1, [1], 1000 * 10**6)]
    schedule = Schedule.from_transfers(topology, demand, transfers)
    assert verify(schedule) == []
    assert schedule.finish_us == 2005
    assert lower_bound(topology, demand).us <= 2005
