"""The network of fluid flows: arcs, each on one link of the machine.

There are two forms. In the plain form, arcs are links. In the other form, every node that cannot copy (a plain switch)
is duplicated: one copy for each copying node `u` that its data can reach next (the thesis's duplicate vertices). A unit
that enters the copy for `u` leaves only towards `u`, so that switches copy nothing.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.topology.symmetry.permutations import Symmetry
from flowccl.topology.topology import Topology

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Arcs:
    """Arcs from `src` to `dst` on `link`; `label` is the next copying node of the data on the arc, -1 for any.

    Nodes of this network are numbered after those of the machine: `node` and `node_label` map them back.
    """

    topology: Topology
    link: I64
    label: I64
    src: I64
    dst: I64
    node: I64
    node_label: I64

    def __len__(self) -> int:
        return len(self.link)

    @property
    def num_nodes(self) -> int:
        """Number of nodes of the network."""
        return len(self.node)

    @cached_property
    def must_balance(self) -> NDArray[np.bool_]:
        """Nodes that cannot copy: for every source they send on as much as they receive."""
        return ~self.topology.copies[self.node]

    def permuted(self, group: Symmetry) -> tuple[I32, I32]:
        """Return the images of arcs and of nodes under each generator."""
        arc_key, node_key = self._arc_keys, self._node_keys
        arcs, nodes = np.empty((len(group), len(self)), np.int32), np.empty((len(group), self.num_nodes), np.int32)
        width = len(self.topology.nodes) + 1
        for g in range(len(group)):
            to = np.append(group.nodes[g], -1).astype(np.int64)  # label -1 stays -1
            arcs[g] = arc_key[1][np.searchsorted(arc_key[0], group.links[g][self.link] * width + to[self.label] + 1)]
            wanted = to[self.node] * width + to[self.node_label] + 1
            nodes[g] = node_key[1][np.searchsorted(node_key[0], wanted)]
        return arcs, nodes

    @cached_property
    def _arc_keys(self) -> tuple[I64, I64]:
        return _sorted(self.link * (len(self.topology.nodes) + 1) + self.label + 1)

    @cached_property
    def _node_keys(self) -> tuple[I64, I64]:
        return _sorted(self.node * (len(self.topology.nodes) + 1) + self.node_label + 1)


def _sorted(keys: I64) -> tuple[I64, I64]:
    order = np.argsort(keys)
    return keys[order], order


def plain_arcs(topology: Topology) -> Arcs:
    """Return one arc per link."""
    links = np.arange(len(topology.links), dtype=np.int64)
    nodes = np.arange(len(topology.nodes), dtype=np.int64)
    none = np.full(len(links), -1, dtype=np.int64)
    src, dst = topology.link_src.astype(np.int64), topology.link_dst.astype(np.int64)
    return Arcs(topology, links, none, src, dst, nodes, np.full(len(nodes), -1, dtype=np.int64))


def duplicated_arcs(topology: Topology, shortest: bool = True, which: NDArray[np.bool_] | None = None) -> Arcs:
    """Duplicate every node that cannot copy, once per copying node that can be next.

    `shortest` keeps only routes of fewest links: the network is smaller, and every flow on it is still possible on the
    machine. If only some nodes are duplicated (`which`), the other nodes count as copying ones.
    """
    copies = topology.copies if which is None else topology.copies | ~which
    steps = _steps_to(topology, copies)
    src, dst = topology.link_src.astype(np.int64), topology.link_dst.astype(np.int64)
    count = len(topology.nodes)
    plain, target = np.nonzero(np.isfinite(steps) & ~copies[:, None] & copies[None, :])
    number = np.full((count, count), -1, dtype=np.int64)
    number[plain, target] = count + np.arange(len(plain))

    direct = np.flatnonzero(copies[src] & copies[dst])
    parts = [(direct, np.full(len(direct), -1), src[direct], dst[direct])]
    last = np.flatnonzero(~copies[src] & copies[dst])
    parts.append((last, dst[last], number[src[last], dst[last]], dst[last]))
    into = np.flatnonzero(~copies[dst])
    row, label = np.nonzero(np.isfinite(steps[dst[into]]) & copies[None, :])
    link = into[row]
    own = copies[src[link]]
    keep = label != src[link]
    keep &= own | np.isfinite(steps[src[link], label])
    if shortest:
        keep &= steps[src[link], label] == steps[dst[link], label] + 1
    link, label, own = link[keep], label[keep], own[keep]
    parts.append((link, label, np.where(own, src[link], number[src[link], label]), number[dst[link], label]))
    columns = [np.concatenate([part[i] for part in parts]).astype(np.int64) for i in range(4)]
    nodes = np.concatenate((np.arange(count), plain)).astype(np.int64)
    labels = np.concatenate((np.full(count, -1), target)).astype(np.int64)
    return Arcs(topology, columns[0], columns[1], columns[2], columns[3], nodes, labels)


def _steps_to(topology: Topology, copies: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Fewest links from each node to each copying node through nodes that cannot copy; inf if there is no such path."""
    from scipy.sparse import csr_array

    count = len(topology.nodes)
    src, dst = topology.link_src, topology.link_dst
    steps = np.full((count, count), np.inf)
    steps[src, dst] = np.where(copies[dst], 1.0, np.inf)
    inner = ~copies[dst]
    through = csr_array((np.ones(int(inner.sum()), dtype=np.int32), (src[inner], dst[inner])), shape=(count, count))
    reached, k = np.isfinite(steps), 1
    while True:
        k += 1
        beyond = (through @ reached.astype(np.int32) > 0) & ~np.isfinite(steps)
        np.fill_diagonal(beyond, False)
        if not beyond.any():
            return steps
        steps[beyond] = k
        reached = np.isfinite(steps)
