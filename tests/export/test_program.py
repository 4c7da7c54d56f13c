"""Programs for MSCCL++: proved, within their threadblocks, and as fast as their schedules."""

import json
from dataclasses import replace

import numpy as np
import pytest

from flowccl.demand.collectives import COLLECTIVES_BY_NAME
from flowccl.demand.collectives import collective as make_demand
from flowccl.errors import InputError
from flowccl.export.formats.read_mscclpp import parse_mscclpp
from flowccl.export.lowering.size import program_size
from flowccl.export.program import lower_program, program_for
from flowccl.export.proof.estimate import estimate_ps
from flowccl.export.proof.interpreter import interpret
from flowccl.runtimes.profiles import PROFILES
from flowccl.schedule.generation.engine import Engine
from flowccl.schedule.schedule import Schedule
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine
from flowccl.topology.topology import Link, Node, Topology
from flowccl.verifier.verify import verify
from tests.export.cases import random_machine, random_schedule
from tests.export.timed import execution, timed

COLLECTIVES = ("allgather", "alltoall", "allreduce", "reduce_scatter", "broadcast")


def random_case(seed: int) -> Schedule:
    """A timed schedule on a random machine; some messages have several chunks."""
    rng = np.random.default_rng(seed)
    found = random_machine(rng)
    nodes = tuple(replace(node, copies=False) if node.kind == "switch" else node for node in found.nodes)
    topology = Topology(found.name, nodes, found.links)
    chunks, width = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    size = topology.num_gpus * chunks * 6 * 16 * 200
    collective = str(rng.choice(COLLECTIVES))
    made = synthesize(topology, collective, size, method="greedy", chunks=chunks, steps=1, time_limit_s=20).schedule
    if rng.random() < 0.6:
        made = with_messages(made)
    crosses = "nic" in topology.link_kinds
    protocol = "LL" if not crosses and rng.random() < 0.5 else "Simple"
    return timed(made, execution(24 * width + 8, width, 4 if crosses else 0, protocol))


def with_messages(schedule: Schedule) -> Schedule:
    """Join what a GPU sends of its own data on a route; contributions to reductions stay alone."""
    demand, shape = schedule.demand, schedule.shape
    own = set(zip(demand.source_rank.tolist(), demand.source_chunk.tolist(), strict=True))
    reduced = np.diff(demand.source_ptr) > 1
    message, start = np.full(len(schedule), -1, dtype=np.int32), schedule.start_ps.copy()
    for number, route in enumerate(np.unique(schedule.route).tolist()):
        root = int(shape.root_node[shape.root_ptr[route]])
        rows = [
            i
            for i in np.flatnonzero(schedule.route == route).tolist()
            if (root, int(schedule.chunk[i])) in own and not reduced[schedule.chunk[i]]
        ]
        if len(rows) > 1:
            message[rows], start[rows] = number, start[rows].min()
    return replace(schedule, message=message, start_ps=start)


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(n, marks=pytest.mark.slow) for n in range(8, 60))])
def test_random_programs_are_proved_and_as_fast_as_their_schedules(seed: int) -> None:
    schedule = random_case(seed)
    assert verify(schedule) == []
    program = lower_program(schedule)
    assert program.findings == ()
    assert program.threadblocks <= schedule.execution.sms
    assert program.operations <= 64
    several = len(np.unique(schedule.route)) > len({(s, e) for s, e in _pairs(schedule)})
    if not several:  # the file does not say which of several routes between two GPUs a message takes
        assert program.program_ps == pytest.approx(schedule.finish_ps, rel=0.01)


def _pairs(schedule: Schedule) -> list[tuple[int, int]]:
    shape = schedule.shape
    used = np.unique(schedule.route)
    return [(int(shape.root_node[shape.root_ptr[r]]), int(shape.end_node[shape.end_ptr[r]])) for r in used]


@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if name != "broadcast"])  # it is not in place
@pytest.mark.parametrize("protocol", ["Simple", "LL"])
def test_programs_in_place_are_proved(collective: str, protocol: str) -> None:
    size = 4 * 2 * 2 * 16 * 50
    made = synthesize(machine("ring:4"), collective, size, method="greedy", chunks=2, steps=1, time_limit_s=20).schedule
    program = lower_program(timed(made, execution(64, 2, 0, protocol)), inplace=True)
    assert program.findings == ()
    assert json.loads(program.data)["inplace"] is True


def test_one_shot_allreduce_reads_packets_in_every_gpu() -> None:
    topology = machine("dgx1")
    demand = COLLECTIVES_BY_NAME["allreduce"](8, 8 * 8 * 1024, 1).per_destination
    made = synthesize(topology, demand, method="direct", time_limit_s=20).schedule
    for inplace in (False, True):
        program = lower_program(timed(made, execution(80, 1, 0, "LL")), inplace=inplace)
        assert program.findings == ()


@pytest.mark.parametrize("collective", ["allgather", "alltoall", "allreduce", "reduce_scatter"])
def test_eight_threadblocks_serve_sixteen_gpus(collective: str) -> None:
    """The budget of SMs holds although a GPU has 15 peers."""
    hosts = [Node(name=f"gpu{i}", host=f"host{i // 4}") for i in range(16)]
    switches = [Node(name=f"nvswitch{h}", kind="switch", host=f"host{h}") for h in range(4)]
    net = Node(name="net", kind="switch")
    nodes = (*hosts, *switches, net)
    links = []
    for i in range(16):
        for far, rate in ((16 + i // 4, 100.0), (20, 25.0)):
            links += [Link(src=i, dst=far, bandwidth_GBps=rate, latency_us=0.5)]
            links += [Link(src=far, dst=i, bandwidth_GBps=rate, latency_us=0.5)]
    topology = Topology("four hosts", nodes, tuple(links))
    size = 16 * 16 * 256
    made = synthesize(topology, collective, size, method="direct", time_limit_s=20).schedule
    found = Engine(made, execution(8, 1, 3)).run()
    assert found is not None
    program = lower_program(found)
    assert program.findings == ()
    assert program.threadblocks <= 8
    assert program.program_ps == pytest.approx(found.finish_ps, rel=0.01)


def test_a_program_is_made_once() -> None:
    schedule = random_case(0)
    assert program_for(schedule) is program_for(schedule)


def test_schedule_without_runtime_gets_times_first() -> None:
    made = synthesize(machine("dgx1"), "allgather", 8 * 16 * 64, method="direct", time_limit_s=20).schedule
    program = program_for(made, sms=16)
    assert program.findings == ()
    assert program.threadblocks <= 16
    assert program.program_ps == pytest.approx(program.schedule.finish_ps, rel=0.01)
    with pytest.raises(InputError, match="was not made for mscclpp"):
        lower_program(made)


def test_other_sizes_and_foreign_files_are_timed_too() -> None:
    """Without the hints of flowccl's files, sends start as soon as they can and share links."""
    schedule = timed(
        synthesize(machine("ring:4"), "allgather", 4 * 64_000, method="greedy", chunks=1, steps=3).schedule,
        execution(),
    )
    program = lower_program(schedule)
    half = estimate_ps(program.parsed, schedule.topology, 2 * 64_000, PROFILES["mscclpp"])
    assert half < program.program_ps
    plain = json.loads(program.data)
    for gpu in plain["gpus"]:
        for block in gpu["threadblocks"]:
            for op in block["ops"]:
                for key in ("start_ps", "GBps", "message"):
                    op.pop(key, None)
    del plain["size_bytes"]
    foreign = parse_mscclpp(json.dumps(plain).encode(), "foreign")
    assert interpret(foreign) == []
    found = estimate_ps(foreign, schedule.topology, 4 * 64_000, PROFILES["mscclpp"])
    assert found == pytest.approx(program.program_ps, rel=0.05)


def test_a_flush_must_name_as_many_targets_as_channels() -> None:
    schedule = next(found for found in map(random_case, range(20)) if schedule_crosses(found))
    plan = json.loads(lower_program(schedule).data)
    flushes = [
        op for gpu in plan["gpus"] for block in gpu["threadblocks"] for op in block["ops"] if op["name"] == "flush"
    ]
    assert flushes
    flushes[0]["dst_buff"] = []
    with pytest.raises(Exception, match="as many targets as channels"):
        parse_mscclpp(json.dumps(plan).encode(), "plan")


def schedule_crosses(schedule: Schedule) -> bool:
    return schedule.costs is not None and bool(schedule.costs.is_proxied.any())


def test_a_program_that_does_not_fit_into_memory_is_refused_before_it_is_lowered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = synthesize(
        machine("ring:4"), "allgather", 4096, method="greedy", chunks=1, steps=1, time_limit_s=20
    ).schedule
    schedule = timed(made, execution(16, 2))
    program = lower_program(schedule)
    size = program_size(schedule, schedule.execution)
    written = program.data.count(b'"name":')
    assert written / 2 < size < 2 * written
    monkeypatch.setenv("FLOWCCL_MEMORY", "100MB")
    with pytest.raises(InputError, match=r"has about \d+ operations, which take about .* of memory .*--chunks"):
        lower_program(schedule)


def test_chunks_for_several_gpus_are_not_packed_in_the_output_of_their_sender() -> None:
    """In an alltoall with several chunks per block, the output of a GPU has no place for what it sends to others."""
    assert program_for(random_schedule(2008)[0]).findings == ()


def test_a_chunk_that_two_nic_messages_send_from_the_output_is_copied_there_once() -> None:
    """GPU 0 sends its own chunk beside that of GPU 1 to two hosts; the second copy raced with the NIC's first read."""
    hosts = ("a", "a", "b", "c")
    nodes = (*(Node(name=f"gpu{n}", host=host) for n, host in enumerate(hosts)), Node(name="net", kind="switch"))
    pairs = [(0, 1), (1, 0), *((n, 4) for n in range(4)), *((4, n) for n in range(4))]
    links = tuple(Link(src=a, dst=b, bandwidth_GBps=25 if 4 in (a, b) else 400, latency_us=0.7) for a, b in pairs)
    topology = Topology("two hosts to send to", nodes, links)
    of = {pair: number for number, pair in enumerate(pairs)}
    sends = [(1, 1, 0), (0, 0, 1), (0, 0, 2), (1, 0, 2), (0, 0, 3), (1, 0, 3)]
    sends += [(2, 2, 0), (2, 2, 3), (2, 0, 1), (3, 3, 0), (3, 3, 2), (3, 0, 1)]
    rows = [
        (chunk, [of[a, b]] if (a, b) in of else [of[a, 4], of[4, b]], 100_000_000 * n, False)
        for n, (chunk, a, b) in enumerate(sends)
    ]
    message = np.array([-1, -1, 0, 0, 1, 1, *[-1] * 6], dtype=np.int32)
    draft = Schedule.from_transfers(topology, make_demand("allgather", 4, 1 << 16), rows)
    start = draft.start_ps.copy()
    start[[2, 4]] = start[[3, 5]]
    made = Engine(replace(draft, message=message, start_ps=start), execution(8, posters=1)).run()
    assert made is not None
    program = lower_program(made)
    assert program.findings == ()
    copies = [op for block in json.loads(program.data)["gpus"][0]["threadblocks"] for op in block["ops"]]
    assert len([op for op in copies if op["name"] == "copy"]) == 1
