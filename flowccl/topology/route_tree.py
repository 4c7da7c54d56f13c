"""One route of several links: a tree of links through switches, with the time at which each link starts."""

from dataclasses import dataclass, field
from functools import cached_property

from flowccl.topology.topology import Topology


@dataclass(slots=True)
class OneShape:
    """The shape of one route; hops and segments are numbered from 0, roots and ends are pairs (node, hop)."""

    offset: list[int]
    segment: list[int]
    parent: list[int]
    roots: list[tuple[int, int]]
    ends: list[tuple[int, int]]
    problem: str = ""
    operation: str = ""


def shape_of(topology: Topology, links: tuple[int, ...]) -> OneShape:
    """Return the shape of one route of several links."""
    missing = [link for link in links if not 0 <= link < len(topology.links)]
    if not links or missing:
        problem = f"names link {missing[0]}, which does not exist" if missing else "has no links"
        return _broken(links, problem)
    tree = _RouteTree(topology, links)
    problem = tree.problem()
    return _broken(links, problem) if problem else _walk(tree)


def _operation(roots: list[tuple[int, int]], ends: list[tuple[int, int]]) -> str:
    """Why a route is valid only as an operation of a switch on a runtime; nothing where it is always valid."""
    if {node for node, _ in roots} & {node for node, _ in ends}:
        return "starts and ends at the same node"
    if len(roots) > 1 and len(ends) > 1:
        return "reduces inputs and makes copies in one transfer; use two transfers"
    return ""


def weights_of(roots: list[tuple[int, int]], ends: list[tuple[int, int]], hops: int) -> list[float]:
    """How often the bytes cross each link: twice those of the first root where a switch reduces and copies for it.

    That GPU loads the reduction through the switch, and stores the result to all.
    """
    weight = [1.0] * hops
    if len(roots) > 1 and len(ends) > 1:
        for node, hop in (*roots, *ends):
            weight[hop] = 2.0 if node == roots[0][0] else 1.0
    return weight


def _broken(links: tuple[int, ...], problem: str) -> OneShape:
    return OneShape([0] * len(links), [0] * len(links), [-1], [], [], problem)


@dataclass(frozen=True)
class _RouteTree:
    """The links of a route, by hop, and the hops that enter and leave each of its switches."""

    topology: Topology
    links: tuple[int, ...]
    into: dict[int, list[int]] = field(default_factory=dict)
    out: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        nodes = self.topology.nodes
        for node in {*self.src, *self.dst}:
            if not nodes[node].stores:
                self.into[node] = [hop for hop, end in enumerate(self.dst) if end == node]
                self.out[node] = [hop for hop, start in enumerate(self.src) if start == node]

    @cached_property
    def src(self) -> list[int]:
        return [self.topology.links[link].src for link in self.links]

    @cached_property
    def dst(self) -> list[int]:
        return [self.topology.links[link].dst for link in self.links]

    @cached_property
    def roots(self) -> list[tuple[int, int]]:
        return [(node, hop) for hop, node in enumerate(self.src) if node not in self.into]

    @cached_property
    def ends(self) -> list[tuple[int, int]]:
        return [(node, hop) for hop, node in enumerate(self.dst) if node not in self.into]

    def problem(self) -> str:
        """Why the links are no route; nothing if they are one."""
        if len(set(self.links)) != len(self.links):
            return "uses a link twice"
        for node in sorted(self.into):
            problem = self._crossing_problem(node)
            if problem:
                return problem
        if len({node for node, _ in self.roots}) != len(self.roots):
            return "leaves one node on two links; use two transfers"
        if len({node for node, _ in self.ends}) != len(self.ends):
            return "enters one node on two links; use two transfers"
        if len(self.links) != len(self.into) + len(self.roots) + len(self.ends) - 1:
            return "is not one connected tree of links"
        return ""

    def _crossing_problem(self, node: int) -> str:
        switch, inputs, outputs = self.topology.nodes[node], len(self.into[node]), len(self.out[node])
        if not inputs:
            return f"leaves switch {switch.name}, which receives nothing"
        if not outputs:
            return f"stops at switch {switch.name}, which does not store"
        if outputs > 1 and not switch.copies:
            return f"makes {outputs} copies at switch {switch.name}, which cannot copy"
        if inputs > 1 and not switch.reduces:
            return f"reduces {inputs} inputs at switch {switch.name}, which cannot reduce"
        if inputs > 1 and switch.crossing != "cut-through":
            return (
                f"reduces inputs at switch {switch.name}, which is store-and-forward; only cut-through switches reduce"
            )
        return ""


def _walk(tree: _RouteTree) -> OneShape:
    """Return offsets and segments, from the root that starts first: the one above all store-and-forward switches."""
    for _, first in tree.roots:
        shape = _walk_from(first, tree)
        if shape is not None:
            return shape
    return _broken(tree.links, "reduces inputs from two store-and-forward switches, which cannot be synchronized")


def _walk_from(first_hop: int, tree: _RouteTree) -> OneShape | None:
    """Walk the tree from one root in both directions; all inputs of a switch arrive at the same time.

    None if the walk enters a store-and-forward switch from its output: then another root starts earlier than this one.
    """
    latency, links = tree.topology.link_latency_ps, tree.links
    offset: dict[int, int] = {first_hop: 0}
    segment = {first_hop: 0}
    parent = [-1]
    todo = [first_hop]
    while todo:
        hop = todo.pop()
        after = (tree.dst[hop], offset[hop] + int(latency[links[hop]]))
        for node, time in (after, (tree.src[hop], offset[hop])):
            if node not in tree.into:
                continue
            inputs, outputs = tree.into[node], tree.out[node]
            splits = tree.topology.nodes[node].crossing != "cut-through"
            for other in inputs + outputs:
                if other in offset:
                    continue
                if splits and hop in outputs and other in inputs:
                    return None
                offset[other] = time - (int(latency[links[other]]) if other in inputs else 0)
                if splits and other in outputs:
                    segment[other] = len(parent)
                    parent.append(segment[hop] if hop in inputs else parent[segment[hop]])
                else:
                    segment[other] = segment[hop]
                todo.append(other)
    if len(offset) != len(links):
        return _broken(links, "is not one connected tree of links")
    first, hops = min(offset.values()), range(len(links))
    offsets, segments = [offset[h] - first for h in hops], [segment[h] for h in hops]
    return OneShape(offsets, segments, parent, tree.roots, tree.ends, "", _operation(tree.roots, tree.ends))
