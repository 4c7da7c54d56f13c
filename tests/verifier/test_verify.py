"""The verifier: it reports every kind of damage, and an independent slow verifier agrees."""

import re
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flowccl.demand.collectives import collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.methods.greedy import GreedySearch
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.builders import line, star
from flowccl.topology.machines import machine
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Limit, Node, Topology
from flowccl.verifier.verify import verify
from flowccl.verifier.violation import exact_us
from tests.cases import gpus, link, memory_star, send
from tests.slow_replay import slow_replay
from tests.strategies import demands, topologies

US = 1_000_000  # picoseconds
KB = 1000

# -- valid schedules --------------------------------------------------------------------------------------------------


def on_a_line(*, count: int = 2) -> list[tuple]:
    """Broadcast of `count` chunks of 10 KB over 0 -> 1 -> 2 (links 0 and 2): 1 us each, 0.5 us latency."""
    first = [(c, [0], c * US) for c in range(count)]
    return first + [(c, [2], c * US + 3 * US // 2) for c in range(count)]


def line_schedule(rows: list[tuple], chunks: int = 2) -> Schedule:
    topology = line(3, bandwidth_GBps=10, latency_us=0.5)
    return Schedule.from_transfers(topology, collective("broadcast", 3, chunks * 10 * KB, chunks), rows)


STAR = star(4, bandwidth_GBps=10, latency_us=0.5)  # links 2i: gpu i -> switch, 2i + 1: back
MULTICAST = star(4, bandwidth_GBps=10, latency_us=0.5, copies=True)
REDUCING_SWITCH = star(4, bandwidth_GBps=10, latency_us=0.5, reduces=True)
TWO_PAIRS = Topology("two pairs", tuple(gpus(4)), (link(0, 1), link(2, 3)))
MEMORY = memory_star(3)  # links 2i: gpu i -> memory, 2i + 1: back


def star_broadcast(topology: Topology, rows: list[tuple]) -> Schedule:
    return Schedule.from_transfers(topology, collective("broadcast", 4, 10 * KB), rows)


def reduction(rows: list[tuple], topology: Topology | None = None) -> Schedule:
    """Reduction of three contributions at gpu0, on a line or another machine."""
    topology = topology or line(3, bandwidth_GBps=10, latency_us=0.5)
    return Schedule.from_transfers(topology, collective("reduce", 3, 10 * KB), rows)


REDUCTION = [(0, [3], 0, True), (0, [1], 3 * US // 2, True)]  # gpu2 -> gpu1 -> gpu0


def limited(GBps: float) -> Topology:
    limits = (Limit(name="pcie", links=(0, 1), bandwidth_GBps=GBps),)
    return Topology("limited", tuple(gpus(3)), (link(0, 2), link(1, 2)), limits)


def side_by_side(GBps: float) -> Schedule:
    demand = send((10 * KB, 0, (2,)), (10 * KB, 1, (2,)), gpus=3)
    return Schedule.from_transfers(limited(GBps), demand, [(0, [0], 0), (1, [1], 0)])


def relayed(buffer_bytes: int | None, second_ps: int) -> Schedule:
    """Two chunks through gpu1, which wants neither; the second starts at `second_ps`."""
    nodes = (Node(name="gpu0"), Node(name="gpu1", buffer_bytes=buffer_bytes), Node(name="gpu2"))
    topology = Topology("relay", nodes, (link(0, 1, latency_us=0), link(1, 2, latency_us=0)))
    demand = send((10 * KB, 0, (2,)), (10 * KB, 0, (2,)), gpus=3)
    rows = [(0, [0], 0), (0, [1], US), (1, [0], second_ps), (1, [1], second_ps + US)]
    return Schedule.from_transfers(topology, demand, rows)


def gives_away(rows: list[tuple], destinations: tuple[int, ...] = (1, 2)) -> Schedule:
    """GPUs around a memory that stores but cannot copy."""
    nodes = (*gpus(3), Node(name="memory", kind="memory", copies=False))
    topology = Topology("no copies", nodes, MEMORY.links)
    return Schedule.from_transfers(topology, send((10 * KB, 0, destinations), gpus=3), rows)


VALID = {
    "line": line_schedule(on_a_line()),
    "plain switch": star_broadcast(STAR, [(0, [0, 3], 0), (0, [0, 5], US), (0, [0, 7], 2 * US)]),
    "multicast switch": star_broadcast(MULTICAST, [(0, [0, 3, 5, 7], 0)]),
    "reduction": reduction(REDUCTION),
    "reduction in a switch": Schedule.from_transfers(
        REDUCING_SWITCH, collective("reduce", 4, 10 * KB), [(0, [2, 4, 6, 1], 0, True)]
    ),
    "limit": side_by_side(20),
    "buffer": relayed(10 * KB, 2 * US),
    "memory that copies": Schedule.from_transfers(
        MEMORY, collective("broadcast", 3, 10 * KB), [(0, [0], 0), (0, [3], 2 * US), (0, [5], 2 * US)]
    ),
    "memory that gives away": gives_away(
        [(0, [0], 0), (0, [3], 3 * US // 2), (0, [0], US), (0, [5], 5 * US // 2)], (1, 2)
    ),
}

# -- damage -----------------------------------------------------------------------------------------------------------

late = on_a_line()
late[2] = (0, [2], 3 * US // 2 - 1)
early = on_a_line()
early[0] = (0, [0], -1)
moved = on_a_line()
moved[1] = (1, [0], US - 1)

DAMAGE = {
    "start moved into the transfer before it": (
        line_schedule(moved),
        "link",
        "link 0 (gpu0 -> gpu1) carries transfer 0 until 1 us, but transfer 1 starts on it at 0.999999 us",
    ),
    "start before time zero": (
        line_schedule(early),
        "start",
        "transfer 0 (chunk 0, gpu0 -> gpu1): starts at -0.000001 us, before time zero",
    ),
    "forward before the chunk is whole": (
        line_schedule(late),
        "source",
        "transfer 2 (chunk 0, gpu1 -> gpu2): gpu1 sends it at 1.499999 us but has it only from 1.5 us",
    ),
    "last transfer dropped": (line_schedule(on_a_line()[:-1]), "destination", "gpu2 never gets chunk 1"),
    "first transfer dropped": (
        line_schedule(on_a_line()[1:]),
        "source",
        "transfer 1 (chunk 0, gpu1 -> gpu2): gpu1 sends it at 1.5 us but never gets it",
    ),
    "link doubled": (
        line_schedule([*on_a_line(), (0, [0], 0)]),
        "link",
        "link 0 (gpu0 -> gpu1) carries transfer 0 until 1 us, but transfer 4 starts on it at 0 us",
    ),
    "wrong source": (
        line_schedule([*on_a_line(), (0, [3], 0)]),
        "source",
        "transfer 4 (chunk 0, gpu2 -> gpu1): gpu2 sends it at 0 us but has it only from 3 us",
    ),
    "links that do not meet in a switch": (
        line_schedule([*on_a_line()[:2], (0, [0, 2], 2 * US), (1, [2], 5 * US)]),
        "route",
        "transfer 2 (chunk 0, gpu0+gpu1 -> gpu1+gpu2): the route is not one connected tree of links",
    ),
    "reduction and copies in one transfer": (
        Schedule.from_transfers(machine("dgx_h100:1"), collective("allreduce", 8, 8000), [(0, [0, 2, 5, 7], 0)]),
        "route",
        "transfer 0 (chunk 0, gpu0+gpu1 -> gpu2+gpu3): the route reduces inputs and makes copies in one transfer;"
        " use two transfers",
    ),
    "links that do not meet at all": (
        Schedule.from_transfers(TWO_PAIRS, send((1, 0, (1,)), gpus=4), [(0, [0, 1], 0)]),
        "route",
        "transfer 0 (chunk 0, gpu0+gpu2 -> gpu1+gpu3): the route is not one connected tree of links",
    ),
    "link that does not exist": (
        line_schedule([*on_a_line(), (0, [99], 9 * US)]),
        "route",
        "transfer 4 (chunk 0, nowhere -> nowhere): the route names link 99, which does not exist",
    ),
    "negative link": (
        line_schedule([*on_a_line(), (0, [-1], 9 * US)]),
        "route",
        "transfer 4 (chunk 0, nowhere -> nowhere): the route names link -1, which does not exist",
    ),
    "link twice in one route": (
        star_broadcast(STAR, [(0, [0, 3, 3], 0)]),
        "route",
        "transfer 0 (chunk 0, gpu0 -> gpu1+gpu1): the route uses a link twice",
    ),
    "stop at a switch": (
        star_broadcast(STAR, [(0, [0], 0)]),
        "route",
        "transfer 0 (chunk 0, gpu0 -> nowhere): the route stops at switch switch, which does not store",
    ),
    "start at a switch": (
        star_broadcast(STAR, [(0, [3], 0)]),
        "route",
        "transfer 0 (chunk 0, nowhere -> gpu1): the route leaves switch switch, which receives nothing",
    ),
    "switch copies though it cannot": (
        star_broadcast(STAR, [(0, [0, 3, 5, 7], 0)]),
        "route",
        "transfer 0 (chunk 0, gpu0 -> gpu1+gpu2+gpu3): the route makes 3 copies at switch switch, which cannot copy",
    ),
    "switch reduces though it cannot": (
        Schedule.from_transfers(MULTICAST, collective("reduce", 4, 10 * KB), [(0, [2, 4, 6, 1], 0, True)]),
        "route",
        "transfer 0 (chunk 0, gpu1+gpu2+gpu3 -> gpu0): "
        "the route reduces 3 inputs at switch switch, which cannot reduce",
    ),
    "memory reduces though it cannot": (
        reduction([(0, [2], 0, True), (0, [4], US, True), (0, [1], 4 * US, True)], MEMORY),
        "reduce",
        "transfer 1 (chunk 0, gpu2 -> memory): memory cannot reduce",
    ),
    "contribution counted twice": (
        reduction([*REDUCTION, (0, [1], 3 * US, True)]),
        "reduce",
        "transfer 2 (chunk 0, gpu1 -> gpu0): counts gpu1, gpu2 twice at gpu0",
    ),
    "contribution left out": (reduction(REDUCTION[1:]), "destination", "gpu0 ends without gpu2 in chunk 0"),
    "partial reduction sent too early": (
        reduction([REDUCTION[0], (0, [1], 3 * US // 2 - 1, True)]),
        "destination",
        "gpu0 ends without gpu2 in chunk 0",
    ),
    "contribution stored instead of reduced": (
        reduction([REDUCTION[0], (0, [1], 3 * US // 2, False)]),
        "destination",
        "gpu0 ends without gpu0 in chunk 0",
    ),
    "nothing to send": (
        reduction([*REDUCTION, (0, [5], 9 * US, True)], MEMORY),
        "source",
        "transfer 2 (chunk 0, memory -> gpu2): memory sends at 9 us, but has no contribution then",
    ),
    "limit exceeded": (
        side_by_side(19),
        "limit",
        "limit pcie (19 GB/s) carries 20 GB/s at 0 us, by transfers 0, 1",
    ),
    "buffer exceeded": (
        relayed(10 * KB, 2 * US - 1),
        "buffer",
        "gpu1 buffers 20 KB for other GPUs at 1.999999 us, its buffer is 10 KB",
    ),
    "memory that cannot copy sends two": (
        gives_away([(0, [0], 0), (0, [3], 3 * US // 2), (0, [5], 3 * US // 2)]),
        "copy",
        "transfer 2 (chunk 0, memory -> gpu2): memory cannot copy, but sends at 1.5 us what it has given away before",
    ),
    "memory that cannot copy gets the second too late": (
        gives_away([(0, [0], 0), (0, [3], 3 * US // 2), (0, [0], 2 * US), (0, [5], 5 * US // 2)]),
        "copy",
        "transfer 3 (chunk 0, memory -> gpu2): memory cannot copy, but sends at 2.5 us what it has given away before",
    ),
}


@pytest.mark.parametrize("schedule", VALID.values(), ids=VALID)
def test_valid_schedules_have_no_violation(schedule):
    assert verify(schedule) == []
    assert slow_replay(schedule).kinds == set()


@pytest.mark.parametrize(("schedule", "kind", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_reported(schedule, kind, message):
    found = verify(schedule)
    assert (kind, message) in [(violation.kind, violation.message) for violation in found]
    assert kind in slow_replay(schedule).kinds


@pytest.mark.parametrize(
    ("ps", "text"),
    [(0, "0 us"), (1, "0.000001 us"), (-1, "-0.000001 us"), (1_500_000, "1.5 us"), (10**13 + 1, "10000000.000001 us")],
)
def test_times_are_printed_with_all_digits(ps, text):
    assert exact_us(ps) == text


def test_times_that_differ_by_a_picosecond_look_different():
    (violation,) = [v for v in verify(line_schedule(late)) if v.kind == "source"]
    sent, has = re.findall(r"[\d.]+ us", violation.message)
    assert (sent, has) == ("1.499999 us", "1.5 us")


def test_a_violation_names_its_transfers():
    (violation,) = verify(line_schedule(moved))
    assert violation.transfers == (0, 1)
    assert str(violation) == f"link: {violation.message}"
    assert {v.transfers for v in verify(side_by_side(19))} == {(0, 1)}


def test_a_demand_for_more_gpus_than_the_machine_has_is_reported():
    schedule = replace(VALID["line"], topology=line(2))
    (violation,) = verify(schedule)
    assert str(violation) == "machine: the demand is for 3 gpus, line:2 has 2"


def test_a_start_before_zero_on_a_link_that_changes_is_reported_too():
    topology = Topology("changing", tuple(gpus(2)), (link(0, 1, changes=((1.0, 5.0),)),))
    (violation,) = verify(Schedule.from_transfers(topology, send((10 * KB, 0, (1,)), gpus=2), [(0, [0], -5)]))
    assert violation.kind == "start"


def test_gpus_that_are_neither_in_the_group_nor_relays_are_not_used():
    demand = replace(send((10 * KB, 0, (2,)), gpus=3), group=(0, 2), relays=())
    schedule = Schedule.from_transfers(line(3, bandwidth_GBps=10), demand, [(0, [0], 0), (0, [2], 9 * US)])
    assert {(v.kind, v.message) for v in verify(schedule)} == {
        ("relay", "transfer 0 (chunk 0, gpu0 -> gpu1): gpu1 is neither in the group nor a relay"),
        ("relay", "transfer 1 (chunk 0, gpu1 -> gpu2): gpu1 is neither in the group nor a relay"),
    }
    assert slow_replay(schedule).kinds == {"relay"}


def test_data_cannot_be_sent_before_its_release_time():
    demand = replace(send((10 * KB, 0, (1,)), gpus=2), ready_ps=np.array([US]))
    early = Schedule.from_transfers(line(2, bandwidth_GBps=10), demand, [(0, [0], US - 1)])
    (violation,) = verify(early)
    assert str(violation).endswith("gpu0 sends it at 0.999999 us but has it only from 1 us")
    assert slow_replay(early).kinds == {"source"}
    assert verify(replace(early, start_ps=np.array([US]))) == []


def test_all_violations_are_listed():
    """Six chunks on one link at the same time, all too early, and one that never arrives."""
    rows = [(c, [0], -US) for c in range(6)] + [(c, [2], 0) for c in range(5)]
    found = verify(line_schedule(rows, chunks=6))
    count = {kind: sum(v.kind == kind for v in found) for kind in {v.kind for v in found}}
    assert count == {"start": 6, "link": 5 + 4, "source": 5, "destination": 1}
    assert {v.transfers for v in found if v.kind == "start"} == {(i,) for i in range(6)}


def test_a_long_transfer_conflicts_with_all_that_start_during_it():
    topology = line(2, bandwidth_GBps=10, latency_us=0)
    demand = send((50 * KB, 0, (1,)), (10 * KB, 0, (1,)), (10 * KB, 0, (1,)), gpus=2)
    schedule = Schedule.from_transfers(topology, demand, [(0, [0], 0), (1, [0], US), (2, [0], 3 * US)])
    assert [v.transfers for v in verify(schedule)] == [(0, 1), (0, 2)]


def test_the_only_copy_cannot_be_given_away_by_a_destination():
    nodes = (Node(name="gpu0"), Node(name="gpu1", copies=False), Node(name="gpu2"))
    topology = Topology("keeper", nodes, (link(0, 1), link(1, 2)))
    rows = [(0, [0], 0), (0, [1], 2 * US)]
    (violation,) = verify(Schedule.from_transfers(topology, send((10 * KB, 0, (1, 2)), gpus=3), rows))
    expected = "transfer 1 (chunk 0, gpu1 -> gpu2): gpu1 cannot copy, but gives away the only copy, which it must keep"
    assert (violation.kind, violation.message) == ("copy", expected)
    assert verify(Schedule.from_transfers(topology, send((10 * KB, 0, (2,)), gpus=3), rows)) == []


def test_a_node_that_cannot_copy_gives_away_its_contribution():
    nodes = (*gpus(2), Node(name="gpu2", copies=False))
    topology = Topology("once", nodes, (link(2, 1), link(2, 0), link(1, 0)))
    rows = [(0, [0], 0, True), (0, [1], 0, True)]
    found = verify(Schedule.from_transfers(topology, collective("reduce", 3, 10 * KB), rows))
    words = "transfer 1 (chunk 0, gpu2 -> gpu0): gpu2 sends at 0 us, but has given it away and cannot copy"
    assert ("copy", words) in [(v.kind, v.message) for v in found]


def test_a_merge_waits_for_the_branch_that_crosses_a_store_and_forward_switch():
    """Two roots, one behind a store-and-forward switch: the order of the links in the route does not matter."""
    nodes = (
        *gpus(3),
        Node(name="adds", kind="switch", reduces=True),
        Node(name="stores", kind="switch", crossing="store-and-forward"),
    )
    links = (link(1, 3), link(2, 4), link(4, 3), link(3, 0))
    topology = Topology("merge", nodes, links)
    for order in ([0, 1, 2, 3], [1, 2, 0, 3], [3, 0, 2, 1]):
        schedule = Schedule.from_transfers(topology, collective("reduce", 3, 10 * KB), [(0, order, 0, True)])
        assert verify(schedule) == []
        assert schedule.finish_ps == slow_replay(schedule).finish_ps == 7 * US // 2
        hops = dict(zip(schedule.timing.hop_link.tolist(), schedule.timing.hop_from_ps.tolist(), strict=True))
        assert hops == {1: 0, 2: 3 * US // 2, 0: 3 * US // 2, 3: 2 * US}


def test_two_branches_behind_store_and_forward_switches_cannot_merge():
    nodes = (
        *gpus(3),
        Node(name="adds", kind="switch", reduces=True),
        *(Node(name=f"stores{i}", kind="switch", crossing="store-and-forward") for i in range(2)),
    )
    topology = Topology("merge", nodes, (link(1, 4), link(4, 3), link(2, 5), link(5, 3), link(3, 0)))
    schedule = Schedule.from_transfers(topology, collective("reduce", 3, 10 * KB), [(0, [0, 1, 2, 3, 4], 0, True)])
    assert "route reduces inputs from two store-and-forward switches" in verify(schedule)[0].message
    assert slow_replay(schedule).kinds == {"route", "destination"}


# -- the slow verifier agrees -----------------------------------------------------------------------------------------


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """A schedule of a random demand on a random machine, by a fast baseline method."""
    topology = draw(topologies(max_gpus=4, max_switches=2))
    demand = draw(demands(topology.num_gpus, reductions=True, max_chunks=2))
    method = draw(st.sampled_from(("direct", "tree", "ring")))
    some = load_method(method)(Problem(topology, demand), SearchContext.with_limit(60.0))
    found = next((schedule for schedule in some if schedule is not None), None)
    assume(found is not None)  # with limits, other times may break an exchange
    return replace(found, rate_GBps=np.zeros(0))  # the slow verifier takes the rates of links and limits


def damaged(draw: st.DrawFn, schedule: Schedule) -> Schedule:
    """One or two changes to any column."""
    lists = [list(schedule.routes.links(int(r))) for r in schedule.route]
    rows = [
        [int(c), links, int(start), bool(adds)]
        for c, links, start, adds in zip(schedule.chunk, lists, schedule.start_ps, schedule.reduce, strict=True)
    ]
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.integers(0, len(rows) - 1))
        kind = draw(st.sampled_from(("drop", "again", "start", "chunk", "links", "reduce")))
        if kind == "drop" and len(rows) > 1:
            rows.pop(at)
        elif kind == "again":
            rows.append(list(rows[at]))
        elif kind == "start":
            other = draw(st.sampled_from(rows))
            rows[at][2] = draw(st.sampled_from((other[2], rows[at][2] - 1, rows[at][2] + 1, rows[at][2] // 2)))
        elif kind == "chunk":
            rows[at][0] = draw(st.integers(0, len(schedule.demand) - 1))
        elif kind == "links":
            every = st.integers(0, len(schedule.topology.links) - 1)
            rows[at][1] = draw(st.lists(every, min_size=1, max_size=3) | st.sampled_from(lists))
        else:
            rows[at][3] = not rows[at][3]
    return Schedule.from_transfers(schedule.topology, schedule.demand, [tuple(row) for row in rows])


def assert_verifiers_agree(schedule: Schedule) -> None:
    fast, slow = {violation.kind for violation in verify(schedule)}, slow_replay(schedule)
    if "route" in fast | slow.kinds:  # the timing of an invalid route is undefined
        assert "route" in fast & slow.kinds
        return
    assert fast == slow.kinds
    assert schedule.finish_ps == slow.finish_ps


@settings(max_examples=60)
@given(schedules())
def test_the_slow_verifier_agrees_on_valid_schedules(schedule):
    assert verify(schedule) == []
    assert_verifiers_agree(schedule)


@settings(max_examples=60)
@given(st.data())
def test_the_slow_verifier_agrees_on_damaged_schedules(data):
    assert_verifiers_agree(damaged(data.draw, data.draw(schedules())))


@settings(max_examples=60)
@given(st.data())
def test_the_slow_verifier_agrees_on_buffers(data):
    """Random buffer limits for schedules that were made without them."""
    schedule = data.draw(schedules())
    size = st.none() | st.sampled_from((0, 1000, 20_000, 10**6))
    nodes = [replace(n, buffer_bytes=data.draw(size) if n.stores else None) for n in schedule.topology.nodes]
    assert_verifiers_agree(replace(schedule, topology=replace(schedule.topology, nodes=tuple(nodes))))


@settings(max_examples=60)
@given(st.data())
def test_the_slow_verifier_agrees_on_routes_of_any_links(data):
    """Any links as one transfer: both verifiers find the same trees and the same times."""
    topology = data.draw(topologies(max_gpus=3, max_switches=3, changes=False, overheads=True))
    links = data.draw(st.lists(st.integers(0, len(topology.links) - 1), min_size=1, max_size=5, unique=True))
    demand = Demand.from_chunks("custom", topology.num_gpus, [Chunk(bytes=1000, sources=(0,), destinations=(1,))])
    assert_verifiers_agree(Schedule.from_transfers(topology, demand, [(0, links, 5)]))


# -- speed ------------------------------------------------------------------------------------------------------------


def test_reductions_are_followed_in_as_many_parts_as_fit_into_memory(monkeypatch):
    topology = machine("dgx_h100:1")
    demand = collective("allreduce", 8, 64 * KB, 3)
    schedule = next(load_method("direct")(Problem(topology, demand), SearchContext.with_limit(1.0)))
    monkeypatch.setattr("flowccl.verifier.contributions._MOST_WORDS", 1)
    assert not verify(schedule)
    start = schedule.start_ps.copy()
    start[schedule.chunk == 17] = 0
    assert {v.kind for v in verify(replace(schedule, start_ps=start))} >= {"destination"}


def test_256_gpus_are_verified_in_seconds(capsys):
    """65,280 transfers in under 2 s; the test allows twice that, for a machine with other load."""
    search = GreedySearch(machine("torus:16x16"), collective("allgather", 256, 256_000))
    assert search.step()
    schedule = search.best
    assert len(schedule) == 256 * 255
    columns = {name: getattr(schedule, name) for name in ("chunk", "route", "start_ps", "reduce")}
    routes = Routes(schedule.routes.ptr, schedule.routes.link)
    fresh = Schedule(schedule.topology, schedule.demand, routes, **columns)  # without cached results
    began = time.process_time()
    violations = verify(fresh)
    took = time.process_time() - began
    with capsys.disabled():
        print(f"\nverify of {len(fresh)} transfers: {took:.2f} s")
    assert violations == []
    assert took < 4
    moved = np.array(schedule.start_ps)
    moved[len(moved) // 2] += 1
    assert len(verify(replace(schedule, start_ps=moved))) >= 1
