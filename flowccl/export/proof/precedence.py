"""Graphs of precedence between steps, and the tokens that connect steps of different threadblocks."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import members, pointers
from flowccl.export.proof.program import Finding, RuntimeProgram
from flowccl.export.proof.steps import StepArrays, owners

I64 = NDArray[np.int64]
Edges = tuple[I64, I64]
"""(node, node that waits for it)."""


@dataclass(frozen=True, slots=True, eq=False)
class PrecedenceGraph:
    """A graph of precedence: the nodes `before[ptr[n]:ptr[n + 1]]` must be complete before node n is."""

    ptr: I64
    before: I64

    @classmethod
    def of(cls, count: int, edges: list[Edges]) -> "PrecedenceGraph":
        """Return the graph with these edges."""
        first, second = (np.concatenate([rows[side] for rows in edges]) for side in (0, 1))
        order = np.argsort(second, kind="stable")
        return cls(pointers(np.bincount(second, minlength=count)), first[order])

    def order(self) -> Edges:
        """Return the nodes in a topological order, and the nodes on a cycle or behind one."""
        from flowccl.export.proof.order_kernels import topological

        ready, waits = topological(self.ptr, self.before)
        return ready, np.flatnonzero(waits)

    def cycle(self, stuck: I64) -> list[int]:
        """Return one cycle among the stuck nodes, each waiting for the next."""
        left = set(stuck.tolist())
        path: list[int] = []
        place: dict[int, int] = {}
        node = int(stuck[0])
        while node not in place:
            place[node] = len(path)
            path.append(node)
            node = next(other for other in self.before[self.ptr[node] : self.ptr[node + 1]].tolist() if other in left)
        return path[place[node] :]


def in_threadblocks(thread: I64) -> Edges:
    """Return (step, next step of its threadblock)."""
    order = np.argsort(thread, kind="stable")
    same = np.diff(thread[order]) == 0
    return order[:-1][same], order[1:][same]


def named_waits(program: RuntimeProgram) -> tuple[Edges, list[Finding]]:
    """Return (step, step that waits for it by its name), and which of them do not publish their completion."""
    none = np.zeros(0, dtype=np.int64)
    if not program.has_dependencies:
        return (none, none), []
    operations, found, findings = program.operations, list[tuple[int, int]](), list[Finding]()
    place = {(o.rank, o.block, o.index): n for n, o in enumerate(operations)}
    for n, operation in enumerate(operations):
        for block, index in operation.after:
            target = place.get((operation.rank, block, index))
            if target is None:
                words = f"{operation}: waits for threadblock {block} step {index}, which does not exist"
                findings.append(Finding("dependency", words))
                continue
            named = operations[target]
            if not named.is_published:
                findings.append(Finding("hasdep", f"{operation}: waits for {named}, which does not publish (hasdep=0)"))
            found.append((target, n))
    rows = np.array(found, dtype=np.int64).reshape(-1, 2)
    return (rows[:, 0], rows[:, 1]), findings


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """The steps that put and take tokens, by connection; the n-th put matches the n-th take.

    `at_put` and `at_take` are the positions of those that match, and `of_matched` their connections.
    """

    put_ptr: I64
    put: I64
    take_ptr: I64
    take: I64
    at_put: I64
    at_take: I64
    of_matched: I64


def tokens_of(table: StepArrays) -> Tokens:
    """Return the tokens of a program."""
    count = len(table.connections)
    put_ptr, put = _by_connection(table.push, table.push_ptr, count)
    take_ptr, take = _by_connection(table.pop, table.pop_ptr, count)
    both = np.minimum(np.diff(put_ptr), np.diff(take_ptr))
    key, number = members(both)
    return Tokens(put_ptr, put, take_ptr, take, put_ptr[key] + number, take_ptr[key] + number, key)


def _by_connection(key: I64, ptr: I64, count: int) -> Edges:
    return pointers(np.bincount(key, minlength=count)), owners(ptr)[np.argsort(key, kind="stable")]


def matched(tokens: Tokens) -> Edges:
    """Return the pairs (put, take) that match."""
    return tokens.put[tokens.at_put], tokens.take[tokens.at_take]


def waits_of_tokens(tokens: Tokens, first: I64, depth: int | None) -> list[Edges]:
    """Return the waits of nodes for tokens, and for space in connections of a depth.

    Step n has the nodes `first[n]` to `first[n + 1] - 1`, each with a token of its own.
    """
    put_ptr, put = _nodes(tokens.put_ptr, tokens.put, first)
    take_ptr, take = _nodes(tokens.take_ptr, tokens.take, first)
    puts, takes = np.diff(put_ptr), np.diff(take_ptr)
    edges = [_aligned(put_ptr, put, take_ptr, take, np.minimum(puts, takes), 0)]
    if depth is not None:
        space = np.clip(np.minimum(takes, puts - depth), 0, None)
        edges.append(_aligned(take_ptr, take, put_ptr, put, space, depth))
    return edges


def _nodes(ptr: I64, step: I64, first: I64) -> Edges:
    """Return the nodes of the steps of each connection."""
    size = first[step + 1] - first[step]
    owner, number = members(size)
    return pointers(size)[ptr], first[step[owner]] + number


def _aligned(first_ptr: I64, first: I64, second_ptr: I64, second: I64, count: I64, skipped: int) -> Edges:
    """Return as many pairs of each connection as `count` says; the first of the second nodes are `skipped`."""
    key, number = members(count)
    return first[first_ptr[key] + number], second[second_ptr[key] + number + skipped]
