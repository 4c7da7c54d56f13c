"""The parts of flowccl in PyTorch: the agreement, the selection, programs of ranks, the report, the cost of loading."""

import importlib.util
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowccl.torch
from flowccl import machine, synthesize
from flowccl.errors import InputError
from flowccl.run.call_log import CallLog
from flowccl.run.element_layout import make_layout
from flowccl.run.program import make_program
from flowccl.run.rank_program import rank_program
from flowccl.run.reference import execute
from flowccl.torch.agreement import Verdict, agree, new_keys
from flowccl.torch.catalogs import JobCatalogs, select
from flowccl.torch.environment import Settings
from flowccl.torch.job import hosts_of
from flowccl.torch.reporting import Report
from tests.torch.catalogs import small_catalog
from tests.torch.processes import ROOT

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the extra torch is not installed")


class MemoryStore:
    """The part of torch.distributed's store that the agreement uses, for threads."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self.changed:
            self.values[key] = value.encode()
            self.changed.notify_all()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def add(self, key: str, amount: int) -> int:
        with self.changed:
            self.values[key] = str(int(self.values.get(key, b"0")) + amount).encode()
            return int(self.values[key])

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        with self.changed:
            if not self.changed.wait_for(lambda: self.check(keys), timeout.total_seconds()):
                raise RuntimeError("timeout")

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        with self.changed:
            if self.values.get(key, b"").decode() == expected:
                self.values[key] = desired.encode()
                self.changed.notify_all()
            return self.values[key]


def agreed(calls: dict[int, tuple[str, str]], size: int, patience_s: float = 5.0) -> list[Verdict]:
    """The verdicts of the ranks that take part, from their values and problems."""
    store, found = MemoryStore(), {}

    def one(rank: int) -> None:
        found[rank] = agree(store, rank, size, *calls[rank], patience_s=patience_s)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [found[rank] for rank in sorted(calls)]


def test_ranks_agree_on_equal_values() -> None:
    found = agreed(dict.fromkeys(range(4), ("hash", "")), 4)
    assert [(v.value, v.reason) for v in found] == [("hash", "")] * 4
    assert [v.is_speaker for v in found] == [True, False, False, False]


@pytest.mark.parametrize(
    ("calls", "reason"),
    [
        ({0: ("a", ""), 1: ("a", ""), 2: ("b", "")}, "rank 2 has another catalog than rank 0"),
        ({0: ("a", ""), 1: ("", "plans: no such folder"), 2: ("a", "")}, "rank 1: plans: no such folder"),
        ({0: ("a", ""), 2: ("a", "")}, "rank 1 takes no part: is FLOWCCL_CATALOG set there?"),
        ({1: ("a", ""), 2: ("a", "")}, "rank 0 takes no part: is FLOWCCL_CATALOG set there?"),
    ],
)
def test_all_ranks_get_the_same_reason_and_one_of_them_says_it(calls: dict[int, tuple[str, str]], reason: str) -> None:
    found = agreed(calls, 3, patience_s=0.2)
    assert {(v.value, v.reason) for v in found} == {(None, reason)}
    assert sum(v.is_speaker for v in found) == 1


def test_a_group_that_is_made_again_has_new_keys() -> None:
    store = MemoryStore()
    assert [new_keys(store, 0), new_keys(store, 1), new_keys(store, 0)] == ["flowccl-1", "flowccl-1", "flowccl-2"]


@pytest.fixture(scope="module")
def catalogs(tmp_path_factory: pytest.TempPathFactory) -> JobCatalogs:
    folder = small_catalog(tmp_path_factory.mktemp("catalogs") / "plans", "full:4", 1000, ("allreduce",))
    return JobCatalogs.load(Settings((str(folder),), "info", ""))


@pytest.mark.parametrize(
    ("hosts", "reason"),
    [
        ([0, 0, 0, 0], ""),
        ([0, 0], "the catalog is for 4 ranks, the group has 2"),
        (
            [0, 0, 1, 1],
            "the catalog is for 4 ranks per host, the group has 2; FLOWCCL_MACHINE=any uses it all the same",
        ),
    ],
)
def test_a_catalog_fits_groups_with_its_ranks_and_hosts(catalogs: JobCatalogs, hosts: list[int], reason: str) -> None:
    fitting, found = catalogs.fitting(hosts)
    assert (bool(fitting), found) == (not reason, reason)


def test_another_machine_is_refused(catalogs: JobCatalogs) -> None:
    folder = str(catalogs.catalogs[0].folder)
    assert JobCatalogs.load(Settings((folder,), "info", "full:4")).machine == "full:4"
    with pytest.raises(InputError, match="is for the machine full:4, which is not FLOWCCL_MACHINE=ring:4"):
        JobCatalogs.load(Settings((folder,), "info", "ring:4"))


def test_selection_serves_sizes_between_multiples_and_names_the_reason_of_the_library(catalogs: JobCatalogs) -> None:
    chosen = partial_select(catalogs)
    assert (chosen("allreduce", 64_000, -1).plan, chosen("allreduce", 1001, -1).plan) == ("allreduce-plan",) * 2
    assert chosen("allreduce", 1001, -1).reason == "as for the next multiple of 64 B"
    assert "below the smallest size" in chosen("allreduce", 999, -1).reason
    assert chosen("alltoall", 64_000, -1).reason == "the catalog has no rule for alltoall; it has allreduce"
    assert chosen("broadcast", 64_000, 0).reason == "a catalog has no plans for broadcast, which has a root"


def partial_select(catalogs: JobCatalogs) -> Callable[[str, int, int], Any]:
    return lambda collective, size, root: select(catalogs.catalogs, "", collective, size, root)


def test_hosts_are_those_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert hosts_of([0, 1, 2, 5]) == [0, 0, 1, 2]
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    assert hosts_of([0, 1, 2, 5]) == [0, 0, 0, 0]


def test_the_report_is_a_table_and_says_things_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="flowccl.torch")
    calls = CallLog()
    row = calls.row("allreduce", 4, "cpu", "plan a", True, "the only plan")
    row.end(row.begin(1000))
    calls.row("allreduce", 4, "cpu", "plan a", True, "another reason").begin(1000)
    calls.row("barrier", 4, "cpu", "library gloo", False, "no plans are made for it")
    calls.note("something")
    calls.note("something")
    assert caplog.messages == [
        "flowccl: allreduce on 4 ranks (cpu): plan a (the only plan)",
        "flowccl: barrier on 4 ranks (cpu): library gloo (no plans are made for it)",
        "flowccl: something",
    ]
    made = Report(tuple(calls.rows.values()), tuple(calls.notes))
    lines = str(made).splitlines()
    assert (made.planned, made.by_library) == (2, 0)
    assert lines[0] == "flowccl: 2 calls by plans, 0 by the library"
    assert re.fullmatch(r"allreduce +4 +cpu +plan a +2 +2 KB +\S+ ms +\d+ us", lines[2])
    assert re.fullmatch(r"barrier +4 +cpu +library gloo +0 +- +0.0 ms +-", lines[3])
    assert lines[-1] == "note: something"


class Mailbox:
    """Carries messages between ranks in threads; a tensor must stay as it is until its level ends."""

    def __init__(self, rank: int, boxes: dict[tuple[int, int, int], Any], meet: threading.Barrier) -> None:
        self.rank, self.boxes, self.meet = rank, boxes, meet
        self.awaited: list[tuple[Any, int, int]] = []
        self.sent: list[tuple[Any, Any]] = []

    def begin(self) -> None:
        self.awaited, self.sent = [], []

    def post_send(self, tensor: Any, peer: int, tag: int) -> None:
        with self.meet:
            self.boxes[self.rank, peer, tag] = copied = tensor.clone()
            self.sent.append((tensor, copied))
            self.meet.notify_all()

    def post_receive(self, tensor: Any, peer: int, tag: int) -> None:
        self.awaited.append((tensor, peer, tag))

    def wait(self) -> None:
        for tensor, peer, tag in self.awaited:
            with self.meet:
                assert self.meet.wait_for(lambda key=(peer, self.rank, tag): key in self.boxes, 30)
            tensor.copy_(self.boxes[peer, self.rank, tag])
        assert all(bool((tensor == copied).all()) for tensor, copied in self.sent)


SCHEDULES = {
    (name, collective): synthesize(machine(name), collective, 64_000, chunks=2, steps=1, method="greedy").schedule
    for name in ("ring:3", "full:4")
    for collective in ("allreduce", "allgather", "reduce_scatter", "alltoall")
}


@needs_torch
@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 40), st.booleans())
def test_programs_of_ranks_give_the_results_of_the_reference(case: tuple[str, str], count: int, inplace: bool) -> None:
    import torch

    schedule = SCHEDULES[case]
    ranks = schedule.demand.num_gpus
    count = count if case[1] == "allreduce" else count * ranks
    layout = make_layout(schedule.demand, count)
    given = [np.arange(layout.input_count[rank]) + 100 * rank for rank in range(ranks)]
    expected = execute(schedule, given)
    boxes, meet = {}, threading.Condition()
    outputs = []
    threads = []
    for rank in range(ranks):
        source = torch.tensor(given[rank])
        output = (
            source if inplace and case[1] in ("allreduce", "alltoall") else source.new_zeros(layout.output_count[rank])
        )
        outputs.append(output)
        program = rank_program(make_program(schedule), layout, rank)
        arguments = (source, output, Mailbox(rank, boxes, meet), 7, output.new_empty)
        threads.append(threading.Thread(target=program.run, args=arguments))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for output, wanted in zip(outputs, expected, strict=True):
        assert output.tolist() == list(wanted)


@pytest.mark.slow
def test_the_entry_point_is_one_small_module_and_takes_two_milliseconds(tmp_path: Path) -> None:
    """`import torch` calls it in every program; -X importtime counts microseconds."""
    script = "import typing, flowccl_autoload, sys; print(sorted(m for m in sys.modules if m.startswith('flowccl')))"
    command = [sys.executable, "-X", "importtime", "-c", script]
    environment = os.environ | {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}  # as installed
    totals = []
    for _ in range(6):
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
        assert done.stdout.strip() == "['flowccl_autoload']"
        own = [int(row) for row in re.findall(r"import time: +(\d+) \| +\d+ \| +flowccl", done.stderr)]
        assert len(own) == 1
        totals.append(own[0])
    assert min(totals) <= 2_000  # of a loaded machine's times, the least one


@needs_torch
def test_importing_torch_registers_the_backend_and_loads_nothing_else() -> None:
    script = (
        "import sys, torch; print(torch.distributed.is_backend_available('flowccl'),"
        " sorted(m for m in sys.modules if m.startswith('flowccl')))"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FLOWCCL_")}
    added = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment | added, cwd=ROOT)
    assert done.stdout.strip() == "True ['flowccl_autoload']"


def test_all_matches_the_public_names() -> None:
    assert sorted(flowccl.torch._MODULE_OF) == sorted(flowccl.torch.__all__)
    for name in flowccl.torch.__all__:
        assert getattr(flowccl.torch, name).__doc__
    with pytest.raises(AttributeError, match="has no attribute 'all_sum'"):
        flowccl.torch.all_sum  # noqa: B018


def test_the_module_names_what_it_needs() -> None:
    done = subprocess.run([sys.executable, "-m", "flowccl.torch"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("usage: torchrun [options] -m flowccl.torch train.py")
    done = subprocess.run([sys.executable, "-m", "flowccl.torch", "missing.py"], capture_output=True, text=True)
    assert "flowccl: missing.py: no such file" in done.stderr


def test_folders_count_from_where_the_job_was_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLOWCCL_CATALOG", "a:b")
    assert Settings.read() == Settings((str(tmp_path / "a"), str(tmp_path / "b")), "warning", "")
