"""Running plans by MSCCL++: everything that needs no GPU. tests/gpu has the runs on a GPU."""

import ctypes.util
import dataclasses
import json
import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowccl.cli import main
from flowccl.demand.collectives import collective
from flowccl.errors import FileError, FlowcclError, InputError
from flowccl.export import ExportOptions, export
from flowccl.run.element_layout import make_layout
from flowccl.run.measure import CallTiming, parse_sweep, table
from flowccl.run.mscclpp import build, cuda, mps, run_plans, tensors
from flowccl.run.mscclpp.cases import PERIOD, PeriodicInputs, PlanCase, RankResult, combine, encode, merge_places
from flowccl.run.mscclpp.launcher import HangError, explain_hang, run_processes
from flowccl.run.mscclpp.plan_facts import PlanFacts, is_plan, plan_dtype, read_plan
from flowccl.run.mscclpp.runtime import Provider
from flowccl.run.mscclpp.worker import PlanJob, load_job, share_by_file
from flowccl.run.values import DTYPES, Inputs
from flowccl.schedule.files import save_schedule
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine

FLOAT32 = DTYPES["float32"]
NO_DRIVER = ctypes.util.find_library("cuda") is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A schedule and its plans: an allgather on a ring of four."""
    made = tmp_path_factory.mktemp("plans")
    schedule = synthesize(machine("ring:4"), "allgather", 1 << 20, chunks=2, steps=1, method="greedy").schedule
    save_schedule(schedule, made / "ag.json")
    export(schedule, "mscclpp", made / "out.json")
    export(schedule, "mscclpp", made / "in.json", ExportOptions(inplace=True))
    return made


def changed(path: Path, change: Callable[[Any], None], to: Path) -> Path:
    value = json.loads(path.read_text())
    change(value)
    to.write_text(json.dumps(value))
    return to


# -- plans ----------------------------------------------------------------------------------------------------------


def test_the_facts_of_a_plan(folder: Path) -> None:
    facts = read_plan(folder / "out.json")
    assert (facts.collective, facts.ranks, facts.inplace, facts.protocol) == ("allgather", 4, False, "Simple")
    assert facts.chunks == ((2, 8),) * 4
    assert facts.step(FLOAT32) == 8 * 16
    assert read_plan(folder / "in.json").inplace
    assert is_plan(folder / "out.json")
    assert not is_plan(folder / "ag.json")


def test_a_size_that_a_plan_does_not_serve_is_refused(folder: Path, tmp_path: Path) -> None:
    facts = read_plan(folder / "out.json")
    assert facts.layout(1 << 20, FLOAT32).count == 1 << 18
    with pytest.raises(
        InputError, match=r"does not serve 1000 bytes: .* multiple of 128 bytes; the nearest size is 1024"
    ):
        facts.layout(1000, FLOAT32)
    small = changed(folder / "out.json", lambda plan: plan.update(max_message_size=4096), tmp_path / "small.json")
    with pytest.raises(InputError, match="serves 0 to 4096 bytes, not 8192"):
        read_plan(small).layout(8192, FLOAT32)


def test_more_threadblocks_than_can_be_resident_are_refused(folder: Path) -> None:
    facts = dataclasses.replace(read_plan(folder / "out.json"), blocks=(40, 30, 40, 40))
    h200 = cuda.Device(0, 90, 132, 2048)
    assert h200.resident(1024) == 132
    assert h200.resident(256) == 528
    facts.check_resident(h200, 1)
    facts.check_resident(h200, 3)
    with pytest.raises(
        InputError, match=r"4 ranks on one GPU need 150 threadblocks of 1024 threads at once.* runs 132"
    ):
        facts.check_resident(h200, 4)
    with pytest.raises(InputError, match="a rank needs 40 threadblocks"):
        facts.check_resident(cuda.Device(0, 90, 32, 2048), 1)


def test_versions_of_mscclpp(folder: Path) -> None:
    facts = read_plan(folder / "out.json")
    facts.check_version("0.8.0")
    facts.check_version("0.9.1")
    with pytest.raises(InputError, match=r"MSCCL\+\+ 0.7.0 is too old for these plans"):
        facts.check_version("0.7.0")
    with pytest.raises(InputError, match=r"MSCCL\+\+ 0.10.0 is newer than the versions that flowccl knows"):
        facts.check_version("0.10.0")
    newer = dataclasses.replace(facts, operations=frozenset({"recpkt"}))
    newer.check_version("0.9.0")
    with pytest.raises(InputError, match=r"the operation recpkt needs MSCCL\+\+ 0.9, but this is 0.8.0"):
        newer.check_version("0.8.0")


def test_files_that_are_no_plans(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(
        '{"name": "x", "collective": "allgather", "gpus": [{"id": 0, "inputChunks": 1}]}'
    )
    with pytest.raises(FileError, match=r"not an MSCCL\+\+ plan: .*; plans of MSCCL\+\+ 0.7 and older have another"):
        read_plan(tmp_path / "old.json")
    with pytest.raises(FileError, match="not an MSCCL"):
        read_plan(folder / "ag.json")
    bad = changed(folder / "out.json", lambda plan: plan.update(collective="sendrecv"), tmp_path / "sendrecv.json")
    with pytest.raises(FileError, match="knows no collective 'sendrecv'"):
        read_plan(bad)
    with pytest.raises(InputError, match="has no float64; its types are float32, float16, bfloat16, int32"):
        plan_dtype("float64")


# -- inputs ---------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(("allgather", "alltoall", "allreduce", "reduce_scatter", "broadcast")),
    dtype=st.sampled_from(("float32", "float16", "int32")),
    ranks=st.integers(2, 5),
    blocks=st.integers(1, 40),
)
def test_small_inputs_are_those_of_the_other_executions(name: str, dtype: str, ranks: int, blocks: int) -> None:
    layout = make_layout(collective(name, ranks, ranks, 1), ranks * blocks)
    plain, words = Inputs(layout, DTYPES[dtype]), PeriodicInputs(layout, DTYPES[dtype])
    for rank in range(ranks):
        assert np.array_equal(words.of(rank).view(dtype), plain.of(rank))
        assert np.array_equal(words.expected(rank).view(dtype), plain.expected(rank))


def test_large_inputs_repeat_and_bfloat16_is_exact() -> None:
    layout = make_layout(collective("allreduce", 8, 8, 1), 3 * PERIOD)
    words = PeriodicInputs(layout, DTYPES["bfloat16"])
    whole = words.expected(0)
    assert whole.dtype == np.uint16
    assert np.array_equal(whole[:PERIOD], whole[2 * PERIOD :])
    assert np.array_equal(words.total(PERIOD - 5, PERIOD + 5), whole[PERIOD - 5 : PERIOD + 5])
    assert encode(np.array([0, 1, 3, 256], dtype=np.int32), DTYPES["bfloat16"]).tolist() == [0, 0x3F80, 0x4040, 0x4380]


def test_sweeps_of_sizes() -> None:
    assert parse_sweep("64KiB:1MiB:4") == [65536, 262144, 1048576]
    assert parse_sweep("1KiB:5KiB") == [1024, 2048, 4096]
    for text, words in (("1KB", "write LOW:HIGH"), ("2KB:1KB", "write 1KB:2KB"), ("1KB:2KB:1", "at least 2, got '1'")):
        with pytest.raises(InputError, match=words):
            parse_sweep(text)


# -- results --------------------------------------------------------------------------------------------------------


def test_rows_of_both_places_are_one_line(folder: Path) -> None:
    results = [RankResult(0, (10.0, 20.0)), RankResult(3, (20.0, 30.0))] * 2
    rows = [combine(PlanCase(str(folder / name), 1 << 20, "float32"), results) for name in ("out.json", "in.json")]
    assert rows[0].out_of_place == CallTiming(20.0, 6, 20.0)
    assert rows[0].in_place is None
    merged = merge_places(rows)
    assert len(merged) == 1
    assert merged[0].in_place == rows[1].in_place
    assert "     1048576         65536     float" in table(merged, 4, "test")
    assert "N/A" in table(rows, 4, "test")


# -- hangs ----------------------------------------------------------------------------------------------------------


def remove_first(name: str, gpu: int) -> Callable[[Any], None]:
    def change(plan: Any) -> None:
        for block in plan["gpus"][gpu]["threadblocks"]:
            for index, op in enumerate(block["ops"]):
                if op["name"] == name:
                    del block["ops"][index]
                    return

    return change


def test_the_interpreter_names_the_waits_of_a_hang(folder: Path, tmp_path: Path) -> None:
    hangs = changed(folder / "out.json", remove_first("signal", 1), tmp_path / "hangs.json")
    assert re.search(r"gets stuck: .*gpu \d threadblock \d+ step \d+ \((wait|signal)\)", explain_hang(hangs))
    assert "completes this plan" in explain_hang(folder / "out.json")


# -- processes ------------------------------------------------------------------------------------------------------

WORKER = """
import json, os, sys, time
job, rank, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
folder = os.path.dirname(job)
def report(case, value):
    with open(f"{folder}/events-{rank}.jsonl", "a") as file:
        file.write(json.dumps({"case": case, "what": value}) + "\\n")
with open(what + f".pid{rank}", "w") as file:
    file.write(str(os.getpid()))
name = os.path.basename(what)
report(-1, "connect")
report(0, "first call")
if name == "hang" and rank in (1, 2):
    time.sleep(60)
if name == "dies" and rank == 2:
    os.kill(os.getpid(), 9)
if name == "error" and rank == 1:
    open(f"{folder}/error-1.txt", "w").write("MSCCL++, rank 1: no memory")
    sys.exit(1)
if name != "good":
    time.sleep(60 if name != "hang" else 0)
report(0, {"wrong": rank, "times_us": [1.0 + rank]})
"""


def start(folder: Path, tmp_path: Path, name: str, timeout_s: float = 20.0) -> list[list[RankResult]]:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    job = PlanJob((PlanCase(str(folder / "out.json"), 1 << 20, "float32"),), (0, 0, 0, 0), "0.9.0", None)
    return run_processes(
        job, timeout_s, lambda path, rank: [sys.executable, str(script), str(path), str(rank), str(tmp_path / name)]
    )


def all_ended(tmp_path: Path) -> bool:
    pids = [int(path.read_text()) for path in tmp_path.glob("*.pid*")]
    return len(pids) == 4 and not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_results_of_all_ranks(folder: Path, tmp_path: Path) -> None:
    assert start(folder, tmp_path, "good") == [[RankResult(rank, (1.0 + rank,)) for rank in range(4)]]
    assert all_ended(tmp_path)


def test_a_hang_names_the_ranks_and_ends_all_processes(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        HangError, match=r"no progress for 2 s; 2 ranks did not finish: 1, 2 \(first call of .*out.json"
    ):
        start(folder, tmp_path, "hang", 2.0)
    assert all_ended(tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [("dies", "rank 2 failed .*: ended by signal SIGKILL"), ("error", "rank 1 failed .*: .*no memory")],
)
def test_a_rank_that_fails_ends_all_processes(name: str, words: str, folder: Path, tmp_path: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(FlowcclError, match=words):
        start(folder, tmp_path, name)
    assert time.monotonic() - begin < 15
    assert all_ended(tmp_path)


def test_a_job_survives_its_file_and_rank_0_is_waited_for(folder: Path, tmp_path: Path) -> None:
    job = PlanJob((PlanCase(str(folder / "out.json"), 1 << 20, "float32", 0, 3, 1),), (0, 1), "0.9.0", "/x/lib.so")
    job.save(tmp_path / "job.json")
    assert load_job(tmp_path / "job.json") == job
    assert share_by_file(tmp_path / "id")(b"abc") == b"abc"
    assert share_by_file(tmp_path / "id")(None) == b"abc"
    with pytest.raises(FlowcclError, match="rank 0 did not start in time"):
        share_by_file(tmp_path / "none", 0.05)(None)


# -- what is missing ------------------------------------------------------------------------------------------------


def test_without_mscclpp_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MSCCLPP_SOURCE", raising=False)
    with pytest.raises(InputError, match=r"MSCCL\+\+ not found: install its Python package .* set MSCCLPP_SOURCE"):
        build.find_source()
    monkeypatch.setenv("MSCCLPP_SOURCE", str(tmp_path))
    with pytest.raises(InputError, match="not a source folder of MSCCL"):
        build.find_source()


def test_a_source_folder_and_its_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "include/mscclpp").mkdir(parents=True)
    (tmp_path / "src/core").mkdir(parents=True)
    (tmp_path / "VERSION").write_text("0.9.0\n")
    (tmp_path / "include/mscclpp/executor.hpp").write_text("")
    (tmp_path / "src/core/a.cc").write_text("")
    monkeypatch.setenv("MSCCLPP_SOURCE", str(tmp_path))
    source = build.find_source()
    assert (source.version, source.code()) == ("0.9.0", [tmp_path / "src/core/a.cc"])
    assert source.standard() == "20"
    (tmp_path / "CMakeLists.txt").write_text("project(x)\nset(CMAKE_CXX_STANDARD 17)\nset(CMAKE_CUDA_STANDARD 17)\n")
    assert source.standard() == "17"
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(InputError, match="nvcc not found: building from MSCCLPP_SOURCE needs the CUDA toolkit"):
        build.library(source, 90)


def failure(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 2
    return capsys.readouterr().err


@pytest.mark.skipif(not NO_DRIVER, reason="this machine has a CUDA driver")
def test_without_a_gpu_the_command_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ag.json", "out.json"):
        words = failure(["run", str(folder / name), "--on", "mscclpp", "--one-gpu"], capsys)
        assert "--on mscclpp needs an NVIDIA GPU, and this machine has no CUDA driver" in words


def test_options_that_do_not_fit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, schedule = str(folder / "out.json"), str(folder / "ag.json")
    assert "--inplace is for schedules" in failure(["run", plan, "--on", "mscclpp", "--inplace"], capsys)
    assert "--one-gpu is for --on mscclpp" in failure(["run", schedule, "--one-gpu"], capsys)
    assert "--ranks is not for" in failure(["run", plan, "--on", "mscclpp", "--ranks", "4"], capsys)
    both = ["run", schedule, "--size", "1MB", "--sizes", "1MB:2MB"]
    assert "give --size or --sizes, not both" in failure(both, capsys)
    assert "does not serve 1000 bytes" in failure(["run", plan, "--on", "mscclpp", "--size", "1000"], capsys)


H200 = cuda.Device(0, 90, 132, 2048)


def test_processes_that_are_not_the_ranks_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cuda, "devices", lambda: [H200])
    monkeypatch.setattr(run_plans, "find_peers", lambda: SimpleNamespace(rank=0, size=2, local=0))
    plan = str(folder / "out.json")
    expected = f"flowccl: error: {plan} is for 4 ranks, but 2 processes were started\n"
    assert failure(["run", plan, "--on", "mscclpp", "--one-gpu"], capsys) == expected


def test_too_few_gpus_are_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cuda, "devices", lambda: [H200])
    plan = str(folder / "out.json")
    expected = f"flowccl: error: {plan} is for 4 ranks, but this host has 1 GPU; --one-gpu runs all on one\n"
    assert failure(["run", plan, "--on", "mscclpp"], capsys) == expected


def test_another_version_of_mscclpp_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cuda, "devices", lambda: [H200])
    for version, words in (
        ("0.7.2", "MSCCL++ 0.7.2 is too old for these plans: it must be 0.8 or 0.9"),
        ("1.0.0", "MSCCL++ 1.0.0 is newer than the versions that flowccl knows: it must be 0.8 or 0.9"),
    ):
        monkeypatch.setattr(run_plans, "find_provider", partial(Provider, version, None))
        found = failure(["run", str(folder / "out.json"), "--on", "mscclpp", "--one-gpu"], capsys)
        assert found == f"flowccl: error: {words}\n"


# -- MPS ------------------------------------------------------------------------------------------------------------


def test_a_daemon_that_was_started_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, program = tmp_path / "log", tmp_path / "nvidia-cuda-mps-control"
    program.write_text(f'#!/bin/sh\necho "$@" >> {log}\n[ "$1" = "-d" ] || cat >> {log}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    with suppress(RuntimeError), mps.shared_gpu() as added:
        assert Path(added["CUDA_MPS_PIPE_DIRECTORY"]).is_dir()
        raise RuntimeError
    assert "quit" in log.read_text()
    assert not Path(added["CUDA_MPS_PIPE_DIRECTORY"]).exists()


def test_a_daemon_of_the_user_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    with mps.shared_gpu() as added:
        assert added == {}


# -- packets in PyTorch ---------------------------------------------------------------------------------------------


def with_packets(folder: Path, to: Path) -> PlanFacts:
    return read_plan(changed(folder / "out.json", lambda plan: plan.update(protocol="LL"), to))


def test_packets_are_not_captured(folder: Path, tmp_path: Path) -> None:
    facts = with_packets(folder, tmp_path / "ll.json")
    group: Any = SimpleNamespace(stages={(facts.path, 4096): None})
    tensors.PlanGroup._check_capture(group, facts, (facts.path, 4096), False)
    with pytest.raises(InputError) as refused:
        tensors.PlanGroup._check_capture(group, facts, (facts.path, 4096), True)
    assert str(refused.value) == (
        f"{facts.path}: a plan with protocol LL cannot be captured in a CUDA graph: a replay would repeat the flag of "
        "its packets and give wrong data; use a Simple plan"
    )
    simple = read_plan(folder / "out.json")
    tensors.PlanGroup._check_capture(group, dataclasses.replace(simple, path=facts.path), (facts.path, 4096), True)
    with pytest.raises(InputError, match="run allgather once with this size before it is captured"):
        tensors.PlanGroup._check_capture(group, simple, (simple.path, 4096), True)


def test_smaller_calls_are_padded_to_the_only_size_of_a_plan(folder: Path) -> None:
    facts = read_plan(folder / "out.json")
    step = facts.step(DTYPES["float32"])
    group = object.__new__(tensors.PlanGroup)
    sizes = (1, step, 4 * step, 8 * step, 8 * step + 1)

    def served(low: int, high: int) -> list[int]:
        group.plans = [tensors.SizedPlan(dataclasses.replace(facts, min_bytes=low, max_bytes=high), high)]
        return [size for size in sizes if group.find(facts.collective, size, "float32") is not None]

    assert served(8 * step, 8 * step) == [1, step, 4 * step, 8 * step]
    assert served(4 * step, 8 * step) == [4 * step, 8 * step]
    assert [group._padded(group.plans[0].facts, size) for size in (1, step + 1)] == [step, 2 * step]


def test_packets_need_the_same_plans_on_all_processes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packets = tensors.SizedPlan(with_packets(folder, tmp_path / "ll.json"))
    simple = tensors.SizedPlan(read_plan(folder / "out.json"))
    monkeypatch.setattr(tensors, "_counting", set())
    tensors.check_flags([simple], 4, 8)
    tensors.check_flags([simple], 8, 8)
    with pytest.raises(
        InputError, match=r"ll.json: a plan with protocol LL needs processes that all run the same plans"
    ):
        tensors.check_flags([packets], 8, 8)
    monkeypatch.setattr(tensors, "_counting", set())
    tensors.check_flags([packets], 8, 8)
    tensors.check_flags([], 4, 8)
    with pytest.raises(InputError, match=r"but a group of 4 of 8 processes has plans of its own; use Simple plans"):
        tensors.check_flags([simple], 4, 8)


def test_json_of_a_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(folder / "ag.json"), "--sizes", "1KiB:4KiB:2", "--json", "--iterations", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["layout_count"] for row in found["rows"]] == [256, 512, 1024]
    assert all(row["out_of_place"]["wrong"] == 0 and row["in_place"] is None for row in found["rows"])
    assert os.environ.get("CUDA_MPS_PIPE_DIRECTORY") is None
