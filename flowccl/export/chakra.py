"""Chakra execution traces for ASTRA-sim: one file per rank, each a stream of small protobuf messages.

A file is one GlobalMetadata and then Nodes, each behind its length. Every message has its own tag, since the
simulator matches by tag, ranks and size. Sums are COMP nodes without a duration.
"""

from collections import defaultdict
from collections.abc import Iterable

from flowccl.export.moves import moves_of, order_events
from flowccl.schedule.schedule import Schedule

_COMP, _SEND, _RECV = 4, 5, 6  # NodeType of the Chakra schema
_INT32, _INT64 = 7, 9  # fields of AttributeProto
_VERSION = "0.0.4"


def chakra_traces(schedule: Schedule) -> list[bytes]:
    """The trace of every rank. What a send needs, and what a sum must not overtake, are data dependencies."""
    moves = moves_of(schedule)
    tags: dict[tuple[int, int], int] = defaultdict(int)
    tag_of = []
    for move in moves:
        tag_of.append(tags[move.src, move.dst])
        tags[move.src, move.dst] += 1
    traces = [[_delimited(_field(1, _VERSION.encode()))] for _ in range(schedule.demand.num_gpus)]
    wrote: dict[tuple[int, int], int] = {}
    read: dict[tuple[int, int], list[int]] = defaultdict(list)
    for event in order_events(moves, 1, ahead=True):
        move, tag = moves[event.move], tag_of[event.move]
        size = int(schedule.demand.chunk_bytes[move.chunk])
        rank = move.src if event.sends else move.dst
        key, trace = (rank, move.chunk), traces[rank]
        name = f"chunk {move.chunk} {move.src} to {move.dst}"
        node = len(trace) - 1
        last = [wrote[key]] if key in wrote else []
        if event.sends:
            attributes = {"comm_size": size, "comm_src": move.src, "comm_dst": move.dst, "comm_tag": tag}
            trace.append(_node(node, f"send {name}", _SEND, last, attributes))
            read[key].append(node)
            continue
        attributes = {"comm_size": size, "comm_src": move.src, "comm_dst": move.dst, "comm_tag": tag}
        trace.append(_node(node, f"receive {name}", _RECV, [], attributes))
        if move.reduce:
            trace.append(_node(node + 1, f"add {name}", _COMP, [node, *last, *read[key]], {}))
            node += 1
        wrote[key], read[key] = node, []
    return [b"".join(trace) for trace in traces]


def _node(number: int, name: str, kind: int, after: Iterable[int], attributes: dict[str, int]) -> bytes:
    body = _number(1, number) + _field(2, name.encode()) + _number(3, kind)
    packed = b"".join(_varint(other) for other in after)
    if packed:
        body += _field(5, packed)
    for attribute, value in attributes.items():
        field = _INT64 if attribute == "comm_size" else _INT32
        body += _field(10, _field(1, attribute.encode()) + _number(field, value))
    return _delimited(body)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _field(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _delimited(value)


def _delimited(message: bytes) -> bytes:
    return _varint(len(message)) + message
