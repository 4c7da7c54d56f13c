"""Plans that repeat one operation of MSCCL++: the difference between many and one repetition is its cost."""

from dataclasses import dataclass
from typing import Any

PACKETS = ("put packets", "read packets")
OPERATIONS = ("barrier", "signal", "put", "put with signal", "copy", "reduce", "reduce 8", *PACKETS)
"""What is measured: a nop, a signal with a wait at both ends, and operations that move data.

A reduction reads 2 chunks, or 8: what a GPU has and what its 7 peers in a host have sent.
"""

MOVES_DATA = frozenset(OPERATIONS) - {"barrier", "signal"}
_MORE = 6  # sources of a reduction of 8 chunks that are in scratch
FEW, MANY = 1, 11  # repetitions; with the operations around them, at most 64 in a threadblock
_SIGNAL = {"channel_ids": [0], "channel_type": "memory"}
_BARRIER = {"name": "nop"}
_MEET = ({"name": "signal", **_SIGNAL}, {"name": "wait", **_SIGNAL}, _BARRIER)


@dataclass(frozen=True, slots=True)
class StepProbe:
    """An operation, repeated by `blocks` threadblocks of `threads` threads on both of two ranks."""

    operation: str
    blocks: int
    threads: int
    repeats: int

    @property
    def name(self) -> str:
        """A name that no other probe has."""
        return f"{self.operation.replace(' ', '-')}-{self.blocks}-{self.threads}-{self.repeats}"

    def plan(self) -> dict[str, Any]:
        """Return the plan. It computes nothing that a collective defines; only its time counts."""
        return {
            "name": self.name,
            "collective": "allreduce",
            "protocol": "LL" if self.operation in PACKETS else "Simple",
            "inplace": False,
            "reuse_resources": False,
            "use_double_scratch_buffer": False,
            "buffer_alignment": 16,
            "num_threads_per_block": self.threads,
            "min_message_size": 0,
            "max_message_size": 2**63,
            "gpus": [self._gpu(rank) for rank in range(2)],
        }

    def _gpu(self, rank: int) -> dict[str, Any]:
        return {
            "id": rank,
            "input_chunks": self.blocks,
            "output_chunks": self.blocks,
            "scratch_chunks": _MORE * self.blocks,
            "channels": [{"channel_type": "memory", "connected_to": [1 - rank] * self.blocks}],
            "remote_buffers": [{"rank": 1 - rank, "type": "s", "access_channel_types": ["memory"]}],
            "semaphores": [],
            "threadblocks": [self._block(block) for block in range(self.blocks)],
        }

    def _block(self, block: int) -> dict[str, Any]:
        return {
            "id": block,
            "channels": [{"channel_type": "memory", "channel_ids": [block]}],
            "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [0]}],
            "ops": [*_MEET, *self._before(block), *self._step(block) * self.repeats, *_MEET],
        }

    def _before(self, block: int) -> list[dict[str, Any]]:
        """Packets can be read once they have been put: the first read waits for them, and has no part in the cost."""
        if self.operation != "read packets":
            return []
        put, read = StepProbe("put packets", self.blocks, self.threads, 1), self
        return [*put._step(block), *read._step(block)]

    def _step(self, block: int) -> list[dict[str, Any]]:
        own = {"index": block, "size": 1}
        put = {"name": "put", "src_buff": [{"type": "i", **own}], "dst_buff": [{"buffer_id": 0, **own}], **_SIGNAL}
        given, result = {"type": "i", **own}, {"type": "o", **own}
        more = [{"type": "s", "index": _MORE * block + k, "size": 1} for k in range(_MORE)]
        steps: dict[str, list[dict[str, Any]]] = {
            "barrier": [_BARRIER],
            "signal": list(_MEET),
            "put": [put, _BARRIER],
            "put with signal": [put, _BARRIER, *_MEET],
            "copy": [{"name": "copy", "src_buff": [given], "dst_buff": [result]}, _BARRIER],
            "reduce": [{"name": "re", "src_buff": [result, given], "dst_buff": [result]}, _BARRIER],
            "reduce 8": [{"name": "re", "src_buff": [result, given, *more], "dst_buff": [result]}, _BARRIER],
            "put packets": [put | {"name": "ppkt"}, _BARRIER],
            "read packets": [{"name": "upkt", "src_buff": [{"type": "s", **own}], "dst_buff": [result]}, _BARRIER],
        }
        return steps[self.operation]
