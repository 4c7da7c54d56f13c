"""Double justification: valid schedules that only become earlier, and a case by hand."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowccl.demand.collectives import collective
from flowccl.methods.justification import _passes, justify
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.schedule.generation.engine import Engine
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.faults import with_faults
from flowccl.topology.machines import machine
from flowccl.verifier.verify import verify
from tests.cases import send


def test_a_long_chain_that_began_late_goes_first() -> None:
    """Two chunks on gpu0 -> gpu1, one of which goes on to gpu2: 4 us in the wrong order, 2 us in the right one."""
    topology = machine("line:3:bandwidth=1GB/s:latency=0us")
    demand = send((1000, 0, (1,)), (1000, 0, (2,)), gpus=3)
    first, second = (
        next(k for k, link in enumerate(topology.links) if (link.src, link.dst) == ends) for ends in ((0, 1), (1, 2))
    )
    late = Schedule.from_transfers(topology, demand, [(0, [first], 0), (1, [first], 10**6), (1, [second], 3 * 10**6)])
    assert verify(late) == []
    assert late.finish_us == 4
    passes = _passes(late)
    assert passes is not None
    both = passes.back_and_forth(late.start_ps, 0.0, np.random.default_rng(0))
    assert both is not None
    assert both[1].tolist() == [10**6, 0, 10**6]


@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(["torus:3x3", "mesh:3x3", "dgx1", "dgx_h100:1", "ndv2:2"]), st.integers(1, 3), st.integers(0, 99)
)
def test_schedules_stay_valid_and_become_earlier(name: str, chunks: int, seed: int) -> None:
    topology = machine(name)
    problem = Problem(topology, collective("allreduce", topology.num_gpus, 100_000, chunks))
    context = SearchContext.with_limit(60.0, seed=seed)
    given_schedule = next(load_method("greedy")(problem, context))
    assert given_schedule is not None
    context.incumbents.report(given_schedule)
    context.incumbents.publish()
    last_ps = given_schedule.finish_ps
    for found, _ in zip(justify(problem, context), range(4), strict=False):
        if found is not None:
            assert verify(found) == []
            assert found.finish_ps < last_ps
            last_ps = found.finish_ps


def test_halves_of_an_allreduce_overlap() -> None:
    """GPUs with a dead link need longest for each half, unless copies begin before the last reductions."""
    topology = with_faults(machine("torus:4x4"), without=["gpu0 <-> gpu1"])
    problem = Problem(topology, collective("allreduce", 16, 1_000_000, 4))
    context = SearchContext.with_limit(60.0)
    first = next(load_method("greedy")(problem, context))
    assert first is not None
    reduced_ps = int(first.timing.end_arrival_ps[first.reduce[first.timing.end_transfer]].max())
    wait_ps = reduced_ps - int(first.start_ps[~first.reduce].min())
    assert wait_ps > 0
    apart = replace(first, start_ps=first.start_ps + np.where(first.reduce, 0, wait_ps))
    assert verify(apart) == []
    context.incumbents.report(apart)
    context.incumbents.publish()
    search = justify(problem, context)
    found = [one for one, _ in zip(search, range(10), strict=False) if one is not None]
    assert found[-1].finish_ps < 0.98 * apart.finish_ps
    assert found[-1].finish_ps <= first.finish_ps


def test_nothing_to_improve() -> None:
    problem = Problem(machine("ring:4"), collective("allreduce", 4, 4000))
    assert next(justify(problem, SearchContext.with_limit(1.0))) is None


@pytest.mark.parametrize("name", ["allgather", "reduce_scatter", "allreduce"])
def test_a_poor_order_on_switches(name: str) -> None:
    """The transfers of a good schedule, the last ones first: the passes find a better order."""
    problem = Problem(machine("dgx_h100:2"), collective(name, 16, 1_000_000, 2))
    context = SearchContext.with_limit(60.0)
    good = next(load_method("greedy")(problem, SearchContext.with_limit(60.0)))
    assert good is not None
    poor = Engine(good).run(-good.start_ps)
    assert poor is not None
    context.incumbents.report(poor)
    context.incumbents.publish()
    steps = islice(load_method("justify")(problem, context), 10)
    found = [one for one in steps if one is not None]
    assert all(verify(one) == [] for one in found)
    assert found[-1].finish_ps < poor.finish_ps


def test_a_schedule_without_an_order_to_improve_stays() -> None:
    """One transfer: both passes find it where it is."""
    problem = Problem(machine("star:2"), collective("broadcast", 2, 4000))
    context = SearchContext.with_limit(1.0)
    first = next(load_method("direct")(problem, context))
    assert first is not None
    context.incumbents.report(first)
    context.incumbents.publish()
    assert next(justify(problem, context)) is None
