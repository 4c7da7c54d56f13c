"""What each runtime can hold: one row per target. The numbers are from the runtimes' own sources."""

from dataclasses import dataclass, field

from flowccl.errors import InputError

PROTOCOLS = ("Simple", "LL", "LL128")
FIFO = {"Simple": 2, "LL": 8, "LL128": 8}
"""Operations that one connection of the XML runtimes holds before the sender waits for the receiver."""

_ALL = frozenset({"s", "r", "rcs", "rrs", "rrc", "rrcs", "cpy", "re", "nop"})
_NCCL = {
    "allgather": "allgather",
    "alltoall": "alltoall",
    "allreduce": "allreduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a target takes. Counts are the largest that fit, not the first that do not.

    `steps` are per threadblock, `blocks` per gpu, `blocks_per_channel` each way, `count` chunks per step, `nodes` of
    the XML tree that one rank reads, `waits` threadblocks that a step can wait for (numbers), `index` chunks of a
    buffer. `collectives` maps our names to the target's.
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


XML_LIMITS = {
    "msccl": Limits(
        target="msccl", collectives={**_NCCL, "reduce_scatter": "reduce_scatter"}, steps=256, blocks=216
    ),  # topo.cc, msccl.h; frozen since 2023
    "executor": Limits(
        target="executor",
        collectives={**_NCCL, "reduce_scatter": "reducescatter", "gather": "gather", "scatter": "scatter"},
    ),  # msccl_parser.cc, msccl_struct.h of the NCCL executor
    "rccl": Limits(
        target="rccl",
        collectives={**_NCCL, "reduce_scatter": "reducescatter", "gather": "gather", "scatter": "scatter"},
        instructions=frozenset({"s", "r", "cpy", "re", "nop"}),  # ROCm 6.1 dropped all others
        blocks=64,
        channels=128,
    ),
}

MSCCLPP_LIMITS = Limits(
    target="mscclpp",
    collectives={
        "allgather": "allgather",
        "alltoall": "alltoall",
        "allreduce": "allreduce",
        "broadcast": "broadcast",
        "reduce_scatter": "reducescatter",
    },
    instructions=frozenset({"s", "r", "cpy", "re"}),
    protocols=("Simple",),
    steps=64,  # operations, execution_common.hpp
    channels=1024,
    blocks_per_channel=1024,
    count=2**31 - 1,
    nodes=2**31 - 1,
    children=2**31 - 1,
    waits=1024,
    index=2**31 - 1,
    one_sided=True,
)

CHANNELS_PER_BLOCK = 16  # of one type in one MSCCL++ threadblock; the loader does not check it
SEMAPHORES_PER_STEP = 16

LIMITS: dict[str, Limits] = {**XML_LIMITS, "mscclpp": MSCCLPP_LIMITS}


@dataclass(frozen=True, slots=True)
class Excess:
    """A limit that is exceeded: its name, what is needed, what is there, and where."""

    limit: str
    need: int
    most: int
    where: str = ""

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        return f"{self.limit}: {self.need} needed, at most {self.most}{where}"


def check_collective(limits: Limits, collective: str) -> str:
    """The target's name of a collective; InputError where it has none."""
    if collective not in limits.collectives:
        known = ", ".join(limits.collectives)
        raise InputError(f"{limits.target} has no {collective}; it can run {known}")
    return limits.collectives[collective]


def check_protocol(limits: Limits, protocol: str) -> None:
    """InputError where the target does not know the protocol."""
    if protocol not in limits.protocols:
        known = " or ".join(limits.protocols)
        raise InputError(f"{limits.target}: the protocol must be {known}, got {protocol!r}")
