"""PyTorch profiler traces (Chrome JSON): kernels of NCCL, `record_param_comms`, and the events of gloo.

With NCCL, kernels carry the arguments of their call. A call without a kernel of its own (no GPU activity in the trace,
a copy instead of a kernel, several calls that NCCL runs as one) has only `record_param_comms`, without a time on the
GPU. Gloo's own events have a duration, and the operations of c10d have the sizes and splits: both are matched in order.
Gloo needs `record_shapes=True`.
"""

from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowccl.jobs.calls import Calls, CallsBuilder, Group
from flowccl.jobs.gloo_groups import groups_of_threads
from flowccl.jobs.names import buffer_bytes, bytes_of_type, collective_of
from flowccl.jobs.text import DAMAGED, JsonArray
from flowccl.jobs.torch_names import Groups, add_param_comms, groups_of
from flowccl.jobs.values import elements, integers, nanoseconds, proportional, whole
from flowccl.wording import counted

FORMAT = "profiler"
_STEP = "ProfilerStep#"
_ID = "External id"  # a kernel has that of the operation that launched it
_OTHER_PHASES = frozenset("BEiICbnesTtfPNODMVvcR(),apSF")  # kinds of events of the format; calls are of kind X
# Bytes of an element of a list of tensors: PyTorch does not write its type, but gloo's event does once it is matched.
_ASSUMED_BYTES = 4
# What gloo runs for an operation of c10d, where the names differ: it implements reduce_scatter by an allreduce.
_RUN_AS = {"reduce_scatter": "allreduce"}


def recognized(start: bytes, name: str) -> bool:
    """Whether a file looks like this format."""
    return b'"traceEvents"' in start or (start.lstrip()[:1] == b"[" and b'"ph"' in start[:4096])


@dataclass(slots=True)
class _Operation:
    """An operation of c10d: what was asked for, before it is known when it ran."""

    collective: str
    in_bytes: int
    out_bytes: int
    shapes: bool
    dtype: str
    splits: tuple[int, ...]
    root: int
    peer: int
    receives: bool
    start_ns: int
    ran: "_Run | None" = None


@dataclass(slots=True)
class _Run:
    """An event of gloo: when it ran, on which thread."""

    collective: str
    count: int
    start_ns: int
    duration_ns: int
    thread: int
    dtype: str


class _TraceCalls:
    """The calls of a file. Facts that stand behind the events are filled in at the end."""

    def __init__(self, path: Path) -> None:
        self.kernels, self.params = CallsBuilder(str(path), FORMAT), CallsBuilder(str(path), FORMAT)
        self.skipped = Counter[str]()
        self.row_of: dict[int, int] = {}  # the kernel of each call, by the id that both have
        self.param_ids: list[int] = []
        self.operations: list[_Operation] = []
        self.runs: list[_Run] = []
        self.steps: list[int] = []

    def see(self, event: dict[str, Any], groups: Groups, rank: int) -> None:
        """Keep an event if it matters."""
        name, phase = event.get("name"), event.get("ph")
        if isinstance(phase, str) and phase in _OTHER_PHASES:
            return
        if not isinstance(name, str) or phase not in ("X", None):
            self.skipped[f"{DAMAGED}: an event without a name or with an unknown phase"] += 1
            return
        if name == "record_param_comms" or (event.get("cat") == "kernel" and _is_nccl(event, name)):
            self._nccl(event, name, groups, rank)
        elif name.startswith("gloo:"):
            self._gloo(event, name)
        elif name.startswith("c10d::"):
            self._operation(event, name)
        elif name.startswith(_STEP) and event.get("cat") != "gpu_user_annotation":
            self.steps.append(nanoseconds(event.get("ts")))

    def _nccl(self, event: dict[str, Any], name: str, groups: Groups, rank: int) -> None:
        facts, start = event.get("args"), nanoseconds(event.get("ts"))
        if not isinstance(facts, dict) or start < 0:
            self.skipped[f"{DAMAGED}: an event of NCCL without arguments or time"] += 1
        elif name == "record_param_comms":
            add_param_comms(self.params, facts, groups, rank if rank >= 0 else whole(facts.get("Rank")), start, -1)
            if len(self.params) > len(self.param_ids):
                self.param_ids.append(whole(facts.get(_ID)))
        elif "Collective name" in facts:
            self._kernel(event, facts, groups, rank, start)
        else:
            self.skipped["a kernel of NCCL without the parameters of its call"] += 1

    def _kernel(self, event: dict[str, Any], facts: dict[str, Any], groups: Groups, rank: int, start: int) -> None:
        duration, key, row = nanoseconds(event.get("dur")), whole(facts.get(_ID)), len(self.kernels)
        if duration < 0:
            self.skipped[f"{DAMAGED}: an event of NCCL without a duration"] += 1
        elif key in self.row_of:  # a further kernel of the same call
            self.kernels.reach(self.row_of[key], start, start + duration)
        else:
            add_param_comms(self.kernels, facts, groups, rank, start, duration)
            if key > 0 and len(self.kernels) > row:
                self.row_of[key] = row

    def _gloo(self, event: dict[str, Any], name: str) -> None:
        collective = collective_of(name)
        facts = event.get("args")
        dims = facts.get("Input Dims") if isinstance(facts, dict) else None
        start, duration = nanoseconds(event.get("ts")), nanoseconds(event.get("dur"))
        if collective is None or start < 0 or duration < 0:
            self.skipped[f"{DAMAGED}: an event of gloo"] += 1
            return
        kinds = _list(facts.get("Input type")) if isinstance(facts, dict) else []
        dtype = next((kind for kind in kinds if isinstance(kind, str) and bytes_of_type(kind)), "")
        self.runs.append(_Run(collective, elements(dims), start, duration, whole(event.get("tid")), dtype))

    def _operation(self, event: dict[str, Any], name: str) -> None:
        collective = collective_of(name.rstrip("_"))
        facts, start = event.get("args"), nanoseconds(event.get("ts"))
        if collective is None:
            return
        if not isinstance(facts, dict) or start < 0:
            self.skipped[f"{DAMAGED}: an operation of c10d"] += 1
            return
        self.operations.append(_operation_of(name, collective, facts, start))


def _operation_of(name: str, collective: str, facts: dict[str, Any], start: int) -> _Operation:
    dims, kinds, values = (_list(facts.get(key)) for key in ("Input Dims", "Input type", "Concrete Inputs"))
    dtype = next((kind for kind in kinds if isinstance(kind, str) and bytes_of_type(kind)), "")
    element = bytes_of_type(dtype) or _ASSUMED_BYTES
    tensors = [elements(item) for item in dims if isinstance(item, list) and item]
    counts = [count for count in tensors if count >= 0]
    numbers = [found for value in values if (found := whole(value, -2)) != -2]
    lists = [parts for value in values if isinstance(value, str) and "[" in value and (parts := integers(value))]
    two = len(counts) > 1 and collective in ("allgather", "reduce_scatter", "alltoall", "gather", "scatter")
    out_bytes, in_bytes = (
        (counts[0] * element, counts[1] * element) if two else (max(counts, default=-1) * element,) * 2
    )
    splits = proportional(in_bytes, lists[1]) if collective == "alltoall" and len(lists) == 2 else ()
    root = numbers[0] if collective in ("broadcast", "reduce", "gather", "scatter") and numbers else -1
    peer = numbers[0] if collective == "send" and numbers else -1
    receives = "recv" in name
    return _Operation(collective, in_bytes, out_bytes, bool(counts), dtype, splits, root, peer, receives, start)


def read(path: Path) -> Calls:
    """Return the calls of one rank."""
    trace = _TraceCalls(path)
    array = JsonArray(path, "traceEvents", trace.skipped)
    known = -1
    for event in array:
        if len(array.rest) != known:  # the facts in front of the events, once
            known, (groups, rank, world) = len(array.rest), _facts(array.rest)
        trace.see(event, groups, rank)
    groups, rank, world = _facts(array.rest)
    table = trace.kernels if len(trace.kernels) or not len(trace.params) else trace.params
    if len(trace.kernels):
        _add_without_kernel(table, trace)
        table.skipped |= trace.params.skipped  # the same calls: the larger count of each reason
    elif table is trace.params:
        table.notes.append("no GPU activity in the trace: the calls have no time; profile with ProfilerActivity.CUDA")
    elif not len(table):
        _add_gloo(table, trace, groups, rank, world)
    table.skipped.update(trace.skipped)
    table.steps_ns = [at for at in trace.steps if at >= 0]
    base = max(whole(array.rest.get("baseTimeNanoseconds"), 0), 0)
    return table.done(base_ns=base, rank=rank, groups=groups)


def _is_nccl(event: dict[str, Any], name: str) -> bool:
    """Whether a kernel is one of NCCL: by its name, or because the profiler gave it the parameters of a call."""
    facts = event.get("args")
    return name.startswith("nccl") or (isinstance(facts, dict) and "Collective name" in facts)


def _add_without_kernel(table: CallsBuilder, trace: _TraceCalls) -> None:
    """Add the calls of the host that have no kernel, if the ids of this trace tell which have one."""
    alone = [row for row, key in enumerate(trace.param_ids) if key not in trace.row_of]
    if not alone or len(alone) == len(trace.param_ids):
        return
    table.add_rows(trace.params, alone)
    table.notes.append(f"{counted(len(alone), 'call has', 'calls have')} no kernel in the trace, and so no time")


def _facts(rest: dict[str, Any]) -> tuple[Groups, int, int]:
    """The process groups by name, the rank, and the number of ranks."""
    info = rest.get("distributedInfo")
    facts = info if isinstance(info, dict) else {}
    world = whole(facts.get("world_size"), 0)
    return groups_of(facts.get("pg_config"), world), whole(facts.get("rank")), world


def _add_gloo(table: CallsBuilder, trace: _TraceCalls, groups: Groups, rank: int, world: int) -> None:
    """Match operations with gloo's events, find the group of each thread, and add the calls."""
    _match(trace)
    sizes: dict[int, set[int]] = defaultdict(set)
    for one in trace.operations:
        if one.ran is not None and (size := _group_size(one)):
            sizes[one.ran.thread].add(size)
    threads = sorted({run.thread for run in trace.runs})
    every = list(groups.values()) or ([Group(world, tuple(range(world)))] if world > 1 else [])
    of_thread = groups_of_threads(threads, sizes, every)
    if len(every) > 1 and any(thread not in of_thread for thread in threads):
        table.notes.append("gloo does not tell the group of some calls: the first group of fitting size is taken")
    if any(one.shapes and not one.dtype for one in trace.operations):
        table.notes.append("the element type of some calls is not in the trace: 4 bytes are assumed")
    for one in trace.operations:
        group = _group(one, of_thread, every)
        if not one.shapes and one.collective != "barrier":
            table.skipped["without sizes: profile with record_shapes=True"] += 1
        elif group is None:
            table.skipped["the process group is not described: the trace has no distributedInfo"] += 1
        elif group.size > 1:
            _add(table, one, group, rank)
        else:
            table.skipped["a group of one rank moves nothing"] += 1


def _match(trace: _TraceCalls) -> None:
    """Give every operation its run: the first one of its kind and size, not yet taken, that starts after it."""
    waiting: dict[tuple[str, int], deque[_Run]] = defaultdict(deque)
    for run in sorted(trace.runs, key=lambda run: run.start_ns):
        waiting[run.collective, run.count].append(run)
    for one in sorted(trace.operations, key=lambda one: one.start_ns):
        name = _RUN_AS.get(one.collective, one.collective)
        element = bytes_of_type(one.dtype) or _ASSUMED_BYTES
        for key in ((name, one.in_bytes // element), (name, one.out_bytes // element), (one.collective, -1)):
            queue = waiting.get(key)
            while queue and queue[0].start_ns < one.start_ns:
                queue.popleft()
            if queue:
                one.ran = queue.popleft()
                _type_from_run(one, one.ran)
                break


def _type_from_run(one: _Operation, run: _Run) -> None:
    """Give an operation on a list of tensors the element type that gloo's event has."""
    element = bytes_of_type(run.dtype)
    if not one.dtype and element is not None:
        one.dtype = run.dtype
        one.in_bytes = one.in_bytes // _ASSUMED_BYTES * element
        one.out_bytes = one.out_bytes // _ASSUMED_BYTES * element


def _group_size(one: _Operation) -> int:
    """The size of the group as the sizes of the tensors tell it; 0 where they do not."""
    if one.splits:
        return len(one.splits)
    small, large = sorted((one.in_bytes, one.out_bytes))
    if one.collective in ("allgather", "reduce_scatter") and 0 < small < large:
        return large // small if large % small == 0 else 0
    return 0


def _group(one: _Operation, of_thread: dict[int, Group], every: list[Group]) -> Group | None:
    if one.ran is not None and one.ran.thread in of_thread:
        return of_thread[one.ran.thread]
    size = _group_size(one)
    fitting = [group for group in every if group.size == size] if size else every
    return fitting[0] if fitting else None


def _add(table: CallsBuilder, one: _Operation, group: Group, rank: int) -> None:
    collective, start, duration = one.collective, one.start_ns, -1
    if one.ran is not None:
        start, duration = one.ran.start_ns, one.ran.duration_ns
    root = group.ranks[one.root] if group.ranks and 0 <= one.root < group.size else -1
    if collective == "send" and group.ranks and 0 <= one.peer < group.size and rank >= 0:
        peer = group.ranks[one.peer]
        group = Group(2, (peer, rank) if one.receives else (rank, peer))
    if collective == "alltoall" and len(one.splits) == group.size:
        collective = "alltoallv"
    table.add(
        collective,
        0 if collective == "barrier" else buffer_bytes(collective, one.in_bytes, one.out_bytes, group.size),
        table.group(group),
        start_ns=start,
        duration_ns=duration,
        rank=rank,
        root=root,
        splits=one.splits if collective == "alltoallv" else (),
        dtype=one.dtype,
    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
