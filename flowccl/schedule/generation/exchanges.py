"""Exchanges: nodes send each other partial reductions, so that each must send before it receives.

Each of two transfers thus waits for the other one, and no order of them serves both. In list scheduling, all wait for
the data of all nodes instead: one may start before the others' data is there, by at most half the time that it takes
itself. That leaves the other half to the others, which may have to wait for their links. Whether they were in time is
checked in the end.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER
from flowccl.schedule.generation.precedence import Triples
from flowccl.schedule.schedule import Schedule

I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Exchanges:
    """Transfers with the `number` of their exchange; those that leave a node, and those that arrive there, by `place`.

    `number` is that of all transfers; -1: none. The others are those of the transfers `rows`.
    """

    number: I64
    rows: I64
    leaves: I64
    arrives: I64

    @classmethod
    def of(cls, schedule: Schedule, exchange: I64) -> "Exchanges":
        """The exchanges of a schedule, of transfers with one end each, with any number for each exchange."""
        rows, timing, nodes = np.flatnonzero(exchange >= 0), schedule.timing, len(schedule.topology.nodes)
        start, end = np.zeros((2, len(exchange)), dtype=np.int64)
        start[timing.root_transfer], end[timing.end_transfer] = timing.root_node, timing.end_node
        number = np.full(len(exchange), -1)
        number[rows] = np.unique(exchange[rows], return_inverse=True)[1].reshape(-1)
        ends = np.concatenate([number[rows] * nodes + node[rows] for node in (start, end)])
        leaves, arrives = np.unique(ends, return_inverse=True)[1].reshape(2, -1)
        return cls(number, rows, leaves, arrives)

    def waiting_for_all(self, waits: Triples, takes_ps: I64, joins: int) -> Triples:
        """Let the transfers of each exchange also wait for the data of all its nodes, by a join for each exchange.

        `waits` may have joins that others wait for, numbered after the transfers; the new ones come after those.
        """
        if not len(self.rows):
            return waits
        (before, after, lag), count = waits, len(self.number)
        early_ps = np.full(int(self.number.max()) + 1, NEVER)
        np.minimum.at(early_ps, self.number[self.rows], takes_ps[self.rows] // 2)
        own = np.flatnonzero(after < count)
        own = own[self.number[after[own]] >= 0]
        pairs = np.stack((before[own], self.number[after[own]]))
        at_join = np.flatnonzero(after >= count)
        at_join = at_join[np.argsort(after[at_join], kind="stable")]
        through = np.unique(pairs[:, pairs[0] >= count], axis=1)
        low, high = (np.searchsorted(after[at_join], through[0], side=side) for side in ("left", "right"))
        entry = np.repeat(low - np.cumsum(high - low) + (high - low), high - low) + np.arange((high - low).sum())
        behind = np.stack((before[at_join[entry]], np.repeat(through[1], high - low)))
        pairs = np.unique(np.concatenate((pairs[:, pairs[0] < count], behind), axis=1), axis=1)
        first = count + joins
        return (
            np.concatenate((before, pairs[0], first + self.number[self.rows])),
            np.concatenate((after, first + pairs[1], self.rows)),
            np.concatenate((lag, takes_ps[pairs[0]] - early_ps[pairs[1]], np.zeros(len(self.rows), dtype=np.int64))),
        )

    def late(self, start_ps: I64, takes_ps: I64) -> Triples:
        """Constraints (before, after, lag) that starts do not satisfy: what arrives at a node before that has sent."""
        if not len(self.rows):
            return self.rows, self.rows, self.rows
        order = np.lexsort((start_ps[self.rows], self.leaves))
        last = np.full(int(self.leaves.max()) + 1, -1)
        last[self.leaves[order]] = self.rows[order]  # the last one that is written is the latest
        before = last[self.arrives]
        late = start_ps[self.rows] + takes_ps[self.rows] <= start_ps[before]
        return before[late], self.rows[late], 1 - takes_ps[self.rows[late]]
