"""Pipelines at constant rates: the chunks of a stream follow each other over the same tree, path, or pair of trees.

A stream of n chunks sends one chunk in each of its periods, over all its edges side by side. Where its edges are used
for a part f of a period, its last chunk arrives after n - 1 periods and the longest path of such parts, D periods, and
latencies L. For a completion time T, its period is (T - L) / (n - 1 + D): a stream that fills slowly is a bit faster.
T is the least time for which all streams fit into the links and limits together. A link that is not full lets its
transfers pass in proportion faster, which fills pipelines early. No order has to be found, and nothing waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.demand.demand import Demand
from flowccl.methods.rates.network import F64, I64, Path, PricedNetwork
from flowccl.methods.rates.trees import TreeColumn
from flowccl.schedule.schedule import Schedule
from flowccl.topology.routes import Routes

_ROUNDING = 1e-9  # by which rates stay below the bandwidth that is left to them
_SETTLING = 4  # times that periods and the use of links are computed from each other
_BISECTIONS = 40


@dataclass(frozen=True, slots=True)
class PlannedTransfer:
    """A transfer of every chunk of a stream: its path, whether it reduces, and the transfers that it waits for."""

    path: Path
    reduces: bool
    after: tuple[int, ...]


Plan = tuple[PlannedTransfer, ...]
"""The transfers that bring a chunk from its source to all destinations, each after those that it waits for."""


def tree_steps(tree: TreeColumn) -> Plan:
    """The transfers of a chunk over a tree: from the root, or into it with the farthest GPUs first."""
    if not tree.inward:
        place = {node: i for i, (_, node, _) in enumerate(tree.edges)}
        return tuple(
            PlannedTransfer(path, False, (place[above],) if above in place else ()) for above, _, path in tree.edges
        )
    edges = tree.edges[::-1]
    below: dict[int, list[int]] = {}
    steps = []
    for i, (above, node, path) in enumerate(edges):
        steps.append(PlannedTransfer(tuple(reversed(path)), True, tuple(below.get(node, ()))))
        below.setdefault(above, []).append(i)
    return tuple(steps)


def up_and_down(up: Plan, down: Plan) -> Plan:
    """A reduction into a root, and then a distribution from there."""
    waited = {i for step in up for i in step.after}
    last = tuple(i for i in range(len(up)) if i not in waited)
    moved = [PlannedTransfer(step.path, step.reduces, tuple(i + len(up) for i in step.after) or last) for step in down]
    return (*up, *moved)


@dataclass(frozen=True, eq=False)
class ChunkStream:
    """Chunks that follow each other over the same plan, in order."""

    plan: Plan
    chunks: I64


@dataclass(frozen=True, eq=False)
class Pipelines:
    """Streams that share a machine, each at its own constant rate."""

    network: PricedNetwork
    demand: Demand
    streams: Sequence[ChunkStream]

    @cached_property
    def time_ps(self) -> float:
        """The completion time, apart from rounding."""
        return self._pace[0]

    def schedule(self, method: str) -> Schedule:
        """The schedule of all chunks."""
        topology, size = self.network.topology, self._bytes[self._stream]
        full = np.minimum.reduceat(topology.link_GBps[self._links.link], self._links.ptr[:-1])
        _, period, used = self._pace
        rate = size * 1000.0 / (used * period[self._stream]) * (1 - _ROUNDING)
        rate = np.where(rate >= full * (1 - 2 * _ROUNDING), full, rate)  # alone on its slowest link
        takes = np.ceil(size * 1000.0 / rate).astype(np.int64)
        start = self._starts(takes + self._latency_ps)
        longest = np.ceil(period).astype(np.int64)
        np.maximum.at(longest, self._stream, takes)
        of_chunk = np.repeat(np.arange(len(self.streams)), self._count)
        chunk = np.concatenate([stream.chunks for stream in self.streams])
        turn = np.arange(len(chunk)) - np.repeat(np.cumsum(self._count) - self._count, self._count)
        steps = np.diff(self._first)[of_chunk]
        which = np.repeat(np.arange(len(chunk)), steps)
        row = self._first[of_chunk[which]] + np.arange(len(which)) - np.repeat(np.cumsum(steps) - steps, steps)
        routes, route = self._links.distinct()
        return Schedule(
            topology,
            self.demand,
            routes,
            chunk[which].astype(np.int32),
            route[row],
            start[row] + turn[which] * longest[of_chunk[which]],
            self._reduces[row],
            method,
            rate_GBps=np.where(rate < full, rate, 0.0)[row],
        )

    # -- periods --------------------------------------------------------------------------------------------------

    @cached_property
    def _pace(self) -> tuple[float, F64, F64]:
        """The completion time in ps, the period of each stream, and the part of it that each transfer takes."""
        capacity, (resource, step) = self.network.capacity / 1000, self._uses  # bytes per ps
        stream = self._stream[step]
        load = np.bincount(resource, self._bytes[stream] * self._count[stream], len(capacity)) / capacity
        period, used = float(load.max()) / self._count, np.ones(len(self._stream))
        latency = self._longest(self._latency_ps.astype(np.float64))
        for _ in range(_SETTLING):
            path = self._longest(used * period[self._stream] + self._latency_ps) - latency
            turns = self._count - 1 + path / period
            total = self._least_time(turns, latency)
            period = (total - latency) / turns
            full = np.bincount(resource, (self._bytes / period)[stream], len(capacity)) / capacity
            used = np.zeros(len(used))
            np.maximum.at(used, step, full[resource])
        period, used = period * max(float(full.max()), 1e-300), used / max(float(full.max()), 1e-300)
        ends = (self._count - 1) * period + self._longest(used * period[self._stream] + self._latency_ps)
        return float(ends.max()), period, used

    def _least_time(self, turns: F64, latency: F64) -> float:
        """The least time in which all streams fit, with this many periods and this latency each."""
        capacity, (resource, step) = self.network.capacity / 1000, self._uses
        stream = self._stream[step]
        work = (self._bytes * turns)[stream]
        low = float(latency.max())
        high = low + float((np.bincount(resource, work, len(capacity)) / capacity).max())
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            load = np.bincount(resource, work / np.maximum(middle - latency, 1e-9)[stream], len(capacity))
            low, high = (low, middle) if np.all(load <= capacity) else (middle, high)
        return high

    def _starts(self, takes: NDArray[Any]) -> NDArray[Any]:
        """The earliest start of every transfer of the first chunks."""
        start = np.zeros(len(takes), dtype=takes.dtype)
        for before, after in self._waits:
            np.maximum.at(start, after, start[before] + takes[before])
        return start

    def _longest(self, takes: F64) -> F64:
        """The time of the longest path of each stream."""
        longest = np.zeros(len(self.streams))
        np.maximum.at(longest, self._stream, self._starts(takes) + takes)
        return longest

    # -- the transfers of the first chunk of every stream ---------------------------------------------------------

    @cached_property
    def _count(self) -> I64:
        return np.array([len(stream.chunks) for stream in self.streams])

    @cached_property
    def _bytes(self) -> I64:
        return np.array([self.demand.chunk_bytes[stream.chunks].max() for stream in self.streams])

    @cached_property
    def _first(self) -> I64:
        """The first transfer of every stream, and the number of all."""
        return pointers([len(stream.plan) for stream in self.streams])

    @cached_property
    def _stream(self) -> I64:
        """The stream of every transfer."""
        return np.repeat(np.arange(len(self.streams)), np.diff(self._first))

    @cached_property
    def _reduces(self) -> NDArray[np.bool_]:
        return np.array([step.reduces for stream in self.streams for step in stream.plan], dtype=np.bool_)

    @cached_property
    def _links(self) -> Routes:
        return Routes.from_lists([step.path for stream in self.streams for step in stream.plan])

    @cached_property
    def _latency_ps(self) -> I64:
        return np.add.reduceat(self.network.topology.link_latency_ps[self._links.link], self._links.ptr[:-1])

    @cached_property
    def _waits(self) -> list[tuple[I64, I64]]:
        """Pairs of a transfer and one that waits for it, in groups: those in a group wait for earlier groups only."""
        groups: list[tuple[list[int], list[int]]] = []
        for first, stream in zip(self._first.tolist(), self.streams, strict=False):
            level = list[int]()
            for i, step in enumerate(stream.plan):
                level.append(max((level[j] + 1 for j in step.after), default=0))
                for j in step.after:
                    while len(groups) < level[i]:
                        groups.append(([], []))
                    groups[level[i] - 1][0].append(first + j)
                    groups[level[i] - 1][1].append(first + i)
        return [(np.array(before), np.array(after)) for before, after in groups]

    @cached_property
    def _uses(self) -> tuple[I64, I64]:
        """Pairs of a link or a limit and a transfer that uses it."""
        return self.network.uses(self._links)
