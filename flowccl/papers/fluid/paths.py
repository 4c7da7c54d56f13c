"""Decomposition of the flow of one source into paths, each with its share of the unit of the destination."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.topology.topology import Topology

F64 = NDArray[np.float64]

_NOTHING = 1e-7  # fraction of a unit that counts as zero


@dataclass(frozen=True, slots=True)
class FlowPath:
    """Links from a source to a destination, and the fraction of the data on them."""

    links: tuple[int, ...]
    share: float


def paths_of(topology: Topology, source: int, flow: F64) -> dict[int, list[FlowPath]]:
    """Return the paths to each GPU that keeps some of the flow, without cycles."""
    left = flow.copy()
    nodes = len(topology.nodes)
    kept = np.bincount(topology.link_dst, flow, nodes) - np.bincount(topology.link_src, flow, nodes)
    result: dict[int, list[FlowPath]] = {}
    for end in np.flatnonzero(kept > _NOTHING).tolist():
        want, found = float(kept[end]), list[FlowPath]()
        while want > _NOTHING:
            links = _path_back(topology, source, end, left)
            if not links:
                break
            share = min(want, float(left[links].min()))
            left[links] -= share
            want -= share
            found.append(FlowPath(tuple(links), share))
        result[end] = found
    return result


def _path_back(topology: Topology, source: int, end: int, left: F64) -> list[int]:
    """Follow the largest flow from the end back to the source; cycles are removed from the flow."""
    pointer, into = topology.in_links
    links: list[int] = []
    passed = {end: 0}
    at = end
    while at != source:
        inward = into[pointer[at] : pointer[at + 1]]
        if not len(inward) or left[inward].max() <= 0:
            return []
        link = int(inward[np.argmax(left[inward])])
        links.append(link)
        at = int(topology.link_src[link])
        if at in passed:
            cycle = links[passed[at] :]
            left[cycle] -= left[cycle].min()
            return _path_back(topology, source, end, left)
        passed[at] = len(links)
    return links[::-1]
