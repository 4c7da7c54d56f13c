"""Regression tests of greedy, each on the smallest machine that shows the bug."""

from flowccl.demand.demand import Demand
from flowccl.methods.greedy import GreedySearch
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.topology import Limit, Link, Node, Topology
from flowccl.verifier.verify import verify
from tests.cases import gpus, send


def link(src: int, dst: int, GBps: float = 5, changes: tuple = ()) -> Link:
    return Link(src=src, dst=dst, bandwidth_GBps=GBps, changes=changes)


STORES = Node(name="switch", kind="switch", crossing="store-and-forward")


def first(topology: Topology, demand: Demand) -> Schedule:
    found = next(load_method("greedy")(Problem(topology, demand), SearchContext.with_limit(60.0)))
    assert found is not None
    assert verify(found) == []
    return found


def test_a_route_uses_a_limit_in_two_consecutive_hops():
    topology = Topology(
        "one limit", (*gpus(2), STORES), (link(0, 2), link(2, 1)), (Limit(name="bus", links=(0, 1), bandwidth_GBps=5),)
    )
    first(topology, send((1000, 0, (1,)), gpus=2))


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
    first(Topology("rising", tuple(gpus(3)), links, limits), send(*rows, gpus=3))


def test_a_limit_just_below_the_sum_of_two_rates():
    limits = (Limit(name="bus", links=(0, 1), bandwidth_GBps=20),)
    topology = Topology("just", tuple(gpus(3)), (link(0, 2, 10.0001), link(1, 2, 10.0001)), limits)
    first(topology, send((1, 0, (2,)), (1, 1, (2,)), gpus=3))
