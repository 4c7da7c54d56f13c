"""The table of transfers of a schedule, from which its clock and its timing are computed."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.errors import ScheduleError
from flowccl.runtimes.execution import Execution
from flowccl.topology.routes import Routes, RouteShape, shape_on
from flowccl.topology.topology import Topology

COLUMNS: dict[str, type[np.generic]] = {
    "chunk": np.int32,
    "route": np.int32,
    "start_ps": np.int64,
    "reduce": np.bool_,
    "message": np.int32,
    "issuer": np.int32,
    "receiver": np.int32,
    "work_from_ps": np.int64,
    "rate_GBps": np.float64,
}
_OF_RUNTIMES = {"issuer": -1, "receiver": -1, "work_from_ps": -1, "rate_GBps": 0.0}  # with their default values


@dataclass(frozen=True, eq=False)
class Transfers:
    """The transfers of a schedule, one row each; `Schedule` explains the columns."""

    topology: Topology
    demand: Demand
    routes: Routes
    chunk: NDArray[np.int32]
    route: NDArray[np.int32]
    start_ps: NDArray[np.int64]
    reduce: NDArray[np.bool_]
    method: str = ""
    message: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    execution: Execution | None = None
    issuer: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    receiver: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    work_from_ps: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    rate_GBps: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        if self.message.max(initial=-1) < 0:  # also after `replace` changed the number of rows
            object.__setattr__(self, "message", np.full(len(self.chunk), -1, dtype=np.int32))
        for name, value in _OF_RUNTIMES.items():
            if np.all(getattr(self, name) == value):  # also after `replace` changed the number of rows
                object.__setattr__(self, name, np.full(len(self.chunk), value))
        for name, kind in COLUMNS.items():
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

    def __len__(self) -> int:
        return len(self.chunk)

    @cached_property
    def shape(self) -> RouteShape:
        """Offsets, segments, roots and ends of the routes."""
        return shape_on(self.topology, self.routes)

    @cached_property
    def cache(self) -> dict[str, Any]:
        """Results that functions of a schedule keep, by name."""
        return {}

    @cached_property
    def has_messages(self) -> bool:
        """Whether some transfers share a message."""
        return bool(self.message.max(initial=-1) >= 0)

    @cached_property
    def leader(self) -> NDArray[np.int64]:
        """The first transfer of the message of each transfer."""
        leader = np.arange(len(self), dtype=np.int64)
        together = np.flatnonzero(self.message >= 0)
        _, first, inverse = np.unique(self.message[together], return_index=True, return_inverse=True)
        leader[together] = together[first][inverse.reshape(-1)]
        return leader

    @cached_property
    def sent_bytes(self) -> NDArray[np.int64]:
        """Bytes of the message of each transfer."""
        size = self.demand.chunk_bytes[self.chunk]
        if not self.has_messages:
            return size
        total = np.zeros(len(self), dtype=np.int64)
        np.add.at(total, self.leader, size)
        return total[self.leader]
