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
from flowccl.schedule.generation.collecting import staged_messages
from flowccl.schedule.generation.engine import Engine
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.synthesis import synthesize
from flowccl.topology.builders import full
from flowccl.topology.machines import machine
from flowccl.topology.topology import Limit, Link, Node, Topology
from flowccl.verifier.verify import verify
from tests.strategies import demands, topologies

MSCCLPP = PROFILES["mscclpp"]
US = 1_000_000  # picoseconds
RANDOM = settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
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
@given(st.data(), drafts(overheads=True, on_runtime=False), st.sampled_from((1.0, 0.5, 0.1)), st.booleans())
def test_what_the_engine_returns_is_valid_without_a_runtime(
    data: st.DataObject, draft: Schedule, least: float, leaves_capacity: bool
):
    timed = Engine(draft).run(data.draw(orders(draft)), least, leaves_capacity=leaves_capacity)
    assert timed is None or verify(timed) == []


@RANDOM
@given(
    st.data(),
    drafts(overheads=False, on_runtime=True),
    st.integers(1, 40),
    st.sampled_from((1, 2, 4)),
    st.sampled_from(("Simple", "LL")),
    st.sampled_from((1.0, 0.5)),
    st.booleans(),
)
def test_what_the_engine_returns_is_valid_on_a_runtime(
    data: st.DataObject, draft: Schedule, sms: int, width: int, protocol: str, least: float, leaves_capacity: bool
):
    posters, receivers = (
        data.draw(st.integers(0, 1)),
        data.draw(st.sampled_from((1, 2, 3) if protocol == "Simple" else (1,))),
    )
    execution = Execution(MSCCLPP, sms + receivers * width, width, posters, protocol, receivers=receivers)
    timed = Engine(draft, execution).run(data.draw(orders(draft)), least, leaves_capacity=leaves_capacity)
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
    """Without reductions nothing waits in a cycle, so that there is always an answer."""
    timed = Engine(draft).run()
    if not draft.demand.reduces:
        assert timed is not None
    if timed is not None:
        assert np.array_equal(timed.chunk, draft.chunk)
        assert np.array_equal(timed.route, draft.route)


# -- links that are shared, by hand -----------------------------------------------------------------------------------


def port(*, limit: bool) -> Topology:
    """GPU 0 reaches GPU 1 at 24 GB/s and GPU 2 at 12.5 GB/s, both through its port of 24 GB/s or a limit of 24 GB/s."""
    nodes = [Node(name=f"gpu{i}") for i in range(3)]
    if limit:
        links = (Link(src=0, dst=1, bandwidth_GBps=24), Link(src=0, dst=2, bandwidth_GBps=12.5))
        return Topology("limit", tuple(nodes), links, (Limit(name="port", links=(0, 1), bandwidth_GBps=24),))
    nodes.append(Node(name="switch", kind="switch"))
    ends = ((0, 3, 24.0), (3, 1, 24.0), (3, 2, 12.5))
    return Topology("switch", tuple(nodes), tuple(Link(src=a, dst=b, bandwidth_GBps=rate) for a, b, rate in ends))


def to_both(topology: Topology) -> Schedule:
    """GPU 0 sends 125,000 B to GPU 2, and then 115,000 B to GPU 1."""
    chunks = [
        Chunk(bytes=125_000, sources=(0,), destinations=(2,)),
        Chunk(bytes=115_000, sources=(0,), destinations=(1,)),
    ]
    routes = ([1], [0]) if topology.limits else ([0, 2], [0, 1])
    rows = [(0, routes[0], 0), (1, routes[1], 100 * US)]
    return Schedule.from_transfers(topology, Demand.from_chunks("custom", 3, chunks), rows)


@pytest.mark.parametrize("limit", [False, True])
def test_rates_on_a_shared_port_add_up(limit: bool):
    """12.5 GB/s flow to GPU 2 for 10 us; beside them 24 - 12.5 = 11.5 GB/s to GPU 1, which takes 10 us as well."""
    timed = Engine(to_both(port(limit=limit))).run(least=0.4)
    assert timed.start_ps.tolist() == [0, 0]
    assert timed.rate_GBps.tolist() == pytest.approx([0.0, 11.5], abs=1e-6)
    assert timed.finish_us == pytest.approx(10.0, abs=1e-4)
    assert verify(timed) == []


@pytest.mark.parametrize("limit", [False, True])
def test_a_message_waits_rather_than_to_be_slow(limit: bool):
    """11.5 of 24 GB/s are less than half: the second message waits, and takes 115,000 / 24,000 = 4.79167 us."""
    timed = Engine(to_both(port(limit=limit))).run(least=0.5)
    assert timed.start_ps.tolist() == [0, 10 * US]
    assert timed.finish_us == pytest.approx(14.791667, abs=1e-6)
    assert verify(timed) == []


@pytest.mark.parametrize("limit", [False, True])
def test_a_message_leaves_capacity_for_slower_ones(limit: bool):
    """The message to GPU 1 goes first, at 24 - 12.5 = 11.5 GB/s: the other one still flows at 12.5 GB/s beside it."""
    timed = Engine(to_both(port(limit=limit))).run(np.array([1, 0]), least=1.0, leaves_capacity=True)
    assert timed.start_ps.tolist() == [0, 0]
    assert timed.rate_GBps.tolist() == pytest.approx([0.0, 11.5], abs=1e-6)
    assert timed.finish_us == pytest.approx(10.0, abs=1e-4)
    assert verify(timed) == []


def test_messages_on_a_link_with_an_overhead_take_turns():
    """Averaged over its overhead, a message is slower than the link; yet nothing else may use the link."""
    links = (Link(src=0, dst=1, bandwidth_GBps=10, overhead_us=1.0),)
    machine = Topology("overhead", (Node(name="gpu0"), Node(name="gpu1")), links)
    chunks = [Chunk(bytes=10_000, sources=(0,), destinations=(1,))] * 2
    draft = Schedule.from_transfers(machine, Demand.from_chunks("custom", 2, chunks), [(0, [0], 0), (1, [0], 5 * US)])
    timed = Engine(draft).run(least=0.1)
    assert timed.start_ps.tolist() == [0, 2 * US]
    assert verify(timed) == []


# -- reductions -------------------------------------------------------------------------------------------------------


def test_one_shot_allreduce_of_several_gpus():
    """Each of four GPUs must send its contribution before those of the others arrive: they wait for each other."""
    machine = full(4, bandwidth_GBps=100, latency_us=0.7)
    demand = collective("allreduce", 4, 64_000)
    of = {(link.src, link.dst): number for number, link in enumerate(machine.links)}
    rows = [(chunk, [of[pair]], 0, True) for chunk in range(4) for pair in of]
    draft = Schedule.from_transfers(machine, demand, rows)
    for execution in (None, Execution(MSCCLPP, 80), Execution(MSCCLPP, 80, protocol="LL")):
        timed = Engine(draft, execution).run()
        assert timed is not None
        assert verify(timed) == []


def test_all_chunks_of_a_message_are_reduced_in_turn():
    """GPU 1 sends chunks 0 and 1 in one message, GPU 2 chunk 1 alone; both are reduced into chunk 1 of GPU 0.

    Only the first chunk of a message was waited for, so that both were reduced at once.
    """
    machine = full(3, bandwidth_GBps=100, latency_us=0.7)
    chunks = [
        Chunk(bytes=340_000, sources=(0, 1), destinations=(0,)),
        Chunk(bytes=340_000, sources=(0, 1, 2), destinations=(0,)),
    ]
    of = {(link.src, link.dst): number for number, link in enumerate(machine.links)}
    rows = [(0, [of[1, 0]], 0, True), (1, [of[1, 0]], 0, True), (1, [of[2, 0]], 0, True)]
    draft = Schedule.from_transfers(machine, Demand.from_chunks("custom", 3, chunks), rows)
    draft = replace(draft, message=np.array([0, 0, -1], dtype=np.int32))
    timed = Engine(draft, Execution(MSCCLPP, 16, 2)).run()
    assert timed is not None
    assert verify(timed) == []


def test_in_an_exchange_the_work_on_an_arrival_waits_for_the_own_send():
    """Both GPUs exchange four chunks, in opposite orders: what arrives first meets data that has not left yet."""
    topology = used_by(full(2), MSCCLPP)
    draft = planned(topology, collective("allreduce", 2, 1 << 20, 2), "recursive-doubling")
    sender = np.array([topology.links[draft.routes.links(route)[0]].src for route in draft.route])
    timed = Engine(draft, Execution(MSCCLPP, 2), topology).run(np.where(sender == 0, draft.chunk, -draft.chunk))
    assert timed is not None
    assert verify(timed) == []
    arrived = timed.timing.end_arrival_ps - timed.costs.work_ps[timed.timing.end_transfer]
    assert np.any(timed.work_from_ps[timed.timing.end_transfer] <= arrived)


def test_a_message_with_less_to_pack_than_expected_leaves_as_planned():
    """A message needs no copy that it needed in the draft; its NIC was given two messages at once."""
    found = synthesize(machine("dgx_h100:4"), "allreduce", 8192, method="nvls", runtime="mscclpp", steps=1)
    assert verify(found.schedule) == []


def test_tails_count_reductions_into_the_same_chunk_one_after_the_other():
    """Three GPUs send a contribution to the fourth: the first has the work on all three before the end."""
    machine = full(4, bandwidth_GBps=100, latency_us=0.7)
    demand = Demand.from_chunks("custom", 4, [Chunk(bytes=3_300_000, sources=(0, 1, 2, 3), destinations=(0,))])
    of = {(link.src, link.dst): number for number, link in enumerate(machine.links)}
    draft = Schedule.from_transfers(machine, demand, [(0, [of[n, 0]], 100_000_000 * n, True) for n in (1, 2, 3)])
    engine = Engine(draft, Execution(MSCCLPP, 16))
    work = replace(draft, execution=engine.execution).costs.work_ps
    assert work.min() > 0
    assert np.diff(engine.tail_ps).tolist() == [-work[1], -work[2]]


def test_a_stage_is_one_message_for_each_route():
    """Both GPUs of a pair send two chunks on, which they got from a third: two stages, one message for each route."""
    machine = full(3, bandwidth_GBps=100, latency_us=0.7)
    demand = Demand.from_chunks("custom", 3, [Chunk(bytes=1600, sources=(0,), destinations=(2,))] * 4)
    of = {(link.src, link.dst): number for number, link in enumerate(machine.links)}
    rows = [(chunk, [of[0, 1]], 10_000_000 * chunk, False) for chunk in range(4)]
    rows += [(chunk, [of[1, 2]], 10_000_000 * (chunk + 1), False) for chunk in range(3)] + [(3, [of[0, 2]], 0, False)]
    message = staged_messages(Schedule.from_transfers(machine, demand, rows), by_piece=False)
    assert message.tolist() == [0, 0, 0, 0, 4, 4, 4, 7]
