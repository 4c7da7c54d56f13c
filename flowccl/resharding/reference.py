"""Data of known values for runs: the bytes of each rank's part of a tensor, from its layout alone."""

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import InputError
from flowccl.resharding.layout import Layout, TensorLayout
from flowccl.resharding.shards import mesh_side
from flowccl.units import format_bytes

Bytes = NDArray[np.uint8]
I64 = NDArray[np.int64]


def local_indices(tensor: TensorLayout, rank: int) -> list[I64]:
    """The elements of each dimension that a rank has of a tensor on a mesh, in the order of its memory."""
    if tensor.mesh is None:
        raise InputError(f"tensor {tensor.name}: is not on a mesh")
    side = mesh_side(np.array([tensor.shape], dtype=np.int64).reshape(1, -1), tensor.mesh, tensor.placements)
    parts = np.unravel_index(side.part_of_rank[rank], [one.parts for one in side.dims]) if side.dims else ()
    result = []
    for shards, part in zip(side.dims, parts, strict=True):
        shard_rows = np.flatnonzero(shards.part == part)
        spans = [np.arange(shards.begin[0, q], shards.end[0, q]) for q in shard_rows]
        result.append(np.concatenate([*spans, np.zeros(0, dtype=np.int64)]))
    return result


def local_shape(tensor: TensorLayout, rank: int) -> tuple[int, ...]:
    """The shape of a rank's part of a tensor; of byte ranges, the number of bytes."""
    if tensor.mesh is None:
        return (sum(part.end - part.begin for part in tensor.ranges if part.rank == rank),)
    return tuple(len(indices) for indices in local_indices(tensor, rank))


def tensor_values(tensor: TensorLayout, rank: int, seed: int) -> Bytes:
    """The bytes of a rank's part of a tensor: a hash of the position in the tensor. The last dimension counts bytes."""
    if tensor.mesh is None:
        spans = [np.arange(part.begin, part.end) for part in tensor.ranges if part.rank == rank]
        return _hashed(np.concatenate([*spans, np.zeros(0, dtype=np.int64)]), seed)
    flat, unit = np.zeros((), dtype=np.int64), tensor.element_bytes
    for size, indices in zip(tensor.shape, local_indices(tensor, rank), strict=True):
        flat = np.asarray(flat[..., None] * size + indices)
    shape = list(flat.shape) or [1]
    at = (flat[..., None] * unit + np.arange(unit)).reshape([*shape[:-1], shape[-1] * unit])
    return _hashed(at, seed)


def rank_values(layout: Layout, rank: int) -> dict[str, Bytes]:
    """The bytes of all tensors of a rank; a tensor's values depend on its name, and are the same in every layout."""
    return {
        tensor.name: tensor_values(tensor, rank, _seed(tensor.name))
        for tensor in layout.tensors
        if rank in tensor.ranks
    }


def check_run_size(source: Layout, target: Layout, available_bytes: float) -> None:
    """Raise InputError if the tensors of all ranks, with their expected values, do not fit into memory."""
    needed = 0.0
    for layout in (source, target):
        for tensor in layout.tensors:
            needed += tensor.bytes * _copies(tensor)
    needed = needed * 2 + 20 * max(tensor.bytes for tensor in source.tensors)  # positions of one tensor as int64
    if needed > available_bytes:
        raise InputError(
            f"the tensors of all ranks and their checks take about {format_bytes(needed)}, and "
            f"{format_bytes(available_bytes)} are available; run smaller layouts"
        )


def _copies(tensor: TensorLayout) -> float:
    """How many copies of a tensor all ranks together have."""
    if tensor.mesh is None:
        return sum(part.end - part.begin for part in tensor.ranges) / max(tensor.bytes, 1)
    count = [size for size, one in zip(tensor.mesh.shape, tensor.placements, strict=True) if one.dim is None]
    return float(np.prod(count)) if count else 1.0


def _seed(name: str) -> int:
    value = 2166136261
    for byte in name.encode():
        value = (value ^ byte) * 16777619 % 2**32
    return value


def _hashed(position: I64, seed: int) -> Bytes:
    mixed = position.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed * 0x85EBCA77C2B2AE63 % 2**64)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return (mixed >> np.uint64(40)).astype(np.uint8)
