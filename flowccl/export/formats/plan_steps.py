"""What the operations of an MSCCL++ plan do: from rows of numbers to steps of a program, and what is wrong there."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import members, pointers
from flowccl.export.formats.plan_packets import connect_packets
from flowccl.export.formats.plan_tables import BlockTables, PlanError
from flowccl.export.proof.program import RuntimeProgram
from flowccl.export.proof.steps import BUFFERS, StepArrays, by_proxy, by_step, codes_of, owners, parts_of
from flowccl.runtimes.limits import CHANNELS_PER_OPERATION, MSCCLPP_LIMITS, SEMAPHORES_PER_STEP

if TYPE_CHECKING:
    from flowccl.export.formats.plan_text_kernels import OperationRows

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
_MOST_INDEX, _MOST_SIZE = 2**31 - 1, 2**20
_PACKETS, _SCRATCH = BUFFERS.index("p"), BUFFERS.index("s")
_LETTERS = np.full(256, -1, dtype=np.int64)
_LETTERS[[ord("i"), ord("o"), ord("s")]] = 0, 1, _SCRATCH
_BARRIERS = {
    1: "a nop must come before this wait, to let all threads finish",
    2: "its threads may run before the data is there; a nop must come before it",
    3: "it may announce work that other threads have not finished; a nop must come before it",
}


def _table(rows: Sequence[Sequence[Any]], columns: int) -> tuple[I64, I64]:
    """The tables of threadblocks as one array, and where each begins."""
    flat = np.array([entry for row in rows for entry in row], dtype=np.int64)
    return flat.reshape(-1, columns).T, pointers([len(row) for row in rows])


class PlanSteps:
    """Makes the steps of a program from the operations of threadblocks; `first` are the first ones of each of them."""

    def __init__(
        self, program: RuntimeProgram, tables: BlockTables, rows: "OperationRows", first: I64, rates: F64
    ) -> None:
        from flowccl.export.formats import plan_text_kernels as text

        self.text, self.program, self.tables, self.first = text, program, tables, first
        count = int(first[-1])
        self.op, self.rates = np.ascontiguousarray(rows.operations[1 : count + 1].T), rates[1 : count + 1]
        self.first_buffer, self.first_id = (np.append(0, self.op[k])[:-1] for k in (text.TARGETS, text.LINKS))
        self.buffers, self.ids = (
            np.ascontiguousarray(rows.buffers[: 1 + self.op[text.TARGETS].max(initial=0)].T),
            rows.ids,
        )
        self.name, self.kind = self.op[text.NAME], self.op[text.CHANNEL_TYPE]
        self.thread = owners(first)
        self.rank = np.array(tables.rank, dtype=np.int64)[self.thread]
        self.index = np.arange(count) - first[self.thread]
        self.puts, self.switched = self._is("put", "pws", "pwsf"), self._is("glres", "gstore")
        self.sends = self.puts | self._is("ppkt", "rppkt")
        self.moves = self.sends | self.switched | self._is("copy", "re", "upkt", "repkt")
        self.waits = self._is("wait", "rlxwait")
        self.found: list[tuple[int, str, str]] = []

    def table(self, max_bytes: int) -> StepArrays:
        """Return all steps, and note in the program what the runtime would do wrong; raise PlanError for bad ones."""
        from flowccl.export.formats.plan_step_kernels import cells_of

        self._check_counts()
        size = np.where(self.moves, self._column(self.text.SIZE, self.op[self.text.SOURCES]), 0)
        base_ptr, target_ptr, base = self._bases
        writes, reads = base_ptr[1:] - target_ptr, target_ptr - base_ptr[:-1]
        assign_ptr = pointers(size * writes)
        cells = size, base_ptr, target_ptr, base, assign_ptr, pointers(size * writes * reads)
        target, source_ptr, source = cells_of(*cells)
        (push_ptr, push), (pop_ptr, pop) = self._tokens()
        connections, (path, paths) = list(self.tables.connections), self._paths()
        remote, groups = self._remote_rank, self.tables.groups
        group = np.where(self.switched, 2 * self._group + self._is("glres"), -1)
        table = StepArrays(
            rank=self.rank,
            thread=self.thread,
            index=self.index,
            name=self.name,
            names=list(self.text.NAMES),
            size=np.where(self.sends | self.switched, size, 0),
            sends_to=np.where(self.sends, remote, -1),
            group=group,
            groups=[(ranks, loads) for _, ranks in groups for loads in (False, True)],
            packets=self._is("ppkt", "rppkt"),
            lingers=self._is("pws"),
            flushed_by=self._flushed_by(push_ptr, push),
            start_ps=self.op[self.text.START],
            GBps=self.rates,
            message=self.op[self.text.MESSAGE],
            leaves=self.op[self.text.LEAVES] > 0,
            path=path,
            paths=paths,
            is_proxied=np.where(self.sends, self.puts & (self.kind == self.text.PORT), -1),
            assign_ptr=assign_ptr,
            target=target,
            source_ptr=source_ptr,
            source=source,
            sources=np.where(self.moves, reads, 0),
            push_ptr=push_ptr,
            push=push,
            pop_ptr=pop_ptr,
            pop=pop,
            connections=connections,
            by_proxy=np.array([by_proxy(key) for key in connections], dtype=np.int64),
        )
        self._check_barriers(size)
        for _, kind, words in sorted(self.found, key=lambda row: row[0]):
            self.program.found(kind, words)
        connect_packets(table, self.program, max_bytes)
        return table

    # -- words for what is wrong ---

    def _is(self, *names: str) -> Bool:
        return np.isin(self.name, [self.text.NAMES.index(name) for name in names])

    def _where(self, n: int) -> str:
        rank = int(self.rank[n])
        return f"gpu {rank} threadblock {int(self.thread[n]) - self.tables.rank.index(rank)} step {self.index[n]}"

    def _named(self, n: int) -> str:
        return f"{self._where(n)} ({self.text.NAMES[self.name[n]]})"

    def _refuse(self, wrong: Bool, words: Callable[[int], str], step: I64 | None = None) -> None:
        """Raise PlanError about the first operation, or the first entry of one, that is wrong."""
        if wrong.any():
            k = int(np.argmax(wrong))
            n = k if step is None else int(step[k])
            raise PlanError(f"{self._where(n)}: {words(k)}")

    def _limit(self, name: str, need: I64, most: int) -> None:
        for n in np.flatnonzero(need > most).tolist():
            words = f"{self._where(n)}: {name}: {need[n]}, but mscclpp allows at most {most}"
            self.found.append((n, "limit", words))

    def _column(self, column: int, row: I64) -> I64:
        """A column of some rows of buffers; any value where there are no such rows."""
        return np.asarray(self.buffers[column][np.minimum(row, self.buffers.shape[1] - 1)])

    # -- buffers ---

    def _check_counts(self) -> None:
        """Check how many buffers and channels operations name, and which they must have."""
        text, op = self.text, self.op
        sources, targets = op[text.SOURCES] - self.first_buffer, op[text.TARGETS] - op[text.SOURCES]
        several = self._is("repkt")
        wrong = (targets != 1) | (sources < 1 + several) | ((sources > 1) & ~(self._is("re") | several))
        rule = "needs one target, and one source (re: at least one; repkt: at least two)"
        self._refuse(self.moves & wrong, lambda n: f"{text.NAMES[self.name[n]]} {rule}")
        self._limit("sources of an operation", np.where(self.moves, sources, 0), MSCCLPP_LIMITS.operands)
        channels = op[text.CHANNELS] - self.first_id
        self._refuse(self.puts & (channels != 1), lambda n: "a put with several buffers or channels is not supported")
        several_words = "a flush needs as many targets as channels, because the runtime counts those"
        self._refuse(self._is("flush") & (targets != channels), lambda n: several_words)
        wrong = (self.kind < 0) | (self.kind > text.PORT)
        wrong &= self.puts | self.waits | self._is("signal", "rlxsignal")
        self._refuse(wrong, lambda n: "channel_type must be memory or port")
        self._limit("channels per operation", np.where(self.moves & ~self.puts, 0, channels), CHANNELS_PER_OPERATION)
        self._limit("semaphores per operation", op[text.SEMAPHORES] - op[text.CHANNELS], SEMAPHORES_PER_STEP)
        need = np.where(self.index == 0, np.diff(self.first)[self.thread], 0)
        for n in np.flatnonzero(need > MSCCLPP_LIMITS.steps).tolist():
            name = f"{self._where(n).rsplit(' step')[0]}: operations per threadblock: {need[n]}"
            self.found.append((n, "limit", f"{name}, but mscclpp allows at most {MSCCLPP_LIMITS.steps}"))

    def _place(self, wanted: Bool, table: I64, ptr: I64, number: I64, name: str, step: I64) -> I64:
        """The places of entries in tables of threadblocks; fail where an operation names a number that is not there."""
        most = ptr[table + 1] - ptr[table]
        words = "must contain whole numbers," if name.endswith("s") else "must be"
        wrong = wanted & (number >= most)
        self._refuse(wrong, lambda k: f"{name} {words} 0 to {most[k] - 1}, got {number[k]}", step)
        return np.where(wanted, ptr[table] + number, 0)

    @cached_property
    def _row_step(self) -> I64:
        """The operation of each buffer."""
        text = self.text
        return np.repeat(np.arange(len(self.name)), self.op[text.TARGETS] - self.first_buffer)

    @cached_property
    def _remote(self) -> tuple[I64, I64]:
        """The rank and the buffer that each operation that sends names."""
        text, row = self.text, self.op[self.text.SOURCES]
        table, ptr = _table(self.tables.remote, 2)
        number = self._column(text.VALUE, row)
        block = 2 * self.thread + np.clip(self.kind, 0, 1)
        step = np.arange(len(row))
        place = self._place(self.sends, block, ptr, number, "buffer_id", step)
        return (table[0][place], table[1][place]) if table.size else (0 * place, 0 * place)

    @property
    def _remote_rank(self) -> I64:
        return self._remote[0]

    @cached_property
    def _group_rows(self) -> I64:
        """The group of each buffer of a switch."""
        text, step = self.text, self._row_step
        table, ptr = _table([[(group,) for group in row] for row in self.tables.switches], 1)
        number, is_switch = (
            self.buffers[text.VALUE][: len(step)],
            self.buffers[text.KIND][: len(step)] == text.SWITCH_ID,
        )
        place = self._place(is_switch, self.thread[step], ptr, number, "switch_channel_id", step)
        return table[0][place] if table.size else 0 * place

    @property
    def _group(self) -> I64:
        """The group in whose memory each operation stores."""
        rows = self._group_rows
        at = np.minimum(self.op[self.text.SOURCES], max(len(rows) - 1, 0))
        return np.where(self.switched, rows[at] if len(rows) else 0 * at, 0)

    @cached_property
    def _bases(self) -> tuple[I64, I64, I64]:
        """The first cells that operations access: where those of each begin, where those are that it writes, cells."""
        text, step = self.text, self._row_step
        row = np.arange(len(step))
        is_target = row >= self.op[text.SOURCES][step]
        kind, index, size = (self.buffers[column][: len(step)] for column in (text.KIND, text.INDEX, text.SIZE))
        moves, name = self.moves[step], self.name[step]
        wanted = np.where(is_target & self.sends[step], text.BUFFER_ID, text.TYPE)
        in_switch = self.switched[step] & (is_target | (name == text.GLRES))
        wanted = np.where(in_switch, text.SWITCH_ID, wanted)
        keys = ("type", "buffer_id", "switch_channel_id")
        self._refuse(moves & (kind != wanted), lambda k: f"{keys[wanted[k]]} is missing", step)
        for name_of, value, low, high in (("index", index, 0, _MOST_INDEX), ("size", size, 1, _MOST_SIZE)):
            wrong = moves & ((value < low) | (value > high))
            self._refuse(wrong, lambda k: f"{name_of} must be {low} to {high}, got {value[k]}", step)  # noqa: B023
        self._refuse(
            moves & (size != self._column(text.SIZE, self.op[text.SOURCES])[step]),
            lambda k: "sources and target differ in size",
            step,
        )
        buffer = self._buffers(step, is_target, kind, name)
        group = self._group_rows
        ranks = [ranks for _, ranks in self.tables.groups]
        of_group, group_ptr = _table([[(rank,) for rank in row] for row in ranks], 1)
        buffer_of = np.array([BUFFERS.index(name) for name, _ in self.tables.groups] or [0], dtype=np.int64)
        times = np.where(moves, np.where(in_switch, np.diff(np.append(group_ptr, 0))[group], 1), 0)
        base_row, member = members(times)
        rank = np.where(is_target & self.sends[step], self._remote_rank[step], self.rank[step])[base_row]
        if of_group.size:
            of = group_ptr[group[base_row]] + member
            rank = np.where(in_switch[base_row], of_group[0][np.minimum(of, of_group.shape[1] - 1)], rank)
        buffer = np.where(in_switch, buffer_of[group], buffer)[base_row]
        count = np.bincount(step, times, minlength=len(self.name)).astype(np.int64)
        written = np.bincount(step, times * is_target, minlength=len(self.name)).astype(np.int64)
        ptr = pointers(count)
        return ptr, ptr[1:] - written, codes_of(rank, buffer, index[base_row])

    def _buffers(self, step: I64, is_target: Bool, kind: I64, name: I64) -> I64:
        """The buffer of each row, as its place in BUFFERS; packets are in scratch."""
        text = self.text
        letter, moves = self.buffers[text.VALUE][: len(step)], self.moves[step]
        buffer = np.where(kind == text.TYPE, _LETTERS[np.where(kind == text.TYPE, letter, 0)], 0)
        wrong = moves & (kind == text.TYPE) & (buffer < 0)
        self._refuse(wrong, lambda k: f"a buffer must be i, o or s, got {chr(letter[k])!r}", step)
        to = is_target & self.sends[step]
        buffer = np.where(to, self._remote[1][step], buffer)
        packed = np.isin(name, [text.PPKT, text.RPPKT])
        wrong = to & packed & ((buffer != _SCRATCH) | (self.kind[step] != text.MEMORY))
        self._refuse(wrong, lambda k: "packets must be put into scratch, over a memory channel", step)
        is_first = np.append(True, np.diff(step) > 0)[: len(step)]
        reads = ~is_target & (np.isin(name, [text.UPKT, text.RPPKT]) | ((name == text.REPKT) & ~is_first))
        self._refuse(reads & (buffer != _SCRATCH), lambda k: "packets must be in scratch", step)
        return np.where((to & packed) | reads, _PACKETS, buffer)

    # -- tokens ---

    @cached_property
    def _channel_uses(self) -> tuple[I64, I64]:
        """The operation of each channel that one uses, and its place in the tables."""
        text = self.text
        uses = self.puts | self.waits | self._is("signal", "rlxsignal", "flush")
        low = self.first_id
        count = np.where(uses, self.op[text.CHANNELS] - low, 0)
        step, number = members(count)
        at = low[step] + number
        block = 2 * self.thread[step] + np.where(self.name[step] == text.FLUSH, text.PORT, self.kind[step])
        table, ptr = self._channels
        place = self._place(np.ones(len(step), dtype=np.bool_), block, ptr, self.ids[at], "channel_ids", step)
        peer, remote = table[0][place], self._remote_rank[step]
        words = "puts into a buffer of gpu {} over a channel to gpu {}"
        self._refuse(self.puts[step] & (peer != remote), lambda k: words.format(remote[k], peer[k]), step)
        return step, place

    @cached_property
    def _channels(self) -> tuple[I64, I64]:
        return _table(self.tables.channels, 3)

    def _tokens(self) -> tuple[tuple[I64, I64], tuple[I64, I64]]:
        """The connections to which operations put tokens, and from which they take them, each with a pointer."""
        text = self.text
        (step, place), (_, out, into) = self._channel_uses, self._channels[0]
        name, by_port = self.name[step], self.kind[step] == text.PORT
        silent = self._is("pws", "pwsf") & (self.kind != text.PORT)
        for n in np.flatnonzero(silent).tolist():
            words = f"{text.NAMES[self.name[n]]} on a memory channel does not signal; use signal"
            self.found.append((n, "signal", f"{self._where(n)}: {words}"))
        puts = np.isin(name, [text.SIGNAL, text.RLXSIGNAL]) | (np.isin(name, [text.PWS, text.PWSF]) & by_port)
        takes = self.waits[step]
        low = self.op[text.CHANNELS]
        count = np.where(self._is("sem_acquire", "sem_release"), self.op[text.SEMAPHORES] - low, 0)
        of, number = members(count)
        at = low[of] + number
        table = np.array(self.tables.semaphores, dtype=np.int64).reshape(-1, 2)
        ptr = np.append(0, np.cumsum(table[:, 1]))
        number = self._place(np.ones(len(of), dtype=np.bool_), self.thread[of], ptr, self.ids[at], "semaphore_ids", of)
        key = table[:, 0][self.thread[of]] + number - ptr[self.thread[of]]
        gives = self.name[of] == text.RELEASE
        for chosen, word in ((gives, "sem_release"), (~gives, "sem_acquire")):
            self._check_alone(key[chosen], self.thread[of[chosen]], word)
        return (
            by_step(np.append(step[puts], of[gives]), np.append(out[place[puts]], key[gives]), len(count)),
            by_step(np.append(step[takes], of[~gives]), np.append(into[place[takes]], key[~gives]), len(count)),
        )

    def _check_alone(self, key: I64, thread: I64, name: str) -> None:
        """Refuse semaphores that several threadblocks acquire or release."""
        pairs = np.unique(np.stack((key, thread), axis=1), axis=0)[:, 0]
        twice = pairs[1:][np.diff(pairs) == 0]
        if len(twice):
            semaphore = list(self.tables.connections)[twice[0]]
            raise PlanError(f"semaphore {semaphore}: {name} by several threadblocks is not supported")

    def _flushed_by(self, push_ptr: I64, push: I64) -> I64:
        """The operation that completes each put of a NIC, by its place in the threadblock, or -1.

        A flush completes all earlier puts on its channels, and a flushed put those on its own.
        """
        text, many = self.text, len(self.tables.connections)
        (step, place), count = self._channel_uses, len(self.name)
        flushes = self.name[step] == text.FLUSH
        own = owners(push_ptr)
        chosen = self.name[own] == text.PWSF
        by = np.append(step[flushes], own[chosen])
        key = np.append(self._channels[0][1][place[flushes]], push[chosen])
        key = np.sort((self.thread[by] * many + key) * count + by)
        lingers = self._is("pws")[own]
        asked = (self.thread[own[lingers]] * many + push[lingers]) * count + own[lingers]
        found = np.append(key, -1)[np.searchsorted(key, asked)]
        result = np.full(count, -1)
        done = found // max(count, 1) == asked // max(count, 1)
        result[own[lingers][done]] = self.index[found[done] % max(count, 1)]
        return result

    def _paths(self) -> tuple[I64, list[tuple[int, ...]]]:
        """The number of the path that each operation names, or -1, and all paths."""
        path, numbers = np.full(len(self.name), -1), dict[tuple[int, ...], int]()
        low, high = self.op[self.text.SEMAPHORES], self.op[self.text.LINKS]
        for n in np.flatnonzero(high > low).tolist():
            links = tuple(self.ids[low[n] : high[n]].tolist())
            path[n] = numbers.setdefault(links, len(numbers))
        return path, list(numbers)

    def _check_barriers(self, size: I64) -> None:
        """Note where threads run before others have waited, or have written what they read."""
        from flowccl.export.formats import plan_step_kernels as kernels

        text, name = self.text, self.name
        role = np.full(len(name), kernels.ANNOUNCES)
        role[name == text.SIGNAL] = kernels.SIGNALS
        role[self.moves & ~(self.puts & (self.kind == text.PORT))] = kernels.WORKS
        role[self.waits | (name == text.ACQUIRE)] = kernels.WAITS
        role[name == text.NOP], role[name >= text.LOOP] = kernels.BARRIER, kernels.LOOPS
        ptr, _, base = self._bases
        most = int(np.diff(ptr[self.first]).max(initial=0))
        has_flags = parts_of(base)[1] == _PACKETS
        missing = kernels.missing_barriers(self.thread, role, size, ptr, base, has_flags, most)
        for n in np.flatnonzero(missing).tolist():
            self.found.append((n, "sync", f"{self._named(n)}: {_BARRIERS[int(missing[n])]}"))
