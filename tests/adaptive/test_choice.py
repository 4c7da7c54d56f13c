"""Adaptive selection and new versions of the catalog: without torch, and in eight real processes."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from flowccl import machine
from flowccl.adaptive.choice import AdaptiveChooser
from flowccl.adaptive.diagnosis import describe, suspects
from flowccl.adaptive.run_time import PlanChooser
from flowccl.catalog.build import BuildOptions, build_catalog
from flowccl.catalog.engine import TaskEngine
from flowccl.catalog.files import load_catalog
from flowccl.faults.repair import FaultyMachine
from flowccl.runtimes.profiles import PROFILES
from flowccl.synthesis import synthesize
from flowccl.topology.faults import find_faults
from tests.adaptive.test_run_time import Store
from tests.run.test_torch import needs_torch, rendezvous, start

SIZE = 64_000


def alone(numbers: list[float]) -> list[float]:
    return numbers


def chooser_of(folder: Path, **named: Any) -> AdaptiveChooser:
    return AdaptiveChooser(PlanChooser(folder, Store(), 0, 4, alone, named.pop("reload_every", 0)), alone, **named)


def timed(chooser: AdaptiveChooser, calls: int, times: dict[bool, float]) -> list[bool]:
    """Make calls that take the given times with a plan and with the library; return which of the calls had a plan."""
    used = []
    for number in range(calls):
        used.append(chooser("allreduce", SIZE) is not None)
        chooser.finished(times[used[-1]] * (1 + 0.01 * (number % 3)))
    return used


def test_the_faster_one_is_used_and_drift_is_reported_with_a_link(built):
    chooser = chooser_of(built)
    assert all(timed(chooser, 400, {True: 100.0, False: 300.0})[-16:])
    assert not chooser.alarms
    used = timed(chooser, 60, {True: 400.0, False: 300.0})
    assert len(chooser.alarms) == 1
    assert not any(used[-8:])
    words = chooser.alarms[0]
    assert "slow since call 40" in words
    assert "of allreduce of" in words
    assert "later than before; consistent with" in words


def test_the_library_is_used_where_it_is_faster(built):
    assert not any(timed(chooser_of(built), 2000, {True: 300.0, False: 100.0})[-16:])


def test_the_state_is_saved_and_goes_on(built, tmp_path):
    chooser = chooser_of(built)
    timed(chooser, 400, {True: 100.0, False: 300.0})
    chooser.save(tmp_path / "state.json")
    again = chooser_of(built, state=tmp_path / "state.json")
    timed(again, 1, {True: 100.0, False: 300.0})
    key = next(iter(again.classes))
    assert again.classes[key].calls == 401
    (tmp_path / "state.json").write_text('{"format": "x"}')
    assert timed(chooser_of(built, state=tmp_path / "state.json"), 1, {True: 1.0, False: 1.0})


def test_a_new_version_is_taken_over_after_the_set_number_of_calls(built, tmp_path):
    folder = shutil.copytree(built, tmp_path / "plans")
    chooser = PlanChooser(folder, Store(), 0, 4, alone, reload_every=8)
    first = chooser.version
    path = folder / "catalog.json"
    path.write_text(path.read_text() + " ")
    for _ in range(7):
        chooser("allreduce", SIZE)
    assert chooser.version is first
    chooser("allreduce", SIZE)
    assert chooser.version is not first
    (folder / load_catalog(folder).plans[0].schedule).write_text("{}")
    path.write_text(path.read_text() + " ")
    second = chooser.version
    for _ in range(8):
        chooser("allreduce", SIZE)
    assert chooser.version is second


def test_a_version_that_another_rank_does_not_have_is_not_taken_over(built, tmp_path):
    folder = shutil.copytree(built, tmp_path / "plans")
    chooser = PlanChooser(folder, Store(), 0, 4, lambda numbers: [max(numbers), 0.0], reload_every=1)
    first = chooser.version
    path = folder / "catalog.json"
    path.write_text(path.read_text() + " ")
    chooser("allreduce", SIZE)
    assert chooser.version is first


def test_the_slow_link_and_its_speed_are_named():
    topology = machine("dgx_h100:2")
    observed = []
    for name in ("allgather", "alltoall"):
        schedule = synthesize(topology, name, 8_192_000, method="greedy", chunks=1, steps=1).schedule
        late = FaultyMachine(schedule, find_faults(topology, slow=["gpu3 -> rail3=100Gb/s"])).late()
        observed.append((schedule, late.finish_ps / schedule.finish_ps))
    found = suspects(observed)
    assert found[0].error < 0.02
    assert found[0].GBps == 12.5
    place, words = describe(observed)
    assert place.startswith("rail")
    assert words.startswith("consistent with 100 Gb/s on gpu")


def test_links_that_carry_different_loads_are_told_apart():
    """On a line, the link between the halves carries the most of an alltoall."""
    topology = machine("line:4")
    schedule = synthesize(topology, "alltoall", 4_096_000, method="greedy", chunks=1, steps=1).schedule
    GBps = topology.links[0].bandwidth_GBps
    late = FaultyMachine(schedule, find_faults(topology, slow=[f"gpu1 -> gpu2={GBps / 4}GB/s"])).late()
    ratio = late.finish_ps / schedule.finish_ps
    assert "gpu1 -> gpu2" in " ".join(describe([(schedule, ratio)]))


def reduced(rank: int, folder: Path) -> dict[str, Any]:
    """Reduce tensors; after 40 calls a link is slow, later a new version of the catalog is there."""
    import torch
    from torch import distributed

    import flowccl.torch

    flowccl.torch.init_process_group(
        catalog=folder / "plans", selection="adaptive", reload_every=16, **rendezvous(folder, rank, "adaptive", 8)
    )
    group = distributed.group.WORLD
    carrier = group.parts.carriers["cpu"]
    post_send = carrier.post_send

    def slow(tensor, peer, tag):
        if rank == 0 and peer == 1:
            time.sleep(0.05)
        post_send(tensor, peer, tag)

    right, chosen, noticed, digests = True, [], None, []
    for call in range(1, 161):
        if call == 41:
            carrier.post_send = slow
        if call == 110 and rank == 0:
            path = folder / "plans" / "catalog.json"
            new = path.with_name("new.json")
            new.write_text(path.read_text() + " ")
            new.replace(path)
        tensor = torch.full((SIZE // 4,), float(rank + 1))
        before = dict(flowccl.torch.counts()["catalog"])
        distributed.all_reduce(tensor)
        right = right and bool((tensor == 36).all())
        after = flowccl.torch.counts()["catalog"]
        chosen.append([name for name, count in after.items() if count != before.get(name, 0)])
        digests.append(group.parts.chooser.chooser.version.digest)
        if noticed is None and call > 40 and flowccl.torch.alarms():
            noticed = call
    if rank == 0:
        flowccl.torch.save_selection(folder / "state.json")
    distributed.destroy_process_group()
    return {"right": right, "chosen": chosen, "noticed": noticed, "digests": digests}


@pytest.mark.slow
@needs_torch
def test_eight_processes_choose_alike_notice_a_slow_link_and_take_over_a_new_version(tmp_path: Path) -> None:
    options = BuildOptions(
        collectives=("allreduce",), low_bytes=32_000, high_bytes=128_000, runtime=PROFILES["ideal"], steps=2
    )
    build_catalog(machine("full:8"), tmp_path / "plans", options, TaskEngine(jobs=1))
    results = start(reduced, tmp_path, count=8)
    assert all(result["right"] for result in results)
    assert len({json.dumps([result["chosen"], result["digests"]]) for result in results}) == 1
    assert len({*results[0]["digests"]}) == 2
    assert results[0]["digests"].index(results[0]["digests"][-1]) + 1 in (112, 128)
    assert results[0]["noticed"] is not None
    assert results[0]["noticed"] <= 100
    assert (tmp_path / "state.json").exists()
