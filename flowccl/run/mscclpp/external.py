"""Runs in processes that torchrun or mpiexec has started: each is one rank, and rank 0 gets all results."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flowccl.run.launch import under_mpiexec, under_torchrun
from flowccl.run.mscclpp.cases import RankResult
from flowccl.run.mscclpp.worker import PlanJob, run_job


@dataclass(frozen=True, slots=True)
class Peers:
    """The processes of an external launcher, over gloo or MPI; `local` is the number of this one on its host.

    `share` returns the bytes of rank 0, and `gather` the values of all ranks on rank 0, None elsewhere.
    """

    rank: int
    size: int
    local: int
    share: Callable[[bytes | None], bytes]
    gather: Callable[[Any], list[Any] | None]


def find_peers() -> Peers | None:
    """Return the processes of torchrun or mpiexec, or None if this process was started alone."""
    if under_torchrun():
        return _torch_peers()
    if not under_mpiexec():
        return None
    from mpi4py import MPI

    world: Any = MPI.COMM_WORLD
    local = int(world.Split_type(MPI.COMM_TYPE_SHARED).rank)
    return Peers(int(world.rank), int(world.size), local, lambda given: bytes(world.bcast(given)), world.gather)


def _torch_peers() -> Peers:
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo")
    rank, size = int(dist.get_rank()), int(dist.get_world_size())

    def share(given: bytes | None) -> bytes:
        values: list[Any] = [given]
        dist.broadcast_object_list(values, src=0)
        return bytes(values[0])

    def gather(value: Any) -> list[Any] | None:
        values: list[Any] | None = [None] * size if rank == 0 else None
        dist.gather_object(value, values, dst=0)
        return values

    return Peers(rank, size, int(os.environ.get("LOCAL_RANK", rank)), share, gather)


def run_among(job: PlanJob, peers: Peers) -> list[list[RankResult]] | None:
    """Run a job as one of the processes; return the results of all ranks for every case on rank 0, None elsewhere."""
    made: list[RankResult] = []
    run_job(
        job, peers.rank, peers.share, lambda case, what: made.append(what) if isinstance(what, RankResult) else None
    )
    gathered = peers.gather(made)
    return None if gathered is None else [list(ranks) for ranks in zip(*gathered, strict=True)]
