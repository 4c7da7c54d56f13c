"""The steps of an MSCCL++ plan as arrays, read from its text by compiled code where nothing in it is unusual."""

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.export.proof.program import Operation, RuntimeProgram
from flowccl.export.proof.steps import BUFFERS, StepArrays, owners
from flowccl.runtimes.limits import MSCCLPP_LIMITS

if TYPE_CHECKING:
    from flowccl.export.formats.plan_access_kernels import BlockTables
    from flowccl.export.formats.plan_text_kernels import PlanText, Words

I64 = NDArray[np.int64]


class Channel(Protocol):
    """A channel of a GPU: its peer, its type, and its place among the channels of its type to that peer.

    `out` and `into` are the numbers of its connections; -1: none yet.
    """

    peer: int
    kind: str
    place: int
    out: int
    into: int


class LazySteps(Sequence[Operation]):
    """The steps of a plan: a table, and objects that are made when one is asked for, by reading the text again."""

    def __init__(self, table: StepArrays, read: Any) -> None:
        self._table = table
        self._read = read
        self._made: Sequence[Operation] | None = None

    @property
    def table(self) -> StepArrays | None:
        """The table; None once there are objects, which others may have changed."""
        return self._table if self._made is None else None

    def __len__(self) -> int:
        return len(self._table)

    def __getitem__(self, n: Any) -> Any:
        if self._made is None:
            self._made = self._read()
        return self._made[n]


class PlanTables:
    """The operations in the text of a plan, and the tables of its threadblocks, which a reader adds."""

    def __init__(self, text: "PlanText", ids: I64, places: I64) -> None:
        self.text, self.ids, self.places = text, ids, places
        self.rank: list[int] = []
        self.lists: dict[str, list[int]] = {name: [] for name in _LISTS}
        self.sizes: dict[str, list[int]] = {"channel": [], "remote": [], "switch": []}
        self.known: dict[Hashable, int] = {}
        self.groups: dict[tuple[str, tuple[int, ...]], int] = {}
        self.semaphores: list[tuple[int, int]] = []  # (rank, number) of each threadblock

    def add(
        self,
        rank: int,
        own: Mapping[str, Sequence[Channel]],
        refs: dict[str, list[tuple[int, str]]],
        switches: Sequence[tuple[str, tuple[int, ...]]],
        semaphores: int,
    ) -> None:
        """Add the tables of a threadblock."""
        lists = self.lists
        self.rank.append(rank)
        for kind in ("memory", "port"):
            for channel in own[kind]:
                if channel.out < 0:
                    peer, rest = channel.peer, (channel.kind, channel.place)
                    channel.out = self.known.setdefault(("signal", rank, peer, *rest), len(self.known))
                    channel.into = self.known.setdefault(("signal", peer, rank, *rest), len(self.known))
            lists["out"] += [channel.out for channel in own[kind]]
            lists["into"] += [channel.into for channel in own[kind]]
            lists["peer"] += [channel.peer for channel in own[kind]]
            self.sizes["channel"].append(len(own[kind]))
            lists["remote_rank"] += [peer for peer, _ in refs[kind]]
            lists["remote_buffer"] += [BUFFERS.index(buffer) for _, buffer in refs[kind]]
            self.sizes["remote"].append(len(refs[kind]))
        lists["switch"] += [self.groups.setdefault(switch, len(self.groups)) for switch in switches]
        self.sizes["switch"].append(len(switches))
        self.semaphores.append((rank, semaphores))

    def table(self, program: RuntimeProgram, max_bytes: int) -> StepArrays | None:
        """Return all steps; None where something is wrong or unusual."""
        from flowccl.export.formats.plan_access_kernels import NAMES, StepColumns
        from flowccl.export.formats.plan_step_kernels import steps_of_plan

        count = len(self.text.name)
        op_ptr = np.append(self.places[:, 2], count)
        if len(self.rank) != len(self.places) or np.diff(op_ptr).max(initial=0) > MSCCLPP_LIMITS.steps:
            return None
        tables = self._block_tables(op_ptr)
        minus, zero, no = np.full(count, -1), np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.bool_)
        ends = (np.zeros(count + 1, dtype=np.int64) for _ in range(3))
        columns = StepColumns(zero, minus, minus.copy(), no, no.copy(), minus.copy(), minus.copy(), *ends)
        found = steps_of_plan(self.text, tables, self.ids, len(self.known), columns)
        is_right, push, pop, target, source_ptr, source = found
        if not is_right or self._is_shared(tables.op_ptr, columns, push, pop):
            return None
        thread = owners(op_ptr)
        connections = list(self.known)
        path, paths = self._paths()
        table = StepArrays(
            rank=tables.rank[thread],
            thread=thread,
            index=np.arange(count) - op_ptr[thread],
            name=self.text.name,
            names=list(NAMES),
            size=columns.size,
            sends_to=columns.sends_to,
            group=columns.group,
            groups=[(ranks, loads) for _, ranks in self.groups for loads in (False, True)],
            packets=columns.packets,
            lingers=columns.lingers,
            flushed_by=columns.flushed_by,
            start_ps=self.text.start_ps,
            GBps=self.text.GBps,
            message=self.text.message,
            leaves=self.text.leaves > 0,
            path=path,
            paths=paths,
            is_proxied=columns.is_proxied,
            assign_ptr=columns.assign_ptr,
            target=target,
            source_ptr=source_ptr,
            source=source,
            sources=_sources(columns.assign_ptr, source_ptr),
            push_ptr=columns.push_ptr,
            push=push,
            pop_ptr=columns.pop_ptr,
            pop=pop,
            connections=connections,
            by_proxy=_ints([int(key[3] == "port") if key[0] == "signal" else -1 for key in connections]),  # type: ignore[index]
        )
        return table if _connect_packets(table, program, max_bytes) else None

    def _block_tables(self, op_ptr: I64) -> "BlockTables":
        """The tables of all threadblocks as arrays."""
        from flowccl.export.formats.plan_access_kernels import BlockTables

        first = self._semaphore_connections()
        group_ptr = pointers([len(ranks) for _, ranks in self.groups])
        arrays = {name: _ints(values) for name, values in self.lists.items()}
        return BlockTables(
            op_ptr,
            _ints(self.rank),
            pointers(self.sizes["channel"]),
            arrays["out"],
            arrays["into"],
            arrays["peer"],
            pointers(self.sizes["remote"]),
            arrays["remote_rank"],
            arrays["remote_buffer"],
            pointers(self.sizes["switch"]),
            arrays["switch"],
            _ints([BUFFERS.index(buffer) for buffer, _ in self.groups]),
            group_ptr,
            _ints([rank for _, ranks in self.groups for rank in ranks]),
            _ints([first[rank] for rank, _ in self.semaphores]),
            _ints([number for _, number in self.semaphores]),
        )

    def _paths(self) -> tuple[I64, list[tuple[int, ...]]]:
        """Return the number of the path that each operation names, or -1, and all paths."""
        path, numbers = np.full(len(self.text.name), -1), dict[tuple[int, ...], int]()
        low, high = self.text.links[:, 0], self.text.links[:, 1]
        for n in np.flatnonzero(high > low).tolist():
            links = tuple(self.ids[low[n] : high[n]].tolist())
            path[n] = numbers.setdefault(links, len(numbers))
        return path, list(numbers)

    def _semaphore_connections(self) -> dict[int, int]:
        """Number the semaphores of all GPUs; return the first of each GPU."""
        first: dict[int, int] = {}
        for rank, number in self.semaphores:
            if rank not in first:
                first[rank] = len(self.known)
                self.known.update((("semaphore", rank, rank, k), first[rank] + k) for k in range(number))
        return first

    def _is_shared(self, op_ptr: I64, columns: Any, push: I64, pop: I64) -> bool:
        """Whether several threadblocks acquire or release the same semaphore."""
        thread = owners(op_ptr)
        is_semaphore = np.array([key[0] == "semaphore" for key in self.known], dtype=np.bool_)  # type: ignore[index]
        for key, ptr in ((push, columns.push_ptr), (pop, columns.pop_ptr)):
            chosen = is_semaphore[key]
            pairs = np.unique(np.stack((key[chosen], thread[owners(ptr)[chosen]]), axis=1), axis=0)
            if len(np.unique(pairs[:, 0])) < len(pairs):
                return True
        return False


_LISTS = ("out", "into", "peer", "remote_rank", "remote_buffer", "switch")


def scanned(data: bytes) -> tuple[bytes, PlanTables] | None:
    """Return the text of a plan with a number in the place of each list of operations, and these lists.

    None where the text is unusual.
    """
    from flowccl.export.formats.plan_access_kernels import NAMES
    from flowccl.export.formats.plan_text_kernels import KEYS, scan_plan

    text = _space(data.count(b'"name"'), data.count(b'"index"'))
    places = np.zeros((data.count(b'"ops"'), 3), dtype=np.int64)
    lists, ids, count = scan_plan(np.frombuffer(data, dtype=np.uint8), _words(KEYS), _words(NAMES), text, places)
    if lists < 0:
        return None
    text = text._replace(**{name: getattr(text, name)[: count[0]] for name in _PER_OPERATION})
    pieces, last = [], 0
    for k, (begin, end, _) in enumerate(places[:lists].tolist()):
        pieces += [data[last:begin], str(k).encode()]
        last = end
    return b"".join([*pieces, data[last:]]), PlanTables(text, ids, places[:lists])


_PER_OPERATION = [
    "name",
    "channel_type",
    "channels",
    "semaphores",
    "links",
    "sources",
    "targets",
    "message",
    "start_ps",
    "GBps",
    "leaves",
]


_RANGES = ("channels", "semaphores", "links", "sources", "targets")


def _space(operations: int, buffers: int) -> "PlanText":
    """Return empty columns for the operations of a plan."""
    from flowccl.export.formats.plan_text_kernels import PlanText

    columns: dict[str, NDArray[Any]] = {
        **{name: np.zeros(operations, dtype=np.int64) for name in ("name", "start_ps", "leaves")},
        **{name: np.full(operations, -1) for name in ("channel_type", "message")},
        **{name: np.zeros((operations, 2), dtype=np.int64) for name in _RANGES},
        **{name: np.zeros(buffers, dtype=np.int64) for name in ("kind", "value", "offset", "size")},
    }
    return PlanText(**columns, GBps=np.zeros(operations))


def _words(values: Sequence[str]) -> "Words":
    from flowccl.export.formats.plan_text_kernels import Words

    text = np.frombuffer("".join(values).encode(), dtype=np.uint8)
    return Words(text, pointers([len(value) for value in values]))


def _sources(assign_ptr: I64, source_ptr: I64) -> I64:
    """The sources of the first assignment of each step: all have as many."""
    count = np.append(np.diff(source_ptr), 0)
    return np.asarray(np.where(np.diff(assign_ptr) > 0, count[assign_ptr[:-1]], 0))


def _ints(values: Sequence[int]) -> I64:
    return np.array(values, dtype=np.int64)


def _connect_packets(table: StepArrays, program: RuntimeProgram, max_bytes: int) -> bool:
    """Let every step that reads packets wait for those that write them; return whether nothing is wrong with packets.

    What it does for whole arrays is what `read_packets.connect_packets` does for single steps.
    """
    packets, scratch = BUFFERS.index("p"), BUFFERS.index("s")
    writes = (table.target >> 36) & 3 == packets
    reads = (table.source >> 36) & 3 == packets
    if not writes.any() and not reads.any():
        return True
    cell, writer = table.target[writes], owners(table.assign_ptr)[writes]
    order = np.argsort(cell)
    cell, writer = cell[order], writer[order]
    wanted, reader = table.source[reads], table.read_step[reads]
    place = np.minimum(np.searchsorted(cell, wanted), max(len(cell) - 1, 0))
    if not program.packets or np.any(np.diff(cell) == 0) or not len(cell) or np.any(cell[place] != wanted):
        return False
    plain = np.concatenate((table.target, table.source))
    plain = plain[(plain >> 36) & 3 == scratch]
    if len(plain):
        rank, index = plain >> 38, (plain & ((1 << 36) - 1)) - (1 << 34)
        covered = ((rank * 4 + packets) << 36) + index // 2 + (1 << 34)
        if program.min_bytes != max_bytes or np.isin(covered, cell).any():
            return False
    pairs = np.unique(np.stack((reader, writer[place]), axis=1), axis=0)
    first = len(table.connections)
    key = np.arange(first, first + len(pairs))
    table.connections += [("packets", sender, n) for n, sender in pairs.tolist()]
    table.by_proxy = np.append(table.by_proxy, np.full(len(pairs), -1))
    table.pop_ptr, table.pop = _with(table.pop_ptr, table.pop, pairs[:, 0], key)
    table.push_ptr, table.push = _with(table.push_ptr, table.push, pairs[:, 1], key)
    return True


def _with(ptr: I64, values: I64, step: I64, more: I64) -> tuple[I64, I64]:
    """Return lists of steps with further members at their ends."""
    of = np.concatenate((owners(ptr), step))
    order = np.argsort(of, kind="stable")
    return pointers(np.bincount(of, minlength=len(ptr) - 1)), np.concatenate((values, more))[order]
