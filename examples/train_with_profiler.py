"""Train with DDP, FSDP2 and an expert-parallel alltoall on 8 processes over gloo; every rank writes a profiler trace.

    python examples/train_with_profiler.py traces
    flowccl audit traces --machine dgx_h100:1

It needs PyTorch (`pip install torch`). Rank 0 prints what was issued, so that the audit can be compared with it.
"""

import json
import os
import sys
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

WORLD, STEPS, WIDTH = 8, 4, 128


def train(rank: int, folder: str, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("replica", "expert"))
    experts = mesh["expert"].get_group()
    dense = DistributedDataParallel(torch.nn.Linear(WIDTH, WIDTH))
    sharded = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH))
    for layer in sharded:
        fully_shard(layer, mesh=mesh["expert"])
    fully_shard(sharded, mesh=mesh["expert"])
    parameters = 4 * (WIDTH * WIDTH + WIDTH)  # bytes of one layer
    issued: Counter[tuple[str, int, int]] = Counter()
    for _ in range(2):  # in its second step, DDP also broadcasts how it cuts buckets
        dense(torch.ones(1, WIDTH)).sum().backward()
    with torch.profiler.profile(record_shapes=True) as profiler:
        for _ in range(STEPS):
            dense(torch.randn(8, WIDTH)).sum().backward()
            issued["allreduce", parameters, 8] += 1
            sharded(torch.randn(8, WIDTH)).sum().backward()
            issued["allgather", parameters, 4] += 4  # both layers, forward and backward
            issued["reduce_scatter", parameters, 4] += 2
            sent = [1 + (rank + peer) % 4 for peer in range(4)]
            tokens = torch.ones(sum(sent), WIDTH)
            dist.all_to_all_single(torch.empty_like(tokens), tokens, sent, sent, group=experts)
            issued["alltoallv", tokens.nbytes, 4] += 1
    profiler.export_chrome_trace(f"{folder}/trace{rank}.json")
    rows = [[*key, count] for key, count in sorted(issued.items())]
    Path(folder, f"issued{rank}.txt").write_text(json.dumps(rows))
    if rank == 0:
        print("issued by rank 0 (collective, bytes, ranks, calls):", *rows, sep="\n  ")
    dist.destroy_process_group()


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else "traces"
    Path(folder).mkdir(exist_ok=True)
    torch.multiprocessing.spawn(train, (folder, 29500 + os.getpid() % 1000), nprocs=WORLD)
