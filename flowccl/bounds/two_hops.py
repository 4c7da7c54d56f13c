"""Bound for an allreduce: data that a GPU receives and passes on takes two hops, and one hop alone takes many bytes.

A transfer reduces from several GPUs to one, or copies from one to several. Data that was not passed on by a GPU thus
brings k contributions to a GPU, or one to k GPUs, and uses k + 1 links of GPUs for it. An allreduce of n GPUs in which
no data is passed on needs n (n - 1) contributions for every byte, more than the links can carry unless the data is
small. All other bytes reach a GPU only after two hops, and must still cross its links.
"""

import numpy as np
from numpy.typing import NDArray

from flowccl.bounds.commodities import Commodities

_STEPS = 100  # of the bisection: more than a float has bits


def two_hops_bound_ps(commodities: Commodities) -> tuple[float, int, float] | None:
    """The bound, the latency of two hops, and the bytes of the reduction; None where it is no allreduce."""
    ranks = _allreduce_ranks(commodities)
    if ranks is None:
        return None
    topology, count = commodities.topology, len(ranks)
    latency_ps = _two_hops_ps(commodities)
    nodes = len(topology.nodes)
    into = np.bincount(topology.link_dst, topology.link_peak_GBps, nodes)[ranks] / 1000  # bytes per ps
    out = np.bincount(topology.link_src, topology.link_peak_GBps, nodes)[ranks] / 1000
    size = float(commodities.bytes.sum())

    def is_enough(time_ps: float) -> bool:
        passed_on = into * max(time_ps - latency_ps, 0.0)  # bytes that each GPU can receive after two hops
        left = np.maximum(size - passed_on, 0.0).sum() * (count - 1)
        return bool(left <= time_ps * (into.sum() + out.sum()))

    low, high = 0.0, latency_ps + size / float(into.min())
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return low, int(latency_ps), size


def _two_hops_ps(commodities: Commodities) -> float:
    """The least time after which a link into a storing node carries data of a second hop, and that link's latency.

    The first hop ends with the arrival of its message, overhead included. The overhead of the second one may be hidden
    behind a slower link: it counts only where the link itself has it.
    """
    topology = commodities.topology
    stores = np.flatnonzero(topology.stores)
    itself = np.eye(len(stores), dtype=np.bool_)
    first = np.where(itself, np.inf, commodities.latency_ps[np.ix_(stores, stores)]).min()
    links = np.flatnonzero(topology.stores[topology.link_dst])
    head = commodities.head_ps[np.ix_(stores, topology.link_src[links])]
    back = stores[:, None] == topology.link_dst[links][None, :]
    second = np.where(back, np.inf, head + topology.link_delay_ps[links][None, :]).min()
    return float(first + second)


def _allreduce_ranks(commodities: Commodities) -> NDArray[np.int32] | None:
    """The GPUs of an allreduce: all commodities come from all of them and go to all of them. Else None."""
    ranks = np.unique(commodities.source)
    groups, count = len(commodities.bytes), len(ranks)
    tables = (
        (commodities.source_group, commodities.source),
        (commodities.destination_group, commodities.destination),
    )
    if count < 2 or any(len(rank) != groups * count for _, rank in tables):
        return None
    if any(np.any(np.bincount(group, minlength=groups) != count) for group, _ in tables):
        return None
    return ranks if np.array_equal(np.unique(commodities.destination), ranks) else None
