"""Alltoalls with split sizes of an unchanged job run by plans that are made in every call."""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowccl import machine
from flowccl.run.group_backends import GlooCarrier
from flowccl.run.group_calls import GroupParts, Selected
from flowccl.run.process_group import group_class
from flowccl.torch.group_alltoall import GroupAllToAll, GroupMessages, obstacle
from tests.torch.catalogs import small_catalog
from tests.torch.processes import launch

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the extra torch is not installed")
RANKS = 8
CALLS = 200


def test_machines_that_the_planner_does_not_know_are_left_to_the_library() -> None:
    assert obstacle(machine("rail:2x4")) == ""
    assert "needs that" in obstacle(machine("ring:4"))


def test_tags_of_calls_do_not_meet() -> None:
    sent: list[int] = []

    class Backend:
        def send(self, tensors: object, peer: int, tag: int) -> None:
            sent.append(tag)

    messages = GroupMessages(Backend(), 0, 2)
    for first in (1 << 20, 2 << 20):
        messages.first_tag = first
        messages.send(None, 1, 7)
    assert sent == [(1 << 20) + 7, (2 << 20) + 7]


class Swapped:
    """Stands in for the planner: gives every rank its own parts, as if all ranks sent the same."""

    def __init__(self, topology: object, messages: GroupMessages) -> None:
        self.messages, self.calls = messages, []

    def all_to_all_single(self, output: Any, tensor: Any, output_splits: list[int], input_splits: list[int]) -> None:
        self.calls.append((self.messages.first_tag, output_splits, input_splits))
        if not tensor.numel():
            raise RuntimeError("connection closed")
        output.copy_(tensor)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A group of two ranks in one process, whose alltoalls are served."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from flowccl.torch import alltoall

    monkeypatch.setattr(alltoall, "PlannedAllToAll", Swapped)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    made = group_class()(GroupParts(dist.group.WORLD, lambda *_: Selected(None, "", "no plans")))
    made.alltoallv = GroupAllToAll(machine("full:2"), GlooCarrier(None), 0, 2)
    yield made
    made.thread.close()
    dist.destroy_process_group()


@needs_torch
def test_calls_with_split_sizes_lists_and_errors_go_through_the_group(group: Any) -> None:
    import torch
    import torch.distributed as dist

    given, output = torch.arange(3.0, requires_grad=True), torch.zeros(3)
    options = dist.AllToAllOptions()
    for later in (False, True):
        options.asyncOp = later
        work = group.alltoall_base(output.zero_(), given, [1, 2], [2, 1], options)
        work.wait()
        assert output.tolist() == [0, 1, 2]
    parts = [torch.zeros(1), torch.zeros(2, 1)]
    group.alltoall(parts, [torch.ones(2), torch.full((1,), 5.0)], options).wait()
    assert [part.flatten().tolist() for part in parts] == [[1], [1, 5]]
    seen = group.alltoallv.planned.calls
    assert [splits for _, *splits in seen] == [[[1, 2], [2, 1]]] * 3
    assert len({tag for tag, *_ in seen}) == 3
    work = group.alltoall_base(torch.zeros(0), torch.zeros(0), [0, 0], [0, 0], options)
    with pytest.raises(RuntimeError, match=r"rank 0: alltoallv on 2 ranks .* failed: connection closed"):
        work.wait()
    with pytest.raises(RuntimeError, match="connection closed"):
        group.alltoall_base(output, given, [1, 2], [2, 1], options)


def variables(folder: Path) -> dict[str, str]:
    """What a job is given, with a catalog that serves the alltoalls of two hosts."""
    plans = small_catalog(folder / "plans", "rail:2x4", collectives=("allreduce",))
    return {"FLOWCCL_CATALOG": str(plans), "FLOWCCL_MACHINE": "any", "FLOWCCL_LOG": "info"}


@pytest.mark.slow
@needs_torch
def test_changing_split_sizes_are_right_on_eight_ranks_and_disagreement_is_an_error(tmp_path: Path) -> None:
    ended = launch(["-m", "tests.torch.alltoall_program", str(CALLS)], RANKS, **variables(tmp_path))
    assert ended.codes == [0] * RANKS
    overhead = re.findall(r"^call \d+: exchange of sizes \d+ us, planning \d+ us.*$", ended.text, re.MULTILINE)
    print("\n".join(overhead))
    assert len(overhead) == CALLS
    said = re.findall(r"^rank \d: wrong (\d+); (.*); (.*)$", ended.text, re.MULTILINE)
    assert len(said) == RANKS
    for wrong, other_type, other_size in said:
        assert wrong == "0"
        assert "rank 1 and rank 0 differ in the type of the data" in other_type
        assert re.search(r"rank 1 sends 8 bytes to rank 0, which expects 4$", other_size)
    assert re.search(rf"alltoallv +8 +cpu +plan of the call +{CALLS + 4} ", ended.text)
    assert not re.search(r"alltoall\S* +8 +cpu +library", ended.text)


@pytest.mark.slow
@needs_torch
def test_a_killed_rank_ends_the_others_with_a_clear_line(tmp_path: Path) -> None:
    ended = launch(["-m", "tests.torch.alltoall_program", "killed"], RANKS, **variables(tmp_path))
    assert ended.codes == [-9 if rank == 2 else 3 for rank in range(RANKS)]
    lines = re.findall(r"^rank (\d) ended after (\d+) s: flowccl: rank \1: .* failed: .+$", ended.text, re.MULTILINE)
    print("\n".join(line for line in ended.text.splitlines() if " ended after " in line))
    assert sorted(rank for rank, _ in lines) == [str(rank) for rank in range(RANKS) if rank != 2]
    assert all(int(seconds) <= 25 for _, seconds in lines)
