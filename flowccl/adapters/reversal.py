"""Machines that are equal to their own reversal: there, a reduction is a distribution that was found already."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flowccl.topology.topology import Topology


@lru_cache(maxsize=8)
def opposite_links(topology: Topology) -> NDArray[np.int64] | None:
    """The link of the reversed machine that equals each link; None where the reversed machine is another one.

    Links with the same ends are equal where they have the same bandwidth, latency and costs.
    """
    back = topology.reversed
    if topology.has_extra_constraints or back.nodes != topology.nodes:
        return None
    order, other = sorted_links(topology), sorted_links(back)
    if any(topology.links[a] != back.links[b] for a, b in zip(order.tolist(), other.tolist(), strict=True)):
        return None
    result = np.empty(len(order), dtype=np.int64)
    result[order] = other
    return result


def sorted_links(topology: Topology) -> NDArray[np.int64]:
    """The links ordered by their ends, bandwidth and latency: the same for equal machines."""
    columns = (topology.link_latency_ps, topology.link_GBps, topology.link_dst, topology.link_src)
    return np.lexsort(columns).astype(np.int64)
