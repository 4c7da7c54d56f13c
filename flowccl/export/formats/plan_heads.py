"""What an MSCCL++ plan says about GPUs and threadblocks before their operations: channels, buffers, semaphores."""

import json
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.export.formats.plan_writing import WrittenBlocks
from flowccl.export.lowering.buffers import BufferLayout
from flowccl.export.lowering.build import Built
from flowccl.export.lowering.uneven import UnevenLayout

I64 = NDArray[np.int64]
_KINDS = ("memory", "port")
_NEXT = ",\n"
_SWITCHES = 4  # the table of a threadblock


class PlanHeads:
    """Writes the heads of GPUs and threadblocks, with the operations after them."""

    def __init__(
        self, built: Built, blocks: WrittenBlocks, layout: BufferLayout, scratch: list[int], semaphores: list[int]
    ) -> None:
        self.built, self.blocks, self.layout = built, blocks, layout
        self.scratch, self.semaphores = scratch, semaphores
        self.ptr = np.searchsorted(blocks.rank, np.arange(len(scratch) + 1)).tolist()
        self.channels = [self._channels(table) for table in range(2)]
        self.switches = self._switches()

    def with_operations(self, gpus: int) -> list[bytes]:
        """Return the text of all GPUs, in parts."""
        parts: list[bytes] = []
        text = self.blocks.text.data
        begin, end = self.blocks.begin.tolist(), self.blocks.end.tolist()
        for rank in range(gpus):
            low, high = self.ptr[rank], self.ptr[rank + 1]
            own = [switch for switch in self.switches if rank in switch[1]]
            tables = [self._tables(table, low, high) for table in range(_SWITCHES + 1)]
            remote = self._remote(tables[2], tables[3])
            head = json.dumps(self._gpu(rank, own, remote))
            parts.append(f'{_NEXT if rank else ""}{head[:-1]}, "threadblocks": [\n'.encode())
            for k, b in enumerate(range(low, high)):
                head = json.dumps(self._block(k, b, tables, remote, own))
                parts.append(f'{_NEXT if k else ""}{head[:-1]}, "ops": [\n'.encode())
                parts += [text[begin[b] : end[b]], b"]}"]  # type: ignore[list-item]
            parts.append(b"]}")
        return parts

    def _channels(self, table: int) -> tuple[I64, list[list[int]]]:
        """For each row of a table of channels, the place of the channel on its GPU; and the peers on each GPU.

        The channels of a GPU are in the order of their ends.
        """
        ends = (self.built.memory, self.built.port)[table].ends
        order = np.lexsort(ends.T[::-1])
        turn = np.empty(len(ends), dtype=np.int64)
        turn[order] = np.arange(len(ends))
        block, number = self.blocks.of(table)
        rank = self.blocks.rank[block]
        key, place = np.unique(rank * max(len(ends), 1) + turn[number], return_inverse=True)
        owner, used = key // max(len(ends), 1), order[key % max(len(ends), 1)] if len(key) else key
        first = np.searchsorted(owner, np.arange(len(self.scratch) + 1))
        peer = np.where(ends[used, 0] == owner, ends[used, 2], ends[used, 0]) if len(used) else used
        return place.reshape(-1) - first[rank], [peer[low:high].tolist() for low, high in pairwise(first.tolist())]

    def _switches(self) -> list[tuple[int, tuple[int, ...]]]:
        """The channels of switches, as (buffer, ranks), in an order common to all GPUs."""
        used = np.unique(self.blocks.of(_SWITCHES)[1]).tolist()
        return sorted((key % 4, self.blocks.groups[key // 4]) for key in used)

    def _tables(self, table: int, low: int, high: int) -> list[list[int]]:
        """A table of some threadblocks: for channels, their places on the GPU."""
        ptr, rows = self.blocks.table_ptr, self.blocks.member
        if table < len(_KINDS):
            sizes = self._offsets[table]
            places = self.channels[table][0]
            return [places[sizes[b] : sizes[b + 1]].tolist() for b in range(low, high)]
        return [rows[ptr[5 * b + table] : ptr[5 * b + table + 1]].tolist() for b in range(low, high)]

    @property
    def _offsets(self) -> list[I64]:
        if not hasattr(self, "_known_offsets"):
            self._known_offsets = [np.append(0, np.cumsum(self.blocks.sizes(table))) for table in range(2)]
        return self._known_offsets

    @staticmethod
    def _remote(memory: list[list[int]], port: list[list[int]]) -> dict[tuple[str, int], int]:
        """The buffers of other GPUs that a GPU uses, in the order of their first use: (type, 4 * GPU + buffer)."""
        remote: dict[tuple[str, int], int] = {}
        for both in zip(memory, port, strict=True):
            for kind, members in zip(_KINDS, both, strict=True):
                for member in members:
                    remote.setdefault((kind, member), len(remote))
        return remote

    def _gpu(
        self, rank: int, own: list[tuple[int, tuple[int, ...]]], remote: dict[tuple[str, int], int]
    ) -> dict[str, Any]:
        channels: list[dict[str, Any]] = [
            {"channel_type": kind, "connected_to": peers[rank]}
            for kind, (_, peers) in zip(_KINDS, self.channels, strict=True)
            if peers[rank]
        ]
        for buffer, ranks in own:
            group = {"size": len(ranks), "ranks": list(ranks)}
            channels.append({"channel_type": "switch", "buffer_type": "ios"[buffer], "rank_groups": [group]})
        layout = self.layout
        counts = layout.counts(rank) if isinstance(layout, UnevenLayout) else layout.whole_counts
        return {
            "id": rank,
            "input_chunks": counts[0],
            "output_chunks": counts[1],
            "scratch_chunks": self.scratch[rank],
            "channels": channels,
            "remote_buffers": [
                {"rank": member // 4, "type": "ios"[member % 4], "access_channel_types": [kind]}
                for kind, member in remote
            ],
            "semaphores": [{"init_value": 0}] * self.semaphores[rank],
        }

    def _block(
        self,
        k: int,
        b: int,
        tables: list[list[list[int]]],
        remote: dict[tuple[str, int], int],
        own: list[tuple[int, tuple[int, ...]]],
    ) -> dict[str, Any]:
        channels = [
            {"channel_type": kind, "channel_ids": tables[table][k]}
            for table, kind in enumerate(_KINDS)
            if tables[table][k]
        ]
        if tables[_SWITCHES][k]:
            ids = [own.index((key % 4, self.blocks.groups[key // 4])) for key in tables[_SWITCHES][k]]
            channels.append({"channel_type": "switch", "channel_ids": ids})
        buffers = [
            {
                "access_channel_type": kind,
                "remote_buffer_ids": [remote[kind, member] for member in tables[2 + table][k]],
            }
            for table, kind in enumerate(_KINDS)
            if tables[2 + table][k]
        ]
        return {"id": k, "channels": channels, "remote_buffer_refs": buffers}
