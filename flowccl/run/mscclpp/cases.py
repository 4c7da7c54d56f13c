"""Cases: one plan with a size, a type and a place; how one rank runs them, and how the results of all ranks combine."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.run.measure import CallTiming, Row
from flowccl.run.mscclpp import cuda
from flowccl.run.mscclpp.plan_facts import PlanFacts, plan_dtype, read_plan
from flowccl.run.mscclpp.runtime import Runtime, call_buffers
from flowccl.run.values import Dtype, Inputs, Ints, largest_value, values

_NO_DATA = 0xEE  # bytes of an output before a call
Words = NDArray[Any]
PERIOD = 65537  # elements; a prime, so that no two chunks of an even division begin with the same elements


def encode(numbers: Ints, dtype: Dtype) -> Words:
    """Return whole numbers as words of the type: the bits of each element as an unsigned number."""
    if dtype.name == "bfloat16":
        return (numbers.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return numbers.astype(dtype.name).view(word_type(dtype))


def word_type(dtype: Dtype) -> str:
    """Return the numpy dtype of the words."""
    return f"uint{8 * dtype.itemsize}"


@dataclass(frozen=True)
class PeriodicInputs(Inputs):
    """Inputs with exact results, as words: element i of a rank is element i modulo the period of its pattern."""

    @cached_property
    def _patterns(self) -> list[Ints]:
        ranks = self.layout.demand.num_gpus
        contributions = int(np.diff(self.layout.demand.source_ptr).max())
        most = largest_value(self.dtype, contributions)
        first = self.call * ranks
        return [values(first + rank, 0, PERIOD, ranks, most, self.dtype.exact) for rank in range(ranks)]

    def part(self, rank: int, start: int, stop: int) -> Words:
        """Return the words of elements `start` to `stop` of a rank's input."""
        return self._repeated(self._patterns[rank], start, stop)

    def total(self, start: int, stop: int) -> Words:
        """Return the words of the sum of elements `start` to `stop` of all ranks' inputs."""
        return self._repeated(np.sum(self._patterns, axis=0, dtype=np.int32), start, stop)

    def _repeated(self, pattern: Ints, start: int, stop: int) -> Words:
        return np.resize(encode(np.roll(pattern, -(start % PERIOD)), self.dtype), stop - start)


@dataclass(frozen=True, slots=True)
class PlanCase:
    """One run of a plan: `size` is in bytes, as nccl-tests counts it; the plan decides the place."""

    plan: str
    size: int
    dtype: str
    root: int = 0
    iterations: int = 20
    warmup: int = 5

    def facts(self) -> PlanFacts:
        """Return the facts of the plan."""
        return read_plan(self.plan, self.root)

    def __str__(self) -> str:
        return f"{self.plan}, {self.size} bytes, {self.dtype}"


@dataclass(frozen=True, slots=True)
class RankResult:
    """The result of a case on one rank: the wrong elements of all checked calls, and the time of each timed call."""

    wrong: int
    times_us: tuple[float, ...]


def run_case(runtime: Runtime, rank: int, case: PlanCase, report: Callable[[str], None]) -> RankResult:
    """Run a case as one of its ranks; `report` is called with the name of each step when it begins."""
    report("prepare")
    call = _Call(runtime, rank, case)
    call.fill()
    call.stream.without_running(call.launch)
    runtime.barrier()
    report("first call")
    wrong = call.check()
    runtime.barrier()
    report("timed calls")
    times = call.time(case.warmup, case.iterations)
    runtime.barrier()
    call.fill()
    runtime.barrier()
    report("last call")
    wrong += call.check()
    runtime.reset()
    return RankResult(wrong, tuple(times))


class _Call:
    """The plan, the buffers and the expected results of one rank."""

    def __init__(self, runtime: Runtime, rank: int, case: PlanCase) -> None:
        facts, self.dtype = case.facts(), plan_dtype(case.dtype)
        layout = facts.layout(case.size, self.dtype)
        inputs = PeriodicInputs(layout, self.dtype)
        self.runtime, self.plan, self.stream = runtime, runtime.plan(case.plan), cuda.Stream()
        self.given: Words = inputs.of(rank)
        self.expected: Words = inputs.expected(rank)
        place = facts.collective, facts.inplace, rank, facts.ranks
        self.buffers, self.sizes = call_buffers(runtime, *place, case.size)

    def fill(self) -> None:
        """Write the input, and no data to the output."""
        cuda.fill(self.buffers[1], _NO_DATA, self.sizes[1])
        cuda.upload(self.buffers[0], self.given)

    def launch(self) -> None:
        """Enqueue a call."""
        handle = self.stream.handle.value or 0
        self.runtime.execute(self.plan, self.buffers, self.sizes, self.dtype.name, handle)

    def check(self) -> int:
        """Run a call and return the number of wrong elements in its output."""
        self.launch()
        self.stream.synchronize()
        found = cuda.download(self.buffers[1], len(self.expected), word_type(self.dtype))
        return int(np.count_nonzero(found != self.expected))

    def time(self, warmup: int, iterations: int) -> list[float]:
        """Return the microseconds of calls that follow each other in the stream, after some that are not timed."""
        for _ in range(warmup):
            self.launch()
        events = [cuda.StreamEvent() for _ in range(iterations + 1)]
        self.stream.record(events[0])
        for event in events[1:]:
            self.launch()
            self.stream.record(event)
        self.stream.synchronize()
        return [later.since(earlier) for earlier, later in pairwise(events)]


def combine(case: PlanCase, results: Sequence[RankResult]) -> Row:
    """Return the row of a case: the mean and median time over all ranks and calls, and all wrong elements."""
    facts, dtype = case.facts(), plan_dtype(case.dtype)
    layout = facts.layout(case.size, dtype)
    times = np.array([result.times_us for result in results])
    timing = CallTiming(float(times.mean()), sum(result.wrong for result in results), float(np.median(times)))
    places: dict[str, Any] = {"out_of_place": None, "in_place": None}
    places["in_place" if facts.inplace else "out_of_place"] = timing
    return Row(layout.count, layout.call_count, dtype.name, facts.collective, layout.root, **places)


def merge_places(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with out-of-place and in-place runs of the same case in one row."""
    merged: dict[tuple[object, ...], Row] = {}
    for row in rows:
        key = (row.layout_count, row.dtype, row.collective, row.root)
        other = merged.get(key)
        if other is None:
            merged[key] = row
        elif other.in_place is None and row.in_place is not None:
            merged[key] = dataclasses.replace(other, in_place=row.in_place)
        elif other.out_of_place is None and row.out_of_place is not None:
            merged[key] = dataclasses.replace(other, out_of_place=row.out_of_place)
    return list(merged.values())
