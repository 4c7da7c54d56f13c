"""One rank of a job that knows nothing about flowccl, on a GPU that all ranks share: `-m tests.gpu.torch_job KIND OUT`.

The backend is gloo, since NCCL refuses ranks that share a GPU. KIND `train`: DDP, FSDP2 and tensor parallelism train
for 20 steps. KIND `overhead`: the time between calls and the start of their plans, by a look at the group. Rank 0
writes the losses or times and the report to OUT.
"""

import json
import os
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

STEPS = 20
CALLS = 200
WARM = 10


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64)).to("cuda")


def train(net: Any) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    losses = []
    for step in range(STEPS):
        torch.manual_seed(step)
        loss = net(torch.randn(16, 256).to("cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def networks() -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    sharded = model()
    fully_shard(sharded, mesh=mesh)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return {
        "ddp": torch.nn.parallel.DistributedDataParallel(model()),
        "fsdp2": sharded,
        "tp": parallelize_module(model(), mesh, plan),
    }


def overhead(collective: str, size: int) -> dict[str, float]:
    """Median times on the host in microseconds: from a call to the start of its plan, and of the whole call.

    The time to the start is that of torch's front end and of flowccl's own code, with the copy of the tensor to the
    prepared buffer, which is enqueued; everything is in the caches.
    """
    whole = torch.zeros(size // 4, device="cuda")
    part = torch.zeros(size // 4 // dist.get_world_size(), device="cuda")
    call = {
        "allreduce": lambda: dist.all_reduce(whole, async_op=True),
        "allgather": lambda: dist.all_gather_into_tensor(whole, part, async_op=True),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, async_op=True),
    }[collective]
    runtime: Any = dist.group.WORLD.parts.plans.runtime
    execute, started = runtime.execute, []

    def noted(*args: Any) -> None:
        started.append(perf_counter())
        execute(*args)

    runtime.execute = noted
    begun, ended = [], []
    for _ in range(WARM + CALLS):
        torch.cuda.synchronize()
        dist.barrier()
        begun.append(perf_counter())
        work = call()
        ended.append(perf_counter())
        work.wait()
    del runtime.execute
    if len(started) < len(begun):  # the library serves this size
        return {}
    starts = [1e6 * (b - a) for a, b in zip(begun, started[-len(begun) :], strict=True)]
    calls = [1e6 * (b - a) for a, b in zip(begun, ended, strict=True)]
    return {"start": median(starts[WARM:]), "call": median(calls[WARM:])}


def training() -> dict[str, Any]:
    """The losses of each network, or the error of what gloo cannot do on GPUs."""
    found: dict[str, Any] = {}
    for name, net in networks().items():
        try:
            found[name] = train(net)
        except RuntimeError as error:
            found[name] = str(error)
    return found


def main(kind: str, out: Path) -> None:
    torch.cuda.set_device(0)
    dist.init_process_group("gloo")
    if kind == "train":
        found = training()
    else:
        sizes = [(name, size) for name in ("allreduce", "allgather", "reduce_scatter") for size in (65_536, 1 << 20)]
        times = {f"{name} of {size:,} B": overhead(name, size) for name, size in sizes}
        found = {"overhead": {name: found for name, found in times.items() if found}}
    if dist.get_rank() == 0:
        found["report"] = ""
        if os.environ.get("FLOWCCL_CATALOG"):
            import flowccl.torch

            report = flowccl.torch.report()
            found["report"], found["planned"] = str(report), report.planned
        out.write_text(json.dumps(found))
    dist.barrier()
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
