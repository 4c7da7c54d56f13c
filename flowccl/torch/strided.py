"""Whether the installed PyTorch divides a dimension under `_StridedShard` as layouts do.

Layouts divide into blocks first, and then each block into parts, as FSDP on top of tensor parallelism does. Some
versions of PyTorch also distribute tensors by another rule, which gives other elements, often of the same number, where
a dimension is not a multiple of all its parts. The placement alone does not tell which of the two a tensor follows.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np

from flowccl.errors import InputError
from flowccl.resharding.layout import Mesh, Placement
from flowccl.resharding.shards import dimension_shards
from flowccl.run.torch_run import import_torch

Division = tuple[int, int]
"""A number of parts, and the split factor of the placement: 1 for Shard."""


def check_strided(name: str, tensor: Any) -> None:
    """Raise InputError if a dimension of a DTensor may be divided otherwise than in its layout."""
    sizes, splits = tuple(tensor.device_mesh.mesh.shape), [_split(one) for one in tensor.placements]
    for dim in {one.dim % tensor.ndim for one, split in zip(tensor.placements, splits, strict=True) if split > 1}:
        divisions = tuple(
            (int(parts), split)
            for parts, split, one in zip(sizes, splits, tensor.placements, strict=True)
            if split and one.dim % tensor.ndim == dim
        )
        if not divides_alike(int(tensor.shape[dim]), divisions):
            raise InputError(
                f"tensor {name}: this PyTorch ({import_torch().__version__}) has two rules to divide the "
                f"{tensor.shape[dim]} elements of dimension {dim} under _StridedShard, and they differ; make them a "
                f"multiple of {_multiple(divisions)}, or use a newer PyTorch"
            )


@lru_cache(maxsize=4096)
def divides_alike(size: int, divisions: tuple[Division, ...]) -> bool:
    """Return whether every part of a dimension of `size` elements has the same elements in PyTorch and in a layout."""
    if size % _multiple(divisions) == 0:
        return True
    try:
        return torch_parts(size, divisions) == layout_parts(size, divisions)
    except (AttributeError, TypeError, RuntimeError, AssertionError):  # the split function of PyTorch is private
        return False


def torch_parts(size: int, divisions: tuple[Division, ...]) -> list[list[int]]:
    """The elements of each part, as the placements of PyTorch divide them."""
    torch = import_torch()
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    found = [torch.arange(size, device="cpu")]
    for parts, split in divisions:
        placement = Shard(0) if split == 1 else _StridedShard(0, split_factor=split)
        found = [part for one in found for part in placement._split_tensor(one, parts, with_padding=False)[0]]
    return [part.tolist() for part in found]


def layout_parts(size: int, divisions: tuple[Division, ...]) -> list[list[int]]:
    """The elements of each part, as layouts divide them."""
    shape = tuple(parts for parts, _ in divisions)
    mesh, placements = Mesh(shape, tuple(range(math.prod(shape)))), tuple(Placement(0, split) for _, split in divisions)
    shards = dimension_shards(np.array([size], dtype=np.int64), 0, mesh, placements)
    found: list[list[int]] = [[] for _ in range(shards.parts)]
    for part, begin, end in zip(shards.part.tolist(), shards.begin[0].tolist(), shards.end[0].tolist(), strict=True):
        found[part] += range(begin, end)
    return found


def _split(placement: Any) -> int:
    """The split factor of a placement: 1 for Shard, 0 for Replicate."""
    return int(getattr(placement, "split_factor", 1)) if hasattr(placement, "dim") else 0


def _multiple(divisions: tuple[Division, ...]) -> int:
    """Sizes that are a multiple of this are divided alike by all rules."""
    return math.prod(parts * split for parts, split in divisions)
