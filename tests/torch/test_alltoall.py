"""Alltoalls with split sizes of an unchanged job run by plans that are made in every call."""

import importlib.util
import re
from pathlib import Path

import pytest

from flowccl import machine
from flowccl.torch.group_alltoall import GroupMessages, obstacle
from tests.torch.catalogs import small_catalog
from tests.torch.processes import launch

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the extra torch is not installed")
RANKS = 8


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


@pytest.mark.slow
@needs_torch
def test_changing_split_sizes_are_right_on_eight_ranks_and_disagreement_is_an_error(tmp_path: Path) -> None:
    plans = small_catalog(tmp_path / "plans", "rail:2x4", collectives=("allreduce",))
    given = {"FLOWCCL_CATALOG": str(plans), "FLOWCCL_MACHINE": "any", "FLOWCCL_LOG": "info"}
    ended = launch(["-m", "tests.torch.alltoall_program", "40"], RANKS, **given)
    assert ended.codes == [0] * RANKS
    said = re.findall(r"^rank \d: wrong (\d+); (.*); (.*)$", ended.text, re.MULTILINE)
    assert len(said) == RANKS
    for wrong, other_type, other_size in said:
        assert wrong == "0"
        assert "rank 1 and rank 0 differ in the type of the data" in other_type
        assert re.search(r"rank 1 sends 8 bytes to rank 0, which expects 4$", other_size)
    assert re.search(r"alltoallv +8 +cpu +plan of the call +44 ", ended.text)
    assert not re.search(r"alltoall\S* +8 +cpu +library", ended.text)
