"""The operations of one MSCCL++ threadblock as text.

The threads of a threadblock run independently. A nop is a barrier of its threads: it separates a wait from the
operations that depend on it, and data from the signal that announces it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from flowccl.export.lowering.actions import FLUSH, POST, SEND, SIGNAL, WAIT, Action, Range
from flowccl.export.lowering.repeated import BlockActions
from flowccl.export.lowering.uneven import Slots
from flowccl.runtimes.limits import CHANNELS_PER_OPERATION, SEMAPHORES_PER_STEP
from flowccl.schedule.placement import BUFFER_BITS, PACKETS

_NOP = '{"name":"nop"}'
_LEAVES = ',"leaves":true'
REPEATED = '{"name":"pipeline","iter_context":{"unit_size":', ',"num_chunks":1},"ops":[\n', '\n],"end":true}'
"""What comes before the unit of repeated operations, before the operations, and after them."""


@dataclass(slots=True)
class Tables:
    """The channels and remote buffers that a threadblock uses, in the order of their first use."""

    channels: dict[str, dict[int, int]] = field(default_factory=lambda: {"memory": {}, "port": {}})
    buffers: dict[str, dict[tuple[int, int], int]] = field(default_factory=lambda: {"memory": {}, "port": {}})
    switches: dict[tuple[int, tuple[int, ...]], int] = field(default_factory=dict)

    def channel(self, kind: str, number: int) -> int:
        """Return the place of a channel in the table."""
        table = self.channels[kind]
        return table.setdefault(number, len(table))

    def buffer(self, kind: str, rank: int, buffer: int) -> int:
        """Return the place of a buffer of another GPU in the table."""
        table = self.buffers[kind]
        return table.setdefault((rank, buffer), len(table))

    def switch(self, buffer: int, ranks: tuple[int, ...]) -> int:
        """Return the place of a channel of a switch in the table."""
        return self.switches.setdefault((buffer, ranks), len(self.switches))


@dataclass(slots=True)
class ThreadblockWriter:
    """Writes the operations of a threadblock, with a nop wherever its threads need a barrier.

    `hints` are the start and the rate of each message in the schedule. The runtime ignores them; `check-export` uses
    them to time the file.
    """

    hints: Sequence[str]
    slots: Slots
    rank: int
    packets: int = 0
    operations: list[str] = field(default_factory=list)
    tables: Tables = field(default_factory=Tables)
    has_waited: bool = False
    has_worked: bool = False
    touched: list[tuple[int, int]] = field(default_factory=list)
    repeats: int = 0

    def begin(self, kind: str, announced: list[int], awaited: list[int]) -> None:
        """Tell the GPUs that will send that this one has entered the call, and wait for those that will receive."""
        self._all_channels("signal", kind, announced)
        self._all_channels("wait", kind, awaited)
        self.has_waited |= bool(awaited)

    def write_repeated(self, actions: BlockActions, kind: str, unit_bytes: int) -> None:
        """Write what is repeated for every part of `unit_bytes` of a chunk, and what comes after that."""
        for repeated in (actions.repeated, actions.late):
            if not repeated:
                continue
            before, self.operations = self.operations, []
            self.has_waited = self.has_worked = True  # in the repetition before, if in no operation before it
            self.write(repeated, kind)
            begin, after, end = REPEATED
            body = self.operations
            body[0] = f"{begin}{unit_bytes}{after}{body[0]}"
            body[-1] += end
            self.operations = [*before, *body]
            self.repeats += 1
            self.has_waited = self.has_worked = True
        self.write(actions.once, kind)

    def write(self, actions: list[Action], kind: str) -> None:
        """Write actions on channels of one kind; waits that follow each other become one operation."""
        waiting: list[int] = []
        for action in actions:
            if action.kind == WAIT and action.message < 0:
                self._all_channels("wait", kind, waiting)
                waiting = []
                self._before_wait()
                self._all_channels("wait", kind, list(action.channels), _LEAVES)
                continue
            if action.kind == WAIT:
                if waiting and (set(action.channels) & set(waiting)):
                    self._all_channels("wait", kind, waiting)
                    waiting = []
                if not waiting:
                    self._before_wait()
                waiting += action.channels
                self.has_waited = True
                if action.releases:
                    self._all_channels("wait", kind, waiting)
                    waiting = []
                    self._release(action)
                continue
            if waiting:
                self._all_channels("wait", kind, waiting)
                waiting = []
            self._acquire(action)
            self._action(action, kind)
            self._release(action)
        self._all_channels("wait", kind, waiting)

    def _action(self, action: Action, kind: str) -> None:
        if action.kind == POST:
            self._barrier()
            self._post(action)
        elif action.kind == FLUSH:
            self._barrier()
            self._flush(action)
        elif action.kind == SIGNAL:
            self._barrier()
            self._all_channels("signal", kind, list(action.channels), _LEAVES if action.message < 0 else "")
        elif action.kind == SEND and action.group:
            self._switch(action)
        elif action.kind == SEND:
            self._send(action)
        else:
            for one in action.ranges:
                self._local(one, action.message)

    def _send(self, action: Action) -> None:
        hint = self.hints[action.message]
        for source, target, count, _ in action.ranges:
            self._before_work([(source, count)])
            place = self.tables.buffer("memory", action.peer, min(target >> BUFFER_BITS, 2))
            to = self._there("buffer_id", place, action.peer, target, count)
            channel = f',"channel_ids":[{self.tables.channel("memory", action.channels[0])}]' if action.channels else ""
            self.operations.append(
                f'{{"name":"{action.name}","src_buff":[{self._buffer(source, count)}],"dst_buff":[{to}]{channel},'
                f'"channel_type":"memory"{hint}}}'
            )
        if action.channels:
            self._barrier()
            self._all_channels("signal", "memory", list(action.channels))

    def _post(self, action: Action) -> None:
        (source, target, count, _), hint = action.ranges[0], self.hints[action.message]
        place = self.tables.buffer("port", action.peer, target >> BUFFER_BITS)
        to = self._there("buffer_id", place, action.peer, target, count)
        self.operations.append(
            f'{{"name":"{action.name}","src_buff":[{self._buffer(source, count)}],"dst_buff":[{to}],'
            f'"channel_ids":[{self.tables.channel("port", action.channels[0])}],"channel_type":"port"{hint}}}'
        )

    def _flush(self, action: Action) -> None:
        """Write a flush; MSCCL++ 0.9.0 counts its channels by its targets, which are not used otherwise."""
        for k in range(0, len(action.channels), CHANNELS_PER_OPERATION):
            ids = [self.tables.channel("port", channel) for channel in action.channels[k : k + CHANNELS_PER_OPERATION]]
            to = ",".join(['{"buffer_id":0,"index":0,"size":1}'] * len(ids))
            listed = ",".join(map(str, ids))
            self.operations.append(
                f'{{"name":"flush","dst_buff":[{to}],"channel_ids":[{listed}],"channel_type":"port"}}'
            )

    def _switch(self, action: Action) -> None:
        """Write an operation of a switch, and signal all other GPUs of its group."""
        hint = self.hints[action.message]
        for source, target, count, _ in action.ranges:
            self._before_work([(source, count), (target, count)])
            place = self.tables.switch(target >> BUFFER_BITS, action.group)
            to = self._there("switch_channel_id", place, self.rank, target, count)
            out = self._buffer(source, count)
            if action.name == "glres":
                loaded = self.tables.switch(source >> BUFFER_BITS, action.group)
                out = self._there("switch_channel_id", loaded, self.rank, source, count)
            self.operations.append(
                f'{{"name":"{action.name}","src_buff":[{out}],"dst_buff":[{to}],"channel_ids":[{place}],'
                f'"channel_type":"switch"{hint}}}'
            )
        self._barrier()
        self._all_channels("signal", "memory", list(action.channels))

    def _local(self, one: Range, message: int) -> None:
        source, target, count, added = one
        is_packet = source >> BUFFER_BITS == PACKETS
        read = (*added[:1], source, *added[1:])  # what the GPU has comes first
        self._before_work([(slot, count) for slot in (target, *read) if slot >> BUFFER_BITS != PACKETS])
        into = self._buffer(target, count)
        sources = ",".join(self._buffer(slot, count) for slot in read)
        name = ("repkt" if is_packet else "re") if added else ("upkt" if is_packet else "copy")
        of = f',"message":{message}' if message >= 0 else ""
        self.operations.append(f'{{"name":"{name}","src_buff":[{sources}],"dst_buff":[{into}]{of}}}')

    def _buffer(self, slot: int, count: int) -> str:
        """Return some slots of a buffer; with packets, plain data in scratch comes after all packets."""
        buffer, (index, size) = slot >> BUFFER_BITS, self.slots.chunks_of(self.rank, slot, count)
        index += 2 * self.packets if buffer == 2 else 0
        return f'{{"type":"{"ioss"[buffer]}","index":{index},"size":{size}}}'

    def _there(self, table: str, place: int, rank: int, slot: int, count: int) -> str:
        """Return some slots of a buffer that a table of the threadblock names."""
        index, size = self.slots.chunks_of(rank, slot, count)
        return f'{{"{table}":{place},"index":{index},"size":{size}}}'

    def _all_channels(self, name: str, kind: str, channels: list[int], hint: str = "") -> None:
        if not channels:
            return
        table = self.tables.channels[kind]
        places = [str(table.setdefault(channel, len(table))) for channel in channels]
        for k in range(0, len(places), CHANNELS_PER_OPERATION):
            ids = ",".join(places[k : k + CHANNELS_PER_OPERATION])
            self.operations.append(f'{{"name":"{name}","channel_ids":[{ids}],"channel_type":"{kind}"{hint}}}')

    def _acquire(self, action: Action) -> None:
        if action.acquires:
            self._before_wait()
            self._semaphores("sem_acquire", action.acquires)
            self.has_waited = True

    def _release(self, action: Action) -> None:
        if action.releases:
            self._barrier()
            self._semaphores("sem_release", action.releases)

    def _semaphores(self, name: str, ids: list[int]) -> None:
        for k in range(0, len(ids), SEMAPHORES_PER_STEP):
            listed = ",".join(map(str, ids[k : k + SEMAPHORES_PER_STEP]))
            self.operations.append(f'{{"name":"{name}","semaphore_ids":[{listed}]}}')

    def _before_wait(self) -> None:
        """All threads finish their work before one of them waits."""
        if self.has_worked:
            self._barrier()

    def _before_work(self, slots: list[tuple[int, int]]) -> None:
        """All threads see what another one waited for, and what they wrote before."""
        if self.has_waited or any(a < d + n and d < a + m for a, m in slots for d, n in self.touched):
            self._barrier()
        self.has_worked = True
        self.touched += slots

    def _barrier(self) -> None:
        if self.has_waited or self.has_worked:
            self.operations.append(_NOP)
        self.has_waited = self.has_worked = False
        self.touched.clear()
