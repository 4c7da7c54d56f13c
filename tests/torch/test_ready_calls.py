"""Calls like one before take fewer steps, and have the same results."""

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest

from flowccl import machine, synthesize
from flowccl.run.group_calls import GroupParts, Selected, _size_of
from flowccl.run.process_group import GroupMethods

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the extra torch is not installed")


class Echo:
    """A carrier for rank 0 of two: the other rank always sends fives."""

    def begin(self) -> None: ...

    def post_send(self, tensor: Any, peer: int, tag: int) -> None: ...

    def post_receive(self, tensor: Any, peer: int, tag: int) -> None:
        tensor.fill_(5)

    def wait(self) -> None: ...


class Broken(Echo):
    """A carrier whose peer has died."""

    def wait(self) -> None:
        raise RuntimeError("connection closed")


def group_of(carrier: Echo) -> GroupMethods:
    schedule = synthesize(machine("full:2"), "allreduce", 64, chunks=1, steps=1, method="greedy").schedule
    group = GroupMethods()
    inner = SimpleNamespace(rank=lambda: 0, size=lambda: 2, name=lambda: "none", allreduce=lambda *args: "library")
    group.begin(GroupParts(inner, lambda *call: Selected(schedule, "p", "the only plan"), carriers={"cpu": carrier}))
    return group


def options(op: str = "SUM", later: bool = False) -> Any:
    import torch

    return SimpleNamespace(reduceOp=getattr(torch.distributed.ReduceOp, op), asyncOp=later)


def test_a_call_like_one_before_is_ready_and_has_the_same_result() -> None:
    import torch

    group, results = group_of(Echo()), []
    for _ in range(3):
        tensor = torch.arange(40.0)[8:]
        assert (group.run_ready("allreduce", tensor, tensor, tensor, options()) is not None) == bool(results)
        if not results:
            group.allreduce([tensor], options())
        results.append(tensor)
    assert results[0].tolist() == results[1].tolist() == results[2].tolist() != list(range(8, 40))
    assert group.scheduled == {"allreduce": 3}
    assert group.calls == 3


def test_other_calls_of_the_same_size_are_not_ready() -> None:
    import torch

    group, first = group_of(Echo()), torch.zeros(32)
    group.allreduce([first], options())
    plain = torch.zeros(32)
    calls = [
        (plain, options("MAX")),
        (plain, options("AVG")),
        (plain, options(later=True)),
        (plain, None),
        (torch.zeros(4, 8), options()),
        (torch.zeros(64)[::2], options()),
        (torch.zeros(32, dtype=torch.float64), options()),
        (torch.zeros(32, requires_grad=True), options()),
        (torch.zeros(32).to_sparse(), options()),
    ]
    assert [group.run_ready("allreduce", t, t, t, opts) for t, opts in calls] == [None] * len(calls)
    assert group.run_ready("allreduce", plain, plain, plain, options()) is not None


def test_a_ready_call_that_fails_ends_all_later_calls() -> None:
    import torch

    group, tensor = group_of(carrier := Echo()), torch.zeros(32)
    group.allreduce([tensor], options())
    carrier.__class__ = Broken
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"flowccl: rank 0: allreduce on 2 ranks .* failed: connection closed"):
            group.allreduce([tensor], options())


def test_several_tensors_in_one_call_are_the_librarys() -> None:
    """gloo reduces them to one sum; a plan would reduce the first one only."""
    import torch

    group = group_of(Echo())
    pair = [torch.zeros(16), torch.zeros(16)]
    assert group.allreduce(pair, options()) == "library"
    assert group.fallen_back == {"allreduce": 1}


def test_the_data_of_a_call_of_the_library_is_that_of_all_its_outputs() -> None:
    import torch

    tensor = torch.zeros(4)
    assert _size_of(([[tensor, tensor]], [tensor])) == 2 * _size_of((tensor, tensor)) == 32
    assert _size_of(([], [tensor])) == 16  # gather, on all ranks but the root
    assert _size_of((SimpleNamespace(rootRank=0),)) == 0
