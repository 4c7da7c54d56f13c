"""Trees of chunks on a machine without switches, and their local search: branches move to links with less load."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology

I64 = NDArray[np.int64]

_DEEPER = 1  # hops by which a tree may become deeper than the deepest one


@dataclass(eq=False)
class ParentTables:
    """A tree per row: the parent of each node (-1 at the root), its chunk, and whether nodes send to their parents."""

    parent: I64
    chunk: I64
    reduces: NDArray[np.bool_]

    @classmethod
    def of(cls, schedule: Schedule) -> "ParentTables | None":
        """The trees of a schedule whose transfers take one link each; None where some chunk takes no tree."""
        if np.any(np.diff(schedule.routes.ptr) != 1):
            return None
        link = schedule.routes.link[schedule.routes.ptr[schedule.route]]
        src, dst = schedule.topology.link_src[link], schedule.topology.link_dst[link]
        child, parent = np.where(schedule.reduce, src, dst), np.where(schedule.reduce, dst, src)
        keys, row = np.unique(schedule.chunk.astype(np.int64) * 2 + schedule.reduce, return_inverse=True)
        table = np.full((len(keys), len(schedule.topology.nodes)), -1, dtype=np.int64)
        table[row, child] = parent
        if np.count_nonzero(table >= 0) < len(schedule):
            return None
        return cls(table, keys // 2, keys % 2 == 1)

    def depth(self, tree: int, node: int) -> int:
        """Number of hops from a node to its root."""
        hops = 0
        while self.parent[tree, node] >= 0:
            node, hops = int(self.parent[tree, node]), hops + 1
        return hops

    def depths(self) -> I64:
        """Number of hops from each node to its root."""
        depth = np.zeros_like(self.parent)
        above = self.parent.copy()
        while np.any(inside := above >= 0):
            depth += inside
            above = np.where(inside, np.take_along_axis(self.parent, np.maximum(above, 0), axis=1), -1)
        return depth

    def below(self, tree: int, node: int) -> list[int]:
        """The nodes of the branch under a node, itself first, each with its hops below it."""
        branch = [node]
        for one in branch:
            branch += np.flatnonzero(self.parent[tree] == one).tolist()
        return branch


class TreeBalance:
    """Moves branches of trees to other parents until no move makes the links' loads more equal."""

    def __init__(self, topology: Topology, trees: ParentTables, chunk_bytes: I64) -> None:
        self.trees, self.links = trees, len(topology.links)
        self.link = np.full((len(topology.nodes),) * 2, self.links, dtype=np.int64)  # a link beyond the last is lost
        self.link[topology.link_src, topology.link_dst] = np.arange(self.links)
        self.src, self.dst = topology.link_src, topology.link_dst
        self.per_byte_ps = np.append(1000.0 / topology.link_GBps, np.inf)
        self.size = chunk_bytes[trees.chunk].astype(np.float64)
        self.most_hops = int(trees.depths().max()) + _DEEPER
        tree, child = np.nonzero(trees.parent >= 0)
        used = self._links_of(tree, child)
        kept = used < self.links
        self.load_ps = np.bincount(used[kept], (self.size[tree] * self.per_byte_ps[used])[kept], self.links)
        self.lost = [(int(t), int(c)) for t, c in zip(tree[~kept], child[~kept], strict=True)]

    def run(self) -> bool:
        """Join what lost links cut off, then move branches; return whether all could be joined."""
        for tree, child in self.lost:
            if not self._join(tree, child):
                return False
        mean_ps = self.load_ps.sum() / self.links
        stuck = np.zeros(self.links, dtype=np.bool_)
        while True:
            waiting = np.where(stuck, -1.0, self.load_ps)
            link = int(np.argmax(waiting))
            if waiting[link] <= mean_ps:
                return True
            if self._relieve(link):
                stuck[:] = False
            else:
                stuck[link] = True

    def _links_of(self, tree: I64, child: I64) -> I64:
        """The links between nodes and their parents."""
        parent, up = self.trees.parent[tree, child], self.trees.reduces[tree]
        return self.link[np.where(up, child, parent), np.where(up, parent, child)]

    def _link(self, tree: int, child: int, parent: int) -> int:
        return int(self.link[child, parent] if self.trees.reduces[tree] else self.link[parent, child])

    def _relieve(self, link: int) -> bool:
        """Move the branch whose other link has the least load, if that stays below the load of this one."""
        src, dst = int(self.src[link]), int(self.dst[link])
        trees = self.trees
        best: tuple[float, int, int, int] | None = None
        for up, child, parent in ((True, src, dst), (False, dst, src)):
            rows = np.flatnonzero((trees.reduces == up) & (trees.parent[:, child] == parent))
            others = self.link[child] if up else self.link[:, child]
            smallest = float(self.size[rows].min(initial=np.inf))
            for other in np.flatnonzero(others < self.links).tolist():
                to = int(others[other])
                hopeless = self.load_ps[to] + smallest * self.per_byte_ps[to] >= self.load_ps[link]
                for tree in () if hopeless else rows.tolist():
                    then_ps = float(self.load_ps[to] + self.size[tree] * self.per_byte_ps[to])
                    better = then_ps < self.load_ps[link] and (best is None or then_ps < best[0])
                    if better and self._fits(tree, child, other):
                        best = (then_ps, tree, child, other)
                        break  # trees have nearly the same size
        if best is None:
            return False
        self._move(*best[1:])
        return True

    def _fits(self, tree: int, child: int, parent: int) -> bool:
        """Whether a node may move under another one: not under itself, and not too deep."""
        node, hops = parent, 1
        while node >= 0:
            if node == child:
                return False
            node, hops = int(self.trees.parent[tree, node]), hops + 1
        own = self.trees.depth(tree, child)
        deepest = max(self.trees.depth(tree, node) for node in self.trees.below(tree, child))
        return hops - 1 + deepest - own <= self.most_hops

    def _move(self, tree: int, child: int, parent: int) -> None:
        old, new = self._link(tree, child, int(self.trees.parent[tree, child])), self._link(tree, child, parent)
        if old < self.links:
            self.load_ps[old] -= self.size[tree] * self.per_byte_ps[old]
        self.load_ps[new] += self.size[tree] * self.per_byte_ps[new]
        self.trees.parent[tree, child] = parent

    def _join(self, tree: int, child: int) -> bool:
        """Join a branch by its link with the least load: the links on the path to that node change their direction."""
        branch = self.trees.below(tree, child)
        inside = np.zeros(len(self.link), dtype=np.bool_)
        inside[branch] = True
        table = self.link if self.trees.reduces[tree] else self.link.T
        found = [
            (float(self.load_ps[link]), self.trees.depth(tree, int(other)), node, int(other))
            for node in branch
            for other in np.flatnonzero((table[node] < self.links) & ~inside).tolist()
            if (link := int(table[node, other])) < self.links and self._turns(tree, child, node)
        ]
        if not found:
            return False
        _, _, node, other = min(found)
        path = [node]
        while path[-1] != child:
            path.append(int(self.trees.parent[tree, path[-1]]))
        for upper, lower in zip(path[:0:-1], path[-2::-1], strict=True):
            self._move(tree, upper, lower)
        self._move(tree, node, other)
        return True

    def _turns(self, tree: int, child: int, node: int) -> bool:
        """Whether the links between a node and the top of its branch exist in the other direction."""
        while node != child:
            parent = int(self.trees.parent[tree, node])
            if self._link(tree, parent, node) >= self.links:
                return False
            node = parent
        return True
