"""Method taccl: small cases of every stage, TACCL's sketches, reductions, and unsupported input."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowccl.demand.collectives import collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.errors import InputError
from flowccl.methods.registry import load_method
from flowccl.papers.published import published_us
from flowccl.papers.taccl.sketch import Sketch, SwitchSketch
from flowccl.papers.taccl.sketch_files import load_sketch
from flowccl.problem import Problem
from flowccl.result import Result
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.show import describe_result
from flowccl.synthesis import synthesize
from flowccl.topology.builders import line, ring
from flowccl.topology.files import read_machine
from flowccl.topology.importers import ImportOptions, import_machine
from flowccl.topology.machines import machine
from flowccl.topology.topology import Link, Node, Topology
from flowccl.verifier.verify import verify
from tests.papers.test_sketch import sketches
from tests.slow_replay import slow_replay
from tests.strategies import demands, topologies

TACCL = Path(__file__).parents[1] / "data" / "taccl"


def taccl(topology: Topology, demand: Demand | str, size: int | None = None, limit_s: float = 4.0, **options) -> Result:
    """Run with the chunk count of the sketch, so that the search ends with the stages."""
    chunks = None if isinstance(demand, Demand) else getattr(options.get("sketch"), "chunks", 1)
    return synthesize(topology, demand, size, method="taccl", chunks=chunks, time_limit_s=limit_s, options=options)


def overhead_line(overhead_us: float = 2.0, GBps: float = 1.0) -> Topology:
    """Three GPUs in a row, in one direction; a message occupies a link for 2 us and a microsecond per KB."""
    links = [Link(src=i, dst=i + 1, bandwidth_GBps=GBps, overhead_us=overhead_us) for i in range(2)]
    return Topology("line with overheads", tuple(Node(name=f"gpu{i}") for i in range(3)), tuple(links))


def two_chunks(size: int) -> Demand:
    return Demand.from_chunks("custom", 3, [Chunk(bytes=size, sources=(0,), destinations=(2,)) for _ in range(2)])


# -- contiguity -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("contiguity", ["milp", "fast"])
@pytest.mark.parametrize(
    ("size", "together", "finish_us"),
    [
        (1000, True, 2 * (2 + 2 * 1)),  # separate, 3 x (2 + 1) = 9 us; together 8 us
        (1999, True, 2 * (2 + 2 * 1.999)),  # just below break-even
        (2001, False, 3 * (2 + 2.001)),  # just above
        (4000, False, 3 * (2 + 4)),  # together, 20 us
    ],
)
def test_merged_or_separate_messages_on_a_line_of_three(size, together, finish_us, contiguity):
    """Separate: 3 x (overhead + bytes). Together: 2 x (overhead + 2 x bytes). Equal for bytes = overhead."""
    result = taccl(overhead_line(), two_chunks(size), contiguity=contiguity)
    assert result.schedule.finish_us == pytest.approx(finish_us)
    assert result.schedule.has_messages == together
    assert verify(result.schedule) == []
    assert slow_replay(result.schedule).kinds == set()


def test_two_chunks_over_infiniband_share_a_message():
    pair = Topology(
        "pair",
        (Node(name="gpu0"), Node(name="gpu1")),
        (Link(src=0, dst=1, bandwidth_GBps=1000 / 106, overhead_us=1.7),),
    )
    chunks = [Chunk(bytes=32_000, sources=(0,), destinations=(1,)) for _ in range(2)]
    result = taccl(pair, Demand.from_chunks("custom", 2, chunks))
    assert result.schedule.finish_us == pytest.approx(8.484)
    separate = synthesize(pair, result.schedule.demand, method="greedy", steps=2).schedule.finish_us
    assert 1 - 8.484 / separate == pytest.approx(0.17, abs=0.005)


def test_eight_chunks_share_messages_that_trade_pipelining_for_overheads():
    """n messages of 8/n KB over two hops take (n + 1) (2 + 8/n): 20, 18, 20 for n = 1, 2, 4."""
    chunks = [Chunk(bytes=1000, sources=(0,), destinations=(2,)) for _ in range(8)]
    result = taccl(overhead_line(), Demand.from_chunks("custom", 3, chunks))
    assert result.schedule.finish_us <= 18.0
    assert verify(result.schedule) == []


# -- TACCL's machines and sketches ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["allgather", "alltoall"])
def test_no_completion_time_exceeds_taccls_on_two_ndv2_hosts(name):
    topology = machine("ndv2:2")
    sketch = load_sketch(TACCL / "sk1-ndv2-n2.json", topology)
    for size, theirs_us in published_us("ndv2:2", name)["TACCL"].items():
        result = taccl(topology, name, size, sketch=sketch)
        assert result.schedule.finish_us <= theirs_us, size


def test_several_chunk_counts_are_tried():
    """On the machine of TACCL's file, an allgather of 1 GB with one chunk takes 56.8 ms; TACCL published 53.8 ms."""
    path = TACCL / "sk1-ndv2-n2.json"
    imported = import_machine(str(TACCL / "topo-ndv2-1MB.json"), "taccl", ImportOptions(sketch=path), None, None)
    topology, limits = imported.topology, {"method": "taccl", "time_limit_s": 10.0, "steps": 12}
    options = {"sketch": load_sketch(path, topology), "routing": "fast"}
    result = synthesize(topology, "allgather", 10**9, options=options, **limits)
    assert result.schedule.demand.pieces > 1
    assert result.schedule.finish_us <= 53_767
    pairs = {"sketch": replace(options["sketch"], chunks=2), "routing": "fast"}
    assert synthesize(topology, "allgather", 10**9, options=pairs, **limits).schedule.demand.pieces % 2 == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["allgather", "alltoall"])
def test_the_time_limit_is_respected_with_overheads_and_limits(name):
    path = TACCL / "sk2-dgx2-n2.json"
    options = ImportOptions(sketch=path, overheads=True)
    topology = import_machine(str(TACCL / "topo-dgx2-1MB.json"), "taccl", options, None, None).topology
    sketch_options = {"sketch": load_sketch(path, topology)}
    result = synthesize(topology, name, 1_000_000, method="taccl", time_limit_s=10.0, options=sketch_options)
    assert result.synthesis_s <= 12.0


def test_ndv2_with_taccls_sketch_is_faster_than_taccl():
    topology = machine("ndv2:2")
    sketch = load_sketch(TACCL / "sk1-ndv2-n2.json", topology)
    result = taccl(topology, "allgather", 1_000_000, sketch=sketch, routing="fast")
    assert result.schedule.finish_us <= 62.15
    links = np.unique(result.schedule.timing.hop_link)
    between = [topology.links[k] for k in links if topology.links[k].src // 8 != topology.links[k].dst // 8]
    assert [(link.src, link.dst) for link in between] == [(0, 9), (8, 1)]


@pytest.mark.parametrize(
    ("kind", "sketch"),
    [("ndv2", 1), ("ndv2", 2), *(pytest.param("dgx2", sketch, marks=pytest.mark.slow) for sketch in (1, 2))],
)
@pytest.mark.parametrize("name", ["allgather", "alltoall"])
def test_taccls_machines_with_overheads(kind, sketch, name):
    path = TACCL / f"sk{sketch}-{kind}-n2.json"
    options = ImportOptions(sketch=path, overheads=True)
    topology = import_machine(str(TACCL / f"topo-{kind}-1MB.json"), "taccl", options, None, None).topology
    assert topology.has_overheads
    result = taccl(topology, name, 64_000, sketch=load_sketch(path, topology), routing="fast", contiguity="fast")
    assert verify(result.schedule) == []


def test_alphas_are_overheads_or_latencies():
    overheads = import_machine(str(TACCL / "topo-dgx2-1MB.json"), "taccl", ImportOptions(overheads=True), None, None)
    latencies = import_machine(str(TACCL / "topo-dgx2-1MB.json"), "taccl", ImportOptions(), None, None)
    assert {(link.overhead_us, link.latency_us) for link in overheads.topology.links} == {(0.3, 0.0)}
    assert {(link.overhead_us, link.latency_us) for link in latencies.topology.links} == {(0.0, 0.15)}


def test_auto_merges_messages_if_links_have_overheads():
    path = TACCL / "sk1-ndv2-n2.json"
    options = ImportOptions(sketch=path, overheads=True)
    topology = import_machine(str(TACCL / "topo-ndv2-1MB.json"), "taccl", options, None, None).topology
    result = synthesize(topology, "allgather", 1000, steps=12)
    assert result.schedule.has_messages
    assert result.schedule.finish_us < 2 * result.bound.us
    assert result.schedule == synthesize(topology, "allgather", 1000, steps=12).schedule


# -- reductions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dgx2:1", "ndv2:2"])
@pytest.mark.parametrize("what", ["reduce_scatter", "allreduce", "reduce"])
def test_reductions_count_every_contribution_once(name, what):
    result = taccl(machine(name), what, 160_000, limit_s=2.0, routing="fast")
    assert verify(result.schedule) == []
    assert bool(result.schedule.reduce.any())


@pytest.mark.parametrize("what", ["reduce_scatter", "allreduce"])
def test_reductions_with_overheads_share_messages_too(what):
    topology = line(4)
    topology = replace(topology, links=tuple(replace(k, overhead_us=5.0) for k in topology.links))
    result = taccl(topology, collective(what, 4, 4000, 2))
    assert verify(result.schedule) == []
    assert slow_replay(result.schedule).kinds == set()
    assert result.schedule.has_messages


# -- stages -----------------------------------------------------------------------------------------------------------


def test_the_path_encoding_is_never_worse_than_quick_routes():
    for topology in (ring(5), machine("dgx1")):
        quick = taccl(topology, "allgather", 800_000, routing="fast").schedule.finish_ps
        assert taccl(topology, "allgather", 800_000, limit_s=6.0).schedule.finish_ps <= quick


def test_the_stages_report_their_results():
    result = taccl(overhead_line(), two_chunks(1000))
    assert result.details["sent_together"] == 2
    assert result.details["routing_status"] == "optimal"
    assert result.details["contiguity_status"] == "optimal"


def test_a_few_connections_through_a_switch():
    """uc-min in a switch of four: every GPU sends to one other, as in a ring."""
    topology = machine("star:4")
    few = Sketch(switches=(SwitchSketch(gpus=(0, 1, 2, 3), most=1),))
    schedule = taccl(topology, "allgather", 4_000_000, sketch=few, routing="fast").schedule
    ends = {schedule.routes.links(int(r)) for r in schedule.route}
    assert len(ends) == 4


def test_data_leaves_its_host_through_its_sender():
    topology = machine("dgx2:2")
    sketch = load_sketch(TACCL / "sk1-dgx2-n2.json", topology)
    schedule = taccl(topology, "alltoall", 1_000_000, sketch=sketch, routing="fast").schedule
    for chunk, route in zip(schedule.chunk.tolist(), schedule.route.tolist(), strict=True):
        links = schedule.routes.links(route)
        src, dst = topology.links[links[0]].src, topology.links[links[-1]].dst
        if src // 16 != dst // 16:
            assert src == sketch.senders[int(schedule.demand.source[chunk])]


def two_hosts() -> Topology:
    """Hosts {0, 1} and {2, 3}; only 1 sends to 2, only 3 to 0. A KB takes a microsecond everywhere."""
    ends = ((0, 1), (1, 0), (2, 3), (3, 2), (1, 2), (3, 0))
    links = tuple(Link(src=a, dst=b, bandwidth_GBps=1.0) for a, b in ends)
    return Topology("two hosts", tuple(Node(name=f"gpu{i}", host=f"host{i // 2}") for i in range(4)), links)


def test_a_missing_connection_is_relayed():
    """1 KB from 0 to 2 goes through 1, which becomes the sender of 0: 2 us."""
    sketch = Sketch(between_hosts=((0, 2), (2, 0), (1, 3)), senders=(0, 1, 2, 3))
    demand = Demand.from_chunks("custom", 4, [Chunk(bytes=1000, sources=(0,), destinations=(2,))])
    result = taccl(two_hosts(), demand, sketch=sketch)
    assert result.schedule.finish_us == 2.0
    assert result.details["relayed"] == [
        "gpu0 -> gpu2 over gpu1 -> gpu2",
        "gpu2 -> gpu0 over gpu3 -> gpu0",
        "gpu1 -> gpu3 over gpu1 -> gpu2",
    ]
    assert "relayed          connections of the sketch without a link on the machine: gpu0 -> gpu2 over" in (
        describe_result(result)
    )


@pytest.mark.parametrize("name", ["allgather", "alltoall", "allreduce"])
def test_taccls_second_sketch_on_a_machine_where_only_odd_gpus_send(name):
    topology = machine("dgx2:2")
    sketch = load_sketch(TACCL / "sk2-dgx2-n2.json", topology)
    result = taccl(topology, name, 1_000_000, sketch=sketch, routing="fast")
    assert verify(result.schedule) == []
    assert len(result.details["relayed"]) == 32


# -- random -----------------------------------------------------------------------------------------------------------


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_300_random_sketches_give_a_valid_schedule_or_a_reason(data):
    name = data.draw(st.sampled_from(("ring:8", "star:8", "full:8", "mesh:2x4", "dgx1", "rail:2x4", "dragonfly:2:1:1")))
    topology = machine(name)
    sketch = data.draw(sketches(topology.num_gpus))
    what = data.draw(st.sampled_from(("allgather", "alltoall", "broadcast", "reduce_scatter", "allreduce")))
    demand = collective(what, topology.num_gpus, 64_000, sketch.chunks)
    options = {"sketch": sketch, "routing": "fast", "contiguity": "fast"}
    found, reason = [], ""
    try:
        found = [
            s
            for s in load_method("taccl")(Problem(topology, demand), SearchContext.with_limit(2.0, options=options))
            if s is not None
        ]
    except InputError as error:
        reason = str(error)
    reasons = ("symmetry [", "leaves no path", "has no link or switch for")
    assert found if not reason else any(words in reason for words in reasons)
    assert all(verify(schedule) == [] for schedule in found)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_random_machines_and_demands_without_a_sketch(data):
    topology = data.draw(topologies(max_gpus=4, max_switches=2, overheads=True))
    demand = data.draw(demands(topology.num_gpus, reductions=True, max_chunks=2))
    found: list[Schedule] = []
    context = SearchContext.with_limit(1.0, options={"routing_limit_s": 0.3, "contiguity_limit_s": 0.3})
    for schedule in load_method("taccl")(Problem(topology, demand), context):
        found += [schedule] if schedule is not None else []
    assert found
    assert all(verify(schedule) == [] for schedule in found)


# -- unsupported input ------------------------------------------------------------------------------------------------


def test_a_sketch_that_disconnects_ranks_is_named():
    topology = machine("ndv2:2")
    with pytest.raises(InputError, match=r"^the sketch leaves no path from gpu0 to gpu8 on ndv2:2$"):
        taccl(topology, "allgather", 1_000_000, sketch=Sketch(between_hosts=()))


def test_a_connection_that_cannot_be_relayed_is_named():
    topology = machine("ring:8")
    words = (
        r"^between_hosts: ring:8 has no link or switch for gpu0 -> gpu5, nor a path through other GPUs of their hosts$"
    )
    with pytest.raises(InputError, match=words):
        taccl(topology, "allgather", 1_000_000, sketch=Sketch(between_hosts=((0, 5),)))


def test_a_machine_with_buffer_limits_is_refused():
    topology = read_machine("ring:4")
    small = replace(topology, nodes=tuple(replace(node, buffer_bytes=1) for node in topology.nodes))
    with pytest.raises(InputError, match="method taccl does not support buffer limits; use greedy or auto"):
        taccl(small, "allgather", 1_000_000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"routes": 1}, "unknown option 'routes' of taccl; the options are solver, threads, sketch, routing"),
        ({"routing": "slow"}, "routing must be milp or fast, got 'slow'"),
        ({"contiguity_limit_s": 0.0}, "contiguity_limit_s must be above 0, got 0"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(InputError, match=message):
        taccl(machine("ring:4"), "allgather", 1_000_000, **options)
