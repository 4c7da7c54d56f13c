"""The flow of one source as paths, each with the share of the destination's unit that it carries."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.topology.topology import Topology

F64 = NDArray[np.float64]

_NOTHING = 1e-7  # of a unit


@dataclass(frozen=True, slots=True)
class Path:
    """Links from a source to a destination, and the share of the data on them."""

    links: tuple[int, ...]
    share: float


def paths_of(topology: Topology, source: int, flow: F64) -> dict[int, list[Path]]:
    """Paths to each GPU that keeps some of the flow; what runs in circles is left out."""
    left = flow.copy()
    nodes = len(topology.nodes)
    kept = np.bincount(topology.link_dst, flow, nodes) - np.bincount(topology.link_src, flow, nodes)
    result: dict[int, list[Path]] = {}
    for end in np.flatnonzero(kept > _NOTHING).tolist():
        want, found = float(kept[end]), list[Path]()
        while want > _NOTHING:
            links = _back(topology, source, end, left)
            if not links:
                break
            share = min(want, float(left[links].min()))
            left[links] -= share
            want -= share
            found.append(Path(tuple(links), share))
        result[end] = found
    return result


def _back(topology: Topology, source: int, end: int, left: F64) -> list[int]:
    """From the end back to the source, always on the fullest link; a circle on the way is emptied and left out."""
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
            circle = links[passed[at] :]
            left[circle] -= left[circle].min()
            return _back(topology, source, end, left)
        passed[at] = len(links)
    return links[::-1]
