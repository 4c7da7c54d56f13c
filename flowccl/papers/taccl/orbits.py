"""Symmetry of a problem: orbits of (chunk, arc) and (chunk, node) pairs under the rotations of a sketch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import components
from flowccl.demand.demand import Demand
from flowccl.papers.taccl.logical import Ints, LogicalTopology
from flowccl.papers.taccl.sketch import rotated_ranks
from flowccl.topology.symmetry.permutations import AutomorphismChecker


@dataclass(frozen=True, eq=False)
class SketchSymmetry:
    """A symmetry of machine, sketch and demand: the images of nodes, arcs and chunks."""

    node: Ints
    arc: Ints
    chunk: Ints


def symmetries_of(logical: LogicalTopology, demand: Demand) -> list[SketchSymmetry]:
    """Return the rotations of the sketch that are symmetries of the demand as well."""
    topology = logical.topology
    checker, result = AutomorphismChecker(topology), []
    for offset, size in logical.sketch.rotations:
        found = checker.extended(rotated_ranks(topology, offset, size))
        if found is None:
            continue
        node, link = found[0].astype(np.int64), found[1]
        arc, chunk = _moved_arcs(logical, node, link), _moved_chunks(demand, node)
        if arc is not None and chunk is not None:
            result.append(SketchSymmetry(node, arc, chunk))
    return result


def _moved_arcs(logical: LogicalTopology, node: Ints, link: NDArray[np.int32]) -> Ints | None:
    """The image of each arc; None if an image is not an arc."""
    place = {logical.routes.links(a): a for a in range(len(logical))}
    moved = [place.get(tuple(int(link[k]) for k in logical.routes.links(a)), -1) for a in range(len(logical))]
    result = np.array(moved, dtype=np.int64)
    if np.any(result < 0) or len(np.unique(result)) < len(result):
        return None
    right = np.array_equal(node[logical.src], logical.src[result])
    return result if right and np.array_equal(node[logical.dst], logical.dst[result]) else None


def _moved_chunks(demand: Demand, node: Ints) -> Ints | None:
    """The image of each chunk: one of the same size between the moved ends; equal chunks keep their order."""
    place: dict[tuple[object, ...], list[int]] = {}
    for chunk in range(len(demand)):
        place.setdefault(_signature(demand, chunk, np.arange(len(node))), []).append(chunk)
    taken: dict[tuple[object, ...], int] = {}
    moved = []
    for chunk in range(len(demand)):
        key = _signature(demand, chunk, node)
        turn = taken.get(key, 0)
        taken[key] = turn + 1
        if turn >= len(place.get(key, ())):
            return None
        moved.append(place[key][turn])
    return np.array(moved, dtype=np.int64)


def _signature(demand: Demand, chunk: int, node: Ints) -> tuple[object, ...]:
    ends = (np.sort(node[demand.sources(chunk)]).tobytes(), np.sort(node[demand.destinations(chunk)]).tobytes())
    return (int(demand.chunk_bytes[chunk]), *ends)


def orbits(keys: Ints, images: list[Ints]) -> tuple[Ints, Ints]:
    """Return the orbit of each key under maps to other keys, numbered in order, and the position of its first key.

    A key whose image is not among the keys counts as fixed.
    """
    order = np.argsort(keys)
    parts = []
    for image in images:
        place = np.minimum(np.searchsorted(keys[order], image), len(keys) - 1)
        parts.append(np.where(keys[order][place] == image, order[place], np.arange(len(keys))))
    ends = (np.tile(np.arange(len(keys)), len(parts)), np.concatenate([np.zeros(0, dtype=np.int64), *parts]))
    label = components(len(keys), *ends)
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    return inverse.reshape(-1).astype(np.int64), first.astype(np.int64)
