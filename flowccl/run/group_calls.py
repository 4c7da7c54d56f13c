"""Calls of a process group: which plan serves a call, its execution, and the library for everything else."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from flowccl.run.call_log import CALLS, CallCount
from flowccl.run.group_works import CallThread, done
from flowccl.run.mscclpp.tensors import PlanGroup, SizedPlan
from flowccl.run.rank_program import MOST_MESSAGES, MessageCarrier, RankProgram
from flowccl.run.torch_run import Runner, import_torch, runner_of
from flowccl.schedule.schedule import Schedule

_CALLS_IN_FLIGHT = 1 << 10  # calls of a group after which tags are used again
_MOST_READY = 64  # remembered kinds of calls with their programs
_MOST_SERVICES = 4096  # remembered kinds of calls
_TYPES = ("float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64")
_AVERAGED = ("bfloat16", "float32", "float64")  # float16 could overflow before the division
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
    carriers: dict[str, MessageCarrier] = field(default_factory=dict)
    plans: PlanGroup | None = None
    finished: Callable[[float], None] | None = None
    chooser: Any = None


@dataclass(frozen=True, slots=True)
class _Service:
    """What serves a kind of call: a runner or a plan on GPUs, or neither of them, and where its calls are counted.

    `size` is the bytes of the whole buffer.
    """

    row: CallCount | None
    reason: str
    size: int = 0
    runner: Runner | None = None
    carrier: MessageCarrier | None = None
    sized: SizedPlan | None = None


@dataclass(slots=True, eq=False)
class PlannedCall:
    """A collective on tensors that a plan serves; `count` are the elements of the whole buffer.

    If `average`, the sum is divided by the number of ranks. `number` and `begun` are set when it is run.
    """

    service: _Service
    row: CallCount
    count: int
    given: Any
    output: Any
    average: bool
    number: int = 0
    begun: float = 0.0


@dataclass(frozen=True, slots=True)
class _Ready:
    """A kind of call on the CPU that ran before: its program for this rank and size, its carrier, and its count."""

    program: RankProgram
    carrier: MessageCarrier
    row: CallCount
    size: int


class GroupCalls:
    """Runs the calls of a group."""

    def begin(self, parts: GroupParts) -> None:
        """Take the parts of the group."""
        self.parts, self.inner = parts, parts.inner
        self.my_rank, self.my_size = int(parts.inner.rank()), int(parts.inner.size())
        self.services: dict[tuple[str, int, Any, str, int], _Service] = {}
        self.ready: dict[tuple[str, int, Any], _Ready] = {}
        self.calls = 0
        self.scheduled: Counter[str] = Counter()
        self.fallen_back: Counter[str] = Counter()
        self.thread = CallThread(f"flowccl-{self.my_rank}-of-{self.my_size}")
        self.failed: BaseException | None = None
        self.torch = import_torch()
        operations = self.torch.distributed.ReduceOp
        self.sum, self.average = operations.SUM, operations.AVG
        self.averaged = {getattr(self.torch, name) for name in _AVERAGED}

    # -- the selection ------------------------------------------------------------------------------------------------

    def planned(
        self, collective: str, whole: Any, given: Any, output: Any, opts: Any, root: int = -1
    ) -> PlannedCall | str:
        """Return the collective as a job of a plan, or the reason why the library serves it."""
        count, dtype = whole.numel(), whole.dtype
        if whole.is_sparse or not count:
            return "a sparse or an empty tensor"
        if given is not output and given.dtype != output.dtype:
            return "input and output have different types"
        average: bool | None = False
        if opts is not None and collective in _REDUCING:
            average = self._divides(opts)
            if average is None or (average and dtype not in self.averaged):
                return "only sums and averages of large types are planned"
        key = (collective, count, dtype, "cpu" if whole.is_cpu else whole.device.type, root)
        service = self.services.get(key) or self._remembered(key, whole.element_size())
        if service.row is None:
            return service.reason
        return PlannedCall(service, service.row, count, given, output, bool(average))

    def _remembered(self, key: tuple[str, int, Any, str, int], width: int) -> _Service:
        """Select what serves a kind of call whose elements have `width` bytes, and keep it for the next calls."""
        collective, count, dtype, device, root = key
        service = self._service(collective, count * width, device, str(dtype).removeprefix("torch."), root)
        if self.parts.fixed:
            if len(self.services) >= _MOST_SERVICES:
                self.services.clear()
            self.services[key] = service
        return service

    def _service(self, collective: str, size: int, device: str, dtype: str, root: int) -> _Service:
        """Select what serves a kind of call."""
        if collective in _REDUCING and dtype not in _TYPES:
            return _Service(None, f"sums of {dtype} are not planned")
        selected = self.parts.select(collective, size, root)
        if selected.schedule is None and selected.sized is None and not selected.any_plan:
            return _Service(None, selected.reason)
        carrier = self.parts.carriers.get(device)
        if carrier is not None and selected.schedule is not None:
            row = CALLS.row(collective, self.my_size, device, f"plan {selected.plan}", True, selected.reason)
            return _Service(row, selected.reason, size, runner_of(selected.schedule), carrier)
        plans = self.parts.plans
        if device != "cuda" or plans is None or (selected.sized is None and not selected.any_plan):
            return _Service(None, f"{selected.plan} cannot run on {device} tensors in this group")
        sized = plans.find(collective, size, dtype, max(root, 0), None if selected.any_plan else selected.sized)
        if sized is None:
            return _Service(None, f"{selected.plan} serves neither this size nor {dtype} on GPUs")
        row = CALLS.row(collective, self.my_size, device, f"plan {selected.plan}", True, selected.reason)
        return _Service(row, selected.reason, size, sized=sized)

    def _divides(self, opts: Any) -> bool | None:
        """Whether a reduction is an average; None: neither sum nor average."""
        try:
            op = opts.reduceOp
        except AttributeError:
            return None
        return False if op == self.sum else True if op == self.average else None

    # -- calls that are ready -----------------------------------------------------------------------------------------

    def run_ready(self, collective: str, whole: Any, given: Any, output: Any, opts: Any) -> Any:
        """Run a call like one before, with few steps before its first message; None: it must be planned.

        That is a sum on flat tensors on the CPU, for which the program waits, while no other call is in flight.
        """
        found = self.ready.get((collective, whole.numel(), whole.dtype))
        if found is None or self.thread.pending or self.failed is not None or getattr(opts, "asyncOp", True):
            return None
        if not _is_plain(given) or (collective in _REDUCING and getattr(opts, "reduceOp", None) != self.sum):
            return None
        program = found.program
        if given is not output and not (_is_plain(output) and _fits(program, given, output)):
            return None
        begun = perf_counter()
        self.calls = number = self.calls + 1
        try:
            program.run(given, output, found.carrier, number % _CALLS_IN_FLIGHT * MOST_MESSAGES, output.new_empty)
        except RuntimeError as error:
            raise self._failure(found.row, error) from error
        finally:  # what need not come before the first message comes after the last one
            found.row.begin(found.size)
            self.scheduled[collective] += 1
        found.row.end(begun)
        return done([output])

    def _remember_ready(self, job: PlannedCall) -> None:
        """Keep what a call on the CPU has prepared for the next ones like it."""
        service, whole = job.service, job.given
        if service.runner is None or service.carrier is None or not whole.is_cpu or not self.parts.fixed:
            return
        if self.parts.finished is None and (program := service.runner.prepared.get((self.my_rank, job.count))):
            if len(self.ready) >= _MOST_READY:
                self.ready.clear()
            key = (job.row.collective, job.count, whole.dtype)
            self.ready[key] = _Ready(program, service.carrier, job.row, service.size)

    def _failure(self, row: CallCount, error: BaseException) -> RuntimeError:
        """The error of a call; all later calls of the group raise it, too."""
        self.failed = failed = RuntimeError(f"flowccl: rank {self.my_rank}: {row.words} failed: {error}")
        return failed

    # -- execution ----------------------------------------------------------------------------------------------------

    def run_planned(
        self,
        jobs: Sequence[PlannedCall | str],
        result: list[Any],
        opts: Any,
        name: str,
        args: tuple[Any, ...],
        named: dict[str, Any],
        after: Callable[[], None] | None = None,
    ) -> Any:
        """Run the jobs by their plans, or the whole call by the library if one of them has no plan."""
        found: list[PlannedCall] = []
        for job in jobs:
            if type(job) is str:
                return self.by_library(name, job, args, named)
            found.append(job)  # type: ignore[arg-type]  # it is no str
        if not found:
            return self.by_library(name, "no tensors", args, named)
        if self.failed is not None:
            raise self.failed
        for job in found:
            self.calls = number = self.calls + 1
            job.number = number % _CALLS_IN_FLIGHT  # the same on all ranks
            row = job.row
            job.begun = row.begin(job.service.size)
            self.scheduled[row.collective] += 1
        if found[0].service.sized is not None:
            return self._on_gpu(found)
        if self.thread.pending or (self._may_go_on(opts) and found[0].given.is_cpu):
            return self.thread.submit(self._call, (found, after), result)
        self._call(found, after)
        if after is None and len(found) == 1:
            self._remember_ready(found[0])
        return done(result)

    def run_function(
        self, run: Callable[[int], None], row: CallCount, size_bytes: int, result: list[Any], opts: Any
    ) -> Any:
        """Run a function as a call of the group on the CPU; it gets the number of the call, the same on all ranks."""
        if self.failed is not None:
            raise self.failed
        self.calls += 1
        number, begun = self.calls % _CALLS_IN_FLIGHT, row.begin(size_bytes)
        self.scheduled[row.collective] += 1

        def call() -> None:
            try:
                with self.torch.no_grad():
                    run(number)
            except RuntimeError as error:
                raise self._failure(row, error) from error
            finally:
                row.end(begun)

        if self.thread.pending or self._may_go_on(opts):
            return self.thread.submit(call, (), result)
        call()
        return done(result)

    def _may_go_on(self, opts: Any) -> bool:
        """Whether the program goes on while a call runs; a call without options may be anybody's."""
        return self.parts.finished is None and (opts is None or bool(getattr(opts, "asyncOp", True)))

    def _call(self, jobs: Sequence[PlannedCall], after: Callable[[], None] | None) -> None:
        """Run jobs one after the other; on the CPU they are complete at the end."""
        try:
            mode = self._without_grad(jobs)
            if mode is None:
                self._run_all(jobs, after)
            else:
                with mode:
                    self._run_all(jobs, after)
        except RuntimeError as error:
            raise self._failure(jobs[0].row, error) from error

    def _run_all(self, jobs: Sequence[PlannedCall], after: Callable[[], None] | None) -> None:
        for job in jobs:
            service = job.service
            if service.runner is not None and service.carrier is not None:
                place = (service.carrier, job.number * MOST_MESSAGES)
                service.runner.run(self.my_rank, job.count, job.given, job.output, *place)
                if job.average:
                    job.output.div_(self.my_size)
            seconds = job.row.end(job.begun)
            if self.parts.finished is not None:
                self.parts.finished(1e6 * seconds)
        if after is not None:
            after()

    def _without_grad(self, jobs: Sequence[PlannedCall]) -> AbstractContextManager[Any] | None:
        """Results are written without a gradient, as the library does; None: most tensors need no mode for this."""
        for job in jobs:
            output, given = job.output, job.given
            if output.is_inference():
                return self.torch.inference_mode()  # type: ignore[no-any-return]
            if output.requires_grad or (given is not output and given.requires_grad):
                return self.torch.no_grad()  # type: ignore[no-any-return]
        return None

    def _on_gpu(self, jobs: Sequence[PlannedCall]) -> Any:
        plans, work = self.parts.plans, None
        for job in jobs:
            sized, whole = job.service.sized, job.service.size
            if plans is not None and sized is not None:
                name = str(job.given.dtype).removeprefix("torch.")
                work = plans.run(sized, job.given, job.output, whole, name, job.average)
            job.row.end(job.begun)
        return work

    def by_library(self, name: str, reason: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Run a call by the library, and count it."""
        tensor = next(_tensors(args), None)
        device = "cpu" if tensor is None else tensor.device.type
        row = CALLS.row(name, self.my_size, device, f"library {self.inner.name()}", False, reason)
        begun = row.begin(_size_of(args))
        self.fallen_back[name] += 1
        work = getattr(self.inner, name)(*args, **named)
        if self.parts.finished is not None:
            work.wait()
            self.parts.finished(1e6 * row.end(begun))
        elif device != "cpu" or work is None or not CALLS.times_matter():
            row.end(begun)
        else:
            try:
                work.get_future().add_done_callback(lambda _: row.end(begun))
            except RuntimeError:  # some works of gloo have no future
                row.end(begun)
        return work


def _is_plain(tensor: Any) -> bool:
    """Whether a tensor is flat (no sparse one is), on the CPU, and needs no mode of autograd."""
    return bool(
        tensor.is_cpu
        and tensor.dim() == 1
        and tensor.is_contiguous()
        and not tensor.requires_grad
        and not tensor.is_inference()
    )


def _fits(program: RankProgram, given: Any, output: Any) -> bool:
    """Whether two tensors have one type, and the sizes of a program."""
    return given.dtype == output.dtype and (given.numel(), output.numel()) == program.sizes


def _tensors(value: Any) -> Iterator[Any]:
    """The tensors in nested lists."""
    if isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif hasattr(value, "device") and hasattr(value, "numel"):
        yield value


def _size_of(args: tuple[Any, ...]) -> int:
    """The bytes of the first argument of a call that has tensors."""
    found: list[Any] = next(filter(None, (list(_tensors(value)) for value in args)), [])
    return sum(int(tensor.numel() * tensor.element_size()) for tensor in found if not tensor.is_sparse)
