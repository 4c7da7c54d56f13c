"""Routing of tokens to experts: from files and arrays to the blocks of a dispatch.

A token crosses to a host once, and is copied there to all GPUs that need it. Combine is the mirror image.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.errors import DemandError, FileError, InputError
from flowccl.files import read_json
from flowccl.moe.blocks import Blocks
from flowccl.moe.layout import HostLayout
from flowccl.moe.routing_kernels import count_tokens

Ints = NDArray[np.int64]
MAX_TOKEN_BYTES = 2**24
"""The most bytes of a token: 16 MiB."""
_MAX_PER_HOST = 62  # GPUs of a host whose sets fit into one integer
_MAX_EXPERTS = 2**20
_MAX_FILE_BYTES = 200_000_000


@dataclass(frozen=True, eq=False)
class ExpertPlacement:
    """The GPUs of each expert: `gpus[e]` are the ranks that have expert e, one or several copies."""

    gpus: tuple[tuple[int, ...], ...]

    @classmethod
    def even(cls, experts: int, num_gpus: int) -> "ExpertPlacement":
        """Return the usual placement: the first experts / GPUs experts on GPU 0, the next ones on GPU 1, and so on."""
        if not 1 <= experts <= _MAX_EXPERTS:
            raise DemandError(f"the number of experts must be 1 to {_MAX_EXPERTS:,}, got {experts}")
        return cls(tuple((expert * num_gpus // experts,) for expert in range(experts)))

    @cached_property
    def table(self) -> tuple[Ints, Ints]:
        """Pointer per expert, and the ranks."""
        ptr = pointers([len(ranks) for ranks in self.gpus])
        return ptr, np.array([rank for ranks in self.gpus for rank in ranks], dtype=np.int64)

    def check(self, num_gpus: int) -> None:
        """Raise DemandError unless every expert is on GPUs of the machine, on each at most once."""
        if not self.gpus:
            raise DemandError("placement: there are no experts")
        for expert, ranks in enumerate(self.gpus):
            if not ranks:
                raise DemandError(f"placement: no gpu has expert {expert}")
            for rank in ranks:
                if not 0 <= rank < num_gpus:
                    raise DemandError(
                        f"placement: expert {expert} is on rank {rank}; the ranks are 0 to {num_gpus - 1}"
                    )
            if len(set(ranks)) < len(ranks):
                raise DemandError(f"placement: expert {expert} is on the same gpu twice")


def load_placement(path: str | Path) -> ExpertPlacement:
    """Return the placement in a JSON file: a list with the rank, or the ranks, of each expert."""
    rows = read_json(path, _MAX_FILE_BYTES)
    if isinstance(rows, dict):
        rows = rows.get("experts")
    if not isinstance(rows, list) or not rows:
        raise FileError(
            f"{path}: must be a list with the rank, or a list of ranks, of each expert, such as [0, 0, [1, 5]]"
        )
    gpus = []
    for expert, row in enumerate(rows):
        ranks = row if isinstance(row, list) else [row]
        if not all(type(rank) is int for rank in ranks):
            raise FileError(f"{path}: expert {expert}: must be a rank or a list of ranks, got {json.dumps(row)[:40]}")
        gpus.append(tuple(ranks))
    return ExpertPlacement(tuple(gpus))


def load_routing(path: str | Path, num_gpus: int) -> list[Ints]:
    """Return the experts of the tokens of each GPU, [tokens, k] each, from a file.

    npy: [gpus, tokens, k], or [tokens, k] of all GPUs, divided evenly in their order. npz: one array [tokens, k] per
    GPU, in rank order. parquet: the column `indices` has the experts of each token, divided evenly among the GPUs, or
    by a column `rank`.
    """
    name = str(path)
    if name.endswith(".parquet"):
        return _parquet(name, num_gpus)
    try:
        with Path(path).open("rb") as file:
            loaded = np.load(file)
            arrays = [loaded[key] for key in loaded.files] if isinstance(loaded, NpzFile) else None
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, KeyError, BadZipFile):
        raise FileError(f"{path}: not numbers in a file of numpy (npy or npz)") from None
    return experts_of(loaded, num_gpus, name) if arrays is None else _per_gpu(name, arrays, num_gpus)


def experts_of(array: NDArray[Any], num_gpus: int, name: str = "routing") -> list[Ints]:
    """Return the experts of the tokens of each GPU from [gpus, tokens, k], or from [tokens, k] divided evenly."""
    if array.ndim == 3 and len(array) == num_gpus:
        return _per_gpu(name, list(array), num_gpus)
    if array.ndim == 2 and len(array) % num_gpus == 0:
        return _per_gpu(name, list(array.reshape(num_gpus, -1, array.shape[1])), num_gpus)
    raise DemandError(
        f"{name}: must have the shape [{num_gpus}, tokens, k], or [tokens, k] with tokens a multiple of {num_gpus}, "
        f"got {list(array.shape)}"
    )


def _per_gpu(name: str, arrays: Sequence[NDArray[Any]], num_gpus: int) -> list[Ints]:
    if len(arrays) != num_gpus:
        raise DemandError(f"{name}: has {len(arrays)} arrays, the machine has {num_gpus} gpus")
    result = []
    for rank, array in enumerate(arrays):
        if array.ndim != 2:
            raise DemandError(f"{name}: the array of rank {rank} must be [tokens, k], got shape {list(array.shape)}")
        if array.dtype.kind not in "iu":
            whole = array.dtype.kind == "f" and bool(np.all(np.isfinite(array)) and np.all(array == np.floor(array)))
            if not whole:
                raise DemandError(f"{name}: rank {rank}: expert numbers must be whole numbers")
        if array.size and array.min() < 0:
            raise DemandError(f"{name}: rank {rank}: expert numbers must be >= 0, got {array.min()}")
        result.append(np.ascontiguousarray(array, dtype=np.int64))
    return result


def _parquet(name: str, num_gpus: int) -> list[Ints]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{name}: reading parquet needs pyarrow: pip install flowccl[parquet]") from None
    try:
        table = parquet.read_table(name)
    except (OSError, ValueError) as error:
        raise FileError(f"{name}: cannot be read: {error}") from None
    if "indices" not in table.column_names:
        raise DemandError(f"{name}: has no column `indices`; its columns are {', '.join(table.column_names)}")
    rows = table.column("indices").to_pylist()
    widths = {len(row) if isinstance(row, list) else -1 for row in rows}
    if len(widths) != 1 or -1 in widths:
        raise DemandError(f"{name}: column `indices`: every row must be a list of the same number of experts")
    experts = np.array(rows)
    if "rank" not in table.column_names:
        return experts_of(experts, num_gpus, name)
    rank = np.array(table.column("rank").to_pylist())
    return _per_gpu(name, [experts[rank == gpu] for gpu in range(num_gpus)], num_gpus)


def dispatch_blocks(
    layout: HostLayout, routing: Sequence[Ints], placement: ExpertPlacement, token_bytes: int
) -> Blocks:
    """Return the blocks of a dispatch: the tokens of a GPU that go to the same GPUs of a host."""
    check_token_bytes(token_bytes)
    placement.check(layout.topology.num_gpus)
    if len(routing) != layout.topology.num_gpus:
        raise DemandError(f"routing: has {len(routing)} arrays, the machine has {layout.topology.num_gpus} gpus")
    if int(np.diff(layout.host_ptr).max()) > _MAX_PER_HOST:
        raise DemandError(f"dispatch: hosts may have up to {_MAX_PER_HOST} gpus")
    ptr, gpu = placement.table
    rows = []
    for rank, experts in enumerate(routing):
        if experts.size and experts.max() >= len(placement.gpus):
            raise DemandError(
                f"routing: rank {rank} uses expert {experts.max()}, which no gpu has; the placement has "
                f"{len(placement.gpus)} experts"
            )
        slots = 1 << int(2 * experts.size + 2).bit_length()
        host, mask, count = count_tokens(experts, rank, ptr, gpu, layout.host_of, layout.paths.place, slots)
        rows.append(np.stack((host, mask, count, np.full(len(host), rank))))
    host, mask, count, source = np.concatenate(rows, axis=1)
    return _sorted_blocks(layout, source, host, mask, count * token_bytes)


def check_token_bytes(token_bytes: int) -> None:
    """Raise DemandError unless the bytes of a token are sensible."""
    if not 1 <= token_bytes <= MAX_TOKEN_BYTES:
        raise DemandError(f"token bytes must be 1 to {MAX_TOKEN_BYTES:,}, got {token_bytes}")


def _sorted_blocks(layout: HostLayout, source: Ints, host: Ints, mask: Ints, size: Ints) -> Blocks:
    """Blocks sorted by host pair, source and mask."""
    pair = layout.host_of[source] * layout.hosts + host
    order = np.lexsort((mask, source, pair))
    pair, source, host, mask, size = (column[order] for column in (pair, source, host, mask, size))
    most = int(np.diff(layout.host_ptr).max())
    is_set = (mask[:, None] >> np.arange(most)[None, :]) & 1 == 1
    block, place = np.nonzero(is_set)
    to = layout.host_gpu[layout.host_ptr[host[block]] + place]
    ptr = np.searchsorted(pair, np.arange(layout.hosts**2 + 1)).astype(np.int64)
    to_ptr = pointers(is_set.sum(axis=1))
    return Blocks(ptr, source.astype(np.int32), size.astype(np.int64), to_ptr, to.astype(np.int32))
