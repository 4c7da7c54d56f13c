"""Critical path, slack and gains of schedules that can be worked out by hand, and properties on random schedules.

Links have 10 GB/s and 0.5 us unless a case says otherwise, so 10 KB take 1 us, and 1 / 1.1 us on a link 10 % faster.
"""

import json
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flowccl.cli import main
from flowccl.demand.collectives import collective
from flowccl.errors import InputError, InvalidScheduleError
from flowccl.explain import binding_constraints, describe, explain, finish_if_faster
from flowccl.schedule.files import save_schedule
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift
from flowccl.synthesis import synthesize
from flowccl.topology.builders import line, ring
from flowccl.topology.files import save_topology
from flowccl.topology.topology import Limit, Link, Node, Topology
from flowccl.verifier.verify import verify
from tests.cases import gpus, link, send
from tests.schedule.test_transform import spread_out

US = 1_000_000  # picoseconds
KB = 1000


@dataclass(frozen=True)
class Case:
    """A schedule, its critical path as (transfer, cause), its parts, gains and slacks, all in us."""

    name: str
    schedule: Schedule
    finish_us: float
    path: list[tuple[int, str]]
    parts: dict[str, float]
    gains: dict[str, float] | None
    slack: list[float]
    left_shift_us: float | None = field(default=None)

    def __str__(self) -> str:
        return self.name


def plan(nodes, links, demand, transfers, limits=()) -> Schedule:
    """A schedule from (chunk, links, start in us) or (chunk, links, start in us, reduce)."""
    topology = Topology("m", tuple(nodes), tuple(links), tuple(limits))
    return Schedule.from_transfers(
        topology, demand, [(row[0], row[1], round(row[2] * US), *row[3:]) for row in transfers]
    )


def one_transfer() -> Case:
    made = plan(gpus(2), [link(0, 1)], send((10 * KB, 0, (1,)), gpus=2), [(0, [0], 0)])
    return Case(
        "one transfer", made, 1.5, [(0, "start")], {"sending": 1, "latency": 0.5}, {"gpu0 -> gpu1": 1 / 11}, [0]
    )


def one_link_twice() -> Case:
    """Both transfers get faster: 2 us become 2 / 1.1 us."""
    demand = send((10 * KB, 0, (1,)), (10 * KB, 0, (1,)), gpus=2)
    made = plan(gpus(2), [link(0, 1)], demand, [(0, [0], 0), (1, [0], 1)])
    parts = {"sending": 2, "latency": 0.5}
    return Case("one link twice", made, 2.5, [(0, "start"), (1, "link")], parts, {"gpu0 -> gpu1": 2 / 11}, [0, 0])


def line_of_three() -> Case:
    """A chunk over two links: the second starts when the whole chunk has arrived."""
    demand = send((10 * KB, 0, (2,)), gpus=3)
    made = plan(gpus(3), [link(0, 1), link(1, 2)], demand, [(0, [0], 0), (0, [1], 1.5)])
    gains = {"gpu0 -> gpu1": 1 / 11, "gpu1 -> gpu2": 1 / 11, "all 10 GB/s links": 2 / 11}
    return Case("line of three", made, 3, [(0, "start"), (1, "data")], {"sending": 2, "latency": 1}, gains, [0, 0])


def equally_critical() -> Case:
    """Two links end at the same time: one faster link alone saves nothing."""
    demand = send((10 * KB, 0, (1,)), (10 * KB, 2, (1,)), gpus=3)
    made = plan(gpus(3), [link(0, 1), link(2, 1)], demand, [(0, [0], 0), (1, [1], 0)])
    gains = {"gpu0 -> gpu1": 0, "all 10 GB/s links": 1 / 11}
    parts = {"sending": 1, "latency": 0.5}
    return Case("two links that end together", made, 1.5, [(0, "start")], parts, gains, [0, 0])


def slower_twin() -> Case:
    """The link of 5 GB/s ends 1 us after the other one, which has that slack; 10 % faster, it saves 2 / 11 us."""
    demand = send((10 * KB, 0, (1,)), (10 * KB, 2, (1,)), gpus=3)
    made = plan(gpus(3), [link(0, 1), link(2, 1, GBps=5)], demand, [(0, [0], 0), (1, [1], 0)])
    parts = {"sending": 2, "latency": 0.5}
    return Case("a slower link", made, 2.5, [(1, "start")], parts, {"gpu2 -> gpu1": 2 / 11}, [1, 0])


def gain_that_ends_early() -> Case:
    """10 % faster would save 1 us of 11, but the other link ends only 0.5 us before."""
    demand = send((110 * KB, 0, (1,)), (105 * KB, 2, (1,)), gpus=3)
    made = plan(gpus(3), [link(0, 1), link(2, 1)], demand, [(0, [0], 0), (1, [1], 0)])
    gains = {"gpu0 -> gpu1": 0.5, "all 10 GB/s links": 1}
    parts = {"sending": 11, "latency": 0.5}
    return Case("the next link ends soon", made, 11.5, [(0, "start")], parts, gains, [0, 0.5])


def through_a_switch() -> Case:
    """Cut-through: both links carry the chunk at the same rate, so only both together make it faster."""
    nodes = [*gpus(2), Node(name="switch", kind="switch")]
    made = plan(nodes, [link(0, 2), link(2, 1)], send((10 * KB, 0, (1,)), gpus=2), [(0, [0, 1], 0)])
    gains = {"gpu0 -> switch": 0, "all 10 GB/s links": 1 / 11}
    return Case("cut-through switch", made, 2, [(0, "start")], {"sending": 1, "latency": 1}, gains, [0])


def store_and_forward() -> Case:
    """Each link is busy in turn, and each alone saves 1 / 11 us."""
    nodes = [*gpus(2), Node(name="switch", kind="switch", crossing="store-and-forward")]
    made = plan(nodes, [link(0, 2), link(2, 1)], send((10 * KB, 0, (1,)), gpus=2), [(0, [0, 1], 0)])
    gains = {"gpu0 -> switch": 1 / 11, "all 10 GB/s links": 2 / 11}
    return Case("store-and-forward switch", made, 3, [(0, "start")], {"sending": 2, "latency": 1}, gains, [0])


def shared_limit() -> Case:
    """Two links share 10 GB/s, so one transfer waits for the other; faster links do not help, a wider limit does."""
    demand = send((10 * KB, 0, (1,)), (10 * KB, 0, (2,)), gpus=3)
    bus = Limit(name="bus", links=(0, 1), bandwidth_GBps=10)
    links = [link(0, 1, GBps=20), link(0, 2, GBps=20)]
    made = plan(gpus(3), links, demand, [(0, [0], 0), (1, [1], 1)], [bus])
    gains = {"gpu0 -> gpu1": 0, "gpu0 -> gpu2": 0, "all 20 GB/s links": 0, "limit bus": 2 / 11}
    parts = {"sending": 2, "latency": 0.5}
    return Case("two links under a limit", made, 2.5, [(0, "start"), (1, "limit")], parts, gains, [0, 0])


def slow_reducing() -> Case:
    """gpu0 reduces 10 KB in 2 us, one contribution after the other.

    If the first one arrives 1 / 11 us earlier, so may the second one; if only the second is faster, it starts later.
    """
    nodes = [Node(name="gpu0", reduce_GBps=5), *gpus(3)[1:]]
    rows = [(0, [0], 0, True), (0, [1], 2, True)]
    made = plan(nodes, [link(1, 0), link(2, 0)], collective("reduce", 3, 10 * KB), rows)
    parts = {"sending": 1, "latency": 0.5, "reducing": 4}
    gains = {"gpu1 -> gpu0": 1 / 11, "gpu2 -> gpu0": 0, "all 10 GB/s links": 1 / 11}
    return Case("a GPU that reduces slowly", made, 5.5, [(0, "start"), (1, "reduce rate")], parts, gains, [0, 0])


def late_data() -> Case:
    demand = replace(send((10 * KB, 0, (1,)), gpus=2), ready_ps=np.array([3 * US]))
    made = plan(gpus(2), [link(0, 1)], demand, [(0, [0], 3)])
    parts = {"release": 3, "sending": 1, "latency": 0.5}
    return Case("data that comes late", made, 4.5, [(0, "release")], parts, {"gpu0 -> gpu1": 1 / 11}, [0])


def idle_start() -> Case:
    """The second transfer could start 1 us earlier; without it, the schedule would end at 3 us."""
    demand = send((10 * KB, 0, (2,)), gpus=3)
    made = plan(gpus(3), [link(0, 1), link(1, 2)], demand, [(0, [0], 0), (0, [1], 2.5)])
    gains = {"gpu0 -> gpu1": 1 / 11, "gpu1 -> gpu2": 1 / 11, "all 10 GB/s links": 2 / 11}
    parts = {"sending": 2, "latency": 1, "idle": 1}
    return Case("a start that is later than necessary", made, 4, [(0, "start"), (1, "data")], parts, gains, [1, 0], 3)


def message_with_overhead() -> Case:
    """Two chunks in one message: 0.4 us overhead, 2 us of bytes; the overhead does not get shorter."""
    demand = send((10 * KB, 0, (1,)), (10 * KB, 0, (1,)), gpus=2)
    costly = Link(src=0, dst=1, bandwidth_GBps=10, latency_us=0.5, overhead_us=0.4)
    made = replace(plan(gpus(2), [costly], demand, [(0, [0], 0), (1, [0], 0)]), message=np.zeros(2, dtype=np.int32))
    parts = {"sending": 2.4, "latency": 0.5}
    return Case("a message with overhead", made, 2.9, [(0, "start")], parts, {"gpu0 -> gpu1": 2 / 11}, [0, 0])


def shared_trunk() -> Case:
    """Two transfers of 10 GB/s fill a trunk of 20 GB/s between switches: faster access links would not fit on it."""
    nodes = [*gpus(4), Node(name="left", kind="switch"), Node(name="right", kind="switch")]
    links = [link(0, 4), link(1, 4), link(4, 5, GBps=20), link(5, 2), link(5, 3)]
    demand = send((10 * KB, 0, (2,)), (10 * KB, 1, (3,)), gpus=4)
    made = plan(nodes, links, demand, [(0, [0, 2, 3], 0), (1, [1, 2, 4], 0)])
    parts = {"sending": 1, "latency": 1.5}
    gains = {"gpu0 -> left": 0, "all 10 GB/s links": 0}
    return Case("two transfers on a trunk", made, 2.5, [(0, "start")], parts, gains, [0, 0])


CASES = [
    one_transfer(),
    one_link_twice(),
    line_of_three(),
    equally_critical(),
    slower_twin(),
    gain_that_ends_early(),
    through_a_switch(),
    store_and_forward(),
    shared_limit(),
    slow_reducing(),
    late_data(),
    idle_start(),
    message_with_overhead(),
    shared_trunk(),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_known_by_hand(case: Case) -> None:
    assert verify(case.schedule) == []
    found = explain(case.schedule)
    assert case.schedule.finish_us == pytest.approx(case.finish_us)
    assert [(step.transfer, step.cause) for step in found.path] == case.path
    assert {name: ps / US for name, ps in found.parts_ps.items() if ps} == pytest.approx(case.parts)
    assert found.slack_ps / US == pytest.approx(case.slack)
    assert found.left_shift_ps / US == pytest.approx(case.left_shift_us or case.finish_us)
    if case.gains is not None:
        assert {gain.name: gain.saved_us for gain in found.gains} == pytest.approx(case.gains, abs=3e-6)


def test_a_ring_that_keeps_all_links_busy_needs_all_links_faster() -> None:
    """A ring allgather in one direction: three rounds of 1.5 us, and 1 us of sending in each."""
    topology = ring(4, bandwidth_GBps=10, latency_us=0.5)
    clockwise = [
        int(np.flatnonzero((topology.link_src == n) & (topology.link_dst == (n + 1) % 4))[0]) for n in range(4)
    ]
    rows = [(n, [clockwise[(n + k) % 4]], 1.5 * k * US) for k in range(3) for n in range(4)]
    made = Schedule.from_transfers(topology, collective("allgather", 4, 40 * KB), rows)
    found = explain(made)
    assert [step.cause for step in found.path] == ["start", "data", "data"]
    gains = {gain.name: gain.saved_us for gain in found.gains}
    assert gains.pop("all 10 GB/s links") == pytest.approx(3 / 11, abs=3e-6)
    assert set(gains.values()) == {0}  # a chain over one link fewer than four avoids any single link
    assert found.critical_transfers == 12


def test_pipeline_of_two_chunks_over_two_links() -> None:
    """Thesis figure 2.1: (k + 1) z / (k b) plus two latencies; no transfer has slack."""
    rows = [(0, [0], 0), (1, [0], 2 * US), (0, [1], 5 * US // 2), (1, [1], 9 * US // 2)]
    topology = Topology("m", tuple(gpus(3)), (link(0, 1), link(1, 2)))
    made = Schedule.from_transfers(topology, collective("broadcast", 3, 40 * KB, 2), rows)
    found = explain(made)
    assert made.finish_us == 7
    assert [(step.transfer, step.cause) for step in found.path] == [(0, "start"), (2, "data"), (3, "link")]
    assert {gain.name: gain.saved_us for gain in found.gains} == pytest.approx(
        {"gpu1 -> gpu2": 2 / 11, "gpu0 -> gpu1": 2 / 11, "all 10 GB/s links": 6 / 11}, abs=3e-6
    )
    assert found.slack_ps.tolist() == [0, 0, 0, 0]


def test_links_that_change_their_bandwidth_have_a_path_but_no_gains() -> None:
    links = [link(0, 1, changes=((1.0, 5.0),))]
    made = plan(gpus(2), links, send((10 * KB, 0, (1,)), gpus=2), [(0, [0], 0)])
    found = explain(made)
    assert (found.gains, len(found.path)) == (None, 1)
    assert "not computed" in describe(found)
    assert found.to_json()["gains"] is None
    with pytest.raises(InputError, match="links change their bandwidth over time"):
        finish_if_faster(made, [0])


def test_the_words_name_links_transfers_and_times() -> None:
    text = describe(explain(shared_limit().schedule))
    assert "completion time  2.5 us: chunk 1 from gpu0 arrives at gpu2" in text
    assert "critical path    2 transfers: sending 2 us (80.0 %), latency 0.5 us (20.0 %)" in text
    assert "waits for the limit bus, used by transfer 0" in text
    assert "nothing: other links are as critical" in text
    late = describe(explain(idle_start().schedule))
    assert "left shift       starting every transfer as early as possible saves 1 us" in late
    assert "waits for data: transfer 0 brings it from gpu0, 1 us later than it could" in late


def test_many_transfers_in_a_row_are_one_row_of_the_table() -> None:
    demand = send(*[(10 * KB, 0, (1,))] * 50, gpus=2)
    made = plan(gpus(2), [link(0, 1)], demand, [(n, [0], n) for n in range(50)])
    rows = [row for row in describe(explain(made)).splitlines() if "why" in row or "gpu0 -> gpu1  " in row]
    assert rows[1].split() == [
        "0",
        "us",
        "gpu0",
        "->",
        "gpu1",
        "50",
        "gpu0",
        "has",
        "the",
        "data",
        "from",
        "the",
        "start",
    ]


def test_a_long_path_is_shortened() -> None:
    count = 40
    topology = line(count, bandwidth_GBps=10, latency_us=0.5)
    hop = [int(np.flatnonzero((topology.link_src == n) & (topology.link_dst == n + 1))[0]) for n in range(count - 1)]
    rows = [(0, [hop[n]], n * 3 * US // 2) for n in range(count - 1)]
    made = Schedule.from_transfers(topology, send((10 * KB, 0, (count - 1,)), gpus=count), rows)
    found = explain(made)
    assert len(found.path) == count - 1
    assert "15 more rows, see --json" in describe(found)
    assert len(found.to_json()["critical_path"]) == count - 1


def test_refused() -> None:
    good = one_link_twice().schedule
    empty = replace(
        good, chunk=good.chunk[:0], route=good.route[:0], start_ps=good.start_ps[:0], reduce=good.reduce[:0]
    )
    with pytest.raises(InputError, match="the schedule has no transfers, so there is nothing to explain"):
        explain(empty)
    with pytest.raises(InvalidScheduleError, match="an invalid schedule cannot be explained: link: link 0"):
        explain(replace(good, start_ps=good.start_ps * 0))


@settings(max_examples=60, deadline=None)
@given(spread_out(buffers=False))
def test_random_schedules_are_explained(schedule: Schedule) -> None:
    """The path adds up to the completion time, is tight after a left shift, and gains are those of a left shift."""
    assume(len(schedule) > 0)
    found = explain(schedule)
    assert sum(found.parts_ps.values()) == schedule.finish_ps
    assert found.slack_ps.min() >= 0
    assert found.left_shift_ps == finish_if_faster(schedule)
    shifted = left_shift(schedule)
    tight = explain(shifted)
    assert tight.parts_ps["idle"] == 0
    assert all(tight.slack_ps[step.transfer] == 0 for step in tight.path)
    assert np.array_equal(binding_constraints(shifted).allowed_ps, shifted.start_ps)


@settings(max_examples=40, deadline=None)
@given(spread_out(buffers=False, limits=False), st.data())
def test_slack_can_be_used_up(schedule: Schedule, data: st.DataObject) -> None:
    """If one transfer is released as late as its slack allows, all others in order, the schedule ends no later."""
    assume(len(schedule) > 0)
    binding = binding_constraints(schedule)
    first = data.draw(st.integers(0, len(schedule) - 1))
    start = schedule.start_ps.copy()
    moved = schedule.leader == schedule.leader[first]
    start[moved] += binding.slack_ps[first]
    later = _pushed(schedule, start)
    assert later.finish_ps == schedule.finish_ps
    assert _pushed(schedule, start + moved).finish_ps > schedule.finish_ps


def _pushed(schedule: Schedule, start: np.ndarray) -> Schedule:
    """The schedule with these starts, where transfers that now would start too early are moved back."""
    from flowccl.schedule.generation.precedence import between_messages, precedences

    before, after, lag = between_messages(schedule, precedences(schedule))
    while True:
        later = start.copy()
        np.maximum.at(later, after, start[before] + lag)
        later = later[schedule.leader]
        if np.array_equal(later, start):
            return replace(schedule, start_ps=start.copy())
        start = later


@settings(max_examples=40, deadline=None)
@given(spread_out(buffers=False), st.floats(1.01, 3))
def test_a_machine_with_all_links_faster_verifies_the_same_order(schedule: Schedule, factor: float) -> None:
    """With every link and limit faster by one factor, no transfer takes longer, and it all ends no later."""
    assume(len(schedule) > 0)
    topology = schedule.topology
    assume(not any(node.crossing == "store-and-forward" for node in topology.nodes))
    every = finish_if_faster(schedule, range(len(topology.links)), range(len(topology.limits)), factor)
    assert every <= finish_if_faster(schedule)


def test_a_faster_machine_helps_where_transfers_share_links_by_rate() -> None:
    """Two hosts with one NIC each: the NIC binds, and with 10 % more bandwidth the same order takes 10 % less."""
    nodes = [Node(name=f"h{h}.gpu{k}", host=f"h{h}") for h in range(2) for k in range(2)]
    nodes += [Node(name=f"h{h}.pcie", kind="switch", host=f"h{h}") for h in range(2)]
    links = [Link(src=2 * h + k, dst=4 + h, bandwidth_GBps=24) for h in range(2) for k in range(2)]
    links += [replace(link, src=link.dst, dst=link.src) for link in links]
    links += [Link(src=4, dst=5, bandwidth_GBps=12.5), Link(src=5, dst=4, bandwidth_GBps=12.5)]
    topology = Topology("two PCIe hosts", tuple(nodes), tuple(links))
    schedule = synthesize(
        topology, "allgather", 16_000_000, runtime="mscclpp", sms=32, method="hierarchical", steps=20
    ).schedule
    assert schedule.rate_GBps.any()
    every = finish_if_faster(schedule, range(len(links)))
    assert schedule.finish_ps / 1.11 < every < schedule.finish_ps / 1.05
    assert all(gain.saved_ps >= 0 for gain in explain(schedule).gains)


def test_command(tmp_path, capsys) -> None:
    path = tmp_path / "s.json"
    save_schedule(shared_limit().schedule, path)
    assert main(["explain", str(path)]) == 0
    assert "waits for the limit bus" in capsys.readouterr().out
    assert main(["explain", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [step["because"] for step in facts["critical_path"]][1] == "waits for the limit bus, used by transfer 0"
    assert facts["gains"][-1]["saved_us"] == pytest.approx(2 / 11, abs=3e-6)
    assert facts["parts_us"]["sending"] == 2


def test_command_refuses_other_files(tmp_path, capsys) -> None:
    (tmp_path / "x.json").write_text("{}")
    save_topology(shared_limit().schedule.topology, tmp_path / "m.json")
    assert main(["explain", str(tmp_path / "x.json")]) == 2
    assert main(["explain", str(tmp_path / "m.json")]) == 2
    assert main(["explain", str(tmp_path / "none.json")]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert "m.json" in errors[1]
    assert errors[2] == f"flowccl: error: {tmp_path / 'none.json'}: no such file"


def test_a_limit_is_named_where_its_link_is_busy_too() -> None:
    """A link of 20 GB/s under a limit of 10: a wider limit helps, a faster link does not."""
    demand = send((10 * KB, 0, (1,)), (10 * KB, 0, (1,)), gpus=2)
    bus = Limit(name="bus", links=(0,), bandwidth_GBps=10)
    made = plan(gpus(2), [link(0, 1, GBps=20)], demand, [(0, [0], 0), (1, [0], 1)], [bus])
    assert [step.cause for step in explain(made).path] == ["start", "limit"]
