"""One process of a gloo run, and the execution of schedules on tensors over any torch.distributed backend."""

import os
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from flowccl.errors import InputError
from flowccl.run.element_layout import make_layout
from flowccl.run.jobs import read_job, write_rows
from flowccl.run.measure import Row, RunOptions, run_cases
from flowccl.run.program import Exchange, MessageProgram, make_program
from flowccl.run.rank_program import MessageCarrier, RankProgram, rank_program
from flowccl.run.values import Dtype
from flowccl.schedule.schedule import Schedule


def import_torch() -> Any:
    """Return the module torch; raise InputError with the install command if it is missing."""
    try:
        import torch
    except ImportError:
        raise InputError("flowccl.torch needs torch, which is not installed: pip install flowccl[torch]") from None
    if not torch.distributed.is_available():
        raise InputError("this torch was built without torch.distributed; reinstall: pip install flowccl[torch]")
    return torch


# -- tensors --------------------------------------------------------------------------------------------------------


def batch_exchange(group: Any = None) -> Exchange:
    """Return an exchange over a group of torch.distributed: all messages of a level in one `batch_isend_irecv`.

    NCCL ignores tags: messages between two ranks match in the order of the batch, which is the same at both ends.
    """
    import torch.distributed as dist

    def exchange(sends: Sequence[tuple[int, int, Any]], receives: Sequence[tuple[int, int, Any]]) -> None:
        def peer(process: int) -> int:
            return process if group is None else int(dist.get_global_rank(group, process))

        ops = [dist.P2POp(dist.irecv, as_bytes(t), peer(p), group, tag) for p, tag, t in receives]
        ops += [dist.P2POp(dist.isend, as_bytes(t), peer(p), group, tag) for p, tag, t in sends]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    return exchange


def as_bytes(tensor: Any) -> Any:
    """Return a flat tensor as bytes, so that backends need not support its dtype."""
    import torch

    return tensor.view(torch.uint8)


class BatchCarrier:
    """Messages over a group of torch.distributed: those of a level in one `batch_isend_irecv`."""

    def __init__(self, group: Any = None) -> None:
        self.exchange = batch_exchange(group)
        self.sends: list[tuple[int, int, Any]] = []
        self.receives: list[tuple[int, int, Any]] = []

    def begin(self) -> None:
        """Start a level."""
        self.sends, self.receives = [], []

    def post_send(self, tensor: Any, peer: int, tag: int) -> None:
        """Send a tensor to a rank."""
        self.sends.append((peer, tag, tensor))

    def post_receive(self, tensor: Any, peer: int, tag: int) -> None:
        """Receive a tensor from a rank."""
        self.receives.append((peer, tag, tensor))

    def wait(self) -> None:
        """Send and receive all messages of the level."""
        if self.sends or self.receives:
            self.exchange(self.sends, self.receives)


class Runner:
    """A schedule prepared for tensors: its message program, and the programs of the ranks and sizes used so far."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.program: MessageProgram = make_program(schedule)
        self.prepared: dict[tuple[int, int], RankProgram] = {}

    def run(self, rank: int, count: int, given: Any, output: Any, carrier: MessageCarrier, first_tag: int = 0) -> None:
        """Run on the input and output of a rank; `count` is the elements of the whole buffer."""
        program = self.prepared.get((rank, count)) or self._prepare(rank, count)
        flat = _flat(given)
        into = flat if output is given else _flat(output)
        wanted, written = program.sizes
        if wanted and flat.numel() != wanted:
            raise self._wrong_size("input", wanted, rank, count, flat)
        if written and into.numel() != written:
            raise self._wrong_size("output", written, rank, count, into)
        program.run(flat, into, carrier, first_tag, output.new_empty)
        if into is not output and into.data_ptr() != output.data_ptr():
            output.copy_(into.view_as(output))

    def _wrong_size(self, what: str, size: int, rank: int, count: int, tensor: Any) -> InputError:
        name, total = self.schedule.demand.collective, f"{size} elements on rank {rank}"
        return InputError(f"{name} of {count} elements: the {what} must have {total}, got {tensor.numel()}")

    def _prepare(self, rank: int, count: int) -> RankProgram:
        if len(self.prepared) > 100:  # the caller uses new sizes all the time
            self.prepared.clear()
        made = rank_program(self.program, make_layout(self.schedule.demand, count), rank)
        self.prepared[rank, count] = made
        return made


def _flat(tensor: Any) -> Any:
    return tensor if tensor.dim() == 1 and tensor.is_contiguous() else tensor.contiguous().view(-1)


@lru_cache(maxsize=64)
def runner_of(schedule: Schedule) -> Runner:
    """Return the runner of a schedule; the last ones are cached."""
    return Runner(schedule)


# -- one process of `flowccl run --on gloo` -------------------------------------------------------------------------


class TorchBackend:
    """The processes of the default group of torch.distributed, with tensors on the CPU or another device."""

    def __init__(self, device: str = "cpu") -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.device = torch, dist, device
        self.process: int = dist.get_rank()
        self.exchange: Exchange = batch_exchange() if device == "cpu" else self._synchronized(batch_exchange())

    def _synchronized(self, exchange: Exchange) -> Exchange:
        """Return an exchange that waits until the device has completed it, not only until it is enqueued."""

        def synchronized(sends: Sequence[tuple[int, int, Any]], receives: Sequence[tuple[int, int, Any]]) -> None:
            exchange(sends, receives)
            self.torch.cuda.synchronize()

        return synchronized

    def array(self, values: Any, dtype: Dtype) -> Any:
        """Return a flat tensor of whole numbers."""
        return self.torch.as_tensor(values).to(getattr(self.torch, dtype.name)).to(self.device)

    def empty(self, count: int, dtype: Dtype) -> Any:
        """Return a flat tensor of ones, so that missing writes are found."""
        return self.torch.ones(count, dtype=getattr(self.torch, dtype.name), device=self.device)

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
def group(kind: str, place: tuple[str, int, int] | None = None) -> Iterator[TorchBackend]:
    """Join a gloo or nccl group: the one of torchrun, or (rendezvous file, rank, number of processes)."""
    import torch
    import torch.distributed as dist

    if place is None:
        dist.init_process_group(kind)
        local = int(os.environ.get("LOCAL_RANK", "0"))
    else:
        rendezvous, local, processes = place
        if kind == "gloo":
            torch.set_num_threads(1)
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback())
        dist.init_process_group(kind, f"file://{rendezvous}", rank=local, world_size=processes)
    try:
        if kind == "nccl":
            torch.cuda.set_device(local)
        yield TorchBackend("cpu" if kind == "gloo" else f"cuda:{local}")
    finally:
        dist.destroy_process_group()


def devices() -> int:
    """Return the number of GPUs that torch sees on this host."""
    import torch

    return int(torch.cuda.device_count())


def run_here(schedule: Schedule, options: RunOptions) -> list[Row] | None:
    """Run the schedule as the process that torchrun started; return the rows on rank 0, None on other ranks."""
    with group("gloo") as backend:
        return _rows(backend, schedule, options)


def run_one(rank: int, processes: int, job: str) -> None:
    """Run one process of a job that `flowccl run` has written; an error is written next to the job."""
    try:
        schedule, options = read_job(job)
        with group("gloo", (str(Path(job).with_name("rendezvous")), rank, processes)) as backend:
            rows = _rows(backend, schedule, options)
        if rows is not None:
            write_rows(job, rows)
    except BaseException:
        Path(job).with_name(f"error-{rank}.txt").write_text(traceback.format_exc())
        raise


def _rows(backend: TorchBackend, schedule: Schedule, options: RunOptions) -> list[Row] | None:
    rows = run_cases(make_program(schedule, backend.dist.get_world_size()), options, backend)
    return rows if backend.process == 0 else None


def loopback() -> str:
    """Return the name of the loopback interface; all processes are on this host."""
    import socket

    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if name in ("lo", "lo0")), names[0] if names else "lo")
