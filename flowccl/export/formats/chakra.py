"""Chakra execution traces for ASTRA-sim: one file per rank, each a stream of protobuf messages.

A file contains one GlobalMetadata and then Nodes, each preceded by its length. Every message has a tag of its own,
because the simulator matches messages by tag, ranks and size. Reductions are COMP nodes without a duration. Traces
describe sizes, not data: flowccl adds the chunk of each node as an attribute. Simulators ignore these attributes, and
the proof of a trace needs them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flowccl.errors import InputError
from flowccl.export.formats.protobuf import bytes_field, delimited, number_field, varint
from flowccl.export.lowering.buffers import layout_of
from flowccl.export.lowering.moves import Move, moves_of, order_events
from flowccl.schedule.schedule import Schedule

COMP, SEND, RECV = 4, 5, 6  # NodeType of the Chakra schema
INT32, INT64, STRING = 7, 9, 29  # fields of AttributeProto
OWN = "flowccl_"  # prefix of the attributes that flowccl adds
_VERSION = "0.0.4"


def chakra_traces(schedule: Schedule) -> list[bytes]:
    """Return the trace of every rank. A node depends on every earlier node of its chunk that it must not overtake.

    A send must also not overtake the sends before it on its first link. It cannot depend on them, because simulators
    complete a send when the data arrives. It depends on an empty COMP node that depends on what the last of them
    depends on, so the sends of a link start in the order of the schedule.
    """
    moves = moves_of(schedule)
    links = schedule.routes.link[schedule.routes.ptr[schedule.route]].tolist()
    tags: Counter[tuple[int, int]] = Counter()
    tag_of = []
    for move in moves:
        tag_of.append(tags[move.src, move.dst])
        tags[move.src, move.dst] += 1
    traces = [_Trace([delimited(_metadata(schedule))]) for _ in range(schedule.demand.num_gpus)]
    for event in order_events(moves, 1, ahead=True):
        move = moves[event.move]
        attributes = {
            "comm_size": int(schedule.demand.chunk_bytes[move.chunk]),
            "comm_src": move.src,
            "comm_dst": move.dst,
            "comm_tag": tag_of[event.move],
            f"{OWN}chunk": move.chunk,
        }
        if event.sends:
            traces[move.src].send(move, links[move.transfer], attributes)
        else:
            traces[move.dst].receive(move, attributes)
    return [b"".join(trace.messages) for trace in traces]


@dataclass(slots=True)
class _Trace:
    """The trace of one rank: its messages, and the nodes on which later nodes depend."""

    messages: list[bytes]
    wrote: dict[int, int] = field(default_factory=dict)  # chunk: the node that wrote it
    read: dict[int, list[int]] = field(default_factory=dict)  # chunk: the nodes that read it since then
    gate: dict[int, tuple[int, ...]] = field(default_factory=dict)  # first link: what its last send depends on
    order: dict[int, int] = field(default_factory=dict)  # first link: the node after the gate of its last send

    def send(self, move: Move, link: int, attributes: Mapping[str, int]) -> None:
        """Add a send; every send but the first of a link waits for a COMP node."""
        own = (self.wrote[move.chunk],) if move.chunk in self.wrote else ()
        if link in self.gate:
            self.order[link] = self._add("order", COMP, self.gate[link], {})
        after = (*own, self.order[link]) if link in self.order else own
        node = self._add(f"send {_name(move)}", SEND, after, attributes)
        self.gate[link] = after
        self.read.setdefault(move.chunk, []).append(node)

    def receive(self, move: Move, attributes: Mapping[str, int]) -> None:
        """Add a receive, and a COMP node for its reduction."""
        last = [self.wrote[move.chunk]] if move.chunk in self.wrote else []
        last += self.read.pop(move.chunk, [])
        node = self._add(f"receive {_name(move)}", RECV, [] if move.reduce else last, attributes)
        if move.reduce:
            reduction = {f"{OWN}chunk": move.chunk, f"{OWN}adds": node}
            node = self._add(f"reduce {_name(move)}", COMP, [node, *last], reduction)
        self.wrote[move.chunk] = node

    def _add(self, name: str, kind: int, after: Sequence[int], attributes: Mapping[str, int]) -> int:
        number = len(self.messages) - 1
        self.messages.append(_node(number, name, kind, after, attributes))
        return number


def _name(move: Move) -> str:
    return f"chunk {move.chunk} {move.src} to {move.dst}"


def _metadata(schedule: Schedule) -> bytes:
    """Return the version and, for a named collective, its name, chunks per block and root."""
    body = bytes_field(1, _VERSION.encode())
    try:
        layout = layout_of(schedule.demand, 1, False)
    except InputError:
        return body
    values: dict[str, int | str] = {
        "collective": layout.collective,
        "chunks_per_block": schedule.demand.pieces,
        "root": layout.root,
    }
    return body + _attributes(2, {f"{OWN}{name}": value for name, value in values.items()})


def _node(number: int, name: str, kind: int, after: Iterable[int], attributes: Mapping[str, int]) -> bytes:
    body = number_field(1, number) + bytes_field(2, name.encode()) + number_field(3, kind)
    packed = b"".join(varint(other) for other in after)
    if packed:
        body += bytes_field(5, packed)
    return delimited(body + _attributes(10, attributes))


def _attributes(field: int, values: Mapping[str, int | str]) -> bytes:
    rows = []
    for name, value in values.items():
        if isinstance(value, str):
            content = bytes_field(STRING, value.encode())
        else:
            content = number_field(INT64 if name == "comm_size" else INT32, value)
        rows.append(bytes_field(field, bytes_field(1, name.encode()) + content))
    return b"".join(rows)
