"""The engine: every schedule that it returns is valid, and messages that need the same thing take turns or share it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowccl.demand.collectives import collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.runtimes.execution import Execution
from flowccl.runtimes.machine import used_by
from flowccl.runtimes.profiles import PROFILES
from flowccl.schedule.generation.carrying import Carrier
from flowccl.schedule.generation.engine import Engine
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.builders import full, star
from flowccl.topology.topology import Limit, Link, Node, Topology
from flowccl.verifier.verify import verify
from tests.strategies import demands, topologies

MSCCLPP = PROFILES["mscclpp"]
US = 1_000_000  # picoseconds
RANDOM = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
METHODS = ("direct", "tree", "ring", "greedy")


def planned(topology: Topology, demand: Demand, method: str) -> Schedule:
    """The first schedule of a method, whose times the engine replaces."""
    return next(load_method(method)(Problem(topology, demand), SearchContext.with_limit(60.0)))


@st.composite
def drafts(draw: st.DrawFn, *, overheads: bool, on_runtime: bool) -> Schedule:
    """A valid schedule on a small random machine, with messages of one chunk."""
    topology = draw(topologies(max_gpus=5, max_switches=2, changes=False, overheads=overheads))
    topology = used_by(topology, MSCCLPP) if on_runtime else topology
    demand = draw(demands(topology.num_gpus, reductions=True, max_chunks=2))
    return planned(topology, demand, draw(st.sampled_from(METHODS)))


@st.composite
def orders(draw: st.DrawFn, schedule: Schedule) -> np.ndarray | None:
    """The order of the schedule, or a random one."""
    if draw(st.booleans()):
        return None
    return np.array(draw(st.lists(st.integers(0, 3), min_size=len(schedule), max_size=len(schedule))))


# -- everything that the engine returns is valid ----------------------------------------------------------------------


@RANDOM
@given(st.data(), drafts(overheads=True, on_runtime=False), st.sampled_from((1.0, 0.5, 0.1)))
def test_what_the_engine_returns_is_valid_without_a_runtime(data: st.DataObject, draft: Schedule, least: float):
    timed = Engine(draft).run(data.draw(orders(draft)), least)
    assert timed is None or verify(timed) == []


@RANDOM
@given(
    st.data(),
    drafts(overheads=False, on_runtime=True),
    st.integers(1, 40),
    st.sampled_from((1, 2, 4)),
    st.sampled_from(("Simple", "LL")),
    st.sampled_from((1.0, 0.5)),
)
def test_what_the_engine_returns_is_valid_on_a_runtime(
    data: st.DataObject, draft: Schedule, sms: int, width: int, protocol: str, least: float
):
    execution = Execution(MSCCLPP, sms + width, width, data.draw(st.integers(0, 1)), protocol)
    timed = Engine(draft, execution).run(data.draw(orders(draft)), least)
    assert timed is None or verify(timed) == []


@RANDOM
@given(drafts(overheads=False, on_runtime=True), st.integers(1, 40))
def test_what_the_carrier_returns_is_valid(draft: Schedule, sms: int):
    """With messages collected, widths and protocols tried; never more threadblocks than allowed."""
    timed = Carrier(MSCCLPP, draft.topology, sms)(draft)
    if timed is not None:
        assert verify(timed) == []
        assert timed.execution.groups * timed.execution.width + timed.execution.posters <= sms
        assert max(timed.issuer.max(), timed.receiver.max()) < timed.execution.groups


@RANDOM
@given(drafts(overheads=False, on_runtime=False))
def test_with_the_order_of_a_schedule_the_engine_finds_all_of_its_messages(draft: Schedule):
    """Without reductions nothing waits in a circle, so that there is always an answer."""
    timed = Engine(draft).run()
    if not draft.demand.reduces:
        assert timed is not None
    if timed is not None:
        assert np.array_equal(timed.chunk, draft.chunk)
        assert np.array_equal(timed.route, draft.route)
