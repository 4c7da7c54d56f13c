"""One rank of the PyTorch tests: `python -m tests.gpu.torch_program RANK RANKS FOLDER SCHEDULE [SCHEDULE ...]`.

All ranks share one GPU. Rank 0 writes what it found to FOLDER/result.json.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import flowccl.torch
from flowccl.errors import FlowcclError

STEPS = 20
BATCH = 64
REPLAYS = 100


def model() -> Any:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 16))
    return layers.to("cuda")


def data() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(BATCH, 256, generator=generator).to("cuda")
    return inputs, torch.randint(0, 16, (BATCH,), generator=generator).to("cuda")


def losses(net: Any, inputs: Any, labels: Any) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(inputs), labels)
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return [float(loss) for loss in found]


def train(rank: int, ranks: int) -> dict[str, Any]:
    """Losses of DDP, averaged over the ranks, and of the same training in one process."""
    inputs, labels = data()
    part = BATCH // ranks
    own = slice(rank * part, (rank + 1) * part)
    net = DistributedDataParallel(model(), device_ids=[0])
    mine = torch.tensor(losses(net, inputs[own], labels[own]))
    dist.all_reduce(mine)  # on the CPU
    return {"ddp": (mine / ranks).tolist(), "alone": losses(model(), inputs, labels)}


def collectives(rank: int, ranks: int) -> int:
    """The wrong elements of allreduces with sizes that plans do not serve without padding, and on bfloat16."""
    wrong = 0
    for count, dtype in (
        (16384, torch.float32),
        (16385, torch.float32),
        (100_001, torch.bfloat16),
        (70_000, torch.int32),
    ):
        tensor = torch.full((count,), rank + 1, dtype=dtype, device="cuda")
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        wrong += int((tensor != ranks * (ranks + 1) // 2).sum())
    return wrong


def replays(rank: int, ranks: int) -> int:
    """The wrong replays of a captured allreduce."""
    tensor = torch.zeros(1 << 18, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        dist.all_reduce(tensor)
    wrong = 0
    for number in range(REPLAYS):
        tensor.fill_(rank + number)
        graph.replay()
        torch.cuda.synchronize()
        wrong += int(not bool((tensor == ranks * number + ranks * (ranks - 1) // 2).all()))
    return wrong


def captured(rank: int, ranks: int) -> str:
    """What is said when a collective by a plan with packets is captured."""
    tensor = torch.full((16384,), float(rank), device="cuda")
    dist.all_reduce(tensor)
    assert bool((tensor == ranks * (ranks - 1) // 2).all())
    torch.cuda.synchronize()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            dist.all_reduce(tensor)
    except FlowcclError as error:
        return str(error)
    return ""


def packets(rank: int, ranks: int, folder: Path) -> None:
    """Collectives by a plan with packets, which cannot be captured; padded sizes follow each other."""
    everywhere = torch.tensor([sum(collectives(rank, ranks) for _ in range(3))])
    dist.all_reduce(everywhere)
    found = {"wrong": everywhere.tolist()[0], "captured": captured(rank, ranks), "counts": flowccl.torch.counts()}
    if rank == 0:
        (folder / "result.json").write_text(json.dumps(found))
    dist.barrier()


def main(rank: int, ranks: int, folder: Path, schedules: list[str]) -> None:
    torch.cuda.set_device(0)
    place = f"file://{folder / 'rendezvous'}"
    flowccl.torch.init_process_group(schedules, init_method=place, rank=rank, world_size=ranks)
    if schedules[0].endswith("-ll.json"):
        packets(rank, ranks, folder)
        return
    found: dict[str, Any] = {"wrong": collectives(rank, ranks)}
    found["counts_before"] = flowccl.torch.counts()
    found |= train(rank, ranks)
    found["counts"] = flowccl.torch.counts()
    found["wrong_replays"] = replays(rank, ranks)
    everywhere = torch.tensor([found["wrong"], found["wrong_replays"]])
    dist.all_reduce(everywhere)
    found["wrong"], found["wrong_replays"] = everywhere.tolist()
    if rank == 0:
        (folder / "result.json").write_text(json.dumps(found))
    dist.barrier()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
