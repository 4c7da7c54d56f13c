"""Chakra traces, one per rank, as a program.

A trace says who sends how many bytes to whom under which tag, and what depends on what. Where our own attributes say
which chunk a node is about, the results are proved too: every rank has one place for each chunk, a plain receive
stores into it, and a COMP node adds to it what its receive brought. Without them only pairs and waiting are.
"""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from flowccl.demand.collectives import COLLECTIVES_BY_NAME, ROOTED
from flowccl.errors import FileError, InputError
from flowccl.export.formats.chakra import COMP, OWN, RECV, SEND
from flowccl.export.formats.protobuf import read_delimited, read_fields, read_numbers
from flowccl.export.lowering.buffers import Layout, layout_of
from flowccl.export.proof.program import Operation, Program, Source
from flowccl.files import read_bytes

MAX_TRACE_BYTES = 256_000_000
MAX_RANKS = 2**16
_NAMES = {SEND: "send", RECV: "receive", COMP: "add"}
_COMM = ("comm_size", "comm_tag")


@dataclass(slots=True)
class _Node:
    """A node of a trace: its number, kind, what it depends on, and its attributes that are numbers or text."""

    id: int = 0
    kind: int = 0
    after: list[int] = field(default_factory=list)
    values: dict[str, int | bytes] = field(default_factory=dict)

    def number(self, name: str, where: str) -> int:
        """An attribute that must be there."""
        value = self.values.get(name)
        if not isinstance(value, int):
            raise FileError(f"{where}: attribute {name} is missing or no whole number")
        return value


def read_chakra(path: str | Path) -> Program:
    """The program in PATH.0.et, PATH.1.et, ...; FileError where they are no traces."""
    beginning = str(path).removesuffix(".0.et")
    traces: list[bytes] = []
    left = MAX_TRACE_BYTES
    while len(traces) < MAX_RANKS and (not traces or Path(f"{beginning}.{len(traces)}.et").exists()):
        traces.append(read_bytes(Path(f"{beginning}.{len(traces)}.et"), left))
        left -= len(traces[-1])
    return parse_chakra(traces, beginning)


def parse_chakra(traces: list[bytes], name: str) -> Program:
    """The program in the traces of all ranks."""
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
        raise FileError(f"{name}: the traces differ in what they say about the collective; they are not of one export")
    return _Maker(name, nodes, _layout(heads[0], len(traces), name)).program


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


def _layout(head: dict[str, int | bytes], gpus: int, name: str) -> Layout | None:
    """Where the collective has its chunks; None where the traces do not say which it is."""
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


class _Maker:
    """Makes one step of each node; before all of them a rank lays out its input, after them it takes its output."""

    def __init__(self, name: str, nodes: list[list[_Node]], layout: Layout | None) -> None:
        self.name, self.layout = name, layout
        gpus = len(nodes)
        self.program = Program("", gpus, (), 1, [(0, 0, 0)] * gpus, [], None)
        if layout is not None:
            self.program = Program(layout.collective, gpus, (False,), layout.chunks, [], [], None, layout.root)
        self.used: Counter[tuple[str, int, int, int, int]] = Counter()
        for rank, own in enumerate(nodes):
            self._rank(rank, own)
        for (way, src, dst, tag, size), times in self.used.items():
            if times > 1:
                words = f"gpu {src} to gpu {dst}: {times} nodes {way} {size} bytes with tag {tag}; tags must differ"
                self.program.found("tag", words)

    def _rank(self, rank: int, nodes: list[_Node]) -> None:
        known = {node.id for node in nodes}
        if len(known) < len(nodes):
            raise FileError(f"{self.name}.{rank}.et: two nodes have the same id")
        chunks = 0 if self.layout is None else len(self.layout.demand)
        stages = {node.values[f"{OWN}adds"]: chunks + k for k, node in enumerate(nodes) if f"{OWN}adds" in node.values}
        start, end = Operation(rank, -1, 0, "start"), Operation(rank, -2, 0, "end")
        start.is_published = True
        self.program.operations.append(start)
        for node in nodes:
            where = f"gpu {rank} node {node.id}"
            if node.kind not in _NAMES:
                raise FileError(f"{where}: node type {node.kind} is not understood, only sends, receives and COMP")
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
            self.program.operations.append(operation)
        self.program.operations.append(end)
        if self.layout is not None:
            self._ends(self.layout, start, end, chunks + len(nodes))

    def _connect(self, operation: Operation, node: _Node, where: str) -> None:
        """Ends are matched by ranks, tag and size."""
        sends = node.kind == SEND
        peer = node.number("comm_dst" if sends else "comm_src", where)
        size, tag = (node.number(name, where) for name in _COMM)
        if not 0 <= peer < self.program.num_gpus or peer == operation.rank:
            raise FileError(f"{where}: the other end is gpu {peer}; there are traces of {self.program.num_gpus} gpus")
        src, dst = (operation.rank, peer) if sends else (peer, operation.rank)
        (operation.pushes if sends else operation.pops).append(("message", src, dst, tag, size))
        self.used["send" if sends else "receive", src, dst, tag, size] += 1
        operation.size, operation.sends_to = 1, peer if sends else -1

    def _assign(self, operation: Operation, node: _Node, stages: dict[int | bytes, int], where: str) -> None:
        """What the node does to the places of its rank: chunk c lies in s[c], what waits to be added behind them."""
        assert self.layout is not None
        rank, chunk = operation.rank, node.number(f"{OWN}chunk", where)
        if chunk >= len(self.layout.demand):
            raise FileError(f"{where}: is about chunk {chunk}, but there are {len(self.layout.demand)}")
        cell: Source = (rank, "s", chunk)
        if node.kind == SEND:
            operation.assigns.append((0, (cell,)))
        elif node.kind == RECV:
            operation.assigns.append(((rank, "s", stages[node.id]) if node.id in stages else cell, (0,)))
        else:
            stage = stages[node.number(f"{OWN}adds", where)]
            operation.assigns.append((cell, (cell, (rank, "s", stage))))

    def _ends(self, layout: Layout, start: Operation, end: Operation, scratch: int) -> None:
        """A rank's input goes to its places before all nodes, its output comes from them after all."""
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
