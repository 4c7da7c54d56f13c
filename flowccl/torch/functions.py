"""Collectives on torch tensors that run a given schedule, over any torch.distributed backend."""

from typing import Any

from flowccl.errors import InputError
from flowccl.run.rank_program import BatchCarrier
from flowccl.run.torch_run import batch_exchange, import_torch, runner_of
from flowccl.schedule.schedule import Schedule


def all_gather(output: Any, tensor: Any, schedule: Schedule, group: Any = None) -> None:
    """Concatenate the tensors of all ranks in rank order into `output`, on every rank."""
    _run("allgather", schedule, output.numel(), tensor, output, group)


def all_reduce(tensor: Any, schedule: Schedule, group: Any = None) -> None:
    """Reduce the tensors of all ranks to their sum, in `tensor` on every rank."""
    _run("allreduce", schedule, tensor.numel(), tensor, tensor, group)


def reduce_scatter(output: Any, tensor: Any, schedule: Schedule, group: Any = None) -> None:
    """Reduce the tensors of all ranks; `output` of rank r gets block r of the sum."""
    _run("reduce_scatter", schedule, tensor.numel(), tensor, output, group)


def all_to_all(output: Any, tensor: Any, schedule: Schedule, group: Any = None) -> None:
    """Exchange blocks: block s of `output` on rank r gets block r of the tensor of rank s."""
    _run("alltoall", schedule, tensor.numel(), tensor, output, group)


def broadcast(tensor: Any, schedule: Schedule, group: Any = None) -> None:
    """Copy the tensor of the schedule's root to `tensor` on every rank."""
    _run("broadcast", schedule, tensor.numel(), tensor, tensor, group)


def _run(collective: str, schedule: Schedule, count: int, given: Any, output: Any, group: Any) -> None:
    dist = import_torch().distributed
    if schedule.demand.collective != collective:
        raise InputError(f"the schedule is for {schedule.demand.collective}, not for {collective}")
    ranks, size = schedule.demand.num_gpus, dist.get_world_size(group)
    if size != ranks:
        raise InputError(f"the schedule is for {ranks} ranks, but the group has {size}")
    if given.dtype != output.dtype:
        raise InputError(f"{collective}: input is {given.dtype}, output is {output.dtype}; they must be equal")
    with import_torch().no_grad():
        runner_of(schedule).run(dist.get_rank(group), count, given, output, BatchCarrier(batch_exchange(group)))
