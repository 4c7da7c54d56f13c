"""The whole machine behind one with a few faults: lost and slow links are restored where a symmetry says so.

A rotation of rank digits that maps nearly all links to links is taken for a symmetry of the whole machine; links that
it maps to nothing are lost ones, and of the links that it maps to each other, those with less bandwidth than most are
slow ones. A switch is mapped to the one that is joined to most images of its neighbours.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.topology.symmetry.permutations import orbits
from flowccl.topology.symmetry.rank_patterns import block_sizes, digit_rotation
from flowccl.topology.symmetry.regular_groups import regular_group
from flowccl.topology.topology import Link, Topology

I64 = NDArray[np.int64]

_MOST_FAULTY = 0.1  # part of the links that may be lost or slow; with more of them, it is another machine
_ROUNDS = 8  # levels of switches above the GPUs


def whole_machine(topology: Topology) -> Topology | None:
    """Return the machine without its faults, if it then looks the same from every GPU; None if there is no such one.

    None also for a machine without faults. The links of the machine come first, in their order, then the lost ones.
    """
    if topology.has_extra_constraints or not topology.links:
        return None
    keys = _keys(topology, np.arange(len(topology.nodes)))
    if len(np.unique(keys)) < len(keys):
        return None
    rotations = _rotations(topology)
    if rotations is None:
        return None
    links = _restored(topology, rotations)
    if links is None:
        return None
    whole = Topology(f"{topology.name}, restored", topology.nodes, links, topology.limits)
    return None if regular_group(whole) is None else whole


def _keys(topology: Topology, nodes: NDArray[np.integer]) -> I64:
    """A number for each link, by the images of its ends."""
    count = np.int64(len(topology.nodes))
    return np.asarray(nodes[topology.link_src] * count + nodes[topology.link_dst], dtype=np.int64)


def _rotations(topology: Topology) -> list[I64] | None:
    """Rotations of rank digits that reach every GPU and map nearly all links to links; those with fewest exceptions.

    Each has the images of all nodes.
    """
    count, sizes = topology.num_gpus, block_sizes(topology)
    given = np.sort(_keys(topology, np.arange(len(topology.nodes))))
    best: dict[int, tuple[int, list[I64]]] = {1: (0, [])}
    for outside in sorted(sizes):
        for inside in sorted(best):
            if outside > inside and outside % inside == 0:
                rotation = _with_switches(topology, digit_rotation(count, inside, outside).astype(np.int64))
                if rotation is None:
                    continue
                lost = ~np.isin(_keys(topology, rotation), given, assume_unique=True)
                exceptions = best[inside][0] + int(np.count_nonzero(lost))
                few = exceptions <= _MOST_FAULTY * len(topology.links)
                if few and (outside not in best or exceptions < best[outside][0]):
                    best[outside] = (exceptions, [*best[inside][1], rotation])
    return best[count][1] if count in best else None


def _with_switches(topology: Topology, gpus: I64) -> I64 | None:
    """The images of all nodes under a permutation of the GPUs, level by level; None where a switch has none.

    Of nodes that are joined to equally many images of neighbours, the first one that is no image yet.
    """
    from scipy.sparse import csr_array

    count, total = topology.num_gpus, len(topology.nodes)
    image = np.full(total, -1, dtype=np.int64)
    image[:count] = gpus
    if total == count:
        return image
    ends = (np.append(topology.link_src, topology.link_dst), np.append(topology.link_dst, topology.link_src))
    adjacent = csr_array((np.ones(len(ends[0]), dtype=np.int32), ends), shape=(total, total))
    is_image = np.zeros(total, dtype=np.bool_)
    is_image[gpus] = True
    for _ in range(_ROUNDS):
        known = np.flatnonzero(image >= 0)
        waiting = np.flatnonzero(image < 0)
        votes = (adjacent[waiting][:, known] @ adjacent[image[known]]).tocsr()
        for row, node in enumerate(waiting.tolist()):
            span = slice(votes.indptr[row], votes.indptr[row + 1])
            others, number = votes.indices[span], votes.data[span]
            free = ~is_image[others] & (others >= count)
            if free.any():
                most = number[free].max()
                image[node] = int(others[free][number[free] == most].min())
                is_image[image[node]] = True
        if np.all(image >= 0):
            return image
        if np.count_nonzero(image < 0) == len(waiting):
            return None
    return None


def _restored(topology: Topology, rotations: list[I64]) -> tuple[Link, ...] | None:
    """The links closed under the rotations, each as most links of its orbit; None where that changes none, or many."""
    count = np.int64(len(topology.nodes))
    most = int(_MOST_FAULTY * len(topology.links))
    keys = _keys(topology, np.arange(len(topology.nodes)))
    given = len(keys)
    while True:
        src, dst = np.divmod(keys, count)
        images = np.concatenate([rotation[src] * count + rotation[dst] for rotation in rotations])
        more = np.setdiff1d(images, keys)
        if not len(more):
            break
        keys = np.append(keys, more)
        if len(keys) - given > most:
            return None
    src, dst = np.divmod(keys, count)
    order = np.argsort(keys)
    moves = [order[np.searchsorted(keys[order], rotation[src] * count + rotation[dst])] for rotation in rotations]
    orbit = orbits(np.array(moves, dtype=np.int32), len(keys))
    like = _usual(topology, orbit)
    result, changed = list(topology.links), len(keys) - given
    for position in np.flatnonzero(_differs(topology, like[:given])).tolist():
        own, changed = topology.links[position], changed + 1
        result[position] = replace(topology.links[like[position]], src=own.src, dst=own.dst)
    for position in range(given, len(keys)):
        ends = {"src": int(src[position]), "dst": int(dst[position])}
        result.append(replace(topology.links[like[position]], **ends))
    return tuple(result) if 0 < changed <= most else None


def _differs(topology: Topology, like: I64) -> NDArray[np.bool_]:
    """Whether each link has another rate or latency than the link that it is compared with."""
    rates = (topology.link_GBps, topology.link_latency_ps)
    return np.asarray(np.any([rate != rate[like] for rate in rates], axis=0))


def _usual(topology: Topology, orbit: NDArray[np.int32]) -> I64:
    """For each link, of those that are there, the first one of its orbit with the rate and latency of most of them."""
    given = len(topology.links)
    kind = np.unique(np.stack((topology.link_latency_ps, topology.link_GBps)), axis=1, return_inverse=True)[1]
    pairs, first, number = np.unique(
        np.stack((orbit[:given].astype(np.int64), kind.reshape(-1))), axis=1, return_index=True, return_counts=True
    )
    by_number = np.lexsort((pairs[1], number))  # the last of an orbit has the most, and is the fastest of these
    chosen = np.full(int(orbit.max()) + 1, -1, dtype=np.int64)
    chosen[pairs[0][by_number]] = first[by_number]
    return chosen[orbit]
