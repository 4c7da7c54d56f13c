"""Limits of the target runtimes, one entry per target. The numbers are from the runtimes' own sources."""

from dataclasses import dataclass, field

from flowccl.errors import InputError

PROTOCOLS = ("Simple", "LL", "LL128")
FIFO = {"Simple": 2, "LL": 8, "LL128": 8}
"""Depth of a connection's FIFO in the XML runtimes: operations in flight before the sender waits for the receiver."""

_ALL = frozenset({"s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "nop"})
_NCCL = {
    "allgather": "allgather",
    "alltoall": "alltoall",
    "allreduce": "allreduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeLimits:
    """Limits of one target. Every number is the largest allowed value; MSCCL++ has only some of them.

    `steps` is per threadblock, `blocks` per gpu, `blocks_per_channel` per direction; `count` is the chunks of a step,
    `nodes` the XML nodes that one rank reads, `children` those of one node, `waits` the threadblocks (by number) that a
    step can wait for, `index` the chunks of a buffer, `operands` the chunks that one reduction reads. `collectives`
    maps flowccl's names to the target's. In a `one_sided` runtime, senders write into the receiver's memory.
    """

    target: str
    collectives: dict[str, str]
    instructions: frozenset[str] = field(default=_ALL)
    protocols: tuple[str, ...] = PROTOCOLS
    steps: int = 64
    blocks: int = 1024
    channels: int = 32
    blocks_per_channel: int = 32
    count: int = 71
    nodes: int = 4096
    children: int = 1024
    waits: int = 128
    index: int = 32768
    one_sided: bool = False
    operands: int = 2


XML_LIMITS = {
    "msccl": RuntimeLimits(
        target="msccl", collectives={**_NCCL, "reduce_scatter": "reduce_scatter"}, steps=256, blocks=216
    ),  # topo.cc, msccl.h; frozen since 2023
    "executor": RuntimeLimits(
        target="executor",
        collectives={**_NCCL, "reduce_scatter": "reducescatter", "gather": "gather", "scatter": "scatter"},
    ),  # msccl_parser.cc, msccl_struct.h of the NCCL executor
    "rccl": RuntimeLimits(
        target="rccl",
        collectives={**_NCCL, "reduce_scatter": "reducescatter", "gather": "gather", "scatter": "scatter"},
        instructions=frozenset({"s", "r", "cpy", "re", "nop"}),  # ROCm 6.1 dropped all others
        blocks=64,
        channels=128,
    ),
}

MSCCLPP_LIMITS = RuntimeLimits(
    target="mscclpp",
    collectives={
        "allgather": "allgather",
        "alltoall": "alltoall",
        "alltoallv": "alltoallv",
        "allreduce": "allreduce",
        "broadcast": "broadcast",
        "reduce_scatter": "reducescatter",
    },
    protocols=("Simple", "LL"),
    steps=64,  # operations, execution_common.hpp
    one_sided=True,
    operands=10,  # 2 local buffers and 8 channels, execution_common.hpp
)

CHANNELS_PER_BLOCK = 16  # of one type in one MSCCL++ threadblock; the loader does not check this
SEMAPHORES_PER_STEP = 16
CHANNELS_PER_OPERATION = 8  # of an MSCCL++ operation

ISSUE_OPERATIONS = 6
"""Operations of a message in a threadblock of its issuer: acquire or wait, barrier, put, signal, release."""
FIRST_OPERATIONS = 4
"""The same where the data is the GPU's own from the beginning: put, barrier, signal; one more for waits of others."""
RECEIVE_OPERATIONS = 6
"""Operations of a message in a threadblock of its receiver: wait, acquire, barrier, reduce, barrier, release."""
AGAIN_OPERATIONS = 5
"""The same where the threadblock reduced into the same chunk before: wait, barrier, reduce, barrier; one for others."""
FURTHER_OPERATIONS = 1
"""Of a further message that is reduced in the same operation: a wait."""
USABLE_OPERATIONS = 58  # of the 64 operations of a threadblock; the others begin and end a call

LIMITS: dict[str, RuntimeLimits] = {**XML_LIMITS, "mscclpp": MSCCLPP_LIMITS}


@dataclass(frozen=True, slots=True)
class Excess:
    """An exceeded limit: its name, the needed and the largest allowed value, and the place."""

    limit: str
    need: int
    most: int
    where: str = ""

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        return f"{self.limit}: {self.need} needed, at most {self.most}{where}"


def check_collective(limits: RuntimeLimits, collective: str) -> str:
    """Return the target's name of a collective; raise InputError if the target does not support it."""
    if collective not in limits.collectives:
        known = ", ".join(limits.collectives)
        raise InputError(f"{limits.target} does not support {collective}; it supports {known}")
    return limits.collectives[collective]


def check_protocol(limits: RuntimeLimits, protocol: str) -> None:
    """Raise InputError if the target does not support the protocol."""
    if protocol not in limits.protocols:
        known = " or ".join(limits.protocols)
        raise InputError(f"{limits.target}: the protocol must be {known}, got {protocol!r}")
