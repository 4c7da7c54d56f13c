"""Schedules in compact form: the transfers of GPU 0's data, and a symmetry group that maps them to all sources.

For machines that look the same from every GPU: 40,000 GPUs need the schedule of one. `verifier/compact.py` verifies
this form directly; `expanded` lists the transfers of all sources, if they are not too many.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.demand.collectives import broadcast, collective, reduce, scatter
from flowccl.demand.demand import Demand
from flowccl.errors import ScheduleError
from flowccl.schedule.schedule import Schedule
from flowccl.topology.routes import Routes
from flowccl.topology.symmetry.regular_groups import RegularGroup, regular_group
from flowccl.topology.topology import Topology

COMPACT = ("allgather", "alltoall", "reduce_scatter", "allreduce")  # the collectives that have a compact form
_SAME = ("issuer", "receiver", "work_from_ps", "rate_GBps")  # of all images of a transfer
_KEY = "compact form"
_MOST_EXPANDED = 20_000_000  # transfers; verifying them takes about 4 GB


@dataclass(frozen=True, eq=False)
class CompactSchedule:
    """A `collective` as the schedule `one` of GPU 0's data, which `group` maps to the data of every other GPU."""

    collective: str
    size_bytes: int
    one: Schedule
    group: RegularGroup

    @property
    def topology(self) -> Topology:
        """The machine."""
        return self.one.topology

    @property
    def pieces(self) -> int:
        """The number of chunks per block."""
        return self.one.demand.pieces

    @property
    def finish_us(self) -> float:
        """The last arrival, which is the same for every source."""
        return self.one.finish_us

    @property
    def finish_ps(self) -> int:
        """The same in picoseconds."""
        return self.one.finish_ps

    @property
    def transfers_of_one_source(self) -> int:
        """The number of transfers of GPU 0's data."""
        return len(self.one)

    @property
    def num_exceptions(self) -> int:
        """Transfers that are images of no other; see `repaired.py`."""
        return 0

    def __len__(self) -> int:
        """The number of transfers of all sources."""
        return len(self.one) * len(self.group)

    @cached_property
    def demand_of_one(self) -> Demand:
        """The demand of GPU 0's data, of its block or of a block for each GPU, all as large as the largest one."""
        return part_of_one(self.collective, len(self.group), -(-self.size_bytes // len(self.group)), self.pieces)

    def expanded(self) -> Schedule:
        """Return the schedule of all sources; raise ScheduleError if it has too many transfers."""
        if len(self) > _MOST_EXPANDED:
            raise ScheduleError(f"{len(self)} transfers are too many to expand; at most {_MOST_EXPANDED} are possible")
        one, group, count = self.one, self.group, len(self.group)
        element = np.arange(count, dtype=np.int32)
        parts = [
            group.moved_links(np.array(one.routes.links(r))[None, :], element[:, None]) for r in range(len(one.routes))
        ]
        size = np.concatenate([np.full(count, part.shape[1]) for part in parts])
        routes = Routes(pointers(size), np.concatenate([part.ravel() for part in parts]))
        source = element.astype(np.int64)[:, None]
        chunk = self.chunks_of(one.chunk[None, :], source)
        route = one.route[None, :].astype(np.int64) * count + source
        whole = Schedule(
            self.topology,
            collective(self.collective, count, self.size_bytes, self.pieces),
            routes,
            chunk.ravel().astype(np.int32),
            route.ravel().astype(np.int32),
            np.broadcast_to(one.start_ps[None, :], route.shape).ravel(),
            np.broadcast_to(one.reduce[None, :], route.shape).ravel(),
            one.method,
            message=self._messages(),
            execution=one.execution,
            **{name: np.tile(getattr(one, name), count) for name in _SAME},
        )
        whole.cache[_KEY] = self
        return whole

    def chunks_of(self, chunk: NDArray[np.integer], owner: NDArray[np.integer]) -> NDArray[np.int64]:
        """The chunks of the data of other GPUs that are the images of chunks of GPU 0's data; arrays are broadcast."""
        count, pieces, owner = len(self.group), self.pieces, owner.astype(np.int64)
        if self.collective != "alltoall":
            return np.asarray(owner * pieces + chunk)
        to = self.group.image(chunk // pieces + 1, owner)
        return np.asarray((owner * (count - 1) + to - (to > owner)) * pieces + chunk % pieces)

    def _messages(self) -> NDArray[np.int32]:
        """The messages of all sources; none where each transfer is one."""
        if not self.one.has_messages:
            return self.one.message[:0]
        numbers = np.where(
            self.one.message < 0, np.arange(len(self.one)) + self.one.message.max() + 1, self.one.message
        )
        element = np.arange(len(self.group), dtype=np.int32)[:, None]
        return np.asarray(element * (numbers.max() + 1) + numbers[None, :]).ravel().astype(np.int32)


def part_of_one(name: str, count: int, block_bytes: int, pieces: int) -> Demand:
    """The part of a collective that belongs to GPU 0.

    Allgather: its block to all GPUs; alltoall: a block from it to each GPU; reduce_scatter: the reduction of one block
    at GPU 0; allreduce: the reduction of one block, for all GPUs.
    """
    if name == "allgather":
        return broadcast(count, block_bytes, pieces)
    if name == "alltoall":
        return scatter(count, block_bytes * count, pieces)
    reduction = reduce(count, block_bytes, pieces)
    if name == "reduce_scatter":
        return reduction
    ptr, rank = reduction.source_ptr, reduction.source_rank
    return replace(reduction, collective="custom", destination_ptr=ptr, destination_rank=rank)


def made_from(schedule: Schedule) -> CompactSchedule | None:
    """Return the compact form from which a schedule was expanded; None where it was not."""
    return schedule.cache.get(_KEY)


def compact_form(schedule: Schedule) -> CompactSchedule | None:
    """Return the compact form of a schedule whose transfers are in the order of `expanded`; None for any other."""
    if _KEY not in schedule.cache:
        schedule.cache[_KEY] = _compact_form(schedule)
    found: CompactSchedule | None = schedule.cache[_KEY]
    return found


def _compact_form(schedule: Schedule) -> CompactSchedule | None:
    demand, count = schedule.demand, schedule.topology.num_gpus
    size, rest = divmod(len(schedule), count)
    if demand.collective not in COMPACT or demand.num_gpus != count or rest or not size or len(schedule.routes) % count:
        return None
    columns = {name: getattr(schedule, name)[:size] for name in ("chunk", "start_ps", "reduce", "message", *_SAME)}
    own = schedule.route[:size]
    if np.any(own % count) or np.any(schedule.start_ps.reshape(count, size) != columns["start_ps"]):
        return None
    group = regular_group(schedule.topology)
    one = part_of_one(demand.collective, count, demand.size_bytes // count, demand.pieces)
    if group is None or columns["chunk"].max() >= len(one):
        return None
    routes = Routes.from_lists([schedule.routes.links(r) for r in range(0, len(schedule.routes), count)])
    part = Schedule(
        schedule.topology,
        one,
        routes,
        route=own // count,
        method=schedule.method,
        execution=schedule.execution,
        **columns,
    )
    found = CompactSchedule(demand.collective, demand.size_bytes, part, group)
    whole = found.expanded()
    own, other = (np.where(value.message < 0, -1, value.leader) for value in (schedule, whole))
    same = np.array_equal(own, other) and replace(whole, message=schedule.message) == schedule
    return found if same else None
