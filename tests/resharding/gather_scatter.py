"""What a resharding must do, the simple way: gather each tensor whole on numpy, and scatter it again.

The shards are cut from arrays by the rule of DTensor, apart from the code of the project.
"""

import numpy as np


def chunks(array, parts, dim):
    """Parts of ceil(n / parts) elements along a dimension; the last ones may be smaller or empty."""
    size = -(-array.shape[dim] // parts)
    return [array.take(range(k * size, min((k + 1) * size, array.shape[dim])), axis=dim) for k in range(parts)]


def shard(array, tensor, rank):
    """The part of a rank, of an array with one entry per element."""
    place = np.unravel_index(tensor.mesh.ranks.index(rank), tensor.mesh.shape)
    for at, parts, placement in zip(place, tensor.mesh.shape, tensor.placements, strict=True):
        if placement.dim is not None:
            blocks = chunks(array, placement.split, placement.dim) if placement.split > 1 else [array]
            array = np.concatenate([chunks(block, parts, placement.dim)[at] for block in blocks], axis=placement.dim)
    return array


def positions(tensor, rank):
    """The bytes of a tensor that a rank has, in the order of its memory, with the shape of its part."""
    every = np.arange(tensor.bytes)
    if tensor.mesh is None:
        return np.concatenate([every[part.begin : part.end] for part in tensor.ranges if part.rank == rank])
    element = shard(np.arange(tensor.bytes // tensor.element_bytes).reshape(tensor.shape), tensor, rank)
    at = element[..., None] * tensor.element_bytes + np.arange(tensor.element_bytes)
    return at.reshape(*element.shape[:-1], -1) if element.size else np.zeros((*element.shape[:-1], 0), dtype=int)


def scattered(layout, whole):
    """The parts of all ranks: {rank: {name: bytes}}."""
    parts = {rank: {} for rank in layout.ranks}
    for tensor in layout.tensors:
        for rank in tensor.ranks:
            parts[rank][tensor.name] = whole[tensor.name][positions(tensor, rank)]
    return parts


def gathered(layout, parts):
    """The whole tensors, from the parts of all ranks."""
    whole = {}
    for tensor in layout.tensors:
        whole[tensor.name] = np.zeros(tensor.bytes, dtype=np.uint8)
        for rank in tensor.ranks:
            whole[tensor.name][positions(tensor, rank)] = parts[rank][tensor.name]
    return whole
