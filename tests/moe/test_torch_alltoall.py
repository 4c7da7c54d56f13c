"""Planned alltoalls in real gloo processes: every element, counted bytes, disagreement, and a rank that dies."""

import multiprocessing
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowccl.topology.machines import machine
from tests.moe.machines import four_hosts
from tests.run.test_torch import needs_torch, rendezvous, start

RANKS = 8


def exchange(rank: int, folder: Path, calls: int) -> dict[str, Any]:
    """Run calls with random split sizes; return the wrong elements, the wrong byte counts, and the median overhead."""
    import torch
    from torch import distributed

    from flowccl.torch.alltoall import PlannedAllToAll

    distributed.init_process_group("gloo", timeout=timedelta(seconds=60), **rendezvous(folder, rank, "all", RANKS))
    planned = PlannedAllToAll(machine("rail:2x4"))
    types = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
    wrong = miscounted = 0
    overhead = []
    for call in range(calls):
        splits = np.random.default_rng(call).integers(0, 40, (RANKS, RANKS))
        splits[np.random.default_rng(call + 1).random((RANKS, RANKS)) < 0.3] = 0
        if call % 10 == 3:
            splits[call % RANKS] = 0
        dtype = types[call % len(types)]
        parts = [torch.arange(splits[rank, d] * 3) * 7 + 31 * rank + d for d in range(RANKS)]
        data = torch.cat(parts).reshape(-1, 3).to(dtype)
        output = torch.zeros(int(splits[:, rank].sum()), 3, dtype=dtype)
        planned.all_to_all_single(output, data, splits[:, rank].tolist(), splits[rank].tolist())
        wanted = torch.cat([torch.arange(splits[s, rank] * 3) * 7 + 31 * s + rank for s in range(RANKS)])
        wrong += int((output != wanted.reshape(-1, 3).to(dtype)).sum())
        table = planned.plan.table  # type: ignore[union-attr]
        mine = table.source == rank
        counted: dict[tuple[int, int], int] = {}
        for stage, peer, size in zip(table.stage[mine], table.destination[mine], table.bytes[mine], strict=True):
            counted[int(stage), int(peer)] = counted.get((int(stage), int(peer)), 0) + int(size)
        miscounted += counted != planned.statistics.sent  # type: ignore[union-attr]
        overhead.append(planned.statistics.exchange_us + planned.statistics.plan_us)  # type: ignore[union-attr]
    tensors = [torch.full((d + rank,), rank * 10 + d) for d in range(RANKS)]
    outputs = [torch.zeros(rank + s, dtype=torch.int64) for s in range(RANKS)]
    planned.all_to_all(outputs, tensors)
    wrong += sum(int((one != s * 10 + rank).sum()) for s, one in enumerate(outputs))
    distributed.destroy_process_group()
    return {"wrong": wrong, "miscounted": miscounted, "overhead_us": float(np.median(overhead))}


@needs_torch
@pytest.mark.slow
def test_every_element_is_right(tmp_path: Path) -> None:
    results = start(exchange, tmp_path, 200, count=RANKS)
    print("overhead per call, us:", [round(row["overhead_us"]) for row in results])
    assert [(row["wrong"], row["miscounted"]) for row in results] == [(0, 0)] * RANKS


def over_third_hosts(rank: int, folder: Path) -> dict[str, int]:
    """Rank 0 has most for ranks 2 and 6, whose hosts share one rail with its own; return the counts."""
    import torch
    from torch import distributed

    from flowccl.torch.alltoall import PlannedAllToAll

    distributed.init_process_group("gloo", timeout=timedelta(seconds=60), **rendezvous(folder, rank, "all", RANKS))
    planned = PlannedAllToAll(four_hosts())
    wrong = relayed = 0
    for call in range(5):
        splits = np.random.default_rng(call).integers(0, 400, (RANKS, RANKS))
        splits[0, 2] = splits[0, 6] = 200_000 + call
        data = torch.cat([torch.arange(splits[rank, d]) * 7 + 31 * rank + d for d in range(RANKS)])
        output = torch.zeros(int(splits[:, rank].sum()), dtype=data.dtype)
        planned.all_to_all_single(output, data, splits[:, rank].tolist(), splits[rank].tolist())
        wanted = torch.cat([torch.arange(splits[s, rank]) * 7 + 31 * s + rank for s in range(RANKS)])
        wrong += int((output != wanted).sum())
        relayed += len(planned.plan.chunks.relays.chunk) > 0  # type: ignore[union-attr]
    distributed.destroy_process_group()
    return {"wrong": wrong, "relayed": relayed}


@needs_torch
def test_data_crosses_third_hosts(tmp_path: Path) -> None:
    assert start(over_third_hosts, tmp_path, count=RANKS) == [{"wrong": 0, "relayed": 5}] * RANKS


def disagree(rank: int, folder: Path) -> str:
    """Rank 1 uses another data type, then another machine; return the messages."""
    import torch
    from torch import distributed

    from flowccl.errors import InputError
    from flowccl.torch.alltoall import PlannedAllToAll

    distributed.init_process_group("gloo", timeout=timedelta(seconds=60), **rendezvous(folder, rank, "all", 4))
    planned = PlannedAllToAll(machine("rail:2x2"))
    messages = []
    data = torch.ones(4, dtype=torch.float64 if rank == 1 else torch.float32)
    for sizes in (None, [1, 1, 1, 1]):
        try:
            planned.all_to_all_single(
                torch.zeros_like(data), data, sizes, [2, 0, 1, 1] if rank == 1 and sizes else sizes
            )
        except InputError as error:
            messages.append(str(error))
        data = torch.ones(4)
    distributed.destroy_process_group()
    return "\n".join(messages)


@needs_torch
def test_disagreement_is_an_error_on_every_rank(tmp_path: Path) -> None:
    first, second = start(disagree, tmp_path)[0].splitlines()
    assert first.startswith("all_to_all_single: rank 1 and rank 0 differ in the type of the data, the machine")
    assert second == "all_to_all_single: rank 1 sends 8 bytes to rank 0, which expects 4"


def _dying(rank: int, folder: Path) -> None:
    import torch
    from torch import distributed

    from flowccl.torch.alltoall import PlannedAllToAll

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=timedelta(seconds=15), **rendezvous(folder, rank, "all", 4))
    planned = PlannedAllToAll(machine("rail:2x2"))
    data = torch.ones(400)
    planned.all_to_all_single(torch.zeros_like(data), data)
    if rank == 2:
        os._exit(9)
    begun = time.monotonic()
    try:
        while True:
            planned.all_to_all_single(torch.zeros_like(data), data)
    except RuntimeError as error:
        (folder / f"{rank}.txt").write_text(f"{time.monotonic() - begun}\n{error}")


@needs_torch
def test_a_rank_that_dies_ends_the_others(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    processes = [context.Process(target=_dying, args=(rank, tmp_path)) for rank in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=60)
    for rank in (0, 1, 3):
        seconds, message = (tmp_path / f"{rank}.txt").read_text().split("\n", 1)
        assert float(seconds) < 20
        assert message.strip()
