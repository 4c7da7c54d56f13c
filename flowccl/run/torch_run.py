"""The execution of schedules on tensors, over any backend of torch.distributed."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from flowccl.errors import InputError
from flowccl.run.element_layout import make_layout
from flowccl.run.program import MessageProgram, make_program
from flowccl.run.rank_program import Exchange, MessageCarrier, RankProgram, rank_program
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


def devices() -> int:
    """Return the number of GPUs that torch sees on this host."""
    import torch

    return int(torch.cuda.device_count())
