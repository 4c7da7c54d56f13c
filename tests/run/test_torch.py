"""`flowccl.torch` in real processes: the functions, and DDP training with the backend."""

import importlib.util
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest

from flowccl.errors import InputError
from flowccl.schedule.files import load_schedule, save_schedule
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the extra torch is not installed")

NAMES = ("allgather", "allreduce", "reduce_scatter", "alltoall", "broadcast")


def start(target: Any, folder: Path, *arguments: Any, count: int = 4) -> list[Any]:
    """Run `target(rank, folder, ...)` in four processes, or in `count`; return their results."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    started = [context.Process(target=_run_rank, args=(target, rank, folder, *arguments)) for rank in range(count)]
    for process in started:
        process.start()
    for process in started:
        process.join(timeout=120)
    assert [process.exitcode for process in started] == [0] * count
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]


def _run_rank(target: Any, rank: int, folder: Path, *arguments: Any) -> None:
    import torch

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    (folder / f"{rank}.json").write_text(json.dumps(target(rank, folder, *arguments)))


def rendezvous(folder: Path, rank: int, name: str, count: int = 4) -> dict[str, Any]:
    return {"init_method": f"file://{folder / name}", "rank": rank, "world_size": count}


def train(rank: int, folder: Path, backend: str) -> dict[str, Any]:
    """Train a small network for ten steps; return the losses of this rank and the counts of the backend."""
    import torch
    from torch import distributed, nn

    import flowccl.torch

    torch.manual_seed(0)
    if backend == "flowccl":
        flowccl.torch.init_process_group([folder / "allreduce.json"], **rendezvous(folder, rank, backend))
    else:
        distributed.init_process_group(backend, **rendezvous(folder, rank, backend))
    net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 3)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    random = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(10):
        given = torch.randn(16, 20, generator=random)
        wanted = torch.randint(0, 3, (16,), generator=random)
        loss = nn.functional.cross_entropy(net(given), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    counted = flowccl.torch.counts() if backend == "flowccl" else {}
    distributed.destroy_process_group()
    return {"losses": losses, "counts": counted}


@pytest.mark.slow
@needs_torch
def test_ddp_has_the_losses_of_gloo_and_every_allreduce_is_a_schedule(tmp_path: Path) -> None:
    schedule = synthesize(machine("full:4"), "allreduce", 100_000, chunks=1, steps=2, method="greedy").schedule
    save_schedule(schedule, tmp_path / "allreduce.json")
    ours, gloos = start(train, tmp_path, "flowccl"), start(train, tmp_path, "gloo")
    for mine, theirs in zip(ours, gloos, strict=True):
        assert mine["losses"] == pytest.approx(theirs["losses"], abs=1e-6)
        assert mine["counts"]["scheduled"] == {"allreduce": 10}
        assert "allreduce" not in mine["counts"]["inner"]


def call_all(rank: int, folder: Path, backend: str) -> list[Any]:
    """Run every collective by the functions of flowccl.torch, or by torch.distributed with the backend."""
    import torch
    from torch import distributed

    import flowccl.torch

    schedules = {name: load_schedule(folder / f"{name}.json") for name in NAMES}
    if backend == "gloo":
        distributed.init_process_group("gloo", **rendezvous(folder, rank, backend))
    else:
        flowccl.torch.init_process_group(schedules.values(), **rendezvous(folder, rank, backend))
    result = []
    mine = (torch.arange(8) + 10 * rank).to(torch.bfloat16 if backend == "gloo" else torch.float32)
    gathered, summed, part, exchanged, copied = mine.new_zeros(32), mine % 7, mine.new_zeros(2), mine * 0, mine.clone()
    if backend == "gloo":
        flowccl.torch.all_gather(gathered, mine % 10, schedules["allgather"])
        flowccl.torch.all_reduce(summed, schedules["allreduce"])
        flowccl.torch.reduce_scatter(part, mine % 7, schedules["reduce_scatter"])
        flowccl.torch.all_to_all(exchanged, mine % 10, schedules["alltoall"])
        flowccl.torch.broadcast(copied, schedules["broadcast"])
        column = torch.zeros(4, 2)[:, 0]  # not contiguous
        column += 1
        flowccl.torch.all_reduce(column, schedules["allreduce"])
        assert column.tolist() == [4.0] * 4
        with pytest.raises(InputError, match="the schedule is for allgather, not for allreduce"):
            flowccl.torch.all_reduce(summed, schedules["allgather"])
    else:
        gather = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)
        scatter = getattr(distributed, "reduce_scatter_single", distributed.reduce_scatter_tensor)
        gather(gathered, mine % 10)
        distributed.all_reduce(summed)
        scatter(part, mine % 7)
        distributed.all_to_all_single(exchanged, mine % 10)
        distributed.broadcast(copied, 0)
        parts = [torch.zeros(2, 4) for _ in range(4)]
        distributed.all_gather(parts, torch.full((2, 4), float(rank)))
        assert [float(p.mean()) for p in parts] == [0, 1, 2, 3]
        largest = torch.tensor([float(rank)])
        distributed.all_reduce(largest, distributed.ReduceOp.MAX)  # no schedule supports it: gloo runs it
        distributed.barrier()
        assert largest.item() == 3
        counted = flowccl.torch.counts()
        assert counted["scheduled"] == dict.fromkeys(NAMES, 1) | {"allgather": 2}, counted
        assert counted["inner"]["allreduce"] == 1
        if rank == 0:
            distributed.send(torch.ones(3), 1, tag=5)
        if rank == 1:
            got = torch.zeros(3)
            distributed.recv(got, 0, tag=5)
            assert got.tolist() == [1, 1, 1]
    for tensor in (gathered, summed, part, exchanged, copied):
        result.append(tensor.tolist())
    distributed.destroy_process_group()
    return result


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("backend", ["gloo", "flowccl"])
def test_every_collective_on_tensors(backend: str, tmp_path: Path) -> None:
    for name in NAMES:
        schedule = synthesize(machine("ring:4"), name, 1000, chunks=2, steps=1, method="greedy").schedule
        save_schedule(schedule, tmp_path / f"{name}.json")
    inputs = [[i + 10 * rank for i in range(8)] for rank in range(4)]
    total = [sum(row[i] % 7 for row in inputs) for i in range(8)]
    for rank, (gathered, summed, part, exchanged, copied) in enumerate(start(call_all, tmp_path, backend)):
        assert gathered == list(range(8)) * 4
        assert summed == total
        assert part == total[2 * rank : 2 * rank + 2]
        assert exchanged == [2 * rank, 2 * rank + 1] * 4
        assert copied == list(range(8))


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    import flowccl.torch

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"pip install flowccl\[torch\]"):
        flowccl.torch.register_backend([])
