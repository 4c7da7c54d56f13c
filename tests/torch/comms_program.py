"""All methods of the torchcomms backend, with a stand-in for torchcomms: `python -m tests.torch.comms_program`.

The stand-in has what torchcomms 0.3 publishes for backends in Python: the base class, `register_backend`, and reduction
operators with a `type`. torchcomms itself is not on package indexes; building it from source was not tried here.
"""

import sys
from importlib.metadata import entry_points
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

BACKENDS: dict[str, Any] = {}


def stand_in() -> None:
    module: Any = ModuleType("torchcomms")
    module.TorchCommBackend = type("TorchCommBackend", (), {"__init__": lambda self: None})
    module.register_backend = BACKENDS.__setitem__
    sys.modules["torchcomms"] = module


def main() -> None:
    stand_in()
    next(iter(entry_points(group="torchcomms.backends", name="flowccl"))).load()
    comm = BACKENDS["flowccl"]()
    comm.init(torch.device("cpu"), "main", None)
    rank, size = comm.get_rank(), comm.get_size()
    total = SimpleNamespace(type=SimpleNamespace(name="SUM"))
    one = torch.full((100,), float(rank + 1))
    blocks = torch.cat([torch.full((100,), float(10 * rank + other)) for other in range(size)])
    right = []

    def check(tensor: Any, expected: list[float]) -> None:
        right.append(tensor.view(len(expected), -1).eq(torch.tensor(expected)[:, None]).all().item())

    tensor = one.clone()
    comm.all_reduce(tensor, total, False)
    check(tensor, [size * (size + 1) / 2])
    tensor = one.clone()
    comm.all_reduce(tensor, total, True).wait()
    check(tensor, [size * (size + 1) / 2])
    tensor = one.clone()
    comm.broadcast(tensor, 1, False)
    check(tensor, [2])
    output = torch.zeros(100 * size)
    comm.all_gather_single(output, one, False)
    check(output, [other + 1 for other in range(size)])
    parts = [torch.zeros(100) for _ in range(size)]
    comm.all_gather(parts, one, False)
    check(torch.cat(parts), [other + 1 for other in range(size)])
    output = torch.zeros(100)
    comm.reduce_scatter_single(output, blocks, total, False)
    check(output, [10 * size * (size - 1) / 2 + size * rank])
    comm.reduce_scatter(output, list(blocks.chunk(size)), total, False)
    check(output, [10 * size * (size - 1) / 2 + size * rank])
    output = torch.zeros(100 * size)
    comm.all_to_all_single(output, blocks, False)
    check(output, [10 * other + rank for other in range(size)])
    splits = [100] * size
    comm.all_to_all_v_single(output.zero_(), blocks, splits, splits, False)
    check(output, [10 * other + rank for other in range(size)])
    comm.all_to_all(parts, list(blocks.chunk(size)), False)
    check(torch.cat(parts), [10 * other + rank for other in range(size)])
    comm.gather(parts, one, 0, False)
    comm.scatter(output[:100], parts, 0, False)
    check(output[:100], [rank + 1])
    tensor = one.clone()
    comm.reduce(tensor, 0, total, False)
    comm.barrier(False)
    if rank == 0:
        comm.send(one, 1, False)
    if rank == 1:
        comm.recv(tensor, 0, False)
        check(tensor, [1])
    half = list(range(size // 2)) if rank < size // 2 else list(range(size // 2, size))
    part = comm.split(half, "half", None)
    tensor = one.clone()
    part.all_reduce(tensor, total, False)
    check(tensor, [sum(other + 1 for other in half)])
    part.finalize()
    if rank == 0:
        import flowccl.torch

        print(flowccl.torch.report())
    print("right", all(right), len(right))
    comm.finalize()


if __name__ == "__main__":
    main()
