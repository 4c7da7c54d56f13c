"""The steps of a program as arrays, for checks of whole arrays and for compiled loops."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.export.proof.program import Cell, Operand, Operation, RuntimeProgram

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

BUFFERS = "iops"
"""Input, output, packets in scratch, scratch: in this order, so that codes of cells sort as cells do."""
INDEX_BITS = 36
_ZERO = 1 << 34  # added to an index, which may be negative in a wrong file
_MASK = (1 << INDEX_BITS) - 1


def code_of(operand: Operand) -> int:
    """Return the code of a cell; the n-th chunk that a step sends or receives is -1 - n."""
    if isinstance(operand, int):
        return -1 - operand
    rank, buffer, index = operand
    return ((rank * 4 + BUFFERS.index(buffer)) << INDEX_BITS) + index + _ZERO


def codes_of(rank: I64 | int, buffer: I64 | int, index: I64) -> I64:
    """Return the codes of cells; `buffer` are positions in BUFFERS."""
    return np.asarray(((np.asarray(rank, dtype=np.int64) * 4 + buffer) << INDEX_BITS) + index + _ZERO)


def parts_of(code: I64) -> tuple[I64, I64, I64]:
    """Return the rank, the position of the buffer in BUFFERS and the index of cells."""
    return code >> (INDEX_BITS + 2), (code >> INDEX_BITS) & 3, (code & _MASK) - _ZERO


def cell_of(code: int) -> Cell:
    """Return the cell with a code."""
    return code >> (INDEX_BITS + 2), BUFFERS[(code >> INDEX_BITS) & 3], (code & _MASK) - _ZERO


def owners(ptr: I64) -> I64:
    """Return the list to which each member belongs."""
    return np.repeat(np.arange(len(ptr) - 1, dtype=np.int64), np.diff(ptr))


def by_step(step: I64, key: I64, count: int) -> tuple[I64, I64]:
    """Return lists of steps, from their members in any order: where each begins, and the members."""
    return pointers(np.bincount(step, minlength=count)), key[np.argsort(step, kind="stable")]


def distinct(*columns: NDArray[Any]) -> tuple[I64, I64]:
    """Return the first of each set of equal rows, in the order of their values, and the number of the set of each row.

    Rows are given by their columns.
    """
    order = np.lexsort(columns[::-1])
    is_new = np.zeros(len(order), dtype=np.bool_)
    is_new[:1] = True
    for column in columns:
        sorted_column = column[order]
        is_new[1:] |= sorted_column[1:] != sorted_column[:-1]
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.cumsum(is_new) - 1
    return order[is_new], number


@dataclass(slots=True, eq=False)
class StepArrays:
    """The steps of a program, with the fields of `Operation` as columns.

    `thread[n]` is the number of the threadblock of step n, and `index[n]` its place there. Step n has the assignments
    `assign_ptr[n]:assign_ptr[n + 1]`, and assignment k stores the sources `source_ptr[k]:source_ptr[k + 1]` in
    `target[k]`; cells have codes. It puts tokens to the connections `push[push_ptr[n]:push_ptr[n + 1]]` and takes them
    from `pop[...]`; `connections` has their names, and `by_proxy` whether they are those of a proxy (-1: unknown).
    `group[n]` is a position in `groups`, each (ranks, whether the step loads from them), or -1. `path[n]` is one in
    `paths`, the links of a send, or -1. A step that `lingers` reads its sources after it was issued. Each assignment of
    step n has `sources[n]` sources.
    """

    rank: I64
    thread: I64
    index: I64
    name: I64
    names: list[str]
    size: I64
    sends_to: I64
    group: I64
    groups: list[tuple[tuple[int, ...], bool]]
    packets: Bool
    lingers: Bool
    flushed_by: I64
    start_ps: I64
    GBps: F64
    message: I64
    leaves: Bool
    path: I64
    paths: list[tuple[int, ...]]
    is_proxied: I64
    assign_ptr: I64
    target: I64
    source_ptr: I64
    source: I64
    sources: I64
    push_ptr: I64
    push: I64
    pop_ptr: I64
    pop: I64
    connections: list[Hashable]
    by_proxy: I64

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def read_step(self) -> I64:
        """The step of each source."""
        return owners(self.assign_ptr)[owners(self.source_ptr)]

    def accesses(self) -> tuple[I64, I64]:
        """Return all (step, cell) pairs, each once, in the order of the steps and of the cells."""
        write_step = owners(self.assign_ptr)
        step, cell = np.concatenate((write_step, self.read_step)), np.concatenate((self.target, self.source))
        step, cell = step[cell >= 0], cell[cell >= 0]
        order = np.lexsort((cell, step))
        step, cell = step[order], cell[order]
        is_new = np.ones(len(step), dtype=np.bool_)
        is_new[1:] = (np.diff(step) != 0) | (np.diff(cell) != 0)
        return step[is_new], cell[is_new]

    def operation(self, n: int) -> Operation:
        """Return a step as an object."""
        rank, (low, high) = int(self.rank[n]), self.assign_ptr[n : n + 2].tolist()
        targets = [cell_of(cell) for cell in self.target[low:high].tolist()]
        at, cells = self.source_ptr[low : high + 1].tolist(), self.source
        read = [tuple(cell_of(cell) for cell in cells[a:b].tolist()) for a, b in pairwise(at)]
        push, pop = (
            [self.connections[key] for key in keys[ptr[n] : ptr[n + 1]].tolist()]
            for ptr, keys in ((self.push_ptr, self.push), (self.pop_ptr, self.pop))
        )
        return Operation(
            rank,
            int(self.thread[n] - self.thread[np.searchsorted(self.rank, rank)]),
            int(self.index[n]),
            self.names[self.name[n]],
            [*zip(targets, read, strict=True)],
            push,
            pop,
            size=int(self.size[n]),
            lingers={cell for row in read for cell in row} if self.lingers[n] else set(),
            flushed_by=int(self.flushed_by[n]),
            sends_to=int(self.sends_to[n]),
            group=self.groups[self.group[n]][0] if self.group[n] >= 0 else (),
            packets=bool(self.packets[n]),
        )

    def step_at(self) -> dict[tuple[int, int], int]:
        """Return the step at each (threadblock, place in it)."""
        keys = zip(self.thread.tolist(), self.index.tolist(), strict=True)
        return {key: n for n, key in enumerate(keys)}


@dataclass(frozen=True, eq=False)
class OneGpu:
    """One GPU that stands for all others in the event simulation of a symmetric program.

    All GPUs do the same at the same times: what GPU 0 waits for is the image of what it sends, which has the connection
    `sent`, and the links of an `orbit` are used like one link.
    """

    sent: Mapping[Hashable, Hashable]
    orbit: I64

    def steps(self, table: StepArrays) -> StepArrays:
        """Return the steps of GPU 0, which wait for its own signals."""
        number = {key: k for k, key in enumerate(table.connections)}
        image = np.array([number.get(self.sent.get(key, key), k) for key, k in number.items()], dtype=np.int64)
        return replace(table, pop=image[table.pop] if len(image) else table.pop)

    def receivers(self, table: StepArrays) -> I64:
        """Return the GPU to which each connection leads."""
        return np.array([key[2] for key in table.connections], dtype=np.int64)  # type: ignore[index]


class StepObjects(Sequence[Operation]):
    """The steps of a table as objects, which are made when they are asked for."""

    def __init__(self, table: StepArrays) -> None:
        self.table = table
        self._made: dict[int, Operation] = {}

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, n: Any) -> Any:
        if isinstance(n, slice):
            return [self[k] for k in range(*n.indices(len(self)))]
        if not 0 <= n < len(self):
            raise IndexError(n)
        if n not in self._made:
            self._made[n] = self.table.operation(n)
        return self._made[n]


def table_of(program: RuntimeProgram) -> StepArrays:
    """Return the steps of a program as arrays."""
    steps = program.operations
    return steps.table if isinstance(steps, StepObjects) else _converted(steps)


def _converted(operations: Sequence[Operation]) -> StepArrays:
    threads: dict[tuple[int, int], int] = {}
    names: dict[str, int] = {}
    none, minus = np.zeros(len(operations), dtype=np.int64), np.full(len(operations), -1)
    connections: dict[Hashable, int] = {}
    thread = [threads.setdefault((o.rank, o.block), len(threads)) for o in operations]
    push, pop = ([connections.setdefault(key, len(connections)) for o in operations for key in getattr(o, name)]
                 for name in ("pushes", "pops"))  # fmt: skip
    return StepArrays(
        rank=_ints(o.rank for o in operations),
        thread=_ints(thread),
        index=_ints(o.index for o in operations),
        name=_ints(names.setdefault(o.name, len(names)) for o in operations),
        names=list(names),
        size=_ints(o.size for o in operations),
        sends_to=_ints(o.sends_to for o in operations),
        group=minus,
        groups=[],
        packets=none > 0,
        lingers=none > 0,
        flushed_by=minus,
        start_ps=none,
        GBps=np.zeros(len(operations)),
        message=minus,
        leaves=none > 0,
        path=minus,
        paths=[],
        is_proxied=minus,
        assign_ptr=pointers([len(o.assigns) for o in operations]),
        target=_ints(code_of(target) for o in operations for target, _ in o.assigns),
        source_ptr=pointers([len(sources) for o in operations for _, sources in o.assigns]),
        source=_ints(code_of(source) for o in operations for _, sources in o.assigns for source in sources),
        sources=_ints(max((len(sources) for _, sources in o.assigns), default=0) for o in operations),
        push_ptr=pointers([len(o.pushes) for o in operations]),
        push=_ints(push),
        pop_ptr=pointers([len(o.pops) for o in operations]),
        pop=_ints(pop),
        connections=list(connections),
        by_proxy=_ints(by_proxy(key) for key in connections),
    )


def _ints(values: Iterable[int]) -> I64:
    return np.array(list(values), dtype=np.int64)


def by_proxy(key: Hashable) -> int:
    """Return whether a connection is that of a proxy; -1 if its name does not say so."""
    return int(key[3] == "port") if isinstance(key, tuple) and key[0] == "signal" else -1
