"""Runs on real data: every case is checked against the definition, timed, and printed in nccl-tests' columns."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.collectives import busbw_factor
from flowccl.errors import InputError
from flowccl.run.backends import Backend
from flowccl.run.element_layout import ElementLayout, make_layout
from flowccl.run.program import MessageProgram
from flowccl.run.rank_program import BatchCarrier, rank_program
from flowccl.run.reference import execute_into
from flowccl.run.values import Dtype, Inputs, find_dtype, numpy_dtype
from flowccl.schedule.schedule import Schedule
from flowccl.units import parse_bytes


@dataclass(frozen=True)
class RunOptions:
    """Cases to run: every size with every dtype, out of place and, with `inplace`, also in place."""

    sizes: tuple[int, ...]
    dtypes: tuple[str, ...] = ("float32",)
    inplace: bool = False
    iterations: int = 5

    def cases(self, schedule: Schedule) -> list[tuple[ElementLayout, Dtype]]:
        """Return the layout and dtype of every row; sizes are rounded down to whole elements."""
        result = []
        for size in self.sizes:
            for name in self.dtypes:
                dtype = find_dtype(name)
                if size < dtype.itemsize:
                    raise InputError(f"{size} bytes are less than one {dtype.name}; give at least {dtype.itemsize}")
                result.append((make_layout(schedule.demand, size // dtype.itemsize), dtype))
        return result


def parse_sweep(text: str) -> list[int]:
    """Return the sizes of "LOW:HIGH" or "LOW:HIGH:FACTOR": LOW, and multiplied by FACTOR (default: 2) up to HIGH."""
    parts = text.split(":")
    if len(parts) not in (2, 3):
        raise InputError(f"sizes {text!r}: write LOW:HIGH or LOW:HIGH:FACTOR, for example 64KiB:256MiB:4")
    low, high, factor = parse_bytes(parts[0]), parse_bytes(parts[1]), parts[2] if len(parts) == 3 else "2"
    if not factor.isdigit() or int(factor) < 2:
        raise InputError(f"sizes {text!r}: the factor must be a whole number of at least 2, got {factor!r}")
    if low > high:
        raise InputError(f"sizes {text!r}: the first size is larger than the last; write {parts[1]}:{parts[0]}")
    sizes = [low]
    while sizes[-1] * int(factor) <= high:
        sizes.append(sizes[-1] * int(factor))
    return sizes


@dataclass(frozen=True)
class CallTiming:
    """Measured calls: the mean and median time of a call, and the number of wrong elements in all ranks and calls."""

    time_us: float
    wrong: int
    median_us: float


@dataclass(frozen=True)
class Row:
    """One line of the table; a place that was not run is None."""

    layout_count: int
    call_count: int
    dtype: str
    collective: str
    root: int
    out_of_place: CallTiming | None
    in_place: CallTiming | None


def run_cases(program: MessageProgram, options: RunOptions, backend: Backend) -> list[Row]:
    """Run all cases as one of the processes; return the rows, which are the same on every process."""
    rows = []
    process, takes_part = backend.process, backend.process < program.schedule.demand.num_gpus
    for layout, dtype in options.cases(program.schedule):
        inputs = Inputs(layout, dtype)  # an additional process has none: it only acts as memories and relays
        given = backend.array(inputs.of(process) if takes_part else [], dtype)
        expected = backend.array(inputs.expected(process) if takes_part else [], dtype)
        timings = [
            _run_case(program, layout, _Arrays(backend, dtype, given, expected), options.iterations, inplace)
            for inplace in ((False, True) if options.inplace else (False,))
        ]
        rows.append(_row(layout, dtype, timings))
    return rows


@dataclass(frozen=True)
class _Arrays:
    """Input and expected output of one process, as arrays of its backend."""

    backend: Backend
    dtype: Dtype
    given: Any
    expected: Any

    def empty(self, count: int) -> Any:
        return self.backend.empty(count, self.dtype)


class _ArrayPool:
    """Arrays that every call needs in the same order: created in the first call, reused in the others."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make, self.made, self.used = make, list[Any](), 0

    def restart(self) -> None:
        """Start a call."""
        self.used = 0

    def empty(self, count: int) -> Any:
        """Return the next array of a call."""
        if self.used == len(self.made):
            self.made.append(self.make(count))
        self.used += 1
        return self.made[self.used - 1]


def _run_case(
    program: MessageProgram, layout: ElementLayout, arrays: _Arrays, iterations: int, inplace: bool
) -> CallTiming:
    """Run one warm-up call and `iterations` timed calls on the same buffers; refill and check them for each call.

    Real programs call a collective repeatedly on the same memory, so buffers are reused. Barriers before and after each
    call keep the check of one process from taking cores while others still send.
    """
    backend, process = arrays.backend, arrays.backend.process
    elapsed, wrong = [0.0] * (iterations + 1), 0
    pool, carrier, ranked = (
        _ArrayPool(arrays.empty),
        BatchCarrier(backend.exchange),
        rank_program(program, layout, process),
    )
    buffers, takes_part = (arrays.given, arrays.expected), process < len(layout.input_count)
    if takes_part:
        buffers = _buffers(layout, process, arrays.given, inplace, arrays.empty)
    for call in range(iterations + 1):
        pool.restart()
        if takes_part:
            buffers[1][:] = 1
            buffers[0][:] = arrays.given
        backend.barrier()
        start = time.perf_counter()
        ranked.run(*buffers, carrier, 0, pool.empty, separate=not inplace)
        elapsed[call] = time.perf_counter() - start
        backend.barrier()
        wrong += backend.wrong(buffers[1], arrays.expected)
    *seconds, total = backend.allreduce((*elapsed[1:], float(wrong)))
    return _call_timing(np.array(seconds) / program.processes, int(total))


def _call_timing(seconds: NDArray[Any], wrong: int) -> CallTiming:
    return CallTiming(float(np.mean(seconds)) * 1e6, wrong, float(np.median(seconds)) * 1e6)


def _buffers(
    layout: ElementLayout, rank: int, given: Any, inplace: bool, empty: Callable[[int], Any]
) -> tuple[Any, Any]:
    """Return a new input and output of a rank: separate, or overlapping in place as in NCCL."""
    if not inplace:
        return given, empty(layout.output_count[rank])
    source, output = layout.views_in_place(rank, empty(layout.count_in_place(rank)))
    source[:] = given
    return source, output


def run_numpy(schedule: Schedule, options: RunOptions) -> list[Row]:
    """Return all rows of the reference; all ranks run in this process, and the time is the total of all ranks."""
    rows = []
    for layout, dtype in options.cases(schedule):
        inputs, kind = Inputs(layout, dtype), numpy_dtype(dtype)
        ranks = range(schedule.demand.num_gpus)
        given = [inputs.of(rank).astype(kind) for rank in ranks]
        expected = [inputs.expected(rank).astype(kind) for rank in ranks]
        timings = [
            _run_numpy_case(schedule, layout, given, expected, options.iterations, inplace)
            for inplace in ((False, True) if options.inplace else (False,))
        ]
        rows.append(_row(layout, dtype, timings))
    return rows


def _run_numpy_case(
    schedule: Schedule,
    layout: ElementLayout,
    given: list[NDArray[Any]],
    expected: list[NDArray[Any]],
    iterations: int,
    inplace: bool,
) -> CallTiming:
    def empty(count: int) -> NDArray[Any]:
        return np.ones(count, dtype=given[0].dtype)

    elapsed, wrong = [0.0] * (iterations + 1), 0
    for call in range(iterations + 1):
        pairs = [_buffers(layout, rank, array, inplace, empty) for rank, array in enumerate(given)]
        start = time.perf_counter()
        execute_into(schedule, layout, [pair[0] for pair in pairs], [pair[1] for pair in pairs])
        elapsed[call] = time.perf_counter() - start
        wrong += sum(int(np.count_nonzero(pair[1] != want)) for pair, want in zip(pairs, expected, strict=True))
    return _call_timing(np.array(elapsed[1:]), wrong)


def _row(layout: ElementLayout, dtype: Dtype, timings: list[CallTiming]) -> Row:
    inside = timings[1] if len(timings) > 1 else None
    name = layout.demand.collective
    return Row(layout.count, layout.call_count, dtype.name, name, layout.root, timings[0], inside)


# -- the table ------------------------------------------------------------------------------------------------------

_HEADER = """\
#
# {out:>{wide}}{inside:>34}
# {size:>10}  {count:>12}  {type:>8}  {redop:>6}  {root:>6}{columns}{columns}
# {b:>10}  {elements:>12}  {none:>8}  {none:>6}  {none:>6}{units}{units}"""


def table(rows: Sequence[Row], ranks: int, program: str) -> str:
    """Format the rows as nccl-tests prints them, with bandwidths in 1e9 bytes/s."""
    head = _HEADER.format(
        out="out-of-place",
        inside="in-place",
        wide=72,
        size="size",
        count="count",
        type="type",
        redop="redop",
        root="root",
        columns=f"  {'time':>7}  {'algbw':>6}  {'busbw':>6}  {'#wrong':>6}",
        b="(B)",
        elements="(elements)",
        none="",
        units=f"  {'(us)':>7}  {'(GB/s)':>6}  {'(GB/s)':>6}  {'':>6}",
    )
    lines, found, wrong = [head], [], 0
    for row in rows:
        size = row.layout_count * find_dtype(row.dtype).itemsize
        redop = "sum" if row.collective in ("reduce", "allreduce", "reduce_scatter") else "none"
        line = f"{size:>12}  {row.call_count:>12}  {find_dtype(row.dtype).nccl:>8}  {redop:>6}  {row.root:>6}"
        for timing in (row.out_of_place, row.in_place):
            if timing is None:
                line += f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>6}"
                continue
            algbw = size / (timing.time_us * 1e3)
            busbw = algbw * busbw_factor(row.collective, ranks)
            found.append(busbw)
            wrong += timing.wrong
            line += f"  {_number(timing.time_us, 7)}  {_number(algbw, 6)}  {_number(busbw, 6)}  {timing.wrong:>6g}"
        lines.append(line)
    lines.append(f"# Out of bounds values : {wrong} {'OK' if wrong == 0 else 'FAILED'}")
    lines.append(f"# Avg bus bandwidth    : {sum(found) / max(len(found), 1):g}")
    lines.append(f"# Collective test concluded: {program}")
    return "\n".join(lines)


def _number(value: float, width: int) -> str:
    """Format with two decimals, or fewer if the text would be too wide."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            break
    return f"{text:>{width}}"
