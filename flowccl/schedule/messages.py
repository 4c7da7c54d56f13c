"""The messages of a schedule as arrays: what each one carries, from where to where, and how it travels."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.schedule.transfers import Transfers

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

MEMORY, NIC, STORE_TO_ALL, REDUCE_IN_SWITCH = range(4)
"""How a message travels: inside a host, over a NIC, or as an operation of a switch (gstore, glres)."""


@dataclass(frozen=True, eq=False)
class Messages:
    """The messages of a schedule, ordered by their first transfers.

    Message m carries the transfers `transfer[ptr[m]:ptr[m + 1]]` in their order, and goes to the GPUs
    `end[end_ptr[m]:end_ptr[m + 1]]`. Its delivery of entry k to end j has the number
    `delivery_ptr[m] + (k - ptr[m]) * ends + j`. `src` is the GPU that issues it; `roots` are the GPUs whose data it
    reads, several where a switch reduces.
    """

    first: I64
    ptr: I64
    transfer: I64
    kind: NDArray[np.int8]
    src: I64
    root_ptr: I64
    root: I64
    end_ptr: I64
    end: I64
    delivery_ptr: I64

    def __len__(self) -> int:
        return len(self.first)


def messages_of(schedule: Transfers, is_proxied: NDArray[np.bool_]) -> Messages:
    """Return the messages of a schedule; `is_proxied` are the transfers that the proxy of a NIC sends."""
    leader = schedule.leader
    first = np.flatnonzero(leader == np.arange(len(schedule)))
    transfer = np.argsort(leader, kind="stable")
    ptr = np.searchsorted(leader[transfer], np.append(first, len(schedule)))
    route, shape = schedule.route[first].astype(np.int64), schedule.shape
    roots, ends = np.diff(shape.root_ptr)[route], np.diff(shape.end_ptr)[route]
    kind = np.where(is_proxied[first], NIC, MEMORY)
    kind = np.where(roots > 1, REDUCE_IN_SWITCH, np.where(ends > 1, STORE_TO_ALL, kind))
    root_ptr, end_ptr = pointers(roots), pointers(ends)
    root = shape.root_node[_members(shape.root_ptr, route, root_ptr)].astype(np.int64)
    end = shape.end_node[_members(shape.end_ptr, route, end_ptr)].astype(np.int64)
    src = np.zeros(0, dtype=np.int64)
    if len(first):
        src = np.where(shape.reduces_inside[route], end[end_ptr[:-1]], root[root_ptr[:-1]])
    delivery_ptr = pointers(np.diff(ptr) * ends)
    return Messages(first, ptr, transfer, kind.astype(np.int8), src, root_ptr, root, end_ptr, end, delivery_ptr)


def _members(ptr: I64, which: I64, bounds: I64) -> I64:
    """Return the members of the listed groups `ptr[g]:ptr[g + 1]`, one group after the other."""
    size = np.diff(bounds)
    inside = np.arange(bounds[-1]) - np.repeat(bounds[:-1], size)
    return np.asarray(np.repeat(ptr[:-1][which], size) + inside)
