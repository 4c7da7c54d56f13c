"""A plan: messages in arrays, with the chunks that they carry, and the schedule that it stands for."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.moe.bound import PlanBound
from flowccl.moe.layout import Layout
from flowccl.runtimes.profiles import RuntimeProfile
from flowccl.schedule.schedule import Schedule
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology
from flowccl.units import ps_to_us

Ints = NDArray[np.int64]
KINDS = ("gather", "cross", "fan-out", "local")
"""The kinds of messages: to the GPU that sends it, to another host, from the GPU that received it, in its own host."""


@dataclass(frozen=True, eq=False)
class Messages:
    """The messages of a plan, sorted by kind: from GPU `source` to GPU `destination`, `bytes` long.

    A message goes over the routes `hop_route[hop_ptr[m]:hop_ptr[m + 1]]` of the layout, one after the other, each from
    `hop_start_ps` on, and is complete at `arrival_ps`.
    """

    kind: Ints
    pair: Ints
    source: Ints
    destination: Ints
    bytes: Ints
    hop_ptr: Ints
    hop_route: Ints
    hop_start_ps: Ints
    arrival_ps: Ints

    def __len__(self) -> int:
        return len(self.bytes)

    @cached_property
    def stage(self) -> Ints:
        """The stage of each message: messages of a stage need nothing of each other and of later stages."""
        start = self.hop_start_ps[self.hop_ptr[:-1]]
        return np.argsort(np.argsort(start, kind="stable"), kind="stable")


@dataclass(frozen=True, eq=False)
class Chunks:
    """The chunks of a plan: `bytes` from `offset` on of what `source` has for the destinations of `block`.

    The chunk's `gather` and `cross` are messages, or -1. Its entries `entry_ptr[c]` to `entry_ptr[c + 1] - 1` are its
    destinations, each with the message that brings it there at last (`entry_message`; -1: the crossing message itself).
    """

    block: Ints
    source: Ints
    offset: Ints
    bytes: Ints
    gather: Ints
    cross: Ints
    entry_ptr: Ints
    entry_destination: Ints
    entry_message: Ints

    def __len__(self) -> int:
        return len(self.bytes)


@dataclass(frozen=True, eq=False)
class Plan:
    """A plan of one alltoallv or dispatch on a machine."""

    layout: Layout
    collective: str
    messages: Messages
    chunks: Chunks
    size_bytes: int
    bound: PlanBound
    stages: tuple[Ints, ...] = ()
    runtime: RuntimeProfile | None = None

    @property
    def topology(self) -> Topology:
        """The machine, as the runtime sees it."""
        return self.layout.topology

    @cached_property
    def finish_ps(self) -> int:
        """The last arrival."""
        return int(self.messages.arrival_ps.max(initial=0))

    @property
    def finish_us(self) -> float:
        """The last arrival, in microseconds."""
        return ps_to_us(self.finish_ps)

    @property
    def lower_bound_us(self) -> float:
        """No schedule finishes earlier, in microseconds."""
        return self.bound.us

    @property
    def gap(self) -> float:
        """How far the completion time is above the lower bound: 0.05 is 5 %."""
        return self.finish_ps / self.bound.ps - 1 if self.bound.ps else 0.0

    @cached_property
    def demand(self) -> Demand:
        """The chunks of the plan as a demand, sorted by source, destinations and offset."""
        order, chunks = self._order, self.chunks
        count = np.diff(chunks.entry_ptr)[order]
        ptr = np.concatenate(([0], np.cumsum(count))).astype(np.int64)
        entry = np.repeat(chunks.entry_ptr[:-1][order] - ptr[:-1], count) + np.arange(ptr[-1])
        gpus = self.topology.num_gpus
        return Demand(
            self.collective,
            gpus,
            self.size_bytes,
            chunks.bytes[order],
            np.arange(len(order) + 1),
            chunks.source[order].astype(np.int32),
            ptr,
            chunks.entry_destination[entry].astype(np.int32),
        )

    @cached_property
    def _order(self) -> Ints:
        """The chunks in the order of the demand."""
        chunks = self.chunks
        first = chunks.entry_destination[chunks.entry_ptr[:-1]]
        return np.lexsort((chunks.offset, chunks.block, first, chunks.source))

    def schedule(self) -> Schedule:
        """Return the plan as a schedule, for the verifier, pictures and `explain`."""
        chunks, messages = self.chunks, self.messages
        place = np.empty(len(chunks), dtype=np.int64)
        place[self._order] = np.arange(len(chunks))
        which = [np.flatnonzero(chunks.gather >= 0), np.flatnonzero(chunks.cross >= 0)]
        sent = [chunks.gather[which[0]], chunks.cross[which[1]]]
        of_entry = np.repeat(np.arange(len(chunks)), np.diff(chunks.entry_ptr))
        last = np.flatnonzero(chunks.entry_message >= 0)
        chunk = np.concatenate((*which, of_entry[last]))
        message = np.concatenate((*sent, chunks.entry_message[last]))
        hops = np.diff(messages.hop_ptr)[message]
        row = np.repeat(np.arange(len(message)), hops)
        hop = messages.hop_ptr[:-1][message][row] + np.arange(len(row)) - np.repeat(np.cumsum(hops) - hops, hops)
        return Schedule(
            self.topology,
            self.demand,
            Routes.from_lists(self.layout.paths.route_links),
            place[chunk[row]].astype(np.int32),
            messages.hop_route[hop].astype(np.int32),
            messages.hop_start_ps[hop],
            np.zeros(len(row), dtype=np.bool_),
            "moe",
            hop.astype(np.int32),
            self.runtime,
        )
