"""The named collectives, as functions that return a Demand.

`size_bytes` is the size that nccl-tests prints: the whole buffer. A buffer with one block per rank is divided into
blocks as evenly as whole bytes allow (the first blocks are one byte larger). Each block is divided into `chunks` chunks
in the same manner.
"""

import difflib
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import COLLECTIVES, Demand
from flowccl.errors import DemandError

MAX_ENTRIES = 2**29  # total sources and destinations of all chunks; validating them takes about 10 GB
MAX_BYTES = 2**60

Ints = NDArray[np.int64]


def allgather(num_gpus: int, size_bytes: int, chunks: int = 1) -> Demand:
    """Return an allgather: every rank's block goes to all others; `size_bytes` is the whole output buffer."""
    blocks = _blocks("allgather", num_gpus, size_bytes, chunks, num_gpus, num_gpus * num_gpus)
    return _demand("allgather", num_gpus, size_bytes, chunks, blocks, _column(num_gpus), _others(num_gpus))


def alltoall(num_gpus: int, size_bytes: int, chunks: int = 1) -> Demand:
    """Return an alltoall: every rank sends block d of its buffer to rank d; `size_bytes` is one rank's buffer."""
    blocks = _blocks("alltoall", num_gpus, size_bytes, chunks, num_gpus, 2 * num_gpus * num_gpus)
    sources = np.repeat(_column(num_gpus), num_gpus - 1, axis=0)
    destinations = _others(num_gpus).reshape(-1, 1)
    return _demand("alltoall", num_gpus, size_bytes, chunks, blocks[destinations[:, 0]], sources, destinations)


def alltoallv(matrix_bytes: Sequence[Sequence[int]] | NDArray[Any], chunks: int = 1) -> Demand:
    """Return an alltoallv: rank s sends `matrix_bytes[s][d]` bytes to rank d; the diagonal does not move.

    The largest entry is divided into `chunks` chunks, the other entries into chunks of about the same size. The size of
    the demand is the largest buffer that any rank sends or receives, including the diagonal, as in alltoall.
    """
    matrix = _matrix(matrix_bytes)
    num_gpus = len(matrix)
    _check_counts("alltoallv", num_gpus, chunks, 2 * num_gpus * num_gpus)
    source, destination = np.nonzero((matrix > 0) & ~np.eye(num_gpus, dtype=np.bool_))
    if len(source) == 0:
        raise DemandError("alltoallv: all entries off the diagonal are 0; at least one must be positive")
    blocks = matrix[source, destination]
    largest = int(np.argmax(blocks))
    if chunks > blocks[largest]:
        raise DemandError(
            f"alltoallv: {chunks} chunks do not fit in the {blocks[largest]} bytes from rank {source[largest]} "
            f"to rank {destination[largest]}; at most {blocks[largest]} chunks"
        )
    size_bytes = int(max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max()))
    parts = np.maximum(np.round(blocks / blocks[largest] * chunks), 1).astype(np.int64)
    if (parts == chunks).all():
        return _demand("alltoallv", num_gpus, size_bytes, chunks, blocks, source[:, None], destination[:, None])
    block = np.repeat(np.arange(len(blocks)), parts)
    part = np.arange(len(block)) - np.repeat(np.cumsum(parts) - parts, parts)
    chunk_bytes = blocks[block] // parts[block] + (part < (blocks % parts)[block])
    return _demand("alltoallv", num_gpus, size_bytes, 1, chunk_bytes, source[block, None], destination[block, None])


def broadcast(num_gpus: int, size_bytes: int, chunks: int = 1, root: int = 0) -> Demand:
    """Return a broadcast: the root's buffer of `size_bytes` goes to all other ranks."""
    blocks = _blocks("broadcast", num_gpus, size_bytes, chunks, 1, num_gpus)
    root = _check_root("broadcast", num_gpus, root)
    others = _others_of(num_gpus, root)
    return _demand("broadcast", num_gpus, size_bytes, chunks, blocks, np.array([[root]]), others[None, :])


def scatter(num_gpus: int, size_bytes: int, chunks: int = 1, root: int = 0) -> Demand:
    """Return a scatter: block r of the root's buffer goes to rank r; `size_bytes` is this whole buffer."""
    blocks = _blocks("scatter", num_gpus, size_bytes, chunks, num_gpus, 2 * num_gpus)
    root = _check_root("scatter", num_gpus, root)
    others = _others_of(num_gpus, root)
    sources = np.full((num_gpus - 1, 1), root)
    return _demand("scatter", num_gpus, size_bytes, chunks, blocks[others], sources, others[:, None])


def gather(num_gpus: int, size_bytes: int, chunks: int = 1, root: int = 0) -> Demand:
    """Return a gather: every rank's block goes to the root; `size_bytes` is the root's whole buffer."""
    blocks = _blocks("gather", num_gpus, size_bytes, chunks, num_gpus, 2 * num_gpus)
    root = _check_root("gather", num_gpus, root)
    others = _others_of(num_gpus, root)
    destinations = np.full((num_gpus - 1, 1), root)
    return _demand("gather", num_gpus, size_bytes, chunks, blocks[others], others[:, None], destinations)


def reduce(num_gpus: int, size_bytes: int, chunks: int = 1, root: int = 0) -> Demand:
    """Return a reduce: the root gets the reduction of all ranks' buffers of `size_bytes`."""
    blocks = _blocks("reduce", num_gpus, size_bytes, chunks, 1, num_gpus + 1)
    root = _check_root("reduce", num_gpus, root)
    return _demand("reduce", num_gpus, size_bytes, chunks, blocks, _row(num_gpus), np.array([[root]]))


def reduce_scatter(num_gpus: int, size_bytes: int, chunks: int = 1) -> Demand:
    """Return a reduce_scatter: rank r gets block r of the reduction; `size_bytes` is one rank's input buffer."""
    blocks = _blocks("reduce_scatter", num_gpus, size_bytes, chunks, num_gpus, num_gpus * (num_gpus + 1))
    sources = np.repeat(_row(num_gpus), num_gpus, axis=0)
    return _demand("reduce_scatter", num_gpus, size_bytes, chunks, blocks, sources, _column(num_gpus))


def allreduce(num_gpus: int, size_bytes: int, chunks: int = 1) -> Demand:
    """Return an allreduce: all ranks get the reduction of all buffers of `size_bytes`, in one block per rank."""
    blocks = _blocks("allreduce", num_gpus, size_bytes, chunks, num_gpus, 2 * num_gpus * num_gpus)
    all_ranks = np.repeat(_row(num_gpus), num_gpus, axis=0)
    return _demand("allreduce", num_gpus, size_bytes, chunks, blocks, all_ranks, all_ranks)


COLLECTIVES_BY_NAME: dict[str, Callable[..., Demand]] = {
    "allgather": allgather,
    "alltoall": alltoall,
    "broadcast": broadcast,
    "scatter": scatter,
    "gather": gather,
    "reduce": reduce,
    "reduce_scatter": reduce_scatter,
    "allreduce": allreduce,
}
"""The collectives that are defined by a number of GPUs and a size; those in `ROOTED` also take `root`."""

ROOTED = frozenset({"broadcast", "scatter", "gather", "reduce"})

_SPELLINGS = {name.replace("_", ""): name for name in COLLECTIVES}


def collective_name(name: str) -> str:
    """Return flowccl's spelling of a name: "all_gather" -> "allgather", "reduce-scatter" -> "reduce_scatter"."""
    if not isinstance(name, str):
        raise DemandError(f"the collective must be a name such as allgather, got {type(name).__name__}")
    plain = name.strip().lower().replace("-", "").replace("_", "").replace(" ", "")
    if plain in _SPELLINGS:
        return _SPELLINGS[plain]
    near = difflib.get_close_matches(plain, _SPELLINGS, n=1)
    hint = f"did you mean {_SPELLINGS[near[0]]}?" if near else f"known collectives are {', '.join(COLLECTIVES)}"
    raise DemandError(f"unknown collective {name!r}; {hint}")


def collective(name: str, num_gpus: int, size_bytes: int, chunks: int = 1, root: int = 0) -> Demand:
    """Return the demand of a named collective; spellings such as "all_gather" and "reduce-scatter" are accepted."""
    known = collective_name(name)
    if known == "alltoallv":
        raise DemandError("alltoallv needs the bytes of every pair: use alltoallv(matrix_bytes) or a demand file")
    if known == "custom":
        raise DemandError("a custom demand lists its chunks: use Demand.from_chunks or a demand file")
    if known in ROOTED:
        return COLLECTIVES_BY_NAME[known](num_gpus, size_bytes, chunks, root)
    if root != 0:
        raise DemandError(f"{known} has no root, got root {root}")
    return COLLECTIVES_BY_NAME[known](num_gpus, size_bytes, chunks)


def busbw_factor(collective: str, num_gpus: int) -> float:
    """Return busbw / algbw as defined by nccl-tests; 1 for a custom demand."""
    known = collective_name(collective)
    if _integer("num_gpus", num_gpus) < 2:
        raise DemandError(f"{known}: needs at least 2 gpus, got {num_gpus}")
    if known == "allreduce":
        return 2 * (num_gpus - 1) / num_gpus
    if known in ("broadcast", "reduce", "custom"):
        return 1.0
    return (num_gpus - 1) / num_gpus


def _demand(
    name: str, num_gpus: int, size_bytes: int, chunks: int, blocks: Ints, sources: NDArray[Any], wanted: NDArray[Any]
) -> Demand:
    """Return the demand with every block divided into chunks; row b of `sources` and `wanted` is for block b."""
    chunk_bytes = _split(blocks, chunks).reshape(-1)
    ends = np.arange(len(chunk_bytes) + 1, dtype=np.int64)
    return Demand(
        name,
        int(num_gpus),
        int(size_bytes),
        chunk_bytes,
        ends * sources.shape[1],
        np.repeat(sources.astype(np.int32), chunks, axis=0).reshape(-1),
        ends * wanted.shape[1],
        np.repeat(wanted.astype(np.int32), chunks, axis=0).reshape(-1),
        int(chunks),
    )


def _split(total: Ints, parts: int) -> Ints:
    """Divide each total into whole parts that differ by at most 1, larger parts first: one row per total."""
    extra: Ints = (np.arange(parts) < (total % parts)[:, None]).astype(np.int64)
    result: Ints = (total // parts)[:, None] + extra
    return result


def _blocks(name: str, num_gpus: int, size_bytes: int, chunks: int, blocks: int, entries: int) -> Ints:
    """Return the bytes of each block of the buffer; every block must be large enough for its chunks."""
    _check_counts(name, num_gpus, chunks, entries)
    if not 1 <= _integer("size_bytes", size_bytes) <= MAX_BYTES:
        raise DemandError(f"{name}: size_bytes must be 1 to 2^60, got {size_bytes}")
    least = size_bytes // blocks
    if least < 1:
        raise DemandError(
            f"{name}: {size_bytes} bytes cannot be cut into {blocks} blocks, one per gpu; give at least {blocks} bytes"
        )
    if chunks > least:
        raise DemandError(f"{name}: {chunks} chunks do not fit in a block of {least} bytes; at most {least} chunks")
    return _split(np.array([size_bytes], dtype=np.int64), blocks).reshape(-1)


def _check_counts(name: str, num_gpus: int, chunks: int, entries: int) -> None:
    if _integer("num_gpus", num_gpus) < 2:
        raise DemandError(f"{name}: needs at least 2 gpus, got {num_gpus}")
    if _integer("chunks", chunks) < 1:
        raise DemandError(f"{name}: chunks must be at least 1, got {chunks}")
    if entries * chunks > MAX_ENTRIES:
        raise DemandError(
            f"{name}: {num_gpus} gpus with {chunks} chunks per block have {entries * chunks} entries, "
            f"more than {MAX_ENTRIES}; use fewer chunks or gpus"
        )


def _check_root(name: str, num_gpus: int, root: int) -> int:
    if not 0 <= _integer("root", root) < num_gpus:
        raise DemandError(f"{name}: root must be a rank, 0 to {num_gpus - 1}, got {root}")
    return root


def _integer(what: str, value: int) -> int:
    if isinstance(value, bool | np.bool_):
        raise DemandError(f"{what} must be a whole number, got {value}")
    try:
        return operator.index(value)
    except TypeError:
        raise DemandError(f"{what} must be a whole number, got {value!r}") from None


def _matrix(matrix_bytes: Sequence[Sequence[int]] | NDArray[Any]) -> Ints:
    """Return the validated byte matrix as an array."""
    try:
        matrix = np.asarray(matrix_bytes)
    except ValueError:
        raise DemandError("alltoallv: the rows of the byte matrix differ in length; it must be square") from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise DemandError(f"alltoallv: the byte matrix must be square, one row per gpu, got shape {matrix.shape}")
    rules: dict[str, Callable[[], NDArray[np.bool_]]] = {  # in this order, because strings cannot be compared with 0
        "must be a whole number of bytes": lambda: _not_whole(matrix),
        "must be >= 0": lambda: np.asarray(matrix < 0),
        "is too large": lambda: np.asarray(matrix > MAX_BYTES // max(len(matrix), 1)),
    }
    for what, wrong in rules.items():
        for s, d in np.argwhere(wrong())[:1]:
            raise DemandError(f"alltoallv: entry [{s}][{d}] {what}, got {matrix[s, d]}")
    return matrix.astype(np.int64)


def _not_whole(matrix: NDArray[Any]) -> NDArray[np.bool_]:
    if matrix.dtype.kind in "iu":
        return np.zeros(matrix.shape, dtype=np.bool_)
    if matrix.dtype.kind == "f":
        broken: NDArray[np.bool_] = (np.floor(matrix) != matrix) | ~np.isfinite(matrix)
        return broken
    rows = [[not isinstance(entry, int) or isinstance(entry, bool) for entry in row] for row in matrix.tolist()]
    return np.array(rows, dtype=np.bool_).reshape(matrix.shape)


def _row(num_gpus: int) -> Ints:
    return np.arange(num_gpus, dtype=np.int64)[None, :]


def _column(num_gpus: int) -> Ints:
    return np.arange(num_gpus, dtype=np.int64)[:, None]


def _others(num_gpus: int) -> Ints:
    """Return a table whose row r has all ranks except r."""
    row = _row(num_gpus - 1)
    return row + (row >= _column(num_gpus))


def _others_of(num_gpus: int, root: int) -> Ints:
    ranks = np.arange(num_gpus - 1, dtype=np.int64)
    return ranks + (ranks >= root)
