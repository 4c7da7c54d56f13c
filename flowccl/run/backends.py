"""The processes of a run: arrays, messages, a barrier and an allreduce, over MPI or torch.distributed."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from flowccl.run.rank_program import Exchange
from flowccl.run.torch_run import batch_exchange
from flowccl.run.values import Dtype, numpy_dtype


class Backend(Protocol):
    """Operations of one of `processes` processes: arrays, messages, a barrier and an allreduce over all of them."""

    process: int
    processes: int

    def array(self, values: Any, dtype: Dtype) -> Any:
        """Return a flat array of whole numbers."""

    def empty(self, count: int, dtype: Dtype) -> Any:
        """Return a flat array of ones, so that missing writes are found."""

    def exchange(self, sends: Sequence[tuple[int, int, Any]], receives: Sequence[tuple[int, int, Any]]) -> None:
        """Send and receive all (process, tag, array); return when all are complete."""

    def wrong(self, array: Any, expected: Any) -> int:
        """Return the number of elements that differ."""

    def barrier(self) -> None:
        """Wait for all processes."""

    def allreduce(self, numbers: Sequence[float]) -> list[float]:
        """Return each number summed over all processes, on every process."""


class MpiBackend:
    """The processes of MPI.COMM_WORLD; arrays are numpy's."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.mpi, self.comm = MPI, MPI.COMM_WORLD
        self.process: int = self.comm.Get_rank()
        self.processes: int = self.comm.Get_size()

    def array(self, values: Any, dtype: Dtype) -> Any:
        """Return a flat array of whole numbers."""
        return np.asarray(values).astype(numpy_dtype(dtype))

    def empty(self, count: int, dtype: Dtype) -> Any:
        """Return a flat array of ones."""
        return np.ones(count, dtype=numpy_dtype(dtype))

    def exchange(self, sends: Sequence[tuple[int, int, Any]], receives: Sequence[tuple[int, int, Any]]) -> None:
        """Post all receives, then all sends, then wait for all. Arrays are sent as bytes: MPI has no float16."""
        byte = self.mpi.BYTE
        posted = [self.comm.Irecv([array.view(np.uint8), byte], peer, tag) for peer, tag, array in receives]
        posted += [self.comm.Isend([array.view(np.uint8), byte], peer, tag) for peer, tag, array in sends]
        self.mpi.Request.Waitall(posted)

    def wrong(self, array: Any, expected: Any) -> int:
        """Return the number of elements that differ."""
        return int(np.count_nonzero(array != expected))

    def barrier(self) -> None:
        """Wait for all processes."""
        self.comm.Barrier()

    def allreduce(self, numbers: Sequence[float]) -> list[float]:
        """Return each number summed over all processes; a waiting process sleeps and leaves its core to the others."""
        given, total = np.array(numbers, dtype=np.float64), np.zeros(len(numbers))
        request = self.comm.Iallreduce(given, total)
        while not request.Test():
            time.sleep(50e-6)
        return [float(number) for number in total]


class TorchBackend:
    """The processes of the default group of torch.distributed, with tensors on the CPU or another device."""

    def __init__(self, device: str = "cpu") -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.device = torch, dist, device
        self.process, self.processes = int(dist.get_rank()), int(dist.get_world_size())
        self.send: Exchange = batch_exchange()

    def array(self, values: Any, dtype: Dtype) -> Any:
        """Return a flat tensor of whole numbers."""
        return self.torch.as_tensor(values).to(getattr(self.torch, dtype.name)).to(self.device)

    def empty(self, count: int, dtype: Dtype) -> Any:
        """Return a flat tensor of ones."""
        return self.torch.ones(count, dtype=getattr(self.torch, dtype.name), device=self.device)

    def exchange(self, sends: Sequence[tuple[int, int, Any]], receives: Sequence[tuple[int, int, Any]]) -> None:
        """Send and receive; wait until the device has completed it, not only until it is enqueued."""
        self.send(sends, receives)
        if self.device != "cpu":
            self.torch.cuda.synchronize()

    def wrong(self, array: Any, expected: Any) -> int:
        """Return the number of elements that differ."""
        return int((array != expected).sum())

    def barrier(self) -> None:
        """Wait for all processes."""
        self.dist.barrier()

    def allreduce(self, numbers: Sequence[float]) -> list[float]:
        """Return each number summed over all processes."""
        total = self.torch.tensor(numbers, dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(total)
        return [float(number) for number in total]


@contextmanager
def in_group(on: str, place: tuple[str, int, int] | None = None) -> Iterator[Backend]:
    """Join the processes of mpiexec, or a gloo or nccl group.

    The group is the one of torchrun, or it has a `place`: (rendezvous file, rank, number of processes).
    """
    if on == "mpi":
        yield MpiBackend()
        return
    import torch
    import torch.distributed as dist

    if place is None:
        dist.init_process_group(on)
        local = int(os.environ.get("LOCAL_RANK", "0"))
    else:
        rendezvous, local, processes = place
        if on == "gloo":
            torch.set_num_threads(1)
            os.environ.setdefault("GLOO_SOCKET_IFNAME", _loopback())
        dist.init_process_group(on, f"file://{rendezvous}", rank=local, world_size=processes)
    try:
        if on == "nccl":
            torch.cuda.set_device(local)
        yield TorchBackend("cpu" if on == "gloo" else f"cuda:{local}")
    finally:
        dist.destroy_process_group()


def _loopback() -> str:
    """The name of the loopback interface; all processes are on this host."""
    import socket

    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name in ("lo", "lo0")), names[0] if names else "lo")
