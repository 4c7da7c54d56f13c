"""Regression tests of greedy, each on the smallest machine that shows the bug."""

import multiprocessing

from flowccl.demand.demand import Demand
from flowccl.methods.greedy import GreedySearch
from flowccl.topology.topology import Limit, Link, Node, Topology
from flowccl.verifier.verify import verify
from tests.cases import gpus, send


def link(src: int, dst: int, GBps: float = 5, changes: tuple = ()) -> Link:
    return Link(src=src, dst=dst, bandwidth_GBps=GBps, changes=changes)


STORES = Node(name="switch", kind="switch", crossing="store-and-forward")


def one_step(topology: Topology, demand: Demand) -> None:
    GreedySearch(topology, demand).step()


def test_a_route_uses_a_limit_in_two_consecutive_hops():
    topology = Topology(
        "one limit", (*gpus(2), STORES), (link(0, 2), link(2, 1)), (Limit(name="bus", links=(0, 1), bandwidth_GBps=5),)
    )
    one_step(Topology("warm", tuple(gpus(2)), (link(0, 1),)), send((1000, 0, (1,)), gpus=2))  # loads the compiled loops
    child = multiprocessing.get_context("fork").Process(
        target=one_step, args=(topology, send((1000, 0, (1,)), gpus=2)), daemon=True
    )
    child.start()
    child.join(3)
    over = not child.is_alive()
    child.kill()
    child.join()
    assert over


def test_bandwidth_rises_before_a_store_and_forward_switch():
    links = (link(0, 3, changes=((0.1, 50.0),)), link(1, 3), link(3, 2))
    search = GreedySearch(
        Topology("rising", (*gpus(3), STORES), links),
        send((1000, 0, (2,)), (1000, 0, (2,)), (1000, 1, (2,)), gpus=3),
    )
    assert search.step()
    assert verify(search.best) == []


def test_bandwidth_rises_under_a_limit():
    links = (link(0, 2, changes=((0.1, 10.0),)), link(1, 2, changes=((0.1, 10.0),)))
    limits = (Limit(name="bus", links=(0, 1), bandwidth_GBps=10),)
    rows = [(1000, source, (2,)) for source in (0, 0, 1, 1)]
    search = GreedySearch(Topology("rising", tuple(gpus(3)), links, limits), send(*rows, gpus=3))
    assert search.step()
    assert verify(search.best) == []


def test_a_limit_just_below_the_sum_of_two_rates():
    limits = (Limit(name="bus", links=(0, 1), bandwidth_GBps=20),)
    topology = Topology("just", tuple(gpus(3)), (link(0, 2, 10.0001), link(1, 2, 10.0001)), limits)
    search = GreedySearch(topology, send((1, 0, (2,)), (1, 1, (2,)), gpus=3))
    assert search.step()
    assert verify(search.best) == []
