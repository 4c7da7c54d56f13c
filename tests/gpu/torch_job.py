"""One rank of a job that knows nothing about flowccl, on a GPU that all ranks share: `-m tests.gpu.torch_job OUT`.

The backend is gloo, since NCCL refuses ranks that share a GPU. DDP, FSDP2 and tensor parallelism train for 20 steps;
then the overhead of calls is measured. Rank 0 writes the losses, the report and the times to OUT.
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


def enqueueing(count: int) -> float:
    """The median time of an asynchronous allreduce on the host until it has been enqueued, in microseconds."""
    tensor = torch.zeros(count, device="cuda")
    times = []
    for _ in range(CALLS):
        torch.cuda.synchronize()
        dist.barrier()
        begun = perf_counter()
        work = dist.all_reduce(tensor, async_op=True)
        times.append(1e6 * (perf_counter() - begun))
        work.wait()
    return median(times)


def main(out: Path) -> None:
    torch.cuda.set_device(0)
    dist.init_process_group("gloo")
    found: dict[str, Any] = {}
    for name, net in networks().items():
        try:
            found[name] = train(net)
        except RuntimeError as error:  # what gloo cannot do on GPUs, it cannot do here either
            found[name] = str(error)
    found["enqueue_us"] = {4 * count: enqueueing(count) for count in (16_384, 262_144)}
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
    main(Path(sys.argv[1]))
