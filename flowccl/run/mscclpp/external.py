"""Runs in processes that torchrun or mpiexec has started: each is one rank, and rank 0 gets all results."""

import os
from dataclasses import dataclass
from typing import Any, Protocol

from flowccl.run.launch import under_mpiexec, under_torchrun
from flowccl.run.mscclpp.cases import RankResult
from flowccl.run.mscclpp.worker import PlanJob, run_job


class Peers(Protocol):
    """The processes of an external launcher."""

    rank: int
    size: int
    local: int

    def share(self, given: bytes | None) -> bytes:
        """Return the bytes of rank 0."""

    def gather(self, value: Any) -> list[Any] | None:
        """Return the values of all ranks on rank 0, None elsewhere."""


def find_peers() -> Peers | None:
    """Return the processes of torchrun or mpiexec, or None if this process was started alone."""
    if under_torchrun():
        return _TorchPeers()
    return _MpiPeers() if under_mpiexec() else None


class _TorchPeers:
    """Processes of torchrun, over gloo."""

    def __init__(self) -> None:
        import torch.distributed as dist

        if not dist.is_initialized():
            dist.init_process_group("gloo")
        self.dist, self.rank, self.size = dist, int(dist.get_rank()), int(dist.get_world_size())
        self.local = int(os.environ.get("LOCAL_RANK", self.rank))

    def share(self, given: bytes | None) -> bytes:
        """Return the bytes of rank 0."""
        values: list[Any] = [given]
        self.dist.broadcast_object_list(values, src=0)
        return bytes(values[0])

    def gather(self, value: Any) -> list[Any] | None:
        """Return the values of all ranks on rank 0."""
        values: list[Any] | None = [None] * self.size if self.rank == 0 else None
        self.dist.gather_object(value, values, dst=0)
        return values


class _MpiPeers:
    """Processes of mpiexec."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.world: Any = MPI.COMM_WORLD
        self.rank, self.size = int(self.world.rank), int(self.world.size)
        self.local = int(self.world.Split_type(MPI.COMM_TYPE_SHARED).rank)

    def share(self, given: bytes | None) -> bytes:
        """Return the bytes of rank 0."""
        return bytes(self.world.bcast(given))

    def gather(self, value: Any) -> list[Any] | None:
        """Return the values of all ranks on rank 0."""
        found: list[Any] | None = self.world.gather(value)
        return found


@dataclass
class _Results:
    """The results of this rank, in order of the cases."""

    made: list[RankResult]

    def report(self, _case: int, what: Any) -> None:
        """Keep a result; the names of steps are not needed here."""
        if isinstance(what, RankResult):
            self.made.append(what)


def run_among(job: PlanJob, peers: Peers) -> list[list[RankResult]] | None:
    """Run a job as one of the processes; return the results of all ranks for every case on rank 0, None elsewhere."""
    results = _Results([])
    run_job(job, peers.rank, peers.share, results.report)
    gathered = peers.gather(results.made)
    return None if gathered is None else [list(ranks) for ranks in zip(*gathered, strict=True)]
