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
    found = links_back(topology)
    if found is None or any(topology.links[k] != back.links[other] for k, other in enumerate(found.tolist())):
        return None
    return found


def links_back(topology: Topology) -> NDArray[np.int64] | None:
    """For each link, one back with the same bandwidth and latency, each once; None where a link has none."""
    src, dst = topology.link_src, topology.link_dst
    rates = (topology.link_latency_ps, topology.link_GBps)
    there, back = sorted_links(topology), np.lexsort((*rates, src, dst))
    pairs = ((src, dst), (dst, src), *((rate, rate) for rate in rates))
    if not all(np.array_equal(one[there], other[back]) for one, other in pairs):
        return None
    result = np.empty(len(src), dtype=np.int64)
    result[there] = back
    return result


def sorted_links(topology: Topology) -> NDArray[np.int64]:
    """The links ordered by their ends, bandwidth and latency: the same for equal machines."""
    columns = (topology.link_latency_ps, topology.link_GBps, topology.link_dst, topology.link_src)
    return np.lexsort(columns).astype(np.int64)
