"""Files: golden files, malformed files, the other formats, folders of size ranges, the command line."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flowccl.cli import main
from flowccl.demand.collectives import COLLECTIVES_BY_NAME, allgather
from flowccl.demand.demand import Chunk, Demand
from flowccl.errors import FileError, InputError
from flowccl.export import ExportOptions, check, export, export_directory
from flowccl.export.lowering.plan import make_plan
from flowccl.export.proof.estimate import estimate_ps
from flowccl.runtimes.costs import MessageCost, MessageCosts
from flowccl.runtimes.limits import XML_LIMITS, RuntimeLimits
from flowccl.runtimes.profiles import PROFILES
from flowccl.schedule.files import save_schedule
from flowccl.schedule.schedule import Schedule
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine
from flowccl.topology.topology import Link, Node, Topology
from flowccl.units import busy_ps
from flowccl.verifier.verify import verify
from tests.export.cases import findings, made, read, schedule_of
from tests.export.test_interpreter import pair_schedule

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize(
    ("target", "collective", "name", "protocol"),
    [
        ("msccl", "allgather", "allgather-2.xml", "Simple"),
        ("rccl", "reduce_scatter", "reduce_scatter-2-rccl.xml", "Simple"),
        ("mscclpp", "allgather", "allgather-2.json", "Simple"),
        ("mscclpp", "allgather", "allgather-2-packets.json", "LL"),
    ],
)
def test_golden(target: str, collective: str, name: str, protocol: str) -> None:
    data = made(pair_schedule(collective), target, protocol=protocol)
    if os.environ.get("FLOWCCL_WRITE_GOLDEN"):
        (GOLDEN / name).write_bytes(data)
    assert data == (GOLDEN / name).read_bytes()


# -- limits -------------------------------------------------------------------------------------------------------


def test_too_many_steps_are_spread_over_channels() -> None:
    schedule = schedule_of("ring:4", "alltoall", chunks=40)
    plan = make_plan(schedule, XML_LIMITS["executor"])
    assert plan.channels > 1
    assert max(block.num_steps for gpu in plan.gpus for block in gpu.blocks) <= 64
    assert findings(made(schedule, "executor"), "executor") == []


def tight(**changes: int) -> RuntimeLimits:
    values = {name: getattr(XML_LIMITS["msccl"], name) for name in RuntimeLimits.__slots__}
    return RuntimeLimits(**{**values, **changes})


def test_contiguous_chunks_are_merged_if_steps_are_few() -> None:
    schedule = schedule_of("dgx1", "allgather", chunks=6)
    plan = make_plan(schedule, tight(steps=16, channels=1))
    assert max(step.count for gpu in plan.gpus for block in gpu.blocks for step in block.steps) > 1


@pytest.mark.parametrize("target", list(XML_LIMITS))
def test_chunks_that_travel_together_are_one_step(target: str) -> None:
    """Rank 0 of a pair sends its four pieces as a message of three and one alone; rank 1 sends single pieces."""
    topology = machine("line:2:overhead=2us:latency=0us")
    busy = 2_000_000 + busy_ps(1000, 25.0)
    rows = [(0, (0,), 0), (1, (0,), 0), (2, (0,), 0), (3, (0,), 3 * busy)]
    rows += [(4 + piece, (1,), piece * busy) for piece in range(4)]
    alone = Schedule.from_transfers(topology, allgather(2, 8000, 4), rows)
    schedule = replace(alone, message=np.array([7, 7, 7, -1, -1, -1, -1, -1], dtype=np.int32))
    assert verify(schedule) == []
    steps = [
        step for gpu in make_plan(schedule, XML_LIMITS[target]).gpus for block in gpu.blocks for step in block.steps
    ]
    assert sorted(step.count for step in steps if step.kind == "s") == [1, 1, 1, 1, 1, 3]
    assert findings(made(schedule, target), target) == []


def test_the_handling_of_messages_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(0, (0,), 0), (1, (0,), 0), (2, (1,), 0), (3, (1,), 0)]
    schedule = Schedule.from_transfers(machine("line:2:overhead=2us"), allgather(2, 4000, 2), rows)
    save_schedule(replace(schedule, message=np.array([0, 0, 1, 1], dtype=np.int32)), tmp_path / "s.json")
    for target, words in (("msccl", "one step if they are contiguous"), ("msccl-json", "becomes a send of its own")):
        assert main(["export", str(tmp_path / "s.json"), "--to", target, "--out", str(tmp_path / "out")]) == 0
        assert words in capsys.readouterr().err


def test_receives_and_sends_share_threadblocks_if_those_are_few() -> None:
    schedule = schedule_of("dgx1", "allgather")
    separate = make_plan(schedule, tight())
    most = max(len(gpu.blocks) for gpu in separate.gpus)
    shared = make_plan(schedule, tight(blocks=most // 2 + 1))
    kinds = {step.kind for gpu in shared.gpus for block in gpu.blocks for step in block.steps}
    assert "rcs" in kinds


def test_fused_steps_are_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    for collective, kind in (("allgather", b'"rcs"'), ("allreduce", b'"rrcs"')):
        schedule = schedule_of("dgx1", collective, chunks=2)
        monkeypatch.setitem(XML_LIMITS, "msccl", tight(blocks=5))
        data = made(schedule, "msccl")
        assert kind in data
        assert findings(data, "msccl") == []
        monkeypatch.undo()


def test_refusal_names_the_limit_the_need_and_a_fix() -> None:
    schedule = schedule_of("dgx1", "alltoall", chunks=6)
    with pytest.raises(
        InputError,
        match=r"msccl cannot run this schedule: .*: \d+ needed, at most \d+.*; "
        r"synthesize with fewer chunks, such as --chunks \d",
    ):
        make_plan(schedule, tight(steps=3, channels=1))
    with pytest.raises(InputError, match=r"instances must be 1 to 64, got 65"):
        make_plan(schedule, tight(), instances=65)


# -- what is refused ------------------------------------------------------------------------------------------


def test_reductions_inside_a_switch_are_refused() -> None:
    nodes = [Node(name=f"gpu{i}") for i in range(3)]
    nodes.append(Node(name="nvswitch", kind="switch", copies=True, reduces=True))
    links = [Link(src=i, dst=3, bandwidth_GBps=10) for i in range(3)] + [Link(src=3, dst=2, bandwidth_GBps=10)]
    demand = COLLECTIVES_BY_NAME["reduce"](3, 1000, 1, 2)
    schedule = Schedule.from_transfers(Topology("nvls", tuple(nodes), tuple(links)), demand, [(0, [0, 1, 3], 0, True)])
    with pytest.raises(
        InputError, match=r"transfer 0 \(chunk 0\) reduces 2 inputs inside a switch, which msccl cannot do"
    ):
        made(schedule, "msccl")


def test_host_memory_is_refused() -> None:
    nodes = (Node(name="gpu0"), Node(name="gpu1"), Node(name="memory0", kind="memory"))
    links = tuple(Link(src=a, dst=b, bandwidth_GBps=10) for a, b in ((0, 2), (2, 1), (1, 2), (2, 0)))
    demand = COLLECTIVES_BY_NAME["broadcast"](2, 1000)
    schedule = Schedule.from_transfers(Topology("m", nodes, links), demand, [(0, [0], 0), (0, [1], 100_000)])
    with pytest.raises(InputError, match=r"memory0, a host memory; these runtimes only send from one gpu"):
        made(schedule, "mscclpp")


def test_a_demand_that_is_no_named_collective_is_refused() -> None:
    topology = machine("full:2")
    chunk = Chunk(bytes=8, sources=(0,), destinations=(1,))
    for name, words in (
        ("allgather", "the demand is called allgather, but its chunks are not those of allgather on 2 ranks"),
        ("custom", "msccl does not support custom; it supports allgather"),
    ):
        schedule = Schedule.from_transfers(topology, Demand.from_chunks(name, 2, [chunk]), [(0, [0], 0)])
        with pytest.raises(InputError, match=words):
            made(schedule, "msccl")


def test_multicast_is_one_send_per_end() -> None:
    schedule = schedule_of("dgx2:1", "broadcast")
    data = made(schedule, "msccl")
    assert data.count(b'type="r"') == 15
    assert findings(data, "msccl") == []


# -- malformed files ----------------------------------------------------------------------------------------------

BOMB = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><algo name="&b;"></algo>'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hello", "algo.xml: not XML: syntax error: line 1, column 0"),
        ("<system/>", "algo.xml: not an MSCCL XML file: the root is <system>, must be <algo>"),
        (BOMB, "algo.xml: contains a document type or entities (<!), which are refused"),
        ("<algo/>", "algo.xml: algo: attribute proto is missing"),
        ("\x89PNG", "algo.xml: not an MSCCL XML file: byte 0 is not plain text"),
    ],
)
def test_bad_xml(text: str, words: str) -> None:
    with pytest.raises(FileError) as error:
        read(text.encode("latin-1"), "msccl")
    assert str(error.value) == words


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b'coll="allgather"', b'coll="reducescatter"', "algo: coll must be one of allgather, alltoall, allreduce,"),
        (b'proto="Simple"', b'proto="simple"', "algo: proto must be one of Simple, LL, LL128, got 'simple'"),
        (b'cnt="1"', b'cnt="x"', "step 0: cnt must be a whole number, 1 to 2147483647, got 'x'"),
        (b'cnt="1" ', b"", "gpu 0 threadblock 0 step 0: attribute cnt is missing"),
        (b'<tb id="1"', b'<tb id="2"', "gpu 0: threadblock ids must be 0, 1, 2 ... in order, got '2'"),
        (b'send="1"', b'send="0"', "send must be another gpu, got itself"),
        (b'send="1"', b'send="7"', "send must be a whole number, -1 to 1, got '7'"),
        (b'<gpu id="1"', b'<gpu id="3"', "the gpus must be 0 to 1 in order, got [0, 3]"),
        (b'type="s"', b'type="ra"', "type must be one of s, r, rcs,"),
    ],
)
def test_broken_xml(old: bytes, new: bytes, words: str) -> None:
    data = made(pair_schedule("allgather"), "msccl")
    assert old in data
    with pytest.raises(FileError) as error:
        read(data.replace(old, new, 1), "msccl")
    assert words in str(error.value)


@pytest.mark.parametrize("new", [b'<?xml version="1.0"?>\n<algo', b"<algo\n", b"<algo\t"])
def test_what_the_loaders_reject_is_found(new: bytes) -> None:
    data = made(pair_schedule("allgather"), "executor").replace(b"<algo", new, 1)
    assert {finding.kind for finding in findings(data, "executor")} == {"format"}


def test_rccl_has_few_instructions() -> None:
    data = made(pair_schedule("reduce_scatter"), "executor")
    assert "rccl has no instruction rrc" in " ".join(map(str, findings(data, "rccl")))


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    for target, size, most in (("msccl", 10**9, "64 MB"), ("mscclpp", 3 * 10**9, "2 GB")):
        path = tmp_path / f"huge.{target}"
        with path.open("wb") as file:
            file.truncate(size)
        with pytest.raises(FileError, match=f"huge.{target}: larger than {most}, the size limit"):
            check(path, target)


def test_a_plan_that_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWCCL_MEMORY", "1KB")
    with pytest.raises(FileError, match="reading this plan takes about 18 KB of memory, 1 KB are available"):
        read(b" " * 2_000, "mscclpp")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "plan.json: not JSON: Expecting property name"),
        ("[]", "plan.json: plan: must be an object"),
        ("{}", "plan.json: plan: collective is missing"),
        ('{"collective": "sendrecv"}', "plan.json: plan: collective must be one of allgather, alltoall"),
    ],
)
def test_bad_plan(text: str, words: str) -> None:
    with pytest.raises(FileError) as error:
        read(text.encode(), "mscclpp")
    assert str(error.value).startswith(words)


def test_files_without_a_program(tmp_path: Path) -> None:
    with pytest.raises(
        InputError,
        match="files for teccl contain no program to interpret; known targets: msccl, executor, rccl",
    ):
        check(tmp_path / "x", "teccl")


# -- the other formats --------------------------------------------------------------------------------------------


def test_teccl_keys(tmp_path: Path) -> None:
    schedule = schedule_of("dgx1", "allgather")
    export(schedule, "teccl", tmp_path / "ag.json")
    value = json.loads((tmp_path / "ag.json").read_text())
    assert value["4-Collective_Finish_Time"] == pytest.approx(schedule.finish_us * 1e-6)
    assert len(value["7-Flows"]) == len(schedule)
    assert len(value["6-Demand_Met"]["GPU 0"]) == 7
    with pytest.raises(InputError, match="teccl does not support allreduce: it has no reductions"):
        made(schedule_of("dgx1", "allreduce"), "teccl")


@pytest.mark.parametrize("collective", ["allgather", "allreduce", "alltoall"])
def test_msccl_json_steps_carry_the_collective(collective: str) -> None:
    """Replay step by step: the sends of a step carry the data that earlier steps delivered."""
    value = json.loads(made(schedule_of("dgx1", collective), "msccl-json"))
    chunks = value["collective"]["chunks"]
    have: dict[tuple[int, int], set[int]] = {}
    for number, chunk in enumerate(chunks):
        for rank in chunk["pre"]:
            have.setdefault((rank, chunk["addr"]), set()).add(number)
    for step in value["steps"]:
        came = [(dst, addr, set(have[src, addr])) for addr, src, dst in step["sends"]]
        for dst, addr, what in came:
            have.setdefault((dst, addr), set()).update(what)
    for number, chunk in enumerate(chunks):
        assert all(number in have[rank, chunk["addr"]] for rank in chunk["post"])
    assert value["instance"]["steps"] == len(value["steps"])


def test_plain_formats_take_no_options() -> None:
    with pytest.raises(InputError, match="chakra takes none of --inplace"):
        made(schedule_of("dgx1", "allgather"), "chakra", inplace=True)


# -- folders and the command line ---------------------------------------------------------------------------------


def test_folder_of_disjoint_ranges(tmp_path: Path) -> None:
    schedules = [schedule_of("dgx1", "allgather", 1, size) for size in (64_000_000, 1_000_000)]
    schedules.append(schedule_of("dgx1", "allreduce"))
    paths = export_directory(schedules, "executor", tmp_path / "algos", ExportOptions(inplace=True))
    assert len(paths) == 3
    ranges = []
    for path in sorted(paths):
        program, found = check(path, "executor")
        assert found == []
        ranges.append((program.collective, program.min_bytes, program.max_bytes))
    assert ranges == [("allgather", 0, 63_999_999), ("allgather", 64_000_000, 0), ("allreduce", 0, 0)]
    with pytest.raises(InputError, match="two schedules of allgather are for the same size"):
        export_directory([schedules[0], schedules[0]], "executor", tmp_path / "more")
    assert not (tmp_path / "more").exists()
    (tmp_path / "algos" / ".x.swp").write_text("")
    with pytest.raises(InputError, match=r"contains \.x\.swp; the loaders parse every file of the folder"):
        export_directory(schedules, "executor", tmp_path / "algos")
    with pytest.raises(InputError, match="a folder of size ranges is for msccl, executor and rccl, not for mscclpp"):
        export_directory(schedules, "mscclpp", tmp_path / "algos")


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, out = str(tmp_path / "ag.json"), str(tmp_path / "ag.xml")
    save_schedule(schedule_of("dgx1", "allgather"), saved)
    assert main(["export", saved, "--to", "msccl", "--out", out, "--max-bytes", "4MB"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        out,
        "  schedule      11.4 us",
        "  program       19.1 us, estimated 67.54 % later than the schedule",
        "  threadblocks  9 per GPU, which has 80 SMs",
        "  operations    at most 3 of 256 in a threadblock",
        "  scratch       0 B per GPU at 1 MB",
        "  sizes         multiples of 32 B",
    ]
    assert main(["check-export", out, "--to", "msccl", "--machine", "dgx1", "--size", "1MB"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        "PROVED: allgather on 8 GPUs, 8 chunks, 120 steps: correct results, no races, no deadlock, within"
    )
    assert "estimated completion time 19.1" in printed
    assert main(["check-export", out, "--to", "msccl", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"proved": True, "findings": [], "finish_us": None}
    text = Path(out).read_text()
    Path(out).write_text(text.replace('hasdep="1"', 'hasdep="0"', 1))
    assert main(["check-export", out, "--to", "msccl"]) == 1
    assert "WRONG: " in capsys.readouterr().out


def test_command_line_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, out = str(tmp_path / "g.json"), str(tmp_path / "g.xml")
    save_schedule(schedule_of("dgx1", "gather"), saved)
    assert main(["export", saved, "--to", "msccl", "--out", out]) == 2
    assert "flowccl: error: msccl does not support gather; it supports allgather, alltoall," in capsys.readouterr().err
    assert not Path(out).exists()
    assert main(["export", saved, "--to", "executor", "--min-bytes", "2MB", "--max-bytes", "1MB", "--out", out]) == 2
    assert "--max-bytes 1000000 is less than --min-bytes 2000000" in capsys.readouterr().err
    assert main(["check-export", out, "--to", "executor"]) == 2
    assert "no such file" in capsys.readouterr().err
    assert main(["check-export", saved, "--to", "executor", "--machine", "dgx1"]) == 2
    assert "the estimate needs both --machine and --size" in capsys.readouterr().err


def test_an_invalid_schedule_is_not_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = pair_schedule("allgather")
    bad = Schedule.from_transfers(good.topology, good.demand, [(0, good.routes.links(0), 0)])
    save_schedule(bad, tmp_path / "bad.json")
    out = str(tmp_path / "bad.xml")
    assert main(["export", str(tmp_path / "bad.json"), "--to", "msccl", "--out", out]) == 1
    assert "is invalid and is not exported" in capsys.readouterr().err


def test_estimate_names_missing_links() -> None:
    program = read(made(schedule_of("full:4", "allgather"), "msccl"), "msccl")
    with pytest.raises(InputError, match=r"the file sends gpu\d -> gpu\d, but ring:4 has no link or switch between"):
        estimate_ps(program, machine("ring:4"), 1_000_000)
    with pytest.raises(InputError, match=r"the file is for 4 gpus, but the machine ring:8 has 8"):
        estimate_ps(program, machine("ring:8"), 1_000_000)


def test_a_proxy_sends_one_message_after_the_other() -> None:
    """Two messages of 1 us each to two hosts: on links of their own at once, by one proxy 2 us of overhead later."""
    nodes = tuple(Node(name=f"gpu{i}", host=f"host{i}") for i in range(3))
    ends = [(a, b) for a in range(3) for b in range(3) if a != b]
    links = tuple(Link(src=a, dst=b, bandwidth_GBps=1.0, overhead_us=2.0) for a, b in ends)
    machine_of_three = Topology(name="three", nodes=nodes, links=links)
    schedule = synthesize(machine_of_three, "broadcast", 1000, method="greedy", chunks=1, steps=1).schedule
    program = read(made(schedule, "msccl"), "msccl")
    one = MessageCost(2.0, proxy=True)
    assert estimate_ps(program, machine_of_three, 1000) == schedule.finish_ps == 3_000_000
    proxies = replace(PROFILES["msccl"], costs=MessageCosts(one, one, one))
    assert estimate_ps(program, machine_of_three, 1000, proxies) == 5_000_000


def exported(tmp_path: Path, schedule: Schedule, *words: str) -> int:
    save_schedule(schedule, tmp_path / "s.json")
    return main(["export", str(tmp_path / "s.json"), "--out", str(tmp_path / "out"), *words])


def test_a_size_that_is_not_served_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exported(tmp_path, schedule_of("dgx1", "allgather", 3, 1 << 20), "--to", "mscclpp", "--json") == 0
    printed = capsys.readouterr()
    value = json.loads(printed.out)
    assert value["files"] == [str(tmp_path / "out")]
    assert (value["multiple_bytes"], value["serves_its_size"]) == (384, False)
    assert "it serves multiples of 384 B; the nearest are 1048320 B and 1048704 B" in printed.err
    assert value["warnings"] == [line.removeprefix("warning: ") for line in printed.err.splitlines()]


def test_threadblocks_must_be_resident(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = schedule_of("dgx1", "allgather", 8)
    assert exported(tmp_path, schedule, "--to", "mscclpp", "--sms", "12", "--json") == 0
    assert json.loads(capsys.readouterr().out)["threadblocks"] <= 12
    assert exported(tmp_path, schedule, "--to", "mscclpp", "--sms", "1") == 2
    assert "mscclpp cannot run this schedule with 1 threadblocks on a GPU" in capsys.readouterr().err


def test_a_late_program_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exported(tmp_path, schedule_of("dgx1", "allgather", 2, 65536), "--to", "mscclpp") == 0
    warning = capsys.readouterr().err
    assert "later than the schedule: GPUs signal that their buffers may be written" in warning
    assert "synthesize with --for mscclpp" in warning
