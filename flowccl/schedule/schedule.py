"""The schedule: a table of transfers, each a chunk on a route from a start time."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.runtimes.profiles import RuntimeProfile
from flowccl.schedule.clock import MessageTimes, message_times
from flowccl.schedule.timing import Timing, replay
from flowccl.schedule.transfers import COLUMNS, Transfers
from flowccl.topology.routes import Routes
from flowccl.topology.topology import Topology
from flowccl.units import ps_to_us


@dataclass(frozen=True, eq=False)
class Schedule(Transfers):
    """All transfers of a demand on a machine.

    Transfer i moves chunk `chunk[i]` over route `route[i]` of `routes`, starting at `start_ps[i]`. If `reduce[i]`, the
    destination reduces the data into what it has, otherwise it stores the data. Transfers with the same `message`
    number are one send on one route from one start: the overhead is paid once, and all chunks are complete when the
    last byte has arrived. A message number of -1 means that the transfer is a send of its own. `method` is the name of
    the method that made the schedule.

    `execution` says how a runtime carries out the schedule; None in the model of the papers, where messages cost
    nothing beyond the overheads of links. Group `issuer[i]` of the sender carries the message (-1: the proxy of the NIC
    does). Group `receiver[i]` of the receiver works on it (-1: no work), from its arrival on or, if that is later, from
    `work_from_ps[i]` on. `rate_GBps[i]` is the constant rate of the transfer; 0 stands for the highest rate that its
    route and its issuer allow.
    """

    @classmethod
    def from_links(
        cls,
        topology: Topology,
        demand: Demand,
        chunk: NDArray[np.int32],
        links: Routes,
        start_ps: NDArray[np.int64],
        reduce: NDArray[np.bool_] | None = None,
        method: str = "",
        message: NDArray[np.int32] | None = None,
    ) -> "Schedule":
        """Return a schedule from one list of links per transfer; equal lists become one route."""
        routes, route = links.distinct()
        flags = np.zeros(len(chunk), dtype=np.bool_) if reduce is None else reduce
        alone = np.zeros(0, dtype=np.int32) if message is None else message
        return cls(topology, demand, routes, chunk, route, start_ps, flags, method, alone)

    @classmethod
    def from_transfers(
        cls,
        topology: Topology,
        demand: Demand,
        transfers: Iterable[tuple[int, Sequence[int], int] | tuple[int, Sequence[int], int, bool]],
        method: str = "",
    ) -> "Schedule":
        """Return a schedule from (chunk, links, start_ps) or (chunk, links, start_ps, reduce) tuples."""
        rows = [(*row, False) if len(row) == 3 else row for row in transfers]
        return cls.from_links(
            topology,
            demand,
            np.array([row[0] for row in rows], dtype=np.int32),
            Routes.from_lists([row[1] for row in rows]),
            np.array([row[2] for row in rows], dtype=np.int64),
            np.array([row[3] for row in rows], dtype=np.bool_),
            method,
        )

    def __repr__(self) -> str:
        return f"Schedule({self.demand.collective!r} on {self.topology.name!r}, {len(self)} transfers)"

    def _repr_html_(self) -> str:
        """A table and a small picture, for notebooks."""
        return str(import_module("flowccl.notebook").schedule_html(self))  # by name: a layer above this one

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        columns = all(np.array_equal(getattr(self, name), getattr(other, name)) for name in COLUMNS)
        routes = np.array_equal(self.routes.ptr, other.routes.ptr) and np.array_equal(
            self.routes.link, other.routes.link
        )
        same = self.topology == other.topology and self.demand == other.demand and self.method == other.method
        same = same and self.execution == other.execution
        return columns and routes and same

    def __hash__(self) -> int:
        return hash((self.topology.name, self.demand, len(self)))

    @property
    def runtime(self) -> RuntimeProfile | None:
        """The profile of the runtime that carries out the schedule; None in the model of the papers."""
        return None if self.execution is None else self.execution.profile

    @cached_property
    def costs(self) -> MessageTimes | None:
        """What the message of each transfer costs on the runtime; None in the model of the papers."""
        return None if self.execution is None else message_times(self, self.execution)

    @cached_property
    def timing(self) -> Timing:
        """When each link is busy, and when each transfer arrives at each of its ends."""
        leader = self.leader if self.has_messages else None
        bytes_of = self.sent_bytes if self.costs is None else self.costs.wire_bytes
        rate = self.rate_GBps if self.rate_GBps.any() else None
        columns = self.route, self.start_ps, leader, self.reduce
        return replay(self.topology, self.shape, bytes_of, *columns, self.costs, rate)

    @cached_property
    def finish_ps(self) -> int:
        """The last arrival, or the last release time of data if that is later."""
        return int(self.timing.end_arrival_ps.max(initial=self.demand.available_ps.max(initial=0)))

    @property
    def finish_us(self) -> float:
        """The last arrival, in microseconds."""
        return ps_to_us(self.finish_ps)


def stacked_messages(parts: Sequence[Schedule]) -> NDArray[np.int32]:
    """Return the message columns of several schedules as one column, with distinct numbers per schedule."""
    base = np.cumsum([0, *(int(part.message.max(initial=-1)) + 1 for part in parts)])
    moved = [np.where(part.message >= 0, part.message + at, -1) for part, at in zip(parts, base, strict=False)]
    return np.concatenate(moved).astype(np.int32)
