"""Chakra execution traces for ASTRA-sim: one file per rank, each a stream of protobuf messages.

A file contains one GlobalMetadata and then Nodes, each preceded by its length. Every message has a tag of its own,
because the simulator matches messages by tag, ranks and size. Reductions are COMP nodes without a duration. Traces
describe sizes, not data: flowccl adds the chunk of each node as an attribute. Simulators ignore these attributes, and
the proof of a trace needs them.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from flowccl.errors import InputError
from flowccl.export.formats.protobuf import bytes_field, delimited, number_field, varint
from flowccl.export.lowering.buffers import layout_of
from flowccl.export.lowering.moves import moves_of, order_events
from flowccl.schedule.schedule import Schedule

COMP, SEND, RECV = 4, 5, 6  # NodeType of the Chakra schema
INT32, INT64, STRING = 7, 9, 29  # fields of AttributeProto
OWN = "flowccl_"  # prefix of the attributes that flowccl adds
_VERSION = "0.0.4"


def chakra_traces(schedule: Schedule) -> list[bytes]:
    """Return the trace of every rank. A node depends on every earlier node of its chunk that it must not overtake."""
    moves = moves_of(schedule)
    tags: dict[tuple[int, int], int] = defaultdict(int)
    tag_of = []
    for move in moves:
        tag_of.append(tags[move.src, move.dst])
        tags[move.src, move.dst] += 1
    traces = [[delimited(_metadata(schedule))] for _ in range(schedule.demand.num_gpus)]
    wrote: dict[tuple[int, int], int] = {}
    read: dict[tuple[int, int], list[int]] = defaultdict(list)
    for event in order_events(moves, 1, ahead=True):
        move = moves[event.move]
        rank = move.src if event.sends else move.dst
        key, trace = (rank, move.chunk), traces[rank]
        node, name = len(trace) - 1, f"chunk {move.chunk} {move.src} to {move.dst}"
        attributes = {
            "comm_size": int(schedule.demand.chunk_bytes[move.chunk]),
            "comm_src": move.src,
            "comm_dst": move.dst,
            "comm_tag": tag_of[event.move],
            f"{OWN}chunk": move.chunk,
        }
        last = [wrote[key]] if key in wrote else []
        if event.sends:
            trace.append(_node(node, f"send {name}", SEND, last, attributes))
            read[key].append(node)
            continue
        trace.append(_node(node, f"receive {name}", RECV, [] if move.reduce else [*last, *read[key]], attributes))
        if move.reduce:
            reduction = {f"{OWN}chunk": move.chunk, f"{OWN}adds": node}
            trace.append(_node(node + 1, f"reduce {name}", COMP, [node, *last, *read[key]], reduction))
            node += 1
        wrote[key], read[key] = node, []
    return [b"".join(trace) for trace in traces]


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
