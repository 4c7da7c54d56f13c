"""A torch.distributed process group that runs flowccl's schedules; other collectives use an inner backend.

torch calls the methods by the names below. torch 2.13 renamed some of them (`_allgather_base` became
`all_gather_single`, for example), so both names are defined. On the CPU, every call is complete when its method
returns. CUDA tensors are served by plans of MSCCL++, if the group has any, in the order of a stream of their own.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import lru_cache
from time import perf_counter
from typing import Any

from flowccl.errors import InputError
from flowccl.run.group_backends import MAKERS, gpu_parts, inner_group, largest_of
from flowccl.run.mscclpp.plan_facts import PlanFacts
from flowccl.run.mscclpp.tensors import PlanGroup
from flowccl.run.torch_run import Runner, as_bytes, import_torch, runner_of
from flowccl.schedule.schedule import Schedule

log = logging.getLogger("flowccl.torch")

_FIRST_TAG = 1 << 20  # above the tags that programs use for their own messages
_OLD_NAMES = {
    "all_gather_single": "_allgather_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "all_to_all_single": "alltoall_base",
}


class GroupMethods:
    """The methods that torch.distributed calls, without the base class, which requires torch."""

    def begin(
        self,
        rank: int,
        size: int,
        inner: Any,
        schedules: Sequence[Schedule],
        plans: PlanGroup | None = None,
        inner_cuda: Any = None,
    ) -> None:
        """Select the schedules for groups of this size; `inner` carries the messages and runs everything else.

        With `inner_cuda`, CUDA tensors use `plans`, or else `inner_cuda`; otherwise they are sent over `inner`.
        """
        self.my_rank, self.my_size, self.inner = rank, size, inner
        self.plans, self.inner_cuda = plans, inner_cuda
        self.runners = [runner_of(schedule) for schedule in schedules if schedule.demand.num_gpus == size]
        self.scheduled: Counter[str] = Counter()
        self.fallen_back: Counter[str] = Counter()

    choose: Callable[[str, int], Schedule | None] | None = None
    """Chooses the schedule of a collective and a size, where the group has a catalog.

    If it has a method `finished`, the time of each call that it chose for is measured and given to it.
    """

    alltoallv: Callable[["GroupMethods", Any, Any, list[int], list[int]], Any] | None = None
    """Serves `all_to_all_single` with split sizes: (group, output, tensor, output_splits, input_splits) -> Work or None.

    None, or a function that returns None, leaves the call to the library. Split sizes count rows (of dimension 0); an
    empty list means equal blocks. Each rank knows only its own split sizes, so the function must decide alike on all
    ranks of the group, or all would wait for each other for ever. Assign a function to the class attribute to serve all
    groups, and to the attribute of one group (with its own arguments bound) to serve that group.
    """

    begun: float | None = None
    """When the call that is being measured began."""

    # -- the collectives that schedules implement ---------------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Reduce the tensors of all ranks to their sum, on all ranks."""
        tensor = _only(tensors)
        work = self._planned("allreduce", tensor, tensor, tensor) if _is_sum(opts) else None
        if work is not None:
            return work
        runner = self._runner("allreduce", tensor) if _is_sum(opts) else None
        if runner is None:
            return self._inner("allreduce", tensors, opts)
        return self._run(runner, tensor.numel(), tensor, tensor, [tensor])

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        """Copy the root's tensor to all ranks."""
        tensor = _only(tensors)
        root = int(getattr(opts, "rootRank", 0))
        work = self._planned("broadcast", tensor, tensor, tensor, root)
        if work is not None:
            return work
        runner = self._runner("broadcast", tensor, root=root)
        if runner is None:
            return self._inner("broadcast", tensors, opts)
        return self._run(runner, tensor.numel(), tensor, tensor, [tensor])

    def all_gather_single(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        """Concatenate the tensors of all ranks, on all ranks."""
        work = self._planned("allgather", output, tensor, output)
        if work is not None:
            return work
        runner = self._runner("allgather", output)
        if runner is None:
            return self._inner("all_gather_single", output, tensor, opts)
        return self._run(runner, output.numel(), tensor, output, [output])

    def reduce_scatter_single(self, output: Any, tensor: Any, opts: Any = None) -> Any:
        """Reduce the tensors of all ranks; rank r gets block r of the sum."""
        work = self._planned("reduce_scatter", tensor, tensor, output) if _is_sum(opts) else None
        if work is not None:
            return work
        runner = self._runner("reduce_scatter", tensor) if _is_sum(opts) else None
        if runner is None:
            return self._inner("reduce_scatter_single", output, tensor, opts)
        return self._run(runner, tensor.numel(), tensor, output, [output])

    def all_to_all_single(
        self, output: Any, tensor: Any, output_splits: Any = (), input_splits: Any = (), opts: Any = None
    ) -> Any:
        """Exchange blocks: rank r gets block r of rank s as its block s; with split sizes, see `alltoallv`."""
        if (output_splits or input_splits) and self.alltoallv is not None:
            work = self.alltoallv(self, output, tensor, list(output_splits), list(input_splits))
            if work is not None:
                return work
        even = not output_splits and not input_splits and tensor.numel() == output.numel()
        even = even and tensor.numel() % self.my_size == 0
        work = self._planned("alltoall", tensor, tensor, output) if even else None
        if work is not None:
            return work
        runner = self._runner("alltoall", tensor) if even else None
        if runner is None:
            return self._inner("all_to_all_single", output, tensor, output_splits, input_splits, opts)
        return self._run(runner, tensor.numel(), tensor, output, [output])

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """Like `all_gather_single`, into one tensor per rank."""
        parts, tensor = output_tensors[0], _only(input_tensors)
        runner = self._runner("allgather", tensor, self.my_size) if _alike(parts, tensor) else None
        if runner is None:
            return self._inner("allgather", output_tensors, input_tensors, opts)
        whole = tensor.new_empty(tensor.numel() * self.my_size)
        self._run(runner, whole.numel(), tensor, whole, [])
        for part, block in zip(parts, whole.chunk(self.my_size), strict=True):
            part.copy_(block.view_as(part))
        return self._done(parts)

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """Like `reduce_scatter_single`, from one tensor per rank."""
        parts, output = input_tensors[0], _only(output_tensors)
        even = _alike(parts, output) and _is_sum(opts)
        runner = self._runner("reduce_scatter", output, self.my_size) if even else None
        if runner is None:
            return self._inner("reduce_scatter", output_tensors, input_tensors, opts)
        whole = import_torch().cat([part.reshape(-1) for part in parts])
        return self._run(runner, whole.numel(), whole, output, [output])

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single

    # -- implementation -----------------------------------------------------------------------------------------------

    def _planned(self, collective: str, whole: Any, given: Any, output: Any, root: int = 0) -> Any:
        """Run a plan of MSCCL++ on CUDA tensors; return its work, or None if there is no plan for them."""
        if self.plans is None or not whole.is_cuda or not whole.numel() or whole.is_sparse:
            return None
        size, dtype = whole.numel() * whole.element_size(), str(whole.dtype).removeprefix("torch.")
        plan = self.plans.find(collective, size, dtype, root)
        return None if plan is None else self.plans.run(plan, given, output, size, dtype)

    def _runner(self, collective: str, tensor: Any, times: int = 1, root: int | None = None) -> Runner | None:
        """Return the runner of the collective's schedule with the nearest size, or None if there is none.

        A catalog chooses by its rules instead.
        """
        if self.choose is not None and root is None and tensor.numel() and not tensor.is_sparse and not tensor.is_cuda:
            schedule = self.choose(collective, tensor.numel() * tensor.element_size() * times)
            self.begun = perf_counter()
            return None if schedule is None else runner_of(schedule)
        fits = [
            runner
            for runner in self.runners
            if runner.schedule.demand.collective == collective
            and (root is None or int(runner.schedule.demand.source_rank[0]) == root)
        ]
        if not fits or not tensor.numel() or tensor.is_sparse or (tensor.is_cuda and self.inner_cuda is not None):
            return None
        size = tensor.numel() * tensor.element_size() * times

        def distance(runner: Runner) -> float:
            other = runner.schedule.demand.size_bytes
            return float(max(size / other, other / size))

        return min(fits, key=distance)

    def _run(self, runner: Runner, count: int, given: Any, output: Any, result: list[Any]) -> Any:
        """Run a schedule from one tensor to another, which may be the same tensor."""
        flat = given.contiguous().view(-1)
        into = flat if output is given else output if output.is_contiguous() else output.contiguous()
        runner.run(self.my_rank, count, (flat, into.view(-1)), self._exchange)
        if into.data_ptr() != output.data_ptr():
            output.copy_(into.view_as(output))
        self.scheduled[runner.schedule.demand.collective] += 1
        self._measured()
        return self._done(result)

    def _measured(self, work: Any = None) -> None:
        """Give the time of a call to the adaptive selection; a call of the inner backend is waited for."""
        finished = getattr(self.choose, "finished", None)
        if finished is not None and self.begun is not None:
            if work is not None:
                work.wait()
            finished(1e6 * (perf_counter() - self.begun))
        self.begun = None

    def _exchange(self, sends: Sequence[tuple[int, int, Any]], receives: Sequence[tuple[int, int, Any]]) -> None:
        together = "nccl" in self.inner.name().lower()  # ungrouped, NCCL would run messages one by one
        if together:
            self.inner._start_coalescing()
        works = [self.inner.recv([as_bytes(t)], peer, _FIRST_TAG + tag) for peer, tag, t in receives]
        works += [self.inner.send([as_bytes(t)], peer, _FIRST_TAG + tag) for peer, tag, t in sends]
        if together:
            works = [self.inner._end_coalescing()]
        for work in works:
            work.wait()

    def _inner(self, name: str, *args: Any) -> Any:
        """Run a collective without a schedule on the inner backend; log this the first time."""
        inner = self.inner_cuda if self.inner_cuda is not None and _is_cuda(args) else self.inner
        if not self.fallen_back[name] and self.my_rank == 0:
            log.warning("flowccl: no schedule for %s on %d ranks; using %s", name, self.my_size, inner.name())
        self.fallen_back[name] += 1
        method = getattr(inner, name, None) or getattr(inner, _OLD_NAMES.get(name, name))
        while args and args[-1] is None:
            args = args[:-1]
        work = method(*args)
        self._measured(work)
        return work

    def _done(self, result: list[Any]) -> Any:
        return _classes()[1](result)


# -- methods that are forwarded to the inner backend ------------------------------------------------------------------

_FORWARDED = (
    "alltoall",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "all_gather_single_coalesced",
    "allreduce_coalesced",
    "barrier",
    "gather",
    "reduce",
    "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single_coalesced",
    "scatter",
)


def _forwarded(name: str) -> Callable[..., Any]:
    def method(self: GroupMethods, *args: Any, **named: Any) -> Any:
        return self._inner(name, *args, *named.values())

    method.__doc__ = f"`{name}` of the inner backend."
    return method


def _send(self: GroupMethods, tensors: Any, peer: int, tag: int = 0) -> Any:
    return self.inner.send(tensors, peer, tag)


def _recv(self: GroupMethods, tensors: Any, peer: int, tag: int = 0) -> Any:
    return self.inner.recv(tensors, peer, tag)


def _recv_anysource(self: GroupMethods, tensors: Any, tag: int = 0) -> Any:
    return self.inner.recv_anysource(tensors, tag)


@lru_cache(maxsize=1)
def _classes() -> tuple[Any, Any]:
    """Return the classes of the process group and of a completed work, derived from the installed torch's."""
    torch = import_torch()
    group_base: Any = torch.distributed.ProcessGroup
    work_base: Any = torch.distributed.Work

    class FlowcclGroup(GroupMethods, group_base):  # type: ignore[misc]  # torch is an extra
        def __init__(self, rank: int, size: int, *parts: Any) -> None:
            group_base.__init__(self, rank, size)
            self.begin(rank, size, *parts)

        def getBackendName(self) -> str:
            return "flowccl"

    class Done(work_base):  # type: ignore[misc]  # torch is an extra
        def __init__(self, result: list[Any]) -> None:
            super().__init__()
            self.future = torch.futures.Future()
            self.future.set_result(result)

        def wait(self, timeout: timedelta | None = None) -> bool:
            return True

        def is_completed(self) -> bool:
            return True

        def get_future(self) -> Any:
            return self.future

    for name in _FORWARDED:
        setattr(FlowcclGroup, name, _forwarded(name))
    for name, method in (("send", _send), ("recv", _recv), ("recv_anysource", _recv_anysource)):
        setattr(FlowcclGroup, name, method)
    return FlowcclGroup, Done


def register(
    schedules: Sequence[Schedule],
    inner: str,
    plans: Sequence[PlanFacts] = (),
    chooser: Callable[..., Callable[[str, int], Schedule | None]] | None = None,
) -> None:
    """Register the torch.distributed backend "flowccl", which runs these schedules, and on CUDA tensors these plans.

    `chooser` makes the function that chooses schedules on the CPU, from a store, the rank and the size of the group,
    and a function that gives all ranks the largest of their numbers.
    """
    torch = import_torch()
    dist = torch.distributed
    if inner not in ("auto", "gloo", "nccl"):
        raise InputError(f"inner must be auto, gloo or nccl, got {inner!r}")
    carrier = "nccl" if inner == "nccl" else "gloo"
    if not hasattr(dist, MAKERS[carrier]):
        raise InputError(f"this torch has no {carrier}; choose another inner backend")
    on_gpus = inner == "auto" and bool(torch.cuda.is_available())
    if plans and not on_gpus:
        raise InputError(f"{plans[0].path} is a plan of MSCCL++, which needs CUDA GPUs and inner='auto'")

    def create(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        made = inner_group(dist, carrier, dist.PrefixStore("flowccl", store), rank, size, timeout)
        parts: list[Any] = [made, schedules]
        if on_gpus:
            parts += gpu_parts(dist.PrefixStore("flowccl-gpus", store), rank, size, timeout, schedules, plans, made)
        group = _classes()[0](rank, size, *parts)
        if chooser is not None:
            group.choose = chooser(dist.PrefixStore("flowccl-catalog", store), rank, size, largest_of(made))
        return group

    devices = {"auto": ["cpu", "cuda"] if on_gpus else ["cpu"], "gloo": ["cpu"], "nccl": ["cuda"]}[inner]
    dist.Backend.register_backend("flowccl", create, devices=devices)


def counts_of(group: Any) -> dict[str, dict[str, int]]:
    """Return how many times a group ran each collective by a schedule and by its inner backend."""
    if not isinstance(group, GroupMethods):
        raise InputError('this group does not use the backend "flowccl"')
    counts = {"scheduled": dict(group.scheduled), "inner": dict(group.fallen_back)}
    uses = getattr(group.choose, "uses", None)
    if uses is not None:
        counts["catalog"] = dict(uses)
    return counts if group.plans is None else counts | {"plans": dict(group.plans.counts)}


def selection_of(group: Any) -> Any:
    """Return what chooses the schedules of a group: a `PlanChooser` or an `AdaptiveChooser`."""
    if not isinstance(group, GroupMethods) or group.choose is None:
        raise InputError('this group does not use the backend "flowccl" with a catalog')
    return group.choose


# -- checks -----------------------------------------------------------------------------------------------------


def _is_cuda(value: Any) -> bool:
    """Whether the first tensor in nested lists is on a GPU."""
    if isinstance(value, list | tuple):
        return any(_is_cuda(part) for part in value)
    return bool(getattr(value, "is_cuda", False))


def _only(tensors: Any) -> Any:
    return tensors[0] if isinstance(tensors, list | tuple) else tensors


def _is_sum(opts: Any) -> bool:
    dist = import_torch().distributed
    return opts is None or bool(getattr(opts, "reduceOp", dist.ReduceOp.SUM) == dist.ReduceOp.SUM)


def _alike(parts: Sequence[Any], tensor: Any) -> bool:
    return all(part.numel() == tensor.numel() and part.dtype == tensor.dtype for part in parts)
