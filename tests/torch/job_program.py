"""A job that knows nothing about flowccl: `python -m tests.torch.job_program KIND`; rank 0 prints what it found."""

import multiprocessing
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def reduced(group: object = None) -> float:
    """The sum of an allreduce of 4,000 bytes."""
    tensor = torch.full((1000,), float(dist.get_rank() + 1))
    dist.all_reduce(tensor, group=group)
    return float(tensor[0])


def simple() -> None:
    """Init, reduce, destroy."""
    dist.init_process_group(os.environ.get("BACKEND") or None)
    total = reduced()
    if dist.get_rank() == 0:
        print("sum", total, "backend", dist.get_backend())
    dist.destroy_process_group()


def moved() -> None:
    """A program that changes its folder before it makes a group."""
    os.chdir("/")
    simple()


def twice() -> None:
    """The same again after the end of the first group; a forked process in between ends by itself.

    Both groups share a store that outlives them, as under torchrun: with a store of their own, a rank that is fast
    would find the store of the first group, which rank 0 is about to close.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, is_master=rank == 0)
    for number in range(2):
        dist.init_process_group("gloo", store=dist.PrefixStore(str(number), store), rank=rank, world_size=size)
        child = multiprocessing.get_context("fork").Process(target=torch.zeros, args=(1,))
        child.start()
        child.join()
        total = reduced()
        if rank == 0:
            print("sum", total)
        dist.destroy_process_group()


def crossed() -> None:
    """An asynchronous call must not keep its rank from doing what the other ranks wait for."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    rank, token = dist.get_rank(), torch.zeros(1)
    tensor = torch.ones(1000)
    if rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        for other in range(1, dist.get_world_size()):
            dist.send(token, other)
        work.wait()
    else:
        dist.recv(token, 0)
        dist.all_reduce(tensor)
    print("crossed", float(tensor[0]))
    dist.destroy_process_group()


def killed() -> None:
    """One rank dies in the middle."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    reduced()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    try:
        for _ in range(100):
            reduced()
    except RuntimeError as error:
        print(f"rank {dist.get_rank()} ended after {time.monotonic() - begun:.0f} s: {error}", flush=True)
        os._exit(3)


def compiled() -> None:
    """A compiled function with a collective."""
    dist.init_process_group("gloo")

    @torch.compile(fullgraph=True, backend="aot_eager")
    def function(tensor: torch.Tensor) -> torch.Tensor:
        doubled = tensor * 2
        dist.all_reduce(doubled)
        return doubled + 1

    found = function(torch.full((1000,), float(dist.get_rank())))
    if dist.get_rank() == 0:
        import flowccl.torch

        print("compiled", float(found[0]), "by plans", flowccl.torch.report().planned)
    compiled_around_calls()
    dist.destroy_process_group()


def compiled_around_calls() -> None:
    """What the compiler leaves to Python and C++: an asynchronous call, and DDP around a compiled step."""

    @torch.compile(backend="aot_eager")
    def function(tensor: torch.Tensor) -> torch.Tensor:
        doubled = tensor * 2
        dist.all_reduce(doubled, async_op=True).wait()
        return doubled + 1

    found = function(torch.full((1000,), float(dist.get_rank())))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(2):  # DDP broadcasts its buckets in the second step
        model.zero_grad()
        compiled(torch.full((1, 4), float(dist.get_rank() + 1))).sum().backward()
    if dist.get_rank() == 0:
        print("async", float(found[0]))
        print("gradient", float(model.module.weight.grad[0, 0]))


def mesh() -> None:
    """A mesh of two rows and two columns: reduce along both dimensions and over all ranks."""
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo")
    made = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    sums = [reduced(made.get_group("rows")), reduced(made.get_group("columns")), reduced()]
    if dist.get_rank() == 0:
        import flowccl.torch

        print("mesh", sums)
        print(flowccl.torch.report())
    dist.destroy_process_group()


def parallel() -> None:
    """DDP, FSDP2 and tensor parallelism on sub-groups of a mesh, five steps each; print the losses."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))

    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))

    sharded = model()
    fully_shard(sharded, mesh=mesh)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    nets = {
        "ddp": torch.nn.parallel.DistributedDataParallel(model()),
        "fsdp2": sharded,
        "tp": parallelize_module(model(), mesh, plan),
    }
    for name, net in nets.items():
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(5):
            torch.manual_seed(step)
            loss = net(torch.randn(4, 16)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if dist.get_rank() == 0:
                print("loss", name, repr(float(loss.detach())))
    if dist.get_rank() == 0 and os.environ.get("FLOWCCL_CATALOG"):
        import flowccl.torch

        print(flowccl.torch.report())
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]]()
