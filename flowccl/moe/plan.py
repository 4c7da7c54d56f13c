"""A plan: messages in arrays, with the chunks that they carry, and the schedule that it stands for."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.bounds.lower_bound import Bound
from flowccl.demand.demand import Demand
from flowccl.moe.blocks import Blocks
from flowccl.moe.bound import plan_bound
from flowccl.moe.layout import HostLayout
from flowccl.moe.stage_kernels import stages_in_order
from flowccl.runtimes.profiles import RuntimeProfile
from flowccl.schedule.schedule import Schedule
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology
from flowccl.units import ps_to_us

Ints = NDArray[np.int64]
Ints32 = NDArray[np.int32]
Integers = NDArray[np.integer[Any]]
KINDS = ("local", "cross", "gather", "fan-out")
"""The kinds of messages: in its own host, to another host, to the GPU that sends it, from the GPU that received it."""


@dataclass(frozen=True, eq=False)
class PlanMessages:
    """The messages of a plan: message m carries `bytes[m]` over pair `pair[m]` of the layout.

    Those from `first[k]` on are of kind k. The hops `hop_ptr[m]` to `hop_ptr[m + 1] - 1`, one after the other, start at
    `hop_start_ps`; the message is complete at `arrival_ps[m]`.
    """

    first: Ints
    pair: Ints32
    bytes: Ints
    hop_ptr: Ints
    hop_start_ps: Ints
    arrival_ps: Ints

    def __len__(self) -> int:
        return len(self.bytes)

    @cached_property
    def kind(self) -> Ints:
        """The kind of each message, as an index of KINDS."""
        return np.repeat(np.arange(len(KINDS)), np.diff(self.first))

    @cached_property
    def start_ps(self) -> Ints:
        """The start of each message."""
        return self.hop_start_ps[self.hop_ptr[:-1]]


@dataclass(frozen=True, eq=False)
class Relays:
    """How chunks get to a GPU of a third host, which sends them on.

    Messages `gather`, `cross` and `fan_out` carry chunk `chunk` there, one after the other; -1 where there is none.
    """

    chunk: Ints
    gather: Ints
    cross: Ints
    fan_out: Ints

    @property
    def messages(self) -> tuple[Ints, Ints, Ints]:
        """The messages in this order."""
        return self.gather, self.cross, self.fan_out


_NO_RELAYS = Relays(*(np.zeros(0, dtype=np.int64),) * 4)


@dataclass(frozen=True, eq=False)
class Chunks:
    """The chunks of a plan: `bytes[c]` of block `block[c]`, from `offset[c]` on.

    The messages `gather[c]` (or -1) and `cross[c]` (-1 if the chunk stays in its host) carry the chunk. Its entries
    `entry_ptr[c]` to `entry_ptr[c + 1] - 1` are the destinations of its block; `entry_message` is the message that
    brings the chunk there at last, -1 if the crossing message ends there. Chunks of `relays` cross a third host
    before.
    """

    block: Ints32
    offset: Ints
    bytes: Ints
    gather: Ints32
    cross: Ints32
    entry_ptr: Ints
    entry_message: Ints32
    relays: Relays = _NO_RELAYS

    def __len__(self) -> int:
        return len(self.bytes)


@dataclass(frozen=True, eq=False)
class Plan:
    """A plan of one alltoallv or dispatch on a machine.

    `stages` are those between hosts, for each class of rails: the receiving host of each sending host. The message
    costs of `runtime` are overheads of the links of the machine.
    """

    layout: HostLayout
    collective: str
    blocks: Blocks
    messages: PlanMessages
    chunks: Chunks
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

    @cached_property
    def bound(self) -> Bound:
        """A proved lower bound with its witness."""
        return plan_bound(self.layout, self.blocks)

    @property
    def lower_bound_us(self) -> float:
        """No schedule finishes earlier, in microseconds."""
        return self.bound.us

    @property
    def gap(self) -> float:
        """How far the completion time is above the lower bound: 0.05 is 5 %."""
        return self.finish_ps / self.bound.ps - 1 if self.bound.ps else 0.0

    @cached_property
    def relayed_bytes(self) -> Ints:
        """The bytes of others that each GPU receives and passes on."""
        chunks, end = self.chunks, self.layout.paths.dst[self.messages.pair]
        entry = np.repeat(np.arange(len(chunks)), np.diff(chunks.entry_ptr))
        passed = np.zeros(len(chunks), dtype=np.bool_)
        passed[entry[chunks.entry_message >= 0]] = True
        result = np.zeros(self.topology.num_gpus, dtype=np.int64)
        for message, some in ((chunks.gather, chunks.gather >= 0), (chunks.cross, passed & (chunks.cross >= 0))):
            np.add.at(result, end[message[some]], chunks.bytes[some])
        for leg in chunks.relays.messages:
            some = leg >= 0
            np.add.at(result, end[leg[some]], chunks.bytes[chunks.relays.chunk[some]])
        return result

    @cached_property
    def table(self) -> "PlanTable":
        """The transfers as plain columns, sorted by stage."""
        return _table(self)

    @cached_property
    def demand(self) -> Demand:
        """The chunks of the plan as a demand, sorted by source, destinations and offset."""
        chunks, blocks = self.chunks, self.blocks
        block = chunks.block[self._order]
        count = np.diff(blocks.to_ptr)[block]
        ptr = pointers(count)
        entry = np.repeat(blocks.to_ptr[:-1][block] - ptr[:-1], count) + np.arange(ptr[-1])
        demand = Demand(
            "alltoallv" if self.collective == "alltoallv" else "custom",
            self.topology.num_gpus,
            1,
            chunks.bytes[self._order],
            np.arange(len(block) + 1),
            blocks.source[block],
            ptr,
            blocks.to[entry],
        )
        return replace(demand, size_bytes=demand.heaviest_bytes)

    @cached_property
    def _order(self) -> Ints:
        """The chunks in the order of the demand."""
        chunks, blocks = self.chunks, self.blocks
        first = blocks.to[blocks.to_ptr[:-1]][chunks.block] if len(blocks) else blocks.to
        return np.lexsort((chunks.offset, chunks.block, first, blocks.source[chunks.block]))

    @cached_property
    def sends(self) -> tuple[Ints, Ints]:
        """All pairs (chunk, message): which message carries which chunk, in the order of the chunks' ways."""
        chunks, relays = self.chunks, self.chunks.relays
        every = np.arange(len(chunks))
        of_entry = np.repeat(every, np.diff(chunks.entry_ptr))
        legs: list[tuple[Integers, Integers]] = [(relays.chunk, message) for message in relays.messages]
        legs += [(every, chunks.gather), (every, chunks.cross), (of_entry, chunks.entry_message)]
        chunk, message = (np.concatenate(column) for column in zip(*legs, strict=True))
        return chunk[message >= 0], message[message >= 0].astype(np.int64)

    def schedule(self) -> Schedule:
        """Return the plan as a schedule, for the verifier, pictures and `explain`."""
        messages, paths = self.messages, self.layout.paths
        place = np.empty(len(self.chunks), dtype=np.int64)
        place[self._order] = np.arange(len(self.chunks))
        chunk, message = self.sends
        hops = np.diff(messages.hop_ptr)[message]
        row = np.repeat(np.arange(len(message)), hops)
        step = np.arange(len(row)) - np.repeat(np.cumsum(hops) - hops, hops)
        hop = messages.hop_ptr[:-1][message][row] + step
        return Schedule(
            self.topology,
            self.demand,
            Routes.from_lists(paths.route_links),
            place[chunk[row]].astype(np.int32),
            paths.path_route[paths.path_ptr[:-1][messages.pair[message][row]] + step].astype(np.int32),
            messages.hop_start_ps[hop],
            np.zeros(len(row), dtype=np.bool_),
            "moe",
            hop.astype(np.int32),
        )


@dataclass(frozen=True, eq=False)
class PlanTable:
    """One row per chunk and message: in `stage`, `source` sends `bytes` to `destination`.

    The bytes are those from `offset` on of what `owner` has for the first destination of their block. A stage ends
    before the next one needs its data: a message is in the first stage behind all messages that bring its data, and
    messages of one sender, or of one receiver, that follow each other on the same link are in different stages.
    """

    stage: Ints
    source: Ints
    destination: Ints
    owner: Ints
    block: Ints
    offset: Ints
    bytes: Ints
    message: Ints


def _table(plan: Plan) -> PlanTable:
    stage = message_stages(plan)
    chunk, message = plan.sends
    order = np.lexsort((plan.chunks.offset[chunk], plan.chunks.block[chunk], message, stage[message]))
    chunk, message = chunk[order], message[order]
    block, paths = plan.chunks.block[chunk], plan.layout.paths
    return PlanTable(
        stage[message],
        paths.src[plan.messages.pair[message]],
        paths.dst[plan.messages.pair[message]],
        plan.blocks.source[block].astype(np.int64),
        block.astype(np.int64),
        plan.chunks.offset[chunk],
        plan.chunks.bytes[chunk],
        message,
    )


def message_stages(plan: Plan) -> Ints:
    """Return the stage of each message."""
    paths, messages = plan.layout.paths, plan.messages
    chunk, message = plan.sends
    order = np.lexsort((messages.arrival_ps, messages.start_ps))
    passed_on = len(chunk) - int(np.count_nonzero(plan.chunks.entry_message >= 0))
    return stages_in_order(
        order,
        messages.first,
        messages.pair,
        paths.src,
        paths.dst,
        plan.layout.host_of,
        chunk,
        message,
        passed_on,
        len(plan.chunks),
    )
