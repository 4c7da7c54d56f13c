"""Selection at run time: without torch, and in four real processes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flowccl import machine
from flowccl.adaptive.run_time import PlanChooser
from flowccl.catalog.build import BuildOptions, build_catalog
from flowccl.catalog.engine import TaskEngine
from flowccl.catalog.files import load_catalog
from flowccl.runtimes.profiles import PROFILES
from tests.run.test_torch import needs_torch, rendezvous, start


class Store:
    """The part of torch.distributed's store that the ranks use; the other ranks have answered already."""

    def __init__(self, **others: str) -> None:
        self.values = {key.replace("_", "-"): value.encode() for key, value in others.items()}

    def set(self, key: str, value: str) -> None:
        self.values.setdefault(key, value.encode())

    def get(self, key: str) -> bytes:
        return self.values.get(key, self.values["catalog-0"])


def test_calls_are_counted_and_the_first_one_is_logged(built, caplog):
    caplog.set_level("INFO", logger="flowccl.torch")
    chooser = PlanChooser(built, Store(), 0, 4)
    plan = load_catalog(built).plans[0]
    rule = next(rule for rule in load_catalog(built).rules if rule.plan == plan.name)
    size = -(-rule.bytes.low // plan.alignment_bytes) * plan.alignment_bytes
    for _ in range(3):
        assert chooser(plan.collective, size).demand.collective == plan.collective
    assert chooser(plan.collective, size + 1) is None
    assert chooser("alltoall", size) is None
    assert chooser.uses == {
        f"{plan.collective}: {plan.name}": 3,
        f"{plan.collective}: library": 1,
        "alltoall: library": 1,
    }
    assert len(caplog.messages) == 3
    assert "serves multiples of" in caplog.messages[1]


def test_a_rank_with_another_catalog_makes_all_ranks_use_the_library(built, caplog):
    chooser = PlanChooser(built, Store(catalog_2="0" * 64), 0, 4)
    assert chooser("allreduce", 128_000) is None
    assert "rank 2 has another catalog, or none" in caplog.text


def test_a_damaged_catalog_is_not_used(built, tmp_path, caplog):
    copied = shutil.copytree(built, tmp_path / "plans")
    (copied / load_catalog(copied).plans[0].schedule).write_text("{}")
    store = Store()
    chooser = PlanChooser(copied, store, 0, 4)
    assert store.get("catalog-0") == b"none"
    assert chooser("allreduce", 128_000) is None
    assert "was changed after the build" in caplog.text


def reduced(rank: int, folder: Path) -> dict[str, Any]:
    """Reduce tensors of several sizes; return whether all were right, and the counts."""
    import torch
    from torch import distributed

    import flowccl.torch

    flowccl.torch.init_process_group(catalog=folder / "plans", **rendezvous(folder, rank, "catalog"))
    right = True
    for count in (16, 4_000, 16_000, 16_001, 64_000, 250_000):
        tensor = torch.full((count,), float(rank + 1))
        distributed.all_reduce(tensor)
        right = right and bool((tensor == 10).all())
    counted = flowccl.torch.counts()
    distributed.destroy_process_group()
    return {"right": right, "counts": counted}


@pytest.mark.slow
@needs_torch
def test_four_processes_choose_alike_and_reduce_correctly(tmp_path: Path) -> None:
    options = BuildOptions(
        collectives=("allreduce",), low_bytes=16_000, high_bytes=256_000, runtime=PROFILES["ideal"], steps=2
    )
    build_catalog(machine("full:4"), tmp_path / "plans", options, TaskEngine(jobs=1))
    results = start(reduced, tmp_path)
    assert all(result["right"] for result in results)
    assert len({json.dumps(result["counts"]) for result in results}) == 1
    assert results[0]["counts"]["scheduled"]["allreduce"] >= 3
    assert results[0]["counts"]["inner"]["allreduce"] >= 2
