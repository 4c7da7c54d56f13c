"""Random machines and demands: limits, changing bandwidth, memories, store-and-forward switches, buffers.

Each method gets `max_examples` of them, the same in every run. Every schedule verifies, no lower bound is above its
completion time, `left_shift` makes nothing later, and JSON returns the schedule unchanged.
"""

import json
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from flowccl.bounds.lower_bound import lower_bound
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.schedule.files import schedule_from_json, schedule_to_json
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift
from flowccl.search.context import SearchContext
from flowccl.topology.topology import Topology
from flowccl.verifier.verify import verify
from tests.strategies import demands, topologies

EACH = settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def problems(draw: st.DrawFn, min_gpus: int = 2, max_gpus: int = 5) -> tuple[Topology, Demand]:
    """A machine, with buffer limits now and then, and a demand, with reductions now and then."""
    buffers = draw(st.integers(0, 7)) == 0
    topology = draw(topologies(min_gpus=min_gpus, max_gpus=max_gpus, max_switches=2, buffers=buffers))
    return topology, draw(demands(topology.num_gpus, reductions=draw(st.booleans()), max_chunks=2))


def has_buffers(topology: Topology) -> bool:
    return any(node.buffer_bytes is not None for node in topology.nodes)


def check(schedule: Schedule, problem: tuple[Topology, Demand]) -> None:
    topology, demand = problem
    assert verify(schedule) == []
    assert (schedule.topology, schedule.demand) == (topology, demand)
    assert lower_bound(topology, demand).ps <= schedule.finish_ps
    early = left_shift(schedule)
    assert np.all(early.start_ps <= schedule.start_ps)
    assert verify(early) == []
    value = json.loads(json.dumps(schedule_to_json(schedule)))
    assert schedule_from_json(value) == schedule


def steps(method: str, problem: tuple[Topology, Demand]) -> Iterator[Schedule | None]:
    return load_method(method)(Problem(*problem), SearchContext.with_limit(600.0))


def check_baseline(method: str, problem: tuple[Topology, Demand]) -> None:
    try:
        schedule = next(steps(method, problem))
    except DemandError as error:
        if not has_buffers(problem[0]) or "buffer limit" not in str(error):
            raise
        reject()  # the method needs a larger buffer on this machine
    check(schedule, problem)


@EACH
@given(problems())
def test_greedy_on_random_machines(problem):
    found = [schedule for schedule in islice(steps("greedy", problem), 2) if schedule is not None]
    if not found:  # a buffer may be too small, and a memory cannot reduce
        assert has_buffers(problem[0]) or (problem[1].reduces and any(n.kind == "memory" for n in problem[0].nodes))
    for schedule in found:
        check(schedule, problem)


@EACH
@given(problems())
def test_ring_on_random_machines(problem):
    check_baseline("ring", problem)


@EACH
@given(problems(2, 2) | problems(4, 4))
def test_recursive_doubling_on_random_machines(problem):
    check_baseline("recursive-doubling", problem)


@EACH
@given(problems())
def test_direct_on_random_machines(problem):
    check_baseline("direct", problem)


@EACH
@given(problems())
def test_tree_on_random_machines(problem):
    check_baseline("tree", problem)


@settings(max_examples=30)
@given(problems(3, 3))
def test_recursive_doubling_needs_a_power_of_two(problem):
    with pytest.raises(DemandError, match="recursive-doubling needs a power of two as the number of GPUs; got 3"):
        next(steps("recursive-doubling", problem))


@settings(EACH, max_examples=25)
@given(problems())
def test_multi_ring_on_random_machines(problem):
    check_baseline("multi-ring", problem)


@settings(EACH, max_examples=25)
@given(problems())
def test_double_binary_tree_on_random_machines(problem):
    check_baseline("double-binary-tree", problem)
