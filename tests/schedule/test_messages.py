"""Messages (contiguous sends): a message pays the overhead once, and arrives when its last byte has."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flowccl.bounds.lower_bound import lower_bound
from flowccl.demand.collectives import collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.errors import ScheduleError
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.schedule.files import schedule_from_json, schedule_to_json
from flowccl.schedule.generation.serial import generate_serial, sequence
from flowccl.schedule.metrics import measure
from flowccl.schedule.schedule import Schedule, stacked_messages
from flowccl.schedule.transform import concatenate, left_shift, prune, reverse
from flowccl.search.context import SearchContext
from flowccl.topology.builders import line
from flowccl.topology.topology import Link, Node, Topology
from flowccl.verifier.verify import verify
from tests.slow_replay import slow_replay
from tests.strategies import demands, topologies

US = 1_000_000  # picoseconds
INFINIBAND = Link(src=0, dst=1, bandwidth_GBps=1000 / 106, overhead_us=1.7)  # TACCL section 2.1: 1.7 us and 106 us/MB
RANDOM = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])


def chain(*links: Link) -> Topology:
    return Topology("chain", tuple(Node(name=f"gpu{i}") for i in range(len(links) + 1)), links)


def sends(topology: Topology, sizes: list[int], rows: list[tuple], message: list[int]) -> Schedule:
    """Chunks of these sizes from GPU 0 to the last one."""
    last = topology.num_gpus - 1
    demand = Demand.from_chunks("custom", last + 1, [Chunk(bytes=z, sources=(0,), destinations=(last,)) for z in sizes])
    return replace(Schedule.from_transfers(topology, demand, rows), message=np.array(message, dtype=np.int32))


def kinds(schedule: Schedule) -> set[str]:
    found = {violation.kind for violation in verify(schedule)}
    assert found == slow_replay(schedule).kinds
    return found


# -- known times ------------------------------------------------------------------------------------------------------


def test_two_chunks_together_are_17_percent_faster_over_infiniband():
    """Separately 2 x (1.7 + 3.392) = 10.184 us, together 1.7 + 2 x 3.392 = 8.484 us."""
    pair = chain(INFINIBAND)
    one_us = 5.092
    separate = sends(pair, [32_000, 32_000], [(0, [0], 0), (1, [0], 5_092_000)], [-1, -1])
    together = sends(pair, [32_000, 32_000], [(0, [0], 0), (1, [0], 0)], [7, 7])
    assert kinds(separate) == kinds(together) == set()
    assert separate.finish_us == pytest.approx(2 * one_us)
    assert together.finish_us == pytest.approx(8.484)
    assert 1 - together.finish_us / separate.finish_us == pytest.approx(0.17, abs=0.005)


def test_without_overhead_a_message_is_no_faster():
    pair = chain(replace(INFINIBAND, overhead_us=0.0, latency_us=1.7))
    together = sends(pair, [32_000, 32_000], [(0, [0], 0), (1, [0], 0)], [0, 0])
    assert together.finish_us == pytest.approx(1.7 + 2 * 3.392)


def test_overhead_occupies_the_link_and_latency_does_not():
    slow = chain(Link(src=0, dst=1, bandwidth_GBps=1.0, latency_us=2.0, overhead_us=3.0))
    early = sends(slow, [1000, 1000], [(0, [0], 0), (1, [0], 4 * US - 1)], [-1, -1])
    assert kinds(early) == {"link"}
    on_time = replace(early, start_ps=np.array([0, 4 * US]))
    assert kinds(on_time) == set()
    assert on_time.finish_ps == (4 + 4 + 2) * US


def test_links_at_a_cut_through_switch_are_busy_for_the_longest_time():
    """Overhead 3 us and 1 us for the bytes, against 1 and 2 us: both links are busy for 4 us."""
    nodes = (Node(name="gpu0"), Node(name="gpu1"), Node(name="switch", kind="switch"))
    links = (
        Link(src=0, dst=2, bandwidth_GBps=1.0, latency_us=0.5, overhead_us=3.0),
        Link(src=2, dst=1, bandwidth_GBps=0.5, latency_us=0.5, overhead_us=1.0),
    )
    schedule = sends(Topology("two", nodes, links), [1000], [(0, [0, 1], 0)], [-1])
    assert schedule.finish_ps == 5 * US
    assert kinds(schedule) == set()
    behind = (nodes[0], nodes[1], replace(nodes[2], crossing="store-and-forward"))
    one_by_one = replace(schedule, topology=Topology("two", behind, links))
    assert one_by_one.finish_ps == slow_replay(one_by_one).finish_ps == (4 + 3 + 1) * US


def test_chunks_of_a_message_are_forwarded_after_all_have_arrived():
    three = chain(replace(INFINIBAND, bandwidth_GBps=1.0, overhead_us=1.0), Link(src=1, dst=2, bandwidth_GBps=1.0))
    rows = [(0, [0], 0), (1, [0], 0), (0, [1], 2 * US), (1, [1], 3 * US)]
    assert kinds(sends(three, [1000, 1000], rows, [0, 0, -1, -1])) == {"source"}
    rows[2:] = [(0, [1], 3 * US), (1, [1], 4 * US)]
    assert kinds(sends(three, [1000, 1000], rows, [0, 0, -1, -1])) == set()


def test_all_chunks_of_a_message_are_available_when_it_starts():
    three = chain(replace(INFINIBAND, bandwidth_GBps=1.0), replace(INFINIBAND, src=1, dst=2, bandwidth_GBps=1.0))
    rows = [(0, [0], 0), (1, [0], 2_700_000), (0, [1], 2_700_000), (1, [1], 2_700_000)]
    schedule = sends(three, [1000, 1000], rows, [-1, -1, 3, 3])
    assert [v.message for v in verify(schedule)] == [
        "transfer 3 (chunk 1, gpu1 -> gpu2): gpu1 sends it at 2.7 us but has it only from 5.4 us"
    ]
    assert slow_replay(schedule).kinds == {"source"}


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [("start_ps", 1, "start"), ("route", 1, "route"), ("reduce", True, "reduce flag")],
)
def test_a_message_whose_members_differ_is_named(column, value, words):
    double = chain(INFINIBAND)
    double = replace(double, links=(INFINIBAND, INFINIBAND))
    good = sends(double, [1000, 1000, 1000], [(0, [0], 0), (1, [0], 0), (2, [1], 0)], [4, 4, -1])
    assert kinds(good) == set()
    damaged = np.array(getattr(good, column))
    damaged[1] = value
    bad = replace(good, **{column: damaged})
    found = [(v.message, v.transfers) for v in verify(bad) if v.kind == "message"]
    name = "transfer 1 (chunk 1, gpu0 -> gpu1)"
    assert found == [(f"{name}: is in message 4 with transfer 0, but has another {words}", (0, 1))]
    assert "message" in slow_replay(bad).kinds


def test_a_message_counts_once_for_links_and_metrics():
    pair = chain(Link(src=0, dst=1, bandwidth_GBps=1.0, overhead_us=1.0))
    schedule = sends(pair, [1000, 3000], [(0, [0], 0), (1, [0], 0)], [0, 0])
    assert len(schedule.timing.hop_link) == 1
    assert schedule.finish_us == 5.0
    assert measure(schedule).link_use[0] == 1.0


def test_a_file_keeps_messages_and_old_files_have_none():
    pair = chain(INFINIBAND)
    schedule = sends(pair, [1000, 1000], [(0, [0], 0), (1, [0], 0)], [0, 0])
    value = json.loads(json.dumps(schedule_to_json(schedule)))
    assert value["transfers"]["message"] == [0, 0]
    assert value["topology"]["links"][0]["overhead"] == 1.7
    assert schedule_from_json(value) == schedule
    del value["transfers"]["message"]
    assert not schedule_from_json(value).has_messages
    value["transfers"]["message"] = [0, -2]
    with pytest.raises(ScheduleError, match=r"message\[1\]: must be a whole number, -1 to 2147483647, got -2"):
        schedule_from_json(value)
    value["transfers"]["message"] = [0]
    with pytest.raises(ScheduleError, match=r"transfers.message: has 1 entries, chunk has 2"):
        schedule_from_json(value)


def test_left_shift_moves_messages_as_one():
    three = chain(replace(INFINIBAND, bandwidth_GBps=1.0, overhead_us=1.0), Link(src=1, dst=2, bandwidth_GBps=1.0))
    rows = [(0, [0], 5 * US), (1, [0], 5 * US), (0, [1], 9 * US), (1, [1], 9 * US)]
    late = sends(three, [1000, 1000], rows, [0, 0, 1, 1])
    assert kinds(late) == set()
    assert left_shift(late).start_ps.tolist() == [0, 0, 3 * US, 3 * US]


def test_prune_removes_unneeded_chunks_from_a_message():
    pair = chain(INFINIBAND)
    demand = Demand.from_chunks("custom", 2, [Chunk(bytes=z, sources=(0,), destinations=(1,)) for z in (1000, 2000)])
    rows = [(0, [0], 0), (1, [0], 20 * US), (0, [0], 20 * US)]
    twice = replace(Schedule.from_transfers(pair, demand, rows), message=np.array([-1, 2, 2]))
    assert kinds(twice) == set()
    assert prune(twice).chunk.tolist() == [0, 1]
    assert prune(twice).finish_ps == 20 * US + 1_700_000 + 212_000


def test_messages_of_several_schedules_get_distinct_numbers():
    pair = chain(INFINIBAND)
    one = sends(pair, [1000, 1000], [(0, [0], 0), (1, [0], 0)], [3, 3])
    alone = sends(pair, [1000, 1000], [(0, [0], 0), (1, [0], 5 * US)], [-1, -1])
    assert stacked_messages((one, alone, one)).tolist() == [3, 3, -1, -1, 7, 7]


# -- random schedules -------------------------------------------------------------------------------------------------


@st.composite
def with_messages(draw: st.DrawFn, **options: bool) -> Schedule:
    """A valid schedule on a machine with overheads, in which some transfers on the same route share a message."""
    topology = draw(topologies(max_gpus=4, max_switches=2, overheads=True, **options))
    demand = draw(demands(topology.num_gpus, reductions=True, max_chunks=3))
    schedule = next(
        load_method(draw(st.sampled_from(("direct", "tree", "ring"))))(
            Problem(topology, demand), SearchContext.with_limit(60.0)
        )
    )
    schedule = replace(schedule, rate_GBps=np.zeros(0))  # the slow verifier takes the rates of links and limits
    schedule = one_by_one(schedule, sequence(schedule))
    for number in range(draw(st.integers(0, 3))):
        one, other = (draw(st.integers(0, len(schedule) - 1)) for _ in range(2))
        message = np.array(schedule.message)
        alike = schedule.route[one] == schedule.route[other] and schedule.reduce[one] == schedule.reduce[other]
        if alike and message[one] < 0 and message[other] < 0 and schedule.chunk[one] != schedule.chunk[other]:
            message[[one, other]] = number
            later = np.array(schedule.start_ps)
            later[[one, other]] = later[[one, other]].max()
            merged = replace(schedule, message=message, start_ps=later)
            merged = one_by_one(merged, np.argsort(later, kind="stable"))
            schedule = schedule if verify(merged) else merged
    return schedule


def one_by_one(schedule: Schedule, order: NDArray[np.int64]) -> Schedule:
    """The transfers in this order, each message after the previous one has finished."""
    start, at = np.zeros(len(schedule), dtype=np.int64), 0
    for i in dict.fromkeys(schedule.leader[order].tolist()):
        members = schedule.leader == i
        at += 1
        start[members] = at
        alone = replace(schedule, start_ps=start.copy())
        hops = alone.timing.hop_transfer == i
        ends = np.isin(alone.timing.end_transfer, np.flatnonzero(members))
        at = max(int(alone.timing.hop_to_ps[hops].max()), int(alone.timing.end_arrival_ps[ends].max()))
    return replace(schedule, start_ps=start)


def agree(schedule: Schedule) -> None:
    assert {violation.kind for violation in verify(schedule)} == slow_replay(schedule).kinds
    assert schedule.finish_ps == slow_replay(schedule).finish_ps


@RANDOM
@given(with_messages())
def test_both_verifiers_agree_on_messages_and_overheads(schedule):
    assert verify(schedule) == []
    agree(schedule)
    assert lower_bound(schedule.topology, schedule.demand).ps <= schedule.finish_ps
    assert schedule_from_json(json.loads(json.dumps(schedule_to_json(schedule)))) == schedule


@RANDOM
@given(st.data())
def test_both_verifiers_agree_on_damaged_messages(data):
    schedule = data.draw(with_messages())
    row = data.draw(st.integers(0, len(schedule) - 1))
    message, start, adds = np.array(schedule.message), np.array(schedule.start_ps), np.array(schedule.reduce)
    what = data.draw(st.sampled_from(("join", "leave", "move", "earlier", "use")))
    if what == "join":
        message[row] = data.draw(st.integers(0, 3))
    elif what == "leave":
        message[row] = -1
    elif what == "move":
        start[row] += data.draw(st.sampled_from((-1, 1, US)))
    elif what == "earlier":
        start = start - start // 3
    else:
        adds[row] = not adds[row]
    damaged = replace(schedule, message=message, start_ps=start, reduce=adds)
    fast, slow = {violation.kind for violation in verify(damaged)}, slow_replay(damaged)
    if "message" in fast | slow.kinds:  # the timing of a message whose transfers differ is undefined
        assert "message" in fast & slow.kinds
    else:
        agree(damaged)


@RANDOM
@given(with_messages(changes=False))
def test_left_shift_prune_and_generate_serial_keep_messages_valid(schedule):
    for other in (left_shift(schedule), prune(schedule), generate_serial(schedule, sequence(schedule))):
        assert verify(other) == []
        assert other.finish_ps <= schedule.finish_ps
    assert np.all(left_shift(schedule).start_ps <= schedule.start_ps)


@RANDOM
@given(with_messages())
def test_reverse_keeps_messages_valid(schedule):
    demand = schedule.demand
    if not demand.reduces:
        chunks = [demand.chunk(c) for c in range(len(demand))]
        back_chunks = [
            Chunk(bytes=c.bytes, sources=(*c.destinations, *c.sources), destinations=c.sources) for c in chunks
        ]
        back = reverse(schedule, Demand.from_chunks("custom", demand.num_gpus, back_chunks), reduce=True)
        assert verify(back) == []
        assert back.message.tolist() == schedule.message.tolist()


@pytest.mark.parametrize("topology", [line(2), line(4)], ids=lambda t: t.name)
def test_concatenate_keeps_messages_valid(topology):
    machine = replace(topology, links=tuple(replace(k, overhead_us=1.0) for k in topology.links))
    allreduce = collective("allreduce", topology.num_gpus, 64_000, 2)
    (reduced, first), (sent, second) = allreduce.halves
    halves = []
    for demand, chunks in ((reduced, first), (sent, second)):
        part = next(load_method("ring")(Problem(machine, demand), SearchContext.with_limit(60.0)))
        start = {(int(c), int(r)): i for i, (c, r) in enumerate(zip(part.chunk, part.route, strict=True))}
        pairs = [(i, start.get((c + 1, r), -1)) for (c, r), i in start.items() if c % 2 == 0]
        message = np.full(len(part), -1, dtype=np.int32)
        for number, (one, other) in enumerate(pairs):
            if other >= 0:
                message[[one, other]] = number
        part = one_by_one(replace(part, message=message), np.argsort(part.start_ps, kind="stable"))
        assert verify(part) == []
        halves.append(replace(part, demand=allreduce, chunk=chunks[part.chunk].astype(np.int32)))
    both = concatenate(halves[0], halves[1], allreduce)
    assert both.has_messages
    assert verify(both) == []
    assert slow_replay(both).kinds == set()


@RANDOM
@given(st.data())
def test_methods_that_ignore_overheads_make_valid_schedules_on_machines_that_have_them(data):
    topology = data.draw(topologies(max_gpus=4, max_switches=2, overheads=True))
    demand = data.draw(demands(topology.num_gpus, max_chunks=2))
    for method in ("greedy", "direct", "ring", "reroute"):
        if method == "reroute" and (topology.limits or topology.changes):
            continue
        schedule = next(load_method(method)(Problem(topology, demand), SearchContext.with_limit(60.0)))
        assert schedule.topology == topology
        assert verify(schedule) == []
        assert lower_bound(topology, demand).ps <= schedule.finish_ps
