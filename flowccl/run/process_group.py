"""A process group of torch.distributed in which schedules serve some calls, and the library serves all others.

The group has the backends of the library's own group, so everything that is not overridden here (messages between two
ranks, coalescing, sequence numbers, timeouts, splitting) is what it would be without flowccl. torch 2.13 renamed some
methods (`_allgather_base` became `all_gather_single`, for example); both names are defined, and each is forwarded under
its own name.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from flowccl.errors import InputError
from flowccl.run.call_log import CALLS, CallCount
from flowccl.run.group_works import CallThread
from flowccl.run.mscclpp.tensors import PlanGroup, SizedPlan
from flowccl.run.rank_program import MOST_MESSAGES, Carrier
from flowccl.run.torch_run import Runner, import_torch, runner_of
from flowccl.schedule.schedule import Schedule

_CALLS_IN_FLIGHT = 1 << 10  # calls of a group after which tags are used again
_MOST_SERVICES = 4096  # remembered kinds of calls
_TYPES = ("float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64")
_REDUCING = ("allreduce", "reduce_scatter")


@dataclass(frozen=True, slots=True)
class Selected:
    """What serves a call: a schedule with the name of its plan, or None for the library; `reason` says why."""

    schedule: Schedule | None
    plan: str
    reason: str
    sized: SizedPlan | None = None
    any_plan: bool = False
    """On GPUs, `sized` is the plan of MSCCL++, or the one with the nearest size if `any_plan`."""


Select = Callable[[str, int, int], Selected]
"""Selects what serves a call, from the collective, its size in bytes and its root (-1: none); the same on all ranks."""


@dataclass(frozen=True, slots=True)
class GroupParts:
    """What a group is made of.

    inner     the library's group, with its backends
    select    selects schedules
    fixed     whether the selection of equal calls is always the same
    carriers  what carries the messages of schedules, for each type of device
    plans     the plans of MSCCL++ on GPUs
    finished  receives the time of each call in microseconds, if it is given
    chooser   what `select` asks, where it has a state
    """

    inner: Any
    select: Select
    fixed: bool = True
    carriers: dict[str, Carrier] = field(default_factory=dict)
    plans: PlanGroup | None = None
    finished: Callable[[float], None] | None = None
    chooser: Any = None


@dataclass(frozen=True, slots=True)
class _Service:
    """What serves a kind of call: a runner or a plan on GPUs, or neither of them, and where its calls are counted."""

    row: CallCount | None
    reason: str
    runner: Runner | None = None
    sized: SizedPlan | None = None


@dataclass(frozen=True, slots=True)
class _Job:
    """A collective on tensors that is served by a plan; `count` are the elements of the whole buffer."""

    service: _Service
    count: int
    given: Any
    output: Any


class GroupMethods:
    """The methods that torch.distributed calls, without the base class, which requires torch."""

    alltoallv: Callable[["GroupMethods", Any, Any, list[int], list[int]], Any] | None = None
    """Serves `all_to_all_single` with split sizes: (group, output, tensor, output_splits, input_splits).

    It returns a Work, or None to leave the call to the library; so does the attribute None. Split sizes count rows (of
    dimension 0); an empty list means equal blocks. Each rank knows only its own split sizes, so the function must
    decide alike on all ranks of the group, or all would wait for each other for ever. Assign a function to the class
    attribute (as a `staticmethod`) to serve all groups, or to the attribute of one group.
    """

    def begin(self, parts: GroupParts) -> None:
        """Take the parts of the group."""
        self.parts, self.inner = parts, parts.inner
        self.my_rank, self.my_size = int(parts.inner.rank()), int(parts.inner.size())
        self.services: dict[tuple[str, int, str, str, int], _Service] = {}
        self.calls = 0
        self.scheduled: Counter[str] = Counter()
        self.fallen_back: Counter[str] = Counter()
        self.thread = CallThread(f"flowccl-{self.my_rank}-of-{self.my_size}")
        self.failed: BaseException | None = None
        self.torch = import_torch()

    # -- the collectives that schedules implement ---------------------------------------------------------------------

    def allreduce(self, tensors: Any, *args: Any, **named: Any) -> Any:
        """Reduce the tensors of all ranks to their sum, on all ranks."""
        tensor, opts = _only(tensors), _options(args, named)
        job = self._job("allreduce", tensor, tensor, tensor, opts)
        return self._run([job], [tensor], opts, "allreduce", (tensors, *args), named)

    def broadcast(self, tensors: Any, *args: Any, **named: Any) -> Any:
        """Copy the root's tensor to all ranks."""
        tensor, opts = _only(tensors), _options(args, named)
        root = int(getattr(opts, "rootRank", -1))
        job = self._job("broadcast", tensor, tensor, tensor, opts, root) if root >= 0 else "the root is not given"
        return self._run([job], [tensor], opts, "broadcast", (tensors, *args), named)

    def _gather_into(self, name: str, output: Any, tensor: Any, *args: Any, **named: Any) -> Any:
        opts = _options(args, named)
        job = self._job("allgather", output, tensor, output, opts)
        return self._run([job], [output], opts, name, (output, tensor, *args), named)

    def _scatter_from(self, name: str, output: Any, tensor: Any, *args: Any, **named: Any) -> Any:
        opts = _options(args, named)
        job = self._job("reduce_scatter", tensor, tensor, output, opts)
        return self._run([job], [output], opts, name, (output, tensor, *args), named)

    def _exchange(self, name: str, output: Any, tensor: Any, *args: Any, **named: Any) -> Any:
        opts = _options(args[2:], named)
        splits = [list(value) for value in args[:2]]
        if len(splits) != 2 or any(splits):
            if len(splits) == 2 and self.alltoallv is not None:
                work = self.alltoallv(self, output, tensor, *splits)
                if work is not None:
                    return work
            return self._library(name, "split sizes may differ", (output, tensor, *args), named)
        even = tensor.numel() == output.numel() and tensor.numel() % self.my_size == 0
        job = self._job("alltoall", tensor, tensor, output, opts) if even else "blocks are not equal"
        return self._run([job], [output], opts, name, (output, tensor, *args), named)

    # -- several tensors ----------------------------------------------------------------------------------------------

    def allgather(self, outputs: Any, tensors: Any, *args: Any, **named: Any) -> Any:
        """Like `all_gather_single`, into one tensor per rank."""
        given, opts = (outputs, tensors, *args), _options(args, named)
        parts, tensor = outputs[0] if outputs else None, _only(tensors)
        if not isinstance(parts, list | tuple) or not _alike(parts, tensor) or tensor.is_cuda:
            return self._library("allgather", "tensors of different sizes, or lists on GPUs", given, named)
        whole = tensor.new_empty(tensor.numel() * self.my_size)
        job = self._job("allgather", whole, tensor, whole, opts)

        def after() -> None:
            for part, block in zip(parts, whole.chunk(self.my_size), strict=True):
                part.copy_(block.view_as(part))

        return self._run([job], list(parts), opts, "allgather", given, named, after)

    def reduce_scatter(self, outputs: Any, inputs: Any, *args: Any, **named: Any) -> Any:
        """Like `reduce_scatter_single`, from one tensor per rank."""
        given, opts = (outputs, inputs, *args), _options(args, named)
        parts, output = inputs[0] if inputs else None, _only(outputs)
        if not isinstance(parts, list | tuple) or not _alike(parts, output) or output.is_cuda:
            return self._library("reduce_scatter", "tensors of different sizes, or lists on GPUs", given, named)
        whole = self.torch.cat([part.detach().reshape(-1) for part in parts])
        job = self._job("reduce_scatter", whole, whole, output, opts)
        return self._run([job], [output], opts, "reduce_scatter", given, named)

    def allreduce_coalesced(self, tensors: Any, *args: Any, **named: Any) -> Any:
        """Several allreduces in one call."""
        opts = _options(args, named)
        jobs = [self._job("allreduce", tensor, tensor, tensor, opts) for tensor in tensors]
        return self._run(jobs, list(tensors), opts, "allreduce_coalesced", (tensors, *args), named)

    def _gather_each(self, name: str, outputs: Any, tensors: Any, *args: Any, **named: Any) -> Any:
        opts = _options(args, named)
        jobs = [self._job("allgather", o, t, o, opts) for o, t in zip(outputs, tensors, strict=True)]
        return self._run(jobs, list(outputs), opts, name, (outputs, tensors, *args), named)

    def _scatter_each(self, name: str, outputs: Any, tensors: Any, *args: Any, **named: Any) -> Any:
        opts = _options(args, named)
        jobs = [self._job("reduce_scatter", t, t, o, opts) for o, t in zip(outputs, tensors, strict=True)]
        return self._run(jobs, list(outputs), opts, name, (outputs, tensors, *args), named)

    # -- the selection ------------------------------------------------------------------------------------------------

    def _job(self, collective: str, whole: Any, given: Any, output: Any, opts: Any, root: int = -1) -> _Job | str:
        """Return the collective as a job of a plan, or the reason why the library serves it."""
        device = whole.device.type
        if whole.is_sparse or not whole.numel():
            return "a sparse or an empty tensor"
        if given.dtype != output.dtype or (collective in _REDUCING and not self._is_sum(opts)):
            return "only sums are planned" if given.dtype == output.dtype else "input and output have different types"
        count = whole.numel()
        key = (collective, count * whole.element_size(), device, str(whole.dtype), root)
        service = self.services.get(key)
        if service is None:
            service = self._service(*key)
            if self.parts.fixed:
                if len(self.services) >= _MOST_SERVICES:
                    self.services.clear()
                self.services[key] = service
        if service.row is None:
            return service.reason
        return _Job(service, count, given, output)

    def _service(self, collective: str, size: int, device: str, dtype: str, root: int) -> _Service:
        """Select what serves a kind of call."""
        dtype = dtype.removeprefix("torch.")
        if collective in _REDUCING and dtype not in _TYPES:
            return _Service(None, f"sums of {dtype} are not planned")
        selected = self.parts.select(collective, size, root)
        if selected.schedule is None and selected.sized is None and not selected.any_plan:
            return _Service(None, selected.reason)
        if device in self.parts.carriers and selected.schedule is not None:
            row = CALLS.row(collective, self.my_size, device, f"plan {selected.plan}", True, selected.reason)
            return _Service(row, selected.reason, runner=runner_of(selected.schedule))
        plans = self.parts.plans
        if device != "cuda" or plans is None or (selected.sized is None and not selected.any_plan):
            return _Service(None, f"{selected.plan} cannot run on {device} tensors in this group")
        sized = plans.find(collective, size, dtype, max(root, 0), None if selected.any_plan else selected.sized)
        if sized is None:
            return _Service(None, f"{selected.plan} serves neither this size nor {dtype} on GPUs")
        row = CALLS.row(collective, self.my_size, device, f"plan {selected.plan}", True, selected.reason)
        return _Service(row, selected.reason, sized=sized)

    def _is_sum(self, opts: Any) -> bool:
        op = getattr(opts, "reduceOp", None) if opts is not None else self.torch.distributed.ReduceOp.SUM
        return op is not None and bool(op == self.torch.distributed.ReduceOp.SUM)

    # -- execution ----------------------------------------------------------------------------------------------------

    def _run(
        self,
        jobs: Sequence[_Job | str],
        result: list[Any],
        opts: Any,
        name: str,
        args: tuple[Any, ...],
        named: dict[str, Any],
        after: Callable[[], None] | None = None,
    ) -> Any:
        """Run the jobs by their plans, or the whole call by the library if one of them has no plan."""
        found = [job for job in jobs if isinstance(job, _Job)]
        if len(found) < len(jobs) or not found:
            reason = next((job for job in jobs if isinstance(job, str)), "no tensors")
            return self._library(name, reason, args, named)
        if self.failed is not None:
            raise self.failed
        ends = [_counted(job) for job in found]
        for job in found:
            self.scheduled[job.service.row.collective if job.service.row else name] += 1
        if found[0].service.sized is not None:
            return self._on_gpu(found, ends)
        numbers = [self._number() for _ in found]
        call = partial(self._call, found, numbers, ends, after)
        later = bool(getattr(opts, "asyncOp", True)) and self.parts.finished is None
        work = self.thread.submit(call, result, later and found[0].given.device.type == "cpu")
        return work

    def _number(self) -> int:
        """The number of a call of a plan, the same on all ranks."""
        self.calls += 1
        return self.calls % _CALLS_IN_FLIGHT

    def _call(
        self,
        jobs: Sequence[_Job],
        numbers: Sequence[int],
        ends: Sequence[Callable[[], float]],
        after: Callable[[], None] | None,
    ) -> None:
        """Run jobs one after the other; on the CPU they are complete at the end."""
        try:
            with self._without_grad(jobs[0].output):
                for job, number, end in zip(jobs, numbers, ends, strict=True):
                    if job.service.runner is not None:
                        carrier = self.parts.carriers[job.given.device.type]
                        first_tag = number * MOST_MESSAGES
                        job.service.runner.run(self.my_rank, job.count, job.given, job.output, carrier, first_tag)
                    seconds = end()
                    if self.parts.finished is not None:
                        self.parts.finished(1e6 * seconds)
                if after is not None:
                    after()
        except RuntimeError as error:
            row = jobs[0].service.row
            kind = "a plan" if row is None else row.words
            self.failed = RuntimeError(f"flowccl: rank {self.my_rank}: {kind} failed: {error}")
            raise self.failed from error

    def _without_grad(self, output: Any) -> AbstractContextManager[Any]:
        mode = self.torch.inference_mode if output.is_inference() else self.torch.no_grad
        return mode()  # type: ignore[no-any-return]

    def _on_gpu(self, jobs: Sequence[_Job], ends: Sequence[Callable[[], float]]) -> Any:
        plans, work = self.parts.plans, None
        for job, end in zip(jobs, ends, strict=True):
            sized, whole = job.service.sized, job.count * job.given.element_size()
            if plans is not None and sized is not None:
                work = plans.run(sized, job.given, job.output, whole, str(job.given.dtype).removeprefix("torch."))
            end()
        return work

    def _library(self, name: str, reason: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Run a call by the library, and count it."""
        tensor = _first_tensor(args)
        device = "cpu" if tensor is None else tensor.device.type
        row = CALLS.row(name, self.my_size, device, f"library {self.inner.name()}", False, reason)
        end = row.begin(_size_of(args))
        self.fallen_back[name] += 1
        work = getattr(self.inner, name)(*args, **named)
        if self.parts.finished is not None:
            work.wait()
            self.parts.finished(1e6 * end())
        elif device != "cpu" or work is None or not CALLS.times_matter():
            end()
        else:
            work.get_future().add_done_callback(lambda _: end())
        return work

    # -- the group itself ---------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """End the group: its calls, then the library's group."""
        self.thread.close()
        self.inner.shutdown()

    def abort(self) -> None:
        """Abort the library's group."""
        self.inner.abort()

    def split_group(self, *args: Any, **named: Any) -> Any:
        """Split the library's group."""
        return self.inner.split_group(*args, **named)

    def merge_remote_group(self, *args: Any, **named: Any) -> Any:
        """Merge the library's group with another one."""
        return self.inner.merge_remote_group(*args, **named)

    def get_group_store(self) -> Any:
        """Return the store of the group."""
        return self.inner.get_group_store()


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
_LIBRARY_ONLY = ("alltoall", "allgather_coalesced", "barrier", "gather", "reduce", "scatter")


def _named(name: str, implementation: str) -> Callable[..., Any]:
    def method(self: GroupMethods, *args: Any, **named: Any) -> Any:
        return getattr(self, implementation)(name, *args, **named)

    return method


def _forwarded(name: str) -> Callable[..., Any]:
    def method(self: GroupMethods, *args: Any, **named: Any) -> Any:
        return self._library(name, "no plans are made for it", args, named)

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
    for name in _LIBRARY_ONLY:
        setattr(FlowcclGroup, name, _forwarded(name))
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


def _counted(job: _Job) -> Callable[[], float]:
    row = job.service.row
    assert row is not None
    return row.begin(job.count * job.given.element_size())


def _options(args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The options of a call; its last argument in all forms that the front end uses."""
    return args[0] if args else named.get("opts")


def _only(tensors: Any) -> Any:
    return tensors[0] if isinstance(tensors, list | tuple) else tensors


def _alike(parts: Sequence[Any], tensor: Any) -> bool:
    return all(part.numel() == tensor.numel() and part.dtype == tensor.dtype for part in parts)


def _first_tensor(value: Any) -> Any:
    """The first tensor in nested lists."""
    if isinstance(value, list | tuple):
        return next((found for part in value if (found := _first_tensor(part)) is not None), None)
    return value if hasattr(value, "device") and hasattr(value, "numel") else None


def _size_of(args: tuple[Any, ...]) -> int:
    """The bytes of the first tensor of a call."""
    tensor = _first_tensor(args)
    return 0 if tensor is None or tensor.is_sparse else int(tensor.numel() * tensor.element_size())
