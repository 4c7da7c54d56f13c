"""Collectives on CUDA tensors by MSCCL++ plans, for one process group of torch.distributed.

Tensors are copied to buffers that all ranks have prepared, and results are copied back: allocations of PyTorch differ
between ranks, and the executor prepares each new allocation together with all ranks. Buffers are padded to the sizes
that a plan serves.
"""

import atexit
import itertools
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

from flowccl.errors import InputError
from flowccl.run.mscclpp import cuda
from flowccl.run.mscclpp.plan_facts import TYPES, PlanFacts
from flowccl.run.mscclpp.runtime import Share, call_buffers, find_provider
from flowccl.run.values import DTYPES

_REDUCING = ("allreduce", "reduce_scatter")
_ONE_BLOCK = {  # (collective, is it the input?): buffers that are not divided into blocks of the ranks
    *itertools.product(("allreduce", "broadcast"), (True, False)),
    ("allgather", True),
    ("reduce_scatter", False),
}
_MOST_STAGES = 64  # prepared sizes; after more than that, all are released and prepared again


@dataclass(frozen=True, slots=True)
class SizedPlan:
    """A plan, and the size in bytes for which it was made (0: unknown)."""

    facts: PlanFacts
    size: int = 0


class _CudaArray:
    """GPU memory as torch.as_tensor reads it: bytes at an address."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1", "version": 3}


@dataclass(frozen=True, slots=True)
class _Stage:
    """A prepared plan for one size: its buffers on this rank as tensors of bytes, their addresses and sizes."""

    plan: Any
    input: Any
    output: Any
    addresses: tuple[int, int]
    sizes: tuple[int, int]


class PlanGroup:
    """The plans of a process group and the buffers that are prepared for them."""

    def __init__(self, rank: int, ranks: int, share: Share, plans: Sequence[SizedPlan]) -> None:
        import torch

        self.torch, self.rank, self.ranks = torch, rank, ranks
        self.plans = [plan for plan in plans if plan.facts.ranks == ranks]
        known = torch.distributed.is_initialized()  # else this group is the first, of all processes
        check_flags(self.plans, ranks, int(torch.distributed.get_world_size()) if known else ranks)
        self.counts: Counter[str] = Counter()
        self.stages: dict[tuple[str, int], _Stage] = {}
        self.device = int(torch.cuda.current_device())
        provider = find_provider()
        for plan in self.plans:
            plan.facts.check_version(provider.version)
            plan.facts.check_resident(cuda.devices()[self.device], 1)
        torch.cuda.init()
        cuda.use_device(self.device)
        self.runtime = provider.open(rank, ranks, share)
        self.stream = torch.cuda.Stream(self.device)
        self.process = os.getpid()
        atexit.register(self._close)

    def _close(self) -> None:
        """Wait for this rank's work, and end the threads of MSCCL++ before the process ends; not in forked ones."""
        if os.getpid() != self.process:
            return
        self.torch.cuda.synchronize()
        self.stages.clear()
        self.runtime.close()

    def find(
        self, collective: str, size: int, dtype: str, root: int = 0, only: SizedPlan | None = None
    ) -> SizedPlan | None:
        """Return the plan with the nearest size that serves a collective (`only`: if it is this one), or None."""
        if collective in _REDUCING and dtype not in TYPES:
            return None

        def distance(plan: SizedPlan) -> float:
            return max(size / plan.size, plan.size / size) if plan.size else 1.0

        fits = [
            plan
            for plan in self.plans
            if plan.facts.collective == collective
            and only in (None, plan)
            and plan.facts.min_bytes <= self._padded(plan.facts, size) <= plan.facts.max_bytes
            and (collective != "broadcast" or plan.facts.root == root)
        ]
        return min(fits, key=distance, default=None)

    def _padded(self, facts: PlanFacts, size: int) -> int:
        """Return the size of the plan's buffers for a call: whole chunks, or the only size of a plan with packets."""
        if size <= facts.min_bytes == facts.max_bytes:
            return facts.max_bytes
        step = facts.step(DTYPES["float32"])
        return -(-size // step) * step

    def run(self, plan: SizedPlan, given: Any, output: Any, size: int, dtype: str, average: bool = False) -> Any:
        """Enqueue a plan from one tensor to another; `size` is in bytes as nccl-tests counts it. Return the work.

        If `average`, the result is divided by the number of ranks.
        """
        torch, facts = self.torch, plan.facts
        padded = self._padded(facts, size)
        capturing = bool(torch.cuda.is_current_stream_capturing())
        self._check_capture(facts, (facts.path, padded), capturing)
        stage = self._stage(facts, padded)
        stream = torch.cuda.current_stream() if capturing else self.stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch.no_grad():
            self._copy(stage.input, given, facts.collective, True)
            name = dtype if facts.collective in _REDUCING else "int32"
            self.runtime.execute(stage.plan, stage.addresses, stage.sizes, name, int(stream.cuda_stream))
            self._copy(output, stage.output, facts.collective, False)
            if average:
                output.div_(self.ranks)
        for tensor in () if capturing else (given, output):
            tensor.record_stream(stream)
        self.counts[facts.collective] += 1
        return plan_work(self.device, stream, [output])

    def _check_capture(self, facts: PlanFacts, key: tuple[str, int], capturing: bool) -> None:
        if capturing and facts.protocol != "Simple":
            raise InputError(
                f"{facts.path}: a plan with protocol {facts.protocol} cannot be captured in a CUDA graph: a replay "
                "would repeat the flag of its packets and give wrong data; use a Simple plan"
            )
        if capturing and key not in self.stages:
            raise InputError(f"{facts.path}: run {facts.collective} once with this size before it is captured")

    def _stage(self, facts: PlanFacts, size: int) -> _Stage:
        """Return the prepared buffers of a plan for a size; all ranks prepare them together, once."""
        key = facts.path, size
        if key not in self.stages:
            if len(self.stages) >= _MOST_STAGES:
                self.torch.cuda.synchronize()
                self.stages.clear()
                self.runtime.reset()
            self.stages[key] = self._prepare(facts, size)
        return self.stages[key]

    def _prepare(self, facts: PlanFacts, size: int) -> _Stage:
        place = facts.collective, facts.inplace, self.rank, self.ranks
        addresses, sizes = call_buffers(self.runtime, *place, size)
        views = [self._view(address, count) for address, count in zip(addresses, sizes, strict=True)]
        stage = _Stage(self.runtime.plan(facts.path), views[0], views[1], addresses, sizes)
        stream = cuda.Stream()
        handle = stream.handle.value or 0
        stream.without_running(lambda: self.runtime.execute(stage.plan, addresses, sizes, "int32", handle))
        self.torch.cuda.synchronize()
        self.runtime.barrier()
        return stage

    def _view(self, address: int, size: int) -> Any:
        return self.torch.as_tensor(_CudaArray(address, size), device=f"cuda:{self.device}")

    def _copy(self, to: Any, source: Any, collective: str, into_stage: bool) -> None:
        """Copy a tensor to the bytes of a stage, or back; blocks of all ranks are padded each for itself."""
        tensor, stage = (source, to) if into_stage else (to, source)
        flat = tensor.contiguous().view(-1).view(self.torch.uint8) if tensor.numel() else tensor
        blocks = 1 if (collective, into_stage) in _ONE_BLOCK else self.ranks
        rows, places = flat.view(blocks, -1), stage.view(blocks, -1)
        if into_stage:
            places[:, : rows.shape[1]].copy_(rows)
            return
        rows.copy_(places[:, : rows.shape[1]])
        if flat.data_ptr() != tensor.data_ptr():
            tensor.copy_(flat.view(tensor.dtype).view_as(tensor))


_counting: set[str] = set()  # "LL": a plan with packets was given; "part": a group of some of the processes has plans


def check_flags(plans: Sequence[SizedPlan], ranks: int, world: int) -> None:
    """Raise InputError if packets would get different flags: all processes must run the same number of plans.

    A flag is the number of plans that a process has run, in all groups.
    """
    packets = [plan.facts for plan in plans if plan.facts.protocol != "Simple"]
    now = {name for name, found in (("LL", packets), ("part", plans and ranks < world)) if found}
    if {"LL", "part"} <= _counting | now:
        name = f"{packets[0].path}: a" if packets else "a"
        raise InputError(
            f"{name} plan with protocol LL needs processes that all run the same plans, but a group of {ranks} of "
            f"{world} processes has plans of its own; use Simple plans"
        )
    _counting.update(now)


@lru_cache(maxsize=1)
def _work_class() -> Any:
    """Return the class of a work that has been enqueued, derived from the installed torch's."""
    import torch

    base: Any = torch.distributed.Work

    class PlanWork(base):  # type: ignore[misc]  # torch is an extra
        def __init__(self, device: int, stream: Any, result: list[Any]) -> None:
            super().__init__()
            self.event = torch.cuda.Event()
            self.event.record(stream)
            self.future = None if torch.cuda.is_current_stream_capturing() else _future(device, stream, result)

        def wait(self, timeout: timedelta | None = None) -> bool:
            torch.cuda.current_stream().wait_event(self.event)
            return True

        def is_completed(self) -> bool:
            return bool(self.event.query())

        def get_future(self) -> Any:
            return self.future

    return PlanWork


def _future(device: int, stream: Any, result: list[Any]) -> Any:
    """Return a future whose `wait` makes the current stream wait for the plan."""
    import torch

    future = torch.futures.Future(devices=[torch.device("cuda", device)])
    with torch.cuda.stream(stream):
        future.set_result(result)
    return future


def plan_work(device: int, stream: Any, result: list[Any]) -> Any:
    """Return the work of a plan that was enqueued on a stream."""
    return _work_class()(device, stream, result)
