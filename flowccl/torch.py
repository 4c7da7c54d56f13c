"""Collectives on torch tensors by flowccl's schedules, over any backend of torch.distributed.

>>> import flowccl.torch
>>> flowccl.torch.all_reduce(tensor, schedule)                      # over the default group
>>> flowccl.torch.init_process_group(["allreduce.json"])            # or: a whole program, DDP too, by one line

Every message is a send and a receive of the backend, so this moves real bytes the way the schedule says, but it is
no fast path: what is fast is the schedule loaded into a runtime. torch itself is an extra: pip install flowccl[torch].
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flowccl.errors import InputError
from flowccl.run.torch_run import batch_exchange, import_torch, runner_of
from flowccl.schedule.files import load_schedule
from flowccl.schedule.schedule import Schedule

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "counts",
    "init_process_group",
    "reduce_scatter",
    "register_backend",
]


def all_gather(output: Any, tensor: Any, schedule: Schedule, group: Any = None) -> None:
    """All ranks' tensors, one after the other in rank order, in `output` on every rank."""
    _run("allgather", schedule, output.numel(), tensor, output, group)


def all_reduce(tensor: Any, schedule: Schedule, group: Any = None) -> None:
    """The sum of all ranks' tensors, in `tensor` on every rank."""
    _run("allreduce", schedule, tensor.numel(), tensor, tensor, group)


def reduce_scatter(output: Any, tensor: Any, schedule: Schedule, group: Any = None) -> None:
    """Block r of the sum of all ranks' tensors, in `output` on rank r."""
    _run("reduce_scatter", schedule, tensor.numel(), tensor, output, group)


def all_to_all(output: Any, tensor: Any, schedule: Schedule, group: Any = None) -> None:
    """Block r of the tensor of rank s, in block s of `output` on rank r."""
    _run("alltoall", schedule, tensor.numel(), tensor, output, group)


def broadcast(tensor: Any, schedule: Schedule, group: Any = None) -> None:
    """The tensor of the schedule's root, in `tensor` on every rank."""
    _run("broadcast", schedule, tensor.numel(), tensor, tensor, group)


def register_backend(schedules: Iterable[Schedule | str | Path], inner: str = "gloo") -> None:
    """Make "flowccl" a backend for `init_process_group`: collectives run these schedules (or schedule files).

    Of several for a collective, the one made for the nearest size runs. What has none, messages and other groups go to
    `inner`, gloo or nccl, which also carries the schedules' messages; the first time, this is said in the log.
    """
    from flowccl.run.process_group import register

    made = [item if isinstance(item, Schedule) else load_schedule(item) for item in schedules]
    register(made, inner)


def init_process_group(schedules: Iterable[Schedule | str | Path], inner: str = "gloo", **options: Any) -> None:
    """`torch.distributed.init_process_group` with the backend "flowccl": the one line that a program changes."""
    register_backend(schedules, inner)
    import_torch().distributed.init_process_group("flowccl", **options)


def counts(group: Any = None) -> dict[str, dict[str, int]]:
    """How often each collective ran by a schedule ("scheduled") and by the inner backend ("inner")."""
    from flowccl.run.process_group import counts_of

    return counts_of(import_torch().distributed.group.WORLD if group is None else group)


def _run(collective: str, schedule: Schedule, count: int, given: Any, output: Any, group: Any) -> None:
    dist = import_torch().distributed
    if schedule.demand.collective != collective:
        raise InputError(f"the schedule is for {schedule.demand.collective}, not for {collective}")
    ranks, size = schedule.demand.num_gpus, dist.get_world_size(group)
    if size != ranks:
        raise InputError(f"the schedule is for {ranks} ranks, the group has {size}")
    if given.dtype != output.dtype:
        raise InputError(f"{collective}: input is {given.dtype}, output is {output.dtype}; they must be the same")
    flat = given.contiguous().view(-1)
    into = flat if output is given else output if output.is_contiguous() else output.contiguous()
    runner_of(schedule).run(dist.get_rank(group), count, (flat, into.view(-1)), batch_exchange(group))
    if into.data_ptr() != output.data_ptr():
        output.copy_(into.view_as(output))
