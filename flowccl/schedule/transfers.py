"""What the clock needs to know of a schedule: its table of transfers."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.topology.routes import Routes, RouteShape
from flowccl.topology.topology import Topology


class Transfers(Protocol):
    """A table of transfers, as `Schedule` describes it."""

    @property
    def topology(self) -> Topology:
        """The machine."""

    @property
    def demand(self) -> Demand:
        """What must move."""

    @property
    def routes(self) -> Routes:
        """The routes."""

    @property
    def shape(self) -> RouteShape:
        """Properties of the routes."""

    @property
    def chunk(self) -> NDArray[np.int32]:
        """The chunk of each transfer."""

    @property
    def route(self) -> NDArray[np.int32]:
        """The route of each transfer."""

    @property
    def start_ps(self) -> NDArray[np.int64]:
        """The start of each transfer."""

    @property
    def reduce(self) -> NDArray[np.bool_]:
        """Whether the destination reduces each transfer."""

    @property
    def leader(self) -> NDArray[np.int64]:
        """The first transfer of the message of each transfer."""

    @property
    def sent_bytes(self) -> NDArray[np.int64]:
        """The bytes of the message of each transfer."""

    @property
    def has_messages(self) -> bool:
        """Whether some transfers share a message."""

    @property
    def receiver(self) -> NDArray[np.int32]:
        """The group that works on each transfer at its receiver; -1: none."""

    @property
    def work_from_ps(self) -> NDArray[np.int64]:
        """When the receiver of each transfer begins to work on it."""

    @property
    def rate_GBps(self) -> NDArray[np.float64]:
        """The rate of each transfer; 0: the highest one."""

    def __len__(self) -> int:
        """Number of transfers."""
