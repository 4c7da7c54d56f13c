"""A process group of torch.distributed in which schedules serve some calls, and the library serves all others.

The group has the backends of the library's own group, so everything that is not overridden here (messages between two
ranks, coalescing, sequence numbers, timeouts, splitting) is what it would be without flowccl. torch 2.13 renamed some
methods (`_allgather_base` became `all_gather_single`, for example); both names are defined, and each is forwarded under
its own name.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from flowccl.errors import InputError
from flowccl.run.group_calls import GroupCalls, GroupParts
from flowccl.run.torch_run import import_torch
from flowccl.run.uncompiled import uncompiled


class GroupMethods(GroupCalls):
    """The methods that torch.distributed calls, without the base class, which requires torch."""

    alltoallv: Callable[..., Any] | None = None
    """Serves alltoalls with split sizes: (group, output, tensor, (output_splits, input_splits), opts, after).

    It returns a Work, or None to leave the call to the library; so does the attribute None. Split sizes count rows (of
    dimension 0); an empty list means equal blocks. `after`, if it is given, runs at the end of the call. Each rank
    knows only its own split sizes, so the function must decide alike on all ranks of the group, or all would wait for
    each other for ever.
    """

    # -- the collectives that schedules implement ---------------------------------------------------------------------

    def allreduce(self, tensors: Any, *args: Any, **named: Any) -> Any:
        """Reduce the tensors of all ranks to their sum, on all ranks."""
        if not _is_one(tensors):
            return self.by_library("allreduce", _SEVERAL, (tensors, *args), named)
        tensor = _only(tensors)
        return self._ready_or_planned("allreduce", tensor, tensor, tensor, "allreduce", (tensors, *args), named, args)

    def broadcast(self, tensors: Any, *args: Any, **named: Any) -> Any:
        """Copy the root's tensor to all ranks."""
        if not _is_one(tensors):
            return self.by_library("broadcast", _SEVERAL, (tensors, *args), named)
        tensor, opts = _only(tensors), _options(args, named)
        root = int(getattr(opts, "rootRank", -1))
        job = self.planned("broadcast", tensor, tensor, tensor, opts, root) if root >= 0 else "the root is not given"
        return self.run_planned([job], [tensor], opts, "broadcast", (tensors, *args), named)

    def _gather_into(self, name: str, output: Any, tensor: Any, *args: Any, **named: Any) -> Any:
        given = (output, tensor, *args)
        return self._ready_or_planned("allgather", output, tensor, output, name, given, named, args)

    def _scatter_from(self, name: str, output: Any, tensor: Any, *args: Any, **named: Any) -> Any:
        given = (output, tensor, *args)
        return self._ready_or_planned("reduce_scatter", tensor, tensor, output, name, given, named, args)

    def _ready_or_planned(
        self,
        collective: str,
        whole: Any,
        given: Any,
        output: Any,
        name: str,
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        more: tuple[Any, ...],
    ) -> Any:
        opts = _options(more, named)
        work = self.run_ready(collective, whole, given, output, opts)
        if work is not None:
            return work
        job = self.planned(collective, whole, given, output, opts)
        return self.run_planned([job], [output], opts, name, arguments, named)

    def _exchange(self, name: str, output: Any, tensor: Any, *args: Any, **named: Any) -> Any:
        opts = _options(args[2:], named)
        splits = [list(value) for value in args[:2]]
        if len(splits) != 2 or any(splits):
            if len(splits) == 2 and self.alltoallv is not None:
                work = self.alltoallv(self, output, tensor, tuple(splits), opts)
                if work is not None:
                    return work
            return self.by_library(name, "split sizes may differ", (output, tensor, *args), named)
        even = tensor.numel() == output.numel() and tensor.numel() % self.my_size == 0
        job = self.planned("alltoall", tensor, tensor, output, opts) if even else "blocks are not equal"
        return self.run_planned([job], [output], opts, name, (output, tensor, *args), named)

    # -- several tensors ----------------------------------------------------------------------------------------------

    def allgather(self, outputs: Any, tensors: Any, *args: Any, **named: Any) -> Any:
        """Like `all_gather_single`, into one tensor per rank."""
        given, opts = (outputs, tensors, *args), _options(args, named)
        if not _is_one(tensors):
            return self.by_library("allgather", _SEVERAL, given, named)
        parts, tensor = outputs[0] if outputs else None, _only(tensors)
        if not isinstance(parts, list | tuple) or not _alike(parts, tensor) or tensor.is_cuda:
            return self.by_library("allgather", "tensors of different sizes, or lists on GPUs", given, named)
        whole = tensor.new_empty(tensor.numel() * self.my_size)
        job = self.planned("allgather", whole, tensor, whole, opts)

        def after() -> None:
            for part, block in zip(parts, whole.chunk(self.my_size), strict=True):
                part.copy_(block.view_as(part))

        return self.run_planned([job], list(parts), opts, "allgather", given, named, after)

    def reduce_scatter(self, outputs: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        """Like `reduce_scatter_single`, from one tensor per rank."""
        given, opts = (outputs, inputs, *args), _options(args, named)
        if not _is_one(outputs):
            return self.by_library("reduce_scatter", _SEVERAL, given, named)
        parts, output = inputs[0] if inputs else None, _only(outputs)
        if not isinstance(parts, list | tuple) or not _alike(parts, output) or output.is_cuda:
            return self.by_library("reduce_scatter", "tensors of different sizes, or lists on GPUs", given, named)
        whole = self.torch.cat([part.detach().reshape(-1) for part in parts])
        job = self.planned("reduce_scatter", whole, whole, output, opts)
        return self.run_planned([job], [output], opts, "reduce_scatter", given, named)

    def alltoall(self, outputs: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        """Like `all_to_all_single`, from and to one tensor per rank; their sizes may differ."""
        given, opts = (outputs, inputs, *args), _options(args, named)
        if self.alltoallv is None or not inputs or not outputs or len({t.dtype for t in (*inputs, *outputs)}) > 1:
            return self.by_library("alltoall", "no plans are made for it", given, named)
        splits = [part.numel() for part in outputs], [part.numel() for part in inputs]
        whole = outputs[0].new_empty(sum(splits[0]))

        def after() -> None:
            for part, block in zip(outputs, whole.split(splits[0]), strict=True):
                part.copy_(block.view_as(part))

        flat = self.torch.cat([part.detach().reshape(-1) for part in inputs])
        work = self.alltoallv(self, whole, flat, splits, opts, after)
        return self.by_library("alltoall", "tensors on GPUs", given, named) if work is None else work

    def allreduce_coalesced(self, tensors: Any, *args: Any, **named: Any) -> Any:
        """Several allreduces in one call."""
        opts = _options(args, named)
        jobs = [self.planned("allreduce", tensor, tensor, tensor, opts) for tensor in tensors]
        return self.run_planned(jobs, list(tensors), opts, "allreduce_coalesced", (tensors, *args), named)

    def _gather_each(self, name: str, outputs: Any, tensors: Any, *args: Any, **named: Any) -> Any:
        opts = _options(args, named)
        jobs = [self.planned("allgather", o, t, o, opts) for o, t in zip(outputs, tensors, strict=True)]
        return self.run_planned(jobs, list(outputs), opts, name, (outputs, tensors, *args), named)

    def _scatter_each(self, name: str, outputs: Any, tensors: Any, *args: Any, **named: Any) -> Any:
        opts = _options(args, named)
        jobs = [self.planned("reduce_scatter", t, t, o, opts) for o, t in zip(outputs, tensors, strict=True)]
        return self.run_planned(jobs, list(outputs), opts, name, (outputs, tensors, *args), named)

    # -- the group itself ---------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """End the group: its calls, then the library's group."""
        self.thread.close()
        self.inner.shutdown()


_NAMES = {  # method: the one that implements it
    "all_gather_single": "_gather_into",
    "_allgather_base": "_gather_into",
    "reduce_scatter_single": "_scatter_from",
    "_reduce_scatter_base": "_scatter_from",
    "all_to_all_single": "_exchange",
    "alltoall_base": "_exchange",
    "all_gather_single_coalesced": "_gather_each",
    "allgather_into_tensor_coalesced": "_gather_each",
    "reduce_scatter_single_coalesced": "_scatter_each",
    "reduce_scatter_tensor_coalesced": "_scatter_each",
}
_SEVERAL = "several tensors in one call"
_OF_INNER = ("abort", "split_group", "merge_remote_group", "get_group_store")
_LIBRARY_ONLY = ("allgather_coalesced", "barrier", "gather", "reduce", "scatter")


def _named(name: str, implementation: str) -> Callable[..., Any]:
    function = getattr(GroupMethods, implementation)

    def method(self: GroupMethods, *args: Any, **named: Any) -> Any:
        return function(self, name, *args, **named)

    return method


def _forwarded(name: str) -> Callable[..., Any]:
    def method(self: GroupMethods, *args: Any, **named: Any) -> Any:
        return self.by_library(name, "no plans are made for it", args, named)

    return method


def _of_inner(name: str) -> Callable[..., Any]:
    def method(self: GroupMethods, *args: Any, **named: Any) -> Any:
        return getattr(self.inner, name)(*args, **named)

    return method


@lru_cache(maxsize=1)
def group_class() -> Any:
    """Return the class of process groups, derived from the installed torch's."""
    torch = import_torch()
    base: Any = torch.distributed.ProcessGroup

    class FlowcclGroup(GroupMethods, base):  # type: ignore[misc]  # torch is an extra
        def __init__(self, parts: GroupParts) -> None:
            inner = parts.inner
            base.__init__(self, inner.rank(), inner.size())
            for device in inner._device_types:
                backend = inner._get_backend(device)
                self._register_backend(device, _kind(base, backend.name()), backend)
            self._set_default_backend(_kind(base, inner.name()))
            if inner.bound_device_id is not None:
                self.bound_device_id = inner.bound_device_id
            self.begin(parts)

        def getBackendName(self) -> str:
            return str(self.inner.name())

    for name, implementation in _NAMES.items():
        setattr(FlowcclGroup, name, _named(name, implementation))
    for name in _OF_INNER:
        setattr(FlowcclGroup, name, _of_inner(name))
    for name in _LIBRARY_ONLY:
        setattr(FlowcclGroup, name, _forwarded(name))
    uncompiled(getattr(FlowcclGroup, name) for name in dir(FlowcclGroup))
    return FlowcclGroup


def _kind(base: Any, name: str) -> Any:
    """The type of a backend."""
    return getattr(base.BackendType, str(name).upper(), base.BackendType.CUSTOM)


def counts_of(group: Any) -> dict[str, dict[str, int]]:
    """Return how many times a group ran each collective by a schedule and by the library."""
    if not isinstance(group, GroupMethods):
        raise InputError('this group does not use the backend "flowccl"')
    counts = {"scheduled": dict(group.scheduled), "inner": dict(group.fallen_back)}
    return counts if group.parts.plans is None else counts | {"plans": dict(group.parts.plans.counts)}


# -- arguments ----------------------------------------------------------------------------------------------------


def _options(args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The options of a call; its last argument in all forms that the front end uses."""
    return args[0] if args else named.get("opts")


def _is_one(tensors: Any) -> bool:
    """Whether a call has one tensor; the interface of groups allows several, which the library treats as one call."""
    return not isinstance(tensors, list | tuple) or len(tensors) == 1


def _only(tensors: Any) -> Any:
    return tensors[0] if isinstance(tensors, (list, tuple)) else tensors


def _alike(parts: Sequence[Any], tensor: Any) -> bool:
    return all(part.numel() == tensor.numel() and part.dtype == tensor.dtype for part in parts)
