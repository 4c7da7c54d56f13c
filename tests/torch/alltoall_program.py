"""Alltoalls with split sizes in a job that knows nothing about flowccl: `python -m tests.torch.alltoall_program CALLS`.

Every rank checks every element itself, and compares the bytes that it sent in each stage to each rank with the plan of
the call; rank 0 prints what the exchange of sizes and the planning took. Then ranks disagree about a type and about a
size, which must end with an error on all of them, and a last call must be right again. With the word `killed` instead
of CALLS, a rank ends by SIGKILL, and the others print what they then get.
"""

import os
import signal
import sys
import time
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

TYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
WIDTH = 3


def values(source: int, to: int, rows: int, dtype: Any) -> Any:
    return (torch.arange(rows * WIDTH) * 7 + 31 * source + to).reshape(-1, WIDTH).to(dtype)


def splits_of(call: int, size: int) -> Any:
    """Rows from each rank to each rank: some are zero, in some calls all of a rank, in one call all."""
    draw = np.random.default_rng(call)
    splits = draw.integers(0, 40, (size, size))
    splits[draw.random((size, size)) < 0.3] = 0
    if call % 5 == 3:
        splits[call % size] = 0
    return splits * (call % 10 != 7)


def exchange(call: int) -> int:
    """One call, async in every second one; return the wrong elements."""
    me, size, dtype = dist.get_rank(), dist.get_world_size(), TYPES[call % len(TYPES)]
    splits = splits_of(call, size)
    given = torch.cat([values(me, to, splits[me, to], dtype) for to in range(size)])
    output = torch.zeros(int(splits[:, me].sum()), WIDTH, dtype=dtype)
    sizes = (splits[:, me].tolist(), splits[me].tolist())
    total = torch.ones(1000)
    work = dist.all_to_all_single(output, given, *sizes, async_op=bool(call % 2))
    dist.all_reduce(total)
    if work is not None:
        work.wait()
    wanted = torch.cat([values(source, me, splits[source, me], dtype) for source in range(size)])
    return int((output != wanted).sum()) + int((total != size).sum())


def miscounted(call: int) -> bool:
    """Whether the bytes that this rank sent in the last call, by stage and receiver, are not those of its plan."""
    planned = dist.group.WORLD.alltoallv.planned
    table, seen = planned.plan.table, planned.statistics
    counted: dict[tuple[int, int], int] = {}
    for stage, source, peer, size in zip(table.stage, table.source, table.destination, table.bytes, strict=True):
        if source == dist.get_rank():
            counted[int(stage), int(peer)] = counted.get((int(stage), int(peer)), 0) + int(size)
    if dist.get_rank() == 0:
        times = f"exchange of sizes {seen.exchange_us:.0f} us, planning {seen.plan_us:.0f} us"
        print(f"call {call}: {times}, of {seen.total_us:.0f} us; {sum(counted.values())} bytes sent", flush=True)
    return counted != seen.sent


def lists() -> int:
    """`all_to_all` with one tensor per rank, of different sizes; return the wrong elements."""
    me, size = dist.get_rank(), dist.get_world_size()
    outputs = [torch.zeros(me + source, dtype=torch.int64) for source in range(size)]
    dist.all_to_all(outputs, [torch.full((to + me,), me * 10 + to) for to in range(size)])
    return sum(int((one != source * 10 + me).sum()) for source, one in enumerate(outputs))


def refused(other_type: bool) -> str:
    """What is said if rank 1 has another type, or sends a row more than rank 0 expects."""
    me, size = dist.get_rank(), dist.get_world_size()
    rows = [1 + (not other_type and me == 1 and to == 0) for to in range(size)]
    dtype = torch.float64 if other_type and me == 1 else torch.float32
    given, output = torch.zeros(sum(rows), dtype=dtype), torch.zeros(size, dtype=dtype)
    try:
        dist.all_to_all_single(output, given, [1] * size, rows)
    except Exception as error:
        return str(error).splitlines()[0]
    return "nothing"


def killed() -> None:
    """Rank 2 ends by SIGKILL; every other one prints what its next calls say, and after how long."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    exchange(0)
    if dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    try:
        for call in range(1, 1000):
            exchange(call)
    except RuntimeError as error:
        seconds, line = time.monotonic() - begun, str(error).strip().splitlines()[0]
        print(f"rank {dist.get_rank()} ended after {seconds:.0f} s: {line}", flush=True)
        os._exit(3)


def main(calls: int) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    wrong = 0
    for call in range(calls):
        wrong += exchange(call) + miscounted(call)
    wrong += lists()
    said = [refused(True), refused(False)]
    wrong += exchange(0)
    print(f"rank {dist.get_rank()}: wrong {wrong}; {said[0]}; {said[1]}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "killed":
        killed()
    else:
        main(int(sys.argv[1]))
