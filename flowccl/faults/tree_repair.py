"""Repair of trees: every tree that uses a faulty link falls apart there, and its parts are joined by other links.

A chunk is reduced along a tree towards a root and copied along a tree from a root; an allreduce does both. A part that
lost its connection to the root is turned towards the node by which it is joined again, so a GPU without a NIC sends
through the NICs of the other GPUs of its host, and the other hosts use the rail as before.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flowccl.faults.repair import FaultyMachine, RepairedTransfer, scheduled
from flowccl.schedule.schedule import Schedule

_Parents = dict[int, int]  # of each node but the root: the node to which it sends, or from which it receives


@dataclass(frozen=True)
class _Tree:
    """A tree of one chunk: the parent of each node, the nodes whose link to the parent is faulty, and the root.

    In a tree of a reduction, nodes send to their parents, otherwise parents to them.
    """

    parents: _Parents
    lost: frozenset[int]
    root: int
    reduces: bool

    def top(self, node: int) -> int:
        """The uppermost node that a node is still connected to."""
        while node != self.root and node not in self.lost:
            node = self.parents[node]
        return node


def repaired_trees(machine: FaultyMachine, recentre: bool) -> Schedule | None:
    """Return the schedule in which the trees of affected chunks are joined again, or None where that is impossible.

    With `recentre`, nodes next to the old top of a part send to its new top directly. Chunks that do not go along
    trees, multicasts and messages of several chunks cannot be repaired. The result must be verified.
    """
    schedule = machine.schedule
    chunks = np.unique(schedule.chunk[machine.affected])
    hit = np.isin(schedule.chunk, chunks)
    ends = np.diff(schedule.shape.end_ptr)[schedule.route[hit]]
    if schedule.has_messages or np.any(ends > 1):
        return None
    repair = _TreeRepair(machine, recentre)
    rows = [machine.row(i) for i in np.flatnonzero(~hit).tolist()]
    by_chunk = np.argsort(schedule.chunk, kind="stable")
    first = np.searchsorted(schedule.chunk[by_chunk], np.arange(len(schedule.demand) + 1))
    for chunk in chunks.tolist():
        made = repair.chunk_rows(chunk, by_chunk[first[chunk] : first[chunk + 1]].tolist())
        if made is None:
            return None
        rows += made
    return scheduled(machine, rows)


class _TreeRepair:
    """Joins trees by the links that carry the least; loads are those of all transfers planned so far."""

    def __init__(self, machine: FaultyMachine, recentre: bool) -> None:
        self.machine, self.near, self.recentre = machine, machine.near, recentre
        self.load = machine.loads()
        self.pair = {(int(a), int(b)): n for n, (a, b) in enumerate(zip(self.near.src, self.near.end, strict=True))}
        self.links = [self.near.routes.links(int(route)) for route in self.near.pair_ptr[:-1]]
        width = max((len(links) for links in self.links), default=1)
        self.padded = np.full((len(self.links), width), len(self.load) - 1)
        for number, links in enumerate(self.links):
            self.padded[number, : len(links)] = links

    def chunk_rows(self, chunk: int, transfers: list[int]) -> list[RepairedTransfer] | None:
        """The new transfers of a chunk, or None where it cannot be repaired."""
        into, out = self._tree(transfers, True), self._tree(transfers, False)
        if into is None or out is None or (into.parents and out.parents and into.root != out.root):
            return None
        size = float(self.machine.schedule.demand.chunk_bytes[chunk])
        self.own = self.near.pair_cost_ps(size)
        movable = bool(into.parents and out.parents)
        given = into if into.parents else out
        tops = sorted({given.root, *(given.lost if movable else ())}, key=lambda top: (top != given.root, top))
        best: tuple[float, NDArray[np.float64], list[tuple[_Parents, bool]]] | None = None
        before = self.load
        for root in tops:
            self.load = before.copy()
            trees = [(self._reconnected(tree, root), tree.reduces) for tree in (into, out) if tree.parents]
            cost = sum(part[1] for part, _ in trees if part is not None)
            if all(part is not None for part, _ in trees) and (best is None or cost < best[0]):
                best = (cost, self.load, [(part[0], reduces) for part, reduces in trees if part is not None])
        if best is None:
            return None
        self.load = best[1]
        return self._rows(chunk, transfers, best[2])

    def _tree(self, transfers: Iterable[int], reduces: bool) -> _Tree | None:
        """The tree of the reductions or of the copies among some transfers; None if they are no tree."""
        schedule, affected = self.machine.schedule, self.machine.is_affected
        parents: _Parents = {}
        lost = set()
        for i in transfers:
            if bool(schedule.reduce[i]) == reduces:
                a, b = self.machine.ends(i)
                child, parent = (a, b) if reduces else (b, a)
                if child in parents:
                    return None
                parents[child] = parent
                if affected[i]:
                    lost.add(child)
        roots = {*parents.values()} - {*parents}
        if parents and len(roots) != 1:
            return None
        return _Tree(parents, frozenset(lost), roots.pop() if roots else -1, reduces)

    def _reconnected(self, tree: _Tree, root: int) -> tuple[_Parents, float] | None:
        """The tree with another root, without its faulty links, and the cost of the links that join it."""
        parents = {child: parent for child, parent in tree.parents.items() if child not in tree.lost}
        nodes = {*tree.parents, tree.root}
        if root not in nodes:
            return None
        part = np.full(len(self.near.topology.nodes), -1)
        for node in nodes:
            part[node] = tree.top(node)
        self._turn(parents, root, int(part[root]), tree.reduces)
        inside, cost = part == part[root], 0.0
        outside = (part >= 0) & ~inside
        src, end = self.near.src, self.near.end
        while outside.any():
            usable = outside[src] & inside[end] if tree.reduces else inside[src] & outside[end]
            found = np.flatnonzero(usable)
            if not len(found):
                return None
            costs = self.load[self.padded[found]].max(axis=1) + self.own[found]
            number = int(found[np.argmin(costs)])
            cost += float(costs.min())
            node, parent = (int(src[number]), int(end[number]))[:: 1 if tree.reduces else -1]
            top = int(part[node])
            self._turn(parents, node, top, tree.reduces)
            parents[node] = parent
            self.load[list(self.links[number])] += self.own[number]
            moved = part == top
            inside, outside = inside | moved, outside & ~moved
        return parents, cost

    def _turn(self, parents: _Parents, node: int, top: int, reduces: bool) -> None:
        """Make a node the top of its part: the links on the path to the old top change their direction."""
        if node == top:
            return
        path = [node]
        while path[-1] != top:
            path.append(parents[path[-1]])
        for child, parent in pairwise(path):
            parents[parent] = child
        parents.pop(node, None)
        if self.recentre:
            near = [child for child, parent in parents.items() if top in (child, parent)]
            parents.update({child: node for child in near if self._number(child, node, reduces) is not None})

    def _number(self, child: int, parent: int, reduces: bool) -> int | None:
        return self.pair.get((child, parent) if reduces else (parent, child))

    def _rows(
        self, chunk: int, transfers: list[int], trees: list[tuple[_Parents, bool]]
    ) -> list[RepairedTransfer] | None:
        """The transfers of the trees of a chunk with starts in the order of the data; links stay where they can."""
        schedule, machine = self.machine.schedule, self.machine
        old = {
            (*machine.ends(i), bool(schedule.reduce[i])): (machine.new_links(i), int(schedule.start_ps[i]))
            for i in transfers
            if not machine.is_affected[i]
        }
        rows = []
        at: dict[int, int] = {}  # when each node has all that it waits for
        for parents, reduces in trees:
            for child in _in_order(parents, reduces):
                a, b = (child, parents[child]) if reduces else (parents[child], child)
                number = self.pair.get((a, b))
                known = old.get((a, b, reduces))
                if known is None and number is None:
                    return None
                links, start = known or (self.links[number or 0], 0)
                start = max(start, at.get(a, 0))
                takes = int(self.own[number]) if number is not None else 1
                at[b] = max(at.get(b, 0), start + takes)
                rows.append(RepairedTransfer(start, chunk, links, reduces))
        return rows


def _in_order(parents: _Parents, upwards: bool) -> list[int]:
    """The nodes of a tree without its root, in the order in which they send to, or receive from, their parents."""
    depth: dict[int, int] = {}

    def depth_of(node: int) -> int:
        path = []
        while node in parents and node not in depth:
            path.append(node)
            node = parents[node]
        at = depth.get(node, 0)
        for one in reversed(path):
            at += 1
            depth[one] = at
        return at

    return sorted(parents, key=lambda node: (-depth_of(node) if upwards else depth_of(node), node))
