"""Groups of automorphisms that act freely: no element except the identity fixes a GPU or a link.

Such a group expands a schedule on the quotient (one GPU and one link per orbit) to the whole machine: each transfer of
the quotient uses every link of an orbit exactly once.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from flowccl.topology.symmetry.automorphisms import automorphisms, twin_numbers
from flowccl.topology.symmetry.permutations import Symmetry
from flowccl.topology.topology import Topology

I32 = NDArray[np.int32]

_LARGEST = 64  # elements
_SAMPLES = 24  # random elements whose powers are tried as generators
_STARTS = 6  # random orders in which the generators are tried


@lru_cache(maxsize=8)
def free_groups(topology: Topology) -> tuple[Symmetry, ...]:
    """Return free groups of several sizes, largest first; empty if the search finds none.

    The rows of each are all its elements; row 0 is the identity.
    """
    gpus, random = topology.num_gpus, np.random.default_rng(0)
    twins = twin_numbers(topology)
    known = [automorphisms(topology)]
    known += [automorphisms(topology, twins)] if twins.any() else []
    elements = [element for symmetry in known for element in symmetry.draw(_SAMPLES)]
    generators = [powers for nodes, links in elements for powers in _free_powers(gpus, nodes, links)]
    found: dict[int, Symmetry] = {}
    for _ in range(_STARTS if generators else 0):
        if min(gpus, _LARGEST) in found:
            break
        group = [_identity(topology)]
        for at in random.permutation(len(generators)).tolist():
            if len(group) == min(gpus, _LARGEST):
                break
            larger = _closure([*group, generators[at]], gpus)
            if larger is not None and len(larger) > len(group):
                group = larger
                nodes, links = (np.stack([element[i] for element in group]) for i in range(2))
                found.setdefault(len(group), Symmetry(topology, nodes, links))
    return tuple(found[size] for size in sorted(found, reverse=True))


Element = tuple[I32, I32]  # images of nodes, images of links


def _identity(topology: Topology) -> Element:
    return np.arange(len(topology.nodes), dtype=np.int32), np.arange(len(topology.links), dtype=np.int32)


def _is_free(element: Element, gpus: int) -> bool:
    """Return whether the element fixes no GPU and no link."""
    nodes, links = element
    return not (np.any(nodes[:gpus] == np.arange(gpus)) or np.any(links == np.arange(len(links))))


def _free_powers(gpus: int, nodes: I32, links: I32) -> Iterator[Element]:
    """Yield the powers of an element that generate free groups, the first of each order."""
    powers = [(nodes, links)]
    while len(powers) < _LARGEST and np.any(powers[-1][1] != np.arange(len(links))):
        powers.append((nodes[powers[-1][0]], links[powers[-1][1]]))
    order = len(powers)
    if np.any(powers[-1][1] != np.arange(len(links))):
        return
    for step in range(1, order):
        if order % step == 0 and all(_is_free(powers[k - 1], gpus) for k in range(step, order, step)):
            yield powers[step - 1]


def _closure(generators: list[Element], gpus: int) -> list[Element] | None:
    """Return all products of generators, the first of which is the identity; None if too many or one is not free."""
    known = {generators[0][1].tobytes()}
    result = [generators[0]]
    for nodes, links in result:
        for by_nodes, by_links in generators[1:]:
            product = (by_nodes[nodes], by_links[links])
            key = product[1].tobytes()
            if key in known:
                continue
            if len(result) == _LARGEST or not _is_free(product, gpus):
                return None
            known.add(key)
            result.append(product)
    return result
