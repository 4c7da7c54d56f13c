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
from flowccl.methods.rates.chunk_transfers import ChunkTransfers
from flowccl.methods.rates.network import F64, I64, PricedNetwork
from flowccl.schedule.schedule import Schedule
from flowccl.topology.routes import Routes

_ROUNDING = 1e-9  # by which rates stay below the bandwidth that is left to them
_SETTLING = 4  # times that periods and the use of links are computed from each other
_BISECTIONS = 40


@dataclass(frozen=True, eq=False)
class ChunkStream:
    """Chunks that follow each other over the same plan, in order."""

    plan: ChunkTransfers
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

    @cached_property
    def load_ps(self) -> F64:
        """How long each resource is busy with all chunks."""
        resource, step = self._uses
        sent = (self._bytes * self._count)[self._stream[step]]
        return np.bincount(resource, sent, len(self.network.capacity)) * 1000 / self.network.capacity

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
        period, used = float(self.load_ps.max()) / self._count, np.ones(len(self._stream))
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
        return np.concatenate([stream.plan.reduces for stream in self.streams])

    @cached_property
    def _links(self) -> Routes:
        plans = [stream.plan for stream in self.streams]
        lengths = np.concatenate([np.diff(plan.ptr) for plan in plans])
        return Routes(pointers(lengths), np.concatenate([plan.link for plan in plans]).astype(np.int32))

    @cached_property
    def _latency_ps(self) -> I64:
        return np.add.reduceat(self.network.topology.link_latency_ps[self._links.link], self._links.ptr[:-1])

    @cached_property
    def _waits(self) -> list[tuple[I64, I64]]:
        """Pairs of a transfer and one that waits for it, in groups: those in a group wait for earlier groups only."""
        plans = [stream.plan for stream in self.streams]
        shift = np.repeat(self._first[:-1], [len(plan.before) for plan in plans])
        before, after = (np.concatenate([getattr(plan, end) for plan in plans]) + shift for end in ("before", "after"))
        level = np.concatenate([plan.level for plan in plans])[after]
        order = np.argsort(level, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(level[order])) + 1)
        return [(before[group], after[group]) for group in groups]

    @cached_property
    def _uses(self) -> tuple[I64, I64]:
        """Pairs of a link or a limit and a transfer that uses it."""
        return self.network.uses(self._links)
