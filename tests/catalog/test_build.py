import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import jsonschema
import pytest

import flowccl
from flowccl import machine, verify
from flowccl.catalog.build import BuildOptions, build_catalog, cases_of
from flowccl.catalog.case import PlanTimer
from flowccl.catalog.check import check_catalog
from flowccl.catalog.engine import TaskEngine, TaskFailure
from flowccl.catalog.files import catalog_to_json, load_catalog, load_plan_schedule
from flowccl.catalog.library import Shape, library_ps, shape_of
from flowccl.catalog.sweep import CASES, locked
from flowccl.cli import main
from flowccl.errors import InputError, NothingFoundError
from flowccl.export import check
from flowccl.runtimes.profiles import PROFILES
from flowccl.schedule.resize import resized
from tests.catalog.cases import OPTIONS

SCHEMA = json.loads((Path(flowccl.__file__).parent / "catalog" / "catalog.schema.json").read_text())


def files(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.relative_to(folder).as_posix().startswith(".")
    }


def test_the_files_follow_the_schema_and_are_correct(built):
    jsonschema.validate(json.loads((built / "catalog.json").read_text()), SCHEMA)
    assert check_catalog(built, machine("ring:4")).findings == ()
    for plan in load_catalog(built).plans:
        assert check(built / plan.file, "mscclpp")[1] == []


def test_rules_cover_the_whole_range_without_overlap(built):
    for rules in load_catalog(built).by_key().values():
        assert (rules[0].bytes.low, rules[-1].bytes.high) == (64_000, 512_001)
        assert all(a.bytes.high == b.bytes.low for a, b in pairwise(rules))


def test_a_plan_is_chosen_where_it_is_fastest(built):
    catalog = load_catalog(built)
    for point in catalog.times:
        if point.plan is not None and point.library_us is not None:
            assert point.program_us <= point.library_us
        if point.program_us is not None and point.lower_bound_us is not None:
            assert point.program_us >= point.lower_bound_us


def test_equal_inputs_give_equal_files_and_finished_cases_are_not_computed_again(built, tmp_path, monkeypatch):
    other = tmp_path / "again"
    other.mkdir()
    kept = sorted((built / CASES).iterdir())
    (other / CASES).mkdir()
    for path in kept[:-1]:  # a build that was killed before its last case
        (other / CASES / path.name).write_bytes(path.read_bytes())
    (other / CASES / ".partial").write_bytes(b"{")  # a file that was not complete
    seen = []
    build_catalog(machine("ring:4"), other, OPTIONS, TaskEngine(jobs=1), lambda *numbers: seen.append(numbers))
    finished, total, before = seen[-1]
    assert (before, finished, total) == (len(kept) - 1, len(kept), len(kept))
    assert len(seen) == 2
    assert files(other) == files(built)


@pytest.mark.slow
def test_processes_give_the_same_files(built, tmp_path):
    build_catalog(machine("ring:4"), tmp_path / "loky", OPTIONS, TaskEngine(jobs=2))
    assert files(tmp_path / "loky") == files(built)


def test_a_case_that_fails_does_not_end_the_others():
    outcomes = dict(TaskEngine(jobs=1).map(_fails_at_one, [(0,), (1,), (2,)]))
    assert outcomes == {0: 0, 1: TaskFailure("ZeroDivisionError: integer modulo by zero"), 2: 4}


def _fails_at_one(number):
    return 2 * number if number != 1 else number % 0


def test_nothing_is_written_where_every_case_fails(tmp_path):
    options = replace(OPTIONS, collectives=("allgather",), high_bytes=64_000, steps=0)
    with pytest.raises(NothingFoundError, match="every case failed: no schedule found"):
        build_catalog(machine("ring:4"), tmp_path / "plans", options, TaskEngine(jobs=1))
    assert files(tmp_path / "plans") == {}


def test_two_builds_in_one_folder(tmp_path):
    with locked(tmp_path / "plans"), pytest.raises(InputError, match="another build writes to this folder"):
        build_catalog(machine("ring:4"), tmp_path / "plans", OPTIONS, TaskEngine(jobs=1))


def test_sizes_and_cases():
    cases = cases_of(machine("ring:4"), OPTIONS)
    assert [case.size_bytes for case in cases[:4]] == [64_000, 128_000, 256_000, 512_000]
    assert len({case.key({}) for case in cases}) == len(cases) == 8


@pytest.mark.parametrize("size", [64, 64_000, 6_400_000])
def test_a_resized_schedule_is_valid_and_comes_back(built, size):
    catalog = load_catalog(built)
    for plan in catalog.plans:
        schedule = load_plan_schedule(built, plan, 4)
        other = resized(schedule, size)
        assert verify(other) == []
        assert resized(other, plan.size_bytes).finish_ps <= schedule.finish_ps


def test_the_time_of_a_program_grows_with_its_size(built):
    catalog = load_catalog(built)
    plan = catalog.plans[0]
    timer = PlanTimer(load_plan_schedule(built, plan, 4), PROFILES["mscclpp"], False)
    times = [timer.time_ps(size) for size in (64_000, 128_000, 256_000)]
    assert times == sorted(times)
    assert timer.time_ps(plan.size_bytes) == round(plan.program_us * 1e6)


def test_the_library_by_hand():
    """Ring of 16 GPUs in two hosts, Simple: 30 hops of which 4 between hosts; 30/16 of the bytes over 400 GB/s."""
    shape = shape_of(machine("dgx_h100:2"))
    assert (shape.hosts, shape.ranks, shape.nics_GBps) == (2, 16, 400)
    size = 1_000_000_000
    ring_us = 26 * 3.4 + 4 * 14 + size * 30 / 16 / 400e3
    assert library_ps(shape, "allreduce", size) == pytest.approx(ring_us * 1e6, rel=1e-9)
    tree_us = 2 * (7 * 0.6 + 5.0) + 2 * 16 / (400e3 * 0.5)
    assert library_ps(replace(shape, inside_us=0, between_us=0), "allreduce", 16) == pytest.approx(tree_us * 1e6)
    assert library_ps(shape, "broadcast", 16) is None
    assert library_ps(Shape(1, 4, 0.0, 0.0), "allreduce", 16) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sizes", "1MB:1KB"], "the first size, 1000000 B, is larger than the last, 1000 B"),
        (["--sizes", "1MB"], "--sizes '1MB': write the smallest and the largest size, for example 1KB:1GB"),
        (["--collectives", "broadcast"], "a catalog has collectives without a root"),
        (["--collectives", "allreduze"], "unknown collective 'allreduze'; did you mean allreduce?"),
        (["--engine", "slurm"], "unknown engine 'slurm'; known engines: local, dask=ADDRESS, ray"),
        (["--engine", "dask"], "the engine dask needs the address of its scheduler"),
        (["--for", "nccl"], "unknown runtime 'nccl'"),
        (["--out", "no/such/folder"], "--out no/such/folder: there is no folder no/such"),
        ([], "the machine does not name its GPU model"),
    ],
)
def test_bad_input_of_build(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    out = [] if "--out" in words else ["--out", "plans"]
    assert main(["catalog", "build", "ring:4", *words, *out]) == 2
    assert message in capsys.readouterr().err
    assert files(tmp_path) == {}


class FullDisk:
    """Opens files for writing, of which all after some cannot be written."""

    def __init__(self, files: int) -> None:
        self.left, self.fdopen = files, os.fdopen

    def __call__(self, handle, mode):
        self.left -= 1
        return self.fdopen(handle, mode) if self.left >= 0 else _Full(handle)


class _Full:
    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __enter__(self):
        return self

    def __exit__(self, *error):
        os.close(self.handle)

    def write(self, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("whole_files", [0, 1, 3])
def test_a_full_disk_leaves_nothing_half_written(whole_files, tmp_path, monkeypatch, capsys):
    """Two cases, then plans and schedules: none of them is left in part, and the build goes on when there is space."""
    words = ["catalog", "build", "ring:4", "--collectives", "allgather", "--sizes", "64KB:128KB", "--for", "ideal"]
    words += ["--steps", "1", "--jobs", "1", "--quiet", "--out", str(tmp_path / "plans")]
    with monkeypatch.context() as patch:
        patch.setattr("flowccl.files.os.fdopen", FullDisk(whole_files))
        assert main(words) == 2
    assert "cannot be written: No space left on device" in capsys.readouterr().err
    written = [path for path in (tmp_path / "plans").rglob("*") if path.is_file() and path.name != ".lock"]
    assert len(written) == whole_files
    assert all(json.loads(path.read_text()) for path in written)
    assert main(words) == 0
    assert check_catalog(tmp_path / "plans").findings == ()


def test_a_folder_that_cannot_be_made(tmp_path, capsys):
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / CASES).write_text("")
    assert main(["catalog", "build", "ring:4", "--for", "ideal", "--out", str(tmp_path / "plans")]) == 2
    assert f"{CASES}: cannot be made: File exists" in capsys.readouterr().err


def test_an_engine_that_is_not_installed(monkeypatch):
    monkeypatch.setattr("flowccl.catalog.engine.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"the engine ray is not installed: pip install 'flowccl\[ray\]'"):
        TaskEngine.parse("ray")


def test_options_name_the_mistake():
    with pytest.raises(InputError, match="larger than the last"):
        BuildOptions(low_bytes=2, high_bytes=1)


def test_the_value_of_a_catalog_can_be_read_back(built):
    catalog = load_catalog(built)
    assert json.loads((built / "catalog.json").read_text()) == catalog_to_json(catalog)


@pytest.mark.slow
def test_dask_gives_the_same_files(built, tmp_path):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        engine = TaskEngine.parse(f"dask={cluster.scheduler_address}")
        build_catalog(machine("ring:4"), tmp_path / "dask", OPTIONS, engine)
    assert files(tmp_path / "dask") == files(built)


@pytest.mark.slow
def test_ray_gives_the_same_files(built, tmp_path):
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False)
    try:
        build_catalog(machine("ring:4"), tmp_path / "ray", OPTIONS, TaskEngine.parse("ray"))
    finally:
        ray.shutdown()
    assert files(tmp_path / "ray") == files(built)


@pytest.mark.slow
def test_a_build_that_is_killed_goes_on_where_it_was(built, tmp_path):
    folder = tmp_path / "plans"
    words = ["catalog", "build", "ring:4", "--collectives", "allreduce,allgather", "--sizes", "64KB:512KB"]
    words += ["--steps", "2", "--sms", "100", "--jobs", "1", "--quiet", "--out", str(folder)]
    started = subprocess.Popen([sys.executable, "-m", "flowccl", *words], stdout=subprocess.DEVNULL)
    while not (folder / CASES).exists() or len(list((folder / CASES).glob("*.json"))) < 3:
        assert started.poll() is None
        time.sleep(0.02)
    started.kill()
    started.wait()
    kept = {path.name: path.stat().st_mtime_ns for path in (folder / CASES).glob("*.json")}
    assert len(kept) < 8
    assert subprocess.run([sys.executable, "-m", "flowccl", *words], stdout=subprocess.DEVNULL).returncode == 0
    again = {path.name: path.stat().st_mtime_ns for path in (folder / CASES).glob("*.json")}
    assert len(again) == 8
    assert {name: again[name] for name in kept} == kept
    assert files(folder) == files(built)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_build_that_is_stopped_says_how_to_resume_and_nothing_else(name, tmp_path):
    folder = tmp_path / "plans"
    words = ["catalog", "build", "ring:4", "--for", "ideal", "--steps", "20", "--jobs", "2", "--out", str(folder)]
    command = [sys.executable, "-m", "flowccl", *words]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not list((folder / CASES).glob("*.json")):
        assert started.poll() is None
        time.sleep(0.02)
    started.send_signal(signal.Signals[name])
    out, err = started.communicate(timeout=60)
    assert (started.returncode, out) == (3, "")
    assert err == f"flowccl: stopped; run the same command again to resume ({folder})\n"


def test_a_dask_scheduler_that_cannot_be_reached(tmp_path):
    pytest.importorskip("distributed")
    engine = TaskEngine("dask", "tcp://127.0.0.1:9")
    with pytest.raises(InputError, match=r"the dask scheduler at tcp://127.0.0.1:9 cannot be reached"):
        list(engine.map(_fails_at_one, [(0,)]))
