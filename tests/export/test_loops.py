"""Plans whose threadblocks repeat their operations: what is proved, what they take, and what is refused."""

import json
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowccl.demand.collectives import collective
from flowccl.errors import FileError, InputError
from flowccl.export.formats.read_mscclpp import parse_mscclpp
from flowccl.export.program import Program, lower_program
from flowccl.export.proof.estimate import estimate_ps
from flowccl.export.proof.interpreter import interpret
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.runtimes.machine import used_by
from flowccl.runtimes.profiles import PROFILES
from flowccl.schedule.files import load_schedule, save_schedule
from flowccl.schedule.generation.looping import repeated
from flowccl.schedule.generation.loops import rows_of_parts
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.machines import machine
from flowccl.topology.topology import Link, Node, Topology
from flowccl.units import parse_bytes
from flowccl.verifier.verify import verify

MSCCLPP = PROFILES["mscclpp"]
CASES = [
    ("dgx1", "allgather", "greedy", 32),
    ("dgx1", "allreduce", "greedy", 80),
    ("dgx1", "alltoall", "direct", 32),
    ("rail:2x4", "allgather", "hierarchical", 32),
    ("rail:2x4", "reduce_scatter", "hierarchical", 32),
    ("rail:2x4", "allreduce", "hierarchical", 64),
    ("rail:2x4", "alltoall", "greedy", 64),
    ("torus:4x4", "broadcast", "tree", 16),
]


def planned(name: str, what: str, method: str, size: str, chunks: int = 1) -> Schedule:
    """The first schedule of a method, on the machine as MSCCL++ uses it."""
    topology = used_by(machine(name), MSCCLPP)
    demand = collective(what, topology.num_gpus, parse_bytes(size), chunks)
    found = next(filter(None, load_method(method)(Problem(topology, demand), SearchContext.with_limit(60.0))), None)
    assert found is not None
    return found


def looped(name: str, what: str, method: str, sms: int, loops: int = 4, size: str = "4MiB") -> Schedule:
    found = repeated(planned(name, what, method, size), MSCCLPP, sms, loops)
    assert found is not None
    assert found.execution is not None
    assert found.execution.loops == loops
    return found


def test_two_gpus_by_hand() -> None:
    """Every part costs its overhead and its bytes, one after the other; the last one has its signal to give."""
    gpus = (Node(name="gpu0", host="a"), Node(name="gpu1", host="a"))
    links = (Link(src=0, dst=1, bandwidth_GBps=100.0), Link(src=1, dst=0, bandwidth_GBps=100.0))
    topology = Topology("pair", gpus, links)
    demand = collective("allgather", 2, 2 * 341_000 * 16)
    found = next(filter(None, load_method("direct")(Problem(topology, demand), SearchContext.with_limit(60.0))))
    whole = repeated(found, MSCCLPP, 4, 4)
    assert whole is not None
    assert whole.finish_us == pytest.approx(4 * (0.6 + 4 * 341 / 34.1) + 0.5)  # a threadblock moves 34.1 GB/s
    assert lower_program(whole).program_us == pytest.approx(whole.finish_us)


def test_an_alltoall_with_loops_does_not_run_in_place() -> None:
    schedule = looped("hypercube:3", "alltoall", "direct", 32)
    assert lower_program(schedule).findings == ()
    with pytest.raises(InputError, match="whose threadblocks repeat their operations does not run in place; export it"):
        lower_program(schedule, inplace=True)


@pytest.mark.parametrize(("name", "what", "method", "sms"), CASES)
def test_a_plan_with_loops_is_right_and_takes_what_its_schedule_takes(
    name: str, what: str, method: str, sms: int
) -> None:
    schedule = looped(name, what, method, sms)
    assert verify(schedule) == []
    program = lower_program(schedule)
    assert program.findings == ()
    assert program.threadblocks <= sms
    assert program.program_ps == pytest.approx(schedule.finish_ps, rel=0.01)
    plan = json.loads(program.data)
    names = [op["name"] for gpu in plan["gpus"] for block in gpu["threadblocks"] for op in block["ops"]]
    assert "pipeline" in names


def pcie_hosts(gpus: int) -> Topology:
    """Two hosts whose GPUs share a PCIe switch and a NIC behind it."""
    nodes = [Node(name=f"gpu{n}", host="ab"[n // gpus]) for n in range(2 * gpus)]
    nodes += [Node(name=f"switch{host}", kind="switch", host=host) for host in "ab"]
    ports = [(n, 2 * gpus + n // gpus, 24.0, "pcie") for n in range(2 * gpus)] + [(2 * gpus, 2 * gpus + 1, 12.5, "nic")]
    links = [Link(src=a, dst=b, bandwidth_GBps=rate, kind=kind) for a, b, rate, kind in ports]
    links += [Link(src=b, dst=a, bandwidth_GBps=rate, kind=kind) for a, b, rate, kind in ports]
    return Topology("PCIe hosts", tuple(nodes), tuple(links))


@pytest.mark.parametrize(("gpus", "what"), [(2, "allreduce"), (3, "allgather"), (3, "reduce_scatter")])
def test_parts_leave_for_a_nic_in_order_and_the_program_is_as_early_as_its_schedule(gpus: int, what: str) -> None:
    """Messages of several GPUs share the NIC and the ports; a threadblock posts one part after another."""
    topology = pcie_hosts(gpus)
    demand = collective(what, 2 * gpus, 2 * gpus * parse_bytes("16MiB"))
    found = next(filter(None, load_method("reroute")(Problem(topology, demand), SearchContext.with_limit(60.0))))
    schedule = repeated(found, MSCCLPP, 80, 64)
    assert schedule is not None
    assert schedule.costs is not None
    rows = rows_of_parts(schedule)
    rows = rows[schedule.costs.is_proxied[rows[:, 0]]]
    arrival = np.zeros(len(schedule), dtype=np.int64)
    arrival[schedule.timing.end_transfer] = schedule.timing.end_arrival_ps
    for time in (schedule.start_ps, arrival):
        assert np.all(np.diff(time[rows], axis=1) >= 0)
    assert lower_program(schedule).program_ps == schedule.finish_ps


@pytest.mark.parametrize(
    ("name", "what"), [("full:5", "allgather"), ("full:6", "allreduce"), ("star:5", "reduce_scatter")]
)
def test_the_last_part_may_be_smaller(name: str, what: str) -> None:
    """Blocks of a number of GPUs that is no power of two do not divide evenly into parts."""
    count = machine(name).num_gpus
    schedule = looped(name, what, "direct", 64, loops=8, size=f"{16 * count * 52_429} B")
    size = schedule.demand.chunk_bytes.reshape(-1, 8)
    assert np.all(size[:, :7] == size[0, 0])
    assert np.all(size[:, 7] < size[0, 0])
    assert size[0].sum() == 16 * 52_429
    assert verify(schedule) == []
    program = lower_program(schedule)
    assert program.findings == ()
    assert program.parsed.made_for_bytes == schedule.demand.size_bytes  # so the starts in the file hold
    assert program.program_ps == pytest.approx(schedule.finish_ps, rel=0.01)


def test_a_chunk_may_take_a_link_twice_once_to_be_reduced_and_once_as_the_result() -> None:
    """Around a ring of three GPUs: two GPUs add to what one has, and the sum goes on to that one and to the next."""
    gpus = tuple(Node(name=f"gpu{n}", host="a") for n in range(3))
    links = tuple(Link(src=n, dst=(n + 1) % 3, bandwidth_GBps=100.0) for n in range(3))
    demand, ms = collective("allreduce", 3, 48 << 20), 10**9
    rows = [(c, [(c + k) % 3], k * ms, k < 2) for c in range(3) for k in range(4)]
    schedule = repeated(Schedule.from_transfers(Topology("ring", gpus, links), demand, rows), MSCCLPP, 16, 8)
    assert schedule is not None
    assert verify(schedule) == []
    program = lower_program(schedule)
    assert program.findings == ()
    assert program.program_ps == pytest.approx(schedule.finish_ps, rel=0.01)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(("dgx1", "rail:2x4", "hypercube:3", "full:4")),
    st.sampled_from(("allgather", "reduce_scatter", "allreduce", "alltoall")),
    st.sampled_from(("greedy", "direct", "tree")),
    st.sampled_from((1, 2)),
    st.sampled_from((2, 8, 16)),
    st.integers(8, 64),
)
def test_random_plans_with_loops(name: str, what: str, method: str, chunks: int, loops: int, sms: int) -> None:
    found = repeated(planned(name, what, method, "4MiB", chunks), MSCCLPP, sms, loops)
    if found is None:  # too many operations for so few threadblocks
        return
    assert verify(found) == []
    with suppress(InputError):  # more channels than a threadblock has
        check_program(found)


def check_program(found: Schedule) -> None:
    """A program is right, and as early as its schedule but for copies of own blocks."""
    program = lower_program(found)
    assert program.findings == ()
    copy_us = (4 << 20) / found.topology.num_gpus / 34_200  # of the own block, by a threadblock that does it last
    assert 0.98 * found.finish_us <= program.program_us <= 1.02 * found.finish_us + copy_us


def test_a_plan_that_another_program_wrote_is_read() -> None:
    program = lower_program(looped(*CASES[3]))
    data = json.dumps(json.loads(program.data), indent=1).encode()
    assert interpret(parse_mscclpp(data, "plan")) == []


def test_other_sizes_have_other_numbers_of_parts() -> None:
    schedule = looped(*CASES[3])
    program = lower_program(schedule)
    times = [estimate_ps(program.parsed, schedule.topology, size << 20, MSCCLPP) for size in (2, 4, 8)]
    assert 1.5 < times[1] / times[0] < 2.1
    assert 1.5 < times[2] / times[1] < 3  # at other sizes, messages share links as they come


def test_a_schedule_with_loops_survives_its_file(tmp_path) -> None:  # type: ignore[no-untyped-def]
    schedule = looped(*CASES[4])
    save_schedule(schedule, tmp_path / "s.json")
    again = load_schedule(tmp_path / "s.json")
    assert again.execution == schedule.execution
    assert again.finish_ps == schedule.finish_ps
    assert lower_program(again).data == lower_program(schedule).data


def changed(program: Program, change) -> bytes:  # type: ignore[no-untyped-def]
    plan = json.loads(program.data)
    change([block for gpu in plan["gpus"] for block in gpu["threadblocks"]])
    return json.dumps(plan).encode()


def pipelines(blocks):  # type: ignore[no-untyped-def]
    return [op for block in blocks for op in block["ops"] if op["name"] == "pipeline"]


def test_pipelines_with_different_units_are_refused() -> None:
    def change(blocks) -> None:  # type: ignore[no-untyped-def]
        pipelines(blocks)[0]["iter_context"]["unit_size"] *= 2

    with pytest.raises(FileError, match="pipelines with different units are not supported"):
        parse_mscclpp(changed(lower_program(looped(*CASES[3])), change), "plan")


def test_a_pipeline_over_several_chunks_is_refused() -> None:
    def change(blocks) -> None:  # type: ignore[no-untyped-def]
        pipelines(blocks)[0]["iter_context"]["num_chunks"] = 2

    with pytest.raises(FileError, match="a pipeline over more than one chunk is not supported"):
        parse_mscclpp(changed(lower_program(looped(*CASES[3])), change), "plan")


def test_a_token_that_is_put_in_a_loop_and_taken_once_is_found() -> None:
    """The wait for the last data comes once, after the loop, and not once for every part."""

    def change(blocks) -> None:  # type: ignore[no-untyped-def]
        for block in blocks:
            late = [op for op in block["ops"] if op["name"] == "pipeline" and all_wait(op)]
            if late:
                place = block["ops"].index(late[0])
                block["ops"][place : place + 1] = late[0]["ops"]
                return
        pytest.fail("no threadblock waits after its loop")

    def all_wait(op) -> bool:  # type: ignore[no-untyped-def]
        return {inner["name"] for inner in op["ops"]} <= {"nop", "wait"}

    program = parse_mscclpp(changed(lower_program(looped(*CASES[0])), change), "plan")
    assert any("its tokens are not put and taken in the same phase" in str(found) for found in interpret(program))


def test_a_step_over_two_chunks_in_a_loop_is_found() -> None:
    def change(blocks) -> None:  # type: ignore[no-untyped-def]
        for op in pipelines(blocks):
            for inner in op["ops"]:
                if inner["name"] == "put":
                    for side in ("src_buff", "dst_buff"):
                        inner[side][0]["size"] = 2
                    return

    program = parse_mscclpp(changed(lower_program(looped(*CASES[2])), change), "plan")
    assert any("a step of a loop moves one chunk, this one 2" in str(found) for found in interpret(program))


def test_a_missing_barrier_in_a_loop_is_found() -> None:
    """The threads of a threadblock may still do what comes last in a loop when its first operation begins."""

    def change(blocks) -> None:  # type: ignore[no-untyped-def]
        for op in pipelines(blocks):
            if op["ops"][0]["name"] == "nop" and len(op["ops"]) > 2:
                del op["ops"][0]
                return

    program = parse_mscclpp(changed(lower_program(looped(*CASES[3])), change), "plan")
    assert any("nop must come before" in str(found) for found in interpret(program))
