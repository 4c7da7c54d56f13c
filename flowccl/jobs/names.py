"""Names in logs: collectives, reductions and data types as PyTorch, NCCL and others write them."""

from functools import lru_cache

COLLECTIVES = (
    "allreduce",
    "allgather",
    "reduce_scatter",
    "alltoall",
    "alltoallv",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "send",
    "barrier",
)
"""The collectives of calls. A send and its receive are one call of two ranks; a barrier moves no data."""

CODE = {name: code for code, name in enumerate(COLLECTIVES)}
"""The number of each collective in the table of calls."""

NO_DATA = CODE["barrier"]
_COMMON_ENDS = ("allreduce", "allgather", "reduce_scatter", "alltoall", "alltoallv", "barrier")
COMMON_ENDS = frozenset(CODE[name] for name in _COMMON_ENDS)
"""Collectives in which every rank needs data of every other one: they end at about the same time on all ranks."""

_SPELLINGS = {
    "allreduce": "allreduce",
    "allreducesparse": "allreduce",
    "allgather": "allgather",
    "allgatherv": "allgather",
    "reducescatter": "reduce_scatter",
    "reducescatterv": "reduce_scatter",
    "alltoall": "alltoall",
    "alltoallv": "alltoallv",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "broadcastoop": "broadcast",
    "reduce": "reduce",
    "reduceoop": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send": "send",
    "isend": "send",
    "recv": "send",
    "recvanysource": "send",
    "irecv": "send",
    "sendrecv": "send",
    "barrier": "barrier",
    "monitoredbarrier": "barrier",
    "allreducebarrier": "barrier",
}
_DECORATIONS = ("coalesced", "intotensor", "single", "tensor", "base", "perf", "inplace")

BYTES_OF = {
    "float": 4,
    "float32": 4,
    "f32": 4,
    "double": 8,
    "float64": 8,
    "f64": 8,
    "half": 2,
    "float16": 2,
    "f16": 2,
    "bfloat16": 2,
    "bf16": 2,
    "int": 4,
    "int32": 4,
    "i32": 4,
    "uint32": 4,
    "long": 8,
    "longint": 8,
    "int64": 8,
    "i64": 8,
    "uint64": 8,
    "short": 2,
    "int16": 2,
    "i16": 2,
    "char": 1,
    "int8": 1,
    "i8": 1,
    "byte": 1,
    "uint8": 1,
    "u8": 1,
    "unsignedchar": 1,
    "bool": 1,
    "fp8e4m3": 1,
    "fp8e5m2": 1,
    "f8e4m3": 1,
    "f8e5m2": 1,
    "float8e4m3fn": 1,
    "float8e5m2": 1,
    "complexfloat": 8,
    "complexdouble": 16,
}
"""Bytes of an element; names without signs, in small letters."""

NCCL_TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "f16", "f32", "f64", "bf16", "fp8e4m3", "fp8e5m2")
"""NCCL's data types by number."""


@lru_cache(maxsize=4096)  # logs repeat names very often
def collective_of(text: str) -> str | None:
    """Return the collective that a log means by a name; None where it is none.

    >>> collective_of("c10d::_allgather_base_"), collective_of("nccl:all_reduce_coalesced"), collective_of("wait")
    ('allgather', 'allreduce', None)
    """
    word = plain(text.rpartition(":")[2])
    while word not in _SPELLINGS:
        ending = next((end for end in _DECORATIONS if word.endswith(end)), None)
        if ending is None:
            return None
        word = word.removesuffix(ending)
    return _SPELLINGS[word]


@lru_cache(maxsize=4096)
def bytes_of_type(text: str) -> int | None:
    """Return the bytes of an element of a data type; None for an unknown one."""
    return BYTES_OF.get(plain(text.removeprefix("c10::")))


def plain(text: str) -> str:
    """Return the letters and digits of a name, in small letters."""
    return "".join(letter for letter in text.lower() if letter.isalnum())


def buffer_bytes(collective: str, in_bytes: int, out_bytes: int, ranks: int) -> int:
    """Return the size of a call as nccl-tests counts it, from the bytes that a rank gives and gets.

    >>> buffer_bytes("allgather", 100, 400, 4), buffer_bytes("reduce_scatter", 400, 100, 4)
    (400, 400)
    """
    if collective in ("allgather", "gather"):
        return in_bytes * ranks if in_bytes else out_bytes
    if collective in ("reduce_scatter", "scatter"):
        return out_bytes * ranks if out_bytes else in_bytes
    return max(in_bytes, out_bytes)
