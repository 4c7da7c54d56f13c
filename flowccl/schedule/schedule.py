"""The answer: which chunk goes over which route when, as a table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.errors import ScheduleError
from flowccl.schedule.timing import Timing, replay
from flowccl.topology.routes import Routes, RouteShape, shape_on
from flowccl.topology.topology import Topology
from flowccl.units import ps_to_us

_COLUMNS = {"chunk": np.int32, "route": np.int32, "start_ps": np.int64, "reduce": np.bool_}


@dataclass(frozen=True, eq=False)
class Schedule:
    """All transfers of a demand on a machine.

    Transfer i moves chunk `chunk[i]` over route `route[i]` of `routes`, starting at `start_ps[i]`. What arrives is
    added to what the end has where `reduce[i]`, else it is stored. `method` names who made it.
    """

    topology: Topology
    demand: Demand
    routes: Routes
    chunk: NDArray[np.int32]
    route: NDArray[np.int32]
    start_ps: NDArray[np.int64]
    reduce: NDArray[np.bool_]
    method: str = ""

    def __post_init__(self) -> None:
        for name, kind in _COLUMNS.items():
            column: NDArray[Any] = np.ascontiguousarray(getattr(self, name), dtype=kind)
            column.setflags(write=False)
            object.__setattr__(self, name, column)
            if column.shape != self.chunk.shape:
                raise ScheduleError(f"column {name} has {len(column)} entries, chunk has {len(self.chunk)}")
        if len(self) and not (self.chunk.min() >= 0 and self.chunk.max() < len(self.demand)):
            bad = int(np.argmax((self.chunk < 0) | (self.chunk >= len(self.demand))))
            raise ScheduleError(f"transfer {bad}: chunk must be 0 to {len(self.demand) - 1}, got {self.chunk[bad]}")
        if len(self) and not (self.route.min() >= 0 and self.route.max() < len(self.routes)):
            bad = int(np.argmax((self.route < 0) | (self.route >= len(self.routes))))
            raise ScheduleError(f"transfer {bad}: route must be 0 to {len(self.routes) - 1}, got {self.route[bad]}")

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
    ) -> "Schedule":
        """A schedule from one list of links per transfer; equal lists become one route."""
        routes, route = links.distinct()
        flags = np.zeros(len(chunk), dtype=np.bool_) if reduce is None else reduce
        return cls(topology, demand, routes, chunk, route, start_ps, flags, method)

    @classmethod
    def from_transfers(
        cls,
        topology: Topology,
        demand: Demand,
        transfers: Iterable[tuple[int, Sequence[int], int] | tuple[int, Sequence[int], int, bool]],
        method: str = "",
    ) -> "Schedule":
        """A schedule from (chunk, links, start_ps) or (chunk, links, start_ps, reduce) tuples; for hand-made ones."""
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

    def __len__(self) -> int:
        return len(self.chunk)

    def __repr__(self) -> str:
        return f"Schedule({self.demand.collective!r} on {self.topology.name!r}, {len(self)} transfers)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        columns = all(np.array_equal(getattr(self, name), getattr(other, name)) for name in _COLUMNS)
        routes = np.array_equal(self.routes.ptr, other.routes.ptr) and np.array_equal(
            self.routes.link, other.routes.link
        )
        same = self.topology == other.topology and self.demand == other.demand and self.method == other.method
        return columns and routes and same

    def __hash__(self) -> int:
        return hash((self.topology.name, self.demand, len(self)))

    @cached_property
    def shape(self) -> RouteShape:
        """Offsets, segments, roots and ends of the routes."""
        return shape_on(self.topology, self.routes)

    @cached_property
    def timing(self) -> Timing:
        """When each link is held, and when each transfer arrives where."""
        return replay(self.topology, self.shape, self.demand.chunk_bytes[self.chunk], self.route, self.start_ps)

    @cached_property
    def finish_ps(self) -> int:
        """The last arrival; what starts late at a GPU that adds it up itself is not there earlier either."""
        return int(self.timing.end_arrival_ps.max(initial=self.demand.available_ps.max(initial=0)))

    @property
    def finish_us(self) -> float:
        """The last arrival, in microseconds."""
        return ps_to_us(self.finish_ps)
