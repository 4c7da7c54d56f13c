"""What an MSCCL++ plan says about GPUs and threadblocks before their operations: channels, buffers, semaphores."""

import json
from itertools import pairwise
from typing import Any

import numpy as np

from flowccl.export.formats.plan_writing import WrittenBlocks
from flowccl.export.lowering.actions import Channels
from flowccl.export.lowering.buffers import BufferLayout
from flowccl.export.lowering.build import Built
from flowccl.export.lowering.uneven import UnevenLayout

_KINDS = ("memory", "port")


def gpu_texts(
    built: Built, blocks: WrittenBlocks, layout: BufferLayout, scratch: list[int], semaphores: list[int], gpus: int
) -> list[bytes]:
    """Return the text of all GPUs, in parts: the heads of GPUs and threadblocks, and the operations after them."""
    parts: list[bytes] = []
    text, begin, end = blocks.text.data, blocks.begin.tolist(), blocks.end.tolist()
    first = np.searchsorted(blocks.rank, np.arange(gpus + 1)).tolist()
    ptr, member = blocks.table_ptr.tolist(), blocks.member.tolist()
    each = [member[low:high] for low, high in pairwise(ptr)]
    tables = [each[k : k + 5] for k in range(0, len(each), 5)]
    channels = [_sorted_ends(one) for one in (built.memory, built.port)]
    switches = sorted({(key % 4, blocks.groups[key // 4]) for table in tables for key in table[4]})
    for rank in range(gpus):
        own = tables[first[rank] : first[rank + 1]]
        groups = [switch for switch in switches if rank in switch[1]]
        places, peers = zip(*(_own_channels(rank, own, k, *channels[k]) for k in range(2)), strict=True)
        used = dict.fromkeys((kind, one) for table in own for k, kind in enumerate(_KINDS) for one in table[2 + k])
        remote = {key: number for number, key in enumerate(used)}
        head = {"id": rank, **_chunks(layout, rank), "scratch_chunks": scratch[rank]}
        head["channels"] = [
            *({"channel_type": kind, "connected_to": of} for kind, of in zip(_KINDS, peers, strict=True) if of),
            *(_group(buffer, ranks) for buffer, ranks in groups),
        ]
        head["remote_buffers"] = [
            {"rank": one // 4, "type": "ios"[one % 4], "access_channel_types": [kind]} for kind, one in remote
        ]
        head["semaphores"] = [{"init_value": 0}] * semaphores[rank]
        parts.append(f'{_next(rank)}{json.dumps(head)[:-1]}, "threadblocks": [\n'.encode())
        for k, table in enumerate(own):
            ids = [[place[one] for one in table[kind]] for kind, place in enumerate(places)]
            ids.append([groups.index((key % 4, blocks.groups[key // 4])) for key in table[4]])
            named = zip((*_KINDS, "switch"), ids, strict=True)
            block = {
                "id": k,
                "channels": [{"channel_type": kind, "channel_ids": of} for kind, of in named if of],
                "remote_buffer_refs": [
                    {"access_channel_type": kind, "remote_buffer_ids": [remote[kind, one] for one in table[2 + n]]}
                    for n, kind in enumerate(_KINDS)
                    if table[2 + n]
                ],
            }
            b = first[rank] + k
            parts.append(f'{_next(k)}{json.dumps(block)[:-1]}, "ops": [\n'.encode())
            parts += [text[begin[b] : end[b]], b"]}"]  # type: ignore[list-item]
        parts.append(b"]}")
    return parts


def _next(number: int) -> str:
    return ",\n" if number else ""


def _sorted_ends(channels: Channels) -> tuple[list[list[int]], list[int]]:
    """The ends of all channels, and the place of each channel in the order of its ends."""
    order = np.lexsort(channels.ends.T[::-1])
    turn = np.empty(len(order), dtype=np.int64)
    turn[order] = np.arange(len(order))
    return channels.ends.tolist(), turn.tolist()


def _own_channels(
    rank: int, tables: list[list[list[int]]], kind: int, ends: list[list[int]], turn: list[int]
) -> tuple[dict[int, int], list[int]]:
    """The place of each channel of a type that a GPU uses, in the order of their ends, and the peers at the others."""
    used = sorted({one for table in tables for one in table[kind]}, key=turn.__getitem__)
    peers = [ends[one][2] if ends[one][0] == rank else ends[one][0] for one in used]
    return {one: place for place, one in enumerate(used)}, peers


def _group(buffer: int, ranks: tuple[int, ...]) -> dict[str, Any]:
    group = {"size": len(ranks), "ranks": list(ranks)}
    return {"channel_type": "switch", "buffer_type": "ios"[buffer], "rank_groups": [group]}


def _chunks(layout: BufferLayout, rank: int) -> dict[str, Any]:
    counts = layout.counts(rank) if isinstance(layout, UnevenLayout) else layout.whole_counts
    return {"input_chunks": counts[0], "output_chunks": counts[1]}
