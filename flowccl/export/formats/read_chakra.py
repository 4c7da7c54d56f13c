"""Chakra traces, one per rank, as a program.

A trace lists sends and receives with their ranks, bytes and tags, and the dependencies of nodes. If flowccl's own
attributes name the chunk of each node, the results are proved too: every rank has one slot for each chunk, a plain
receive stores into it, and a COMP node reduces it with the data of its receive. Without these attributes, only matching
and absence of deadlock are proved.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from flowccl.demand.collectives import COLLECTIVES_BY_NAME, ROOTED
from flowccl.errors import FileError, InputError
from flowccl.export.formats.chakra import COMP, OWN, RECV, SEND
from flowccl.export.formats.protobuf import read_delimited, read_fields, read_numbers
from flowccl.export.lowering.buffers import BufferLayout, layout_of
from flowccl.export.proof.program import Operand, Operation, RuntimeProgram
from flowccl.files import read_bytes

MAX_TRACE_BYTES = 256_000_000
MAX_RANKS = 2**16
_NAMES = {SEND: "send", RECV: "receive", COMP: "reduce"}
_COMM = ("comm_size", "comm_tag")


@dataclass(slots=True)
class _Node:
    """A node of a trace: its number, kind, dependencies, and its attributes that are numbers or text."""

    id: int = 0
    kind: int = 0
    after: list[int] = field(default_factory=list)
    values: dict[str, int | bytes] = field(default_factory=dict)

    def number(self, name: str, where: str) -> int:
        """Return a required attribute."""
        value = self.values.get(name)
        if not isinstance(value, int):
            raise FileError(f"{where}: attribute {name} is missing or not a whole number")
        return value


def read_chakra(path: str | Path) -> RuntimeProgram:
    """Return the program in PATH.0.et, PATH.1.et, ...; raise FileError if these are not traces."""
    beginning = str(path).removesuffix(".0.et")
    traces: list[bytes] = []
    left = MAX_TRACE_BYTES
    while len(traces) < MAX_RANKS and (not traces or Path(f"{beginning}.{len(traces)}.et").exists()):
        traces.append(read_bytes(Path(f"{beginning}.{len(traces)}.et"), left))
        left -= len(traces[-1])
    return parse_chakra(traces, beginning)


def parse_chakra(traces: list[bytes], name: str) -> RuntimeProgram:
    """Return the program in the traces of all ranks."""
    heads, nodes = [], []
    for rank, trace in enumerate(traces):
        try:
            head, *rest = read_delimited(trace)
            heads.append(_attributes(read_fields(head), 2))
            nodes.append([_node(message) for message in rest])
        except (FileError, ValueError) as error:
            words = "it is empty" if isinstance(error, ValueError) else str(error)
            raise FileError(f"{name}.{rank}.et: not a Chakra trace: {words}") from None
    if any(head != heads[0] for head in heads):
        raise FileError(f"{name}: the traces name different collectives; they are not from one export")
    return _TraceReader(name, nodes, _layout(heads[0], len(traces), name)).program


def _attributes(fields: list[tuple[int, int | bytes]], wanted: int) -> dict[str, int | bytes]:
    found: dict[str, int | bytes] = {}
    for number, message in fields:
        if number == wanted and isinstance(message, bytes):
            rows = read_fields(message)
            name = next((value for key, value in rows if key == 1 and isinstance(value, bytes)), b"")
            value = next((value for key, value in rows if key > 2), None)
            if value is not None:
                found[name.decode("utf-8", "replace")] = value
    return found


def _node(message: bytes) -> _Node:
    node = _Node()
    fields = read_fields(message)
    for number, value in fields:
        if number == 1 and isinstance(value, int):
            node.id = value
        elif number == 3 and isinstance(value, int):
            node.kind = value
        elif number in (4, 5):
            node.after += read_numbers(value)
    node.values = _attributes(fields, 10)
    return node


def _layout(head: dict[str, int | bytes], gpus: int, name: str) -> BufferLayout | None:
    """Return the buffer layout of the collective; None if the traces do not name a collective."""
    collective = head.get(f"{OWN}collective")
    if not isinstance(collective, bytes):
        return None
    word = collective.decode("utf-8", "replace")
    if word not in COLLECTIVES_BY_NAME:
        raise FileError(f"{name}: unknown collective {word[:40]!r}")
    pieces, root = head.get(f"{OWN}chunks_per_block", 1), head.get(f"{OWN}root", 0)
    if not isinstance(pieces, int) or not isinstance(root, int) or not 1 <= pieces <= 2**20 or root >= gpus:
        raise FileError(f"{name}: chunks per block or root are out of range")
    extra = (root,) if word in ROOTED else ()
    try:
        return layout_of(COLLECTIVES_BY_NAME[word](gpus, gpus * pieces, pieces, *extra), 1, False)
    except InputError as error:
        raise FileError(f"{name}: {error}") from None


class _TraceReader:
    """Makes one step of each node; a rank distributes its input before all nodes and collects its output after them."""

    def __init__(self, name: str, nodes: list[list[_Node]], layout: BufferLayout | None) -> None:
        self.name, self.layout = name, layout
        gpus = len(nodes)
        self.operations: list[Operation] = []
        self.program = RuntimeProgram("", gpus, (), 1, [(0, 0, 0)] * gpus, self.operations, None)
        if layout is not None:
            self.program = RuntimeProgram(
                layout.collective, gpus, (False,), layout.chunks, [], self.operations, None, layout.root
            )
        self.used: Counter[tuple[str, int, int, int, int]] = Counter()
        for rank, own in enumerate(nodes):
            self._rank(rank, own)
        for (direction, src, dst, tag, size), times in self.used.items():
            if times > 1:
                words = (
                    f"gpu {src} to gpu {dst}: {times} nodes {direction} {size} bytes with tag {tag}; tags must differ"
                )
                self.program.found("tag", words)

    def _rank(self, rank: int, nodes: list[_Node]) -> None:
        known = {node.id for node in nodes}
        if len(known) < len(nodes):
            raise FileError(f"{self.name}.{rank}.et: two nodes have the same id")
        chunks = 0 if self.layout is None else len(self.layout.demand)
        stages = {node.values[f"{OWN}adds"]: chunks + k for k, node in enumerate(nodes) if f"{OWN}adds" in node.values}
        start, end = Operation(rank, -1, 0, "start"), Operation(rank, -2, 0, "end")
        start.is_published = True
        self.operations.append(start)
        for node in nodes:
            where = f"gpu {rank} node {node.id}"
            if node.kind not in _NAMES:
                raise FileError(f"{where}: node type {node.kind} is not supported; only sends, receives and COMP are")
            operation = Operation(rank, node.id, 0, _NAMES[node.kind], is_published=True, label=f"node {node.id}")
            operation.after = [(-1, 0), *((other, 0) for other in node.after if other in known)]
            for other in node.after:
                if other not in known:
                    self.program.found("dependency", f"{where}: waits for node {other}, which does not exist")
            if node.kind != COMP:
                self._connect(operation, node, where)
            if self.layout is not None:
                self._assign(operation, node, stages, where)
            end.after.append((node.id, 0))
            self.operations.append(operation)
        self.operations.append(end)
        if self.layout is not None:
            self._ends(self.layout, start, end, chunks + len(nodes))

    def _connect(self, operation: Operation, node: _Node, where: str) -> None:
        """Connect a send or receive to its other end, which is matched by ranks, tag and size."""
        sends = node.kind == SEND
        peer = node.number("comm_dst" if sends else "comm_src", where)
        size, tag = (node.number(name, where) for name in _COMM)
        if not 0 <= peer < self.program.num_gpus or peer == operation.rank:
            raise FileError(
                f"{where}: the other end is gpu {peer}, but there are traces of {self.program.num_gpus} gpus"
            )
        src, dst = (operation.rank, peer) if sends else (peer, operation.rank)
        (operation.pushes if sends else operation.pops).append(("message", src, dst, tag, size))
        self.used["send" if sends else "receive", src, dst, tag, size] += 1
        operation.size, operation.sends_to = 1, peer if sends else -1

    def _assign(self, operation: Operation, node: _Node, stages: dict[int | bytes, int], where: str) -> None:
        """Add the effect of a node: chunk c is in s[c], and received data to be reduced is in the slots after these."""
        assert self.layout is not None
        if node.kind == COMP and f"{OWN}adds" not in node.values:
            return  # it only orders other nodes
        rank, chunk = operation.rank, node.number(f"{OWN}chunk", where)
        if chunk >= len(self.layout.demand):
            raise FileError(f"{where}: names chunk {chunk}, but there are only {len(self.layout.demand)} chunks")
        cell: Operand = (rank, "s", chunk)
        if node.kind == SEND:
            operation.assigns.append((0, (cell,)))
        elif node.kind == RECV:
            operation.assigns.append(((rank, "s", stages[node.id]) if node.id in stages else cell, (0,)))
        else:
            stage = stages[node.number(f"{OWN}adds", where)]
            operation.assigns.append((cell, (cell, (rank, "s", stage))))

    def _ends(self, layout: BufferLayout, start: Operation, end: Operation, scratch: int) -> None:
        """Copy the input of a rank to its chunk slots before all nodes, and its output from them after all nodes."""
        rank, demand = start.rank, layout.demand
        for chunk in demand.source_chunk[demand.source_rank == rank].tolist():
            buffer, index = layout.input(rank, chunk, 0)
            start.assigns.append(((rank, "s", chunk), ((rank, buffer, index),)))
        for (source, at), (target, to) in layout.own_copies(rank, 0):
            start.assigns += [((rank, target, to + k), ((rank, source, at + k),)) for k in range(demand.pieces)]
        for chunk in demand.destination_chunk[demand.destination_rank == rank].tolist():
            buffer, index = layout.output(rank, chunk, 0)
            end.assigns.append(((rank, buffer, index), ((rank, "s", chunk),)))
        self.program.counts.append((*layout.counts(rank), scratch))
