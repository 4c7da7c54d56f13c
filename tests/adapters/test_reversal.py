"""Machines that are equal to their own reversal."""

import numpy as np
import pytest

from flowccl.adapters import reduction
from flowccl.adapters.reversal import opposite_links
from flowccl.demand.collectives import collective
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import as_distribution
from flowccl.search.context import SearchContext
from flowccl.topology.faults import with_faults
from flowccl.topology.machines import machine
from flowccl.verifier.verify import verify


@pytest.mark.parametrize("name", ["ring:4", "dgx1", "dgx_h100:2", "mi250:1", "torus:4x4"])
def test_each_link_equals_one_of_the_reversed_machine(name):
    topology = machine(name)
    links = opposite_links(topology)
    assert links is not None
    assert sorted(links.tolist()) == list(range(len(topology.links)))
    assert all(topology.links[a] == topology.reversed.links[b] for a, b in enumerate(links.tolist()))


def test_a_fault_in_one_direction_is_not_its_own_reversal():
    whole = machine("dgx_h100:2:nvls=false")
    assert opposite_links(with_faults(whole, slow=["gpu3 -> rail3=100Gb/s"])) is None
    assert opposite_links(with_faults(whole, slow=["gpu3 <-> rail3=100Gb/s"])) is not None


def test_a_switch_that_copies_and_does_not_reduce_is_not_its_own_reversal():
    assert opposite_links(machine("dgx2:1")) is None


@pytest.mark.parametrize("method", ["greedy", "direct"])
def test_an_allreduce_is_the_same_with_one_search_and_with_two(method, monkeypatch):
    problem = Problem(machine("dgx_h100:2:nvls=false"), collective("allreduce", 16, 1_000_000, 2))

    def first() -> Schedule:
        found = next(load_method(method)(problem, SearchContext.with_limit(60.0)))
        assert found is not None
        assert verify(found) == []
        return found

    with_one_search = first()
    monkeypatch.setattr(reduction, "opposite_links", lambda topology: None)
    assert with_one_search.finish_ps == pytest.approx(first().finish_ps, rel=0.05)
    assert np.any(with_one_search.reduce)


@pytest.mark.parametrize("name", ["dgx_h100:2", "torus:3x3"])
def test_a_reduction_is_seen_as_a_distribution_by_methods_that_continue_it(name):
    topology = machine(name)
    problem = Problem(topology, collective("reduce_scatter", topology.num_gpus, 1_000_000))
    context = SearchContext.with_limit(60.0)
    found = next(load_method("greedy")(problem, context))
    other = as_distribution(found)
    assert verify(other) == []
    assert Problem(other.topology, other.demand) == Problem(topology.reversed, problem.demand.backward)
    assert other.finish_ps == found.finish_ps
