"""The whole machine behind one with a few faults: lost and slow links are restored where a symmetry says so.

For machines without switches. A rotation of rank digits that maps nearly all links to links is taken for a symmetry of
the whole machine; links that it maps to nothing are lost ones, and of the links that it maps to each other, those with
less bandwidth than most are slow ones.
"""

from collections import Counter
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.topology.symmetry.rank_patterns import block_sizes, digit_rotation
from flowccl.topology.symmetry.regular_groups import regular_group
from flowccl.topology.topology import Link, Topology

_MOST_FAULTY = 0.1  # part of the links that may be lost or slow; with more of them, it is another machine
_Ends = tuple[int, int]


def whole_machine(topology: Topology) -> Topology | None:
    """Return the machine without its faults, if it then looks the same from every GPU; None if there is no such one.

    None also for a machine without faults.
    """
    ends = [(link.src, link.dst) for link in topology.links]
    if len(topology.nodes) != topology.num_gpus or len(set(ends)) < len(ends) or topology.has_extra_constraints:
        return None
    rotations = _rotations(topology)
    if rotations is None:
        return None
    links = _restored(topology, rotations)
    if links is None:
        return None
    whole = Topology(f"{topology.name}, restored", topology.nodes, links, topology.limits)
    return None if regular_group(whole) is None else whole


def _rotations(topology: Topology) -> list[NDArray[np.int32]] | None:
    """Rotations of rank digits that reach every GPU and map nearly all links to links; those with fewest exceptions."""
    count, sizes = topology.num_gpus, block_sizes(topology)
    known = np.zeros((count, count), dtype=np.bool_)
    known[topology.link_src, topology.link_dst] = True
    best: dict[int, tuple[int, list[NDArray[np.int32]]]] = {1: (0, [])}
    for outside in sorted(sizes):
        for inside in sorted(best):
            if outside > inside and outside % inside == 0:
                rotation = digit_rotation(count, inside, outside)
                moved = known[rotation[topology.link_src], rotation[topology.link_dst]]
                exceptions = best[inside][0] + int(np.count_nonzero(~moved))
                few = exceptions <= _MOST_FAULTY * len(topology.links)
                if few and (outside not in best or exceptions < best[outside][0]):
                    best[outside] = (exceptions, [*best[inside][1], rotation])
    return best[count][1] if count in best else None


def _restored(topology: Topology, rotations: list[NDArray[np.int32]]) -> tuple[Link, ...] | None:
    """The links closed under the rotations, each as most links of its orbit; None where that changes none, or many."""
    given = {(link.src, link.dst): link for link in topology.links}
    result: dict[_Ends, Link] = {}
    for ends in given:
        if ends in result:
            continue
        orbit = _orbit(ends, rotations)
        kinds = Counter((given[one].bandwidth_GBps, given[one].latency_us) for one in orbit if one in given)
        rate, latency = max(kinds, key=lambda kind: (kinds[kind], kind))
        like = next(given[one] for one in orbit if one in given)
        for src, dst in orbit:
            link = given.get((src, dst), like)
            result[src, dst] = replace(link, src=src, dst=dst, bandwidth_GBps=rate, latency_us=latency)
    order = [*given, *sorted(result.keys() - given.keys())]
    changed = sum(result[one] != given.get(one) for one in order)
    return tuple(result[one] for one in order) if 0 < changed <= _MOST_FAULTY * len(order) else None


def _orbit(ends: _Ends, rotations: list[NDArray[np.int32]]) -> list[_Ends]:
    """All images of a pair of nodes."""
    found, waiting = {ends}, [ends]
    while waiting:
        src, dst = waiting.pop()
        for rotation in rotations:
            image = (int(rotation[src]), int(rotation[dst]))
            if image not in found:
                found.add(image)
                waiting.append(image)
    return sorted(found)
