"""What repairs of a schedule share: the machine after a fault, and schedules of transfers that keep their order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowccl.schedule.generation.list_scheduling import list_schedule
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import in_order_of, left_shift
from flowccl.topology.faults import Fault, apply_faults
from flowccl.topology.neighbours import Neighbours, neighbours
from flowccl.topology.routes import Routes


class RepairedTransfer(NamedTuple):
    """A transfer of a repaired schedule; rows are kept in the order of `start_ps`."""

    start_ps: int
    chunk: int
    links: tuple[int, ...]
    reduces: bool
    message: int = -1


@dataclass(frozen=True)
class FaultyMachine:
    """A schedule's machine after faults: its links have other numbers, -1 for those that are lost."""

    schedule: Schedule
    faults: tuple[Fault, ...]

    @cached_property
    def link(self) -> NDArray[np.int64]:
        """The new number of each link."""
        lost = [link for fault in self.faults if fault.bandwidth_GBps is None for link in fault.links]
        keep = np.ones(len(self.schedule.topology.links), dtype=np.bool_)
        keep[lost] = False
        return np.where(keep, np.cumsum(keep) - 1, -1)

    @cached_property
    def near(self) -> Neighbours:
        """The neighbours on the faulty machine."""
        return neighbours(apply_faults(self.schedule.topology, self.faults), 1)

    @cached_property
    def affected(self) -> NDArray[np.int64]:
        """The transfers that use a faulty link."""
        faulty = np.zeros(len(self.link), dtype=np.bool_)
        faulty[[link for fault in self.faults for link in fault.links]] = True
        routes = self.schedule.routes
        used = np.add.reduceat(faulty[routes.link].astype(np.int64), routes.ptr[:-1]) > 0
        return np.flatnonzero(used[self.schedule.route]).astype(np.int64)

    @cached_property
    def is_affected(self) -> NDArray[np.bool_]:
        """Whether each transfer uses a faulty link."""
        mask = np.zeros(len(self.schedule), dtype=np.bool_)
        mask[self.affected] = True
        return mask

    def ends(self, transfer: int) -> tuple[int, int]:
        """The first and the last node of a transfer."""
        links, ends = self.schedule.routes.links(int(self.schedule.route[transfer])), self.schedule.topology.links
        return ends[links[0]].src, ends[links[-1]].dst

    def new_links(self, transfer: int) -> tuple[int, ...]:
        """The links of a transfer by their new numbers."""
        return tuple(int(self.link[link]) for link in self.schedule.routes.links(int(self.schedule.route[transfer])))

    def row(self, transfer: int) -> RepairedTransfer:
        """The transfer by the new numbers of its links."""
        schedule, links = self.schedule, self.new_links(transfer)
        start, chunk, message = (
            int(column[transfer]) for column in (schedule.start_ps, schedule.chunk, schedule.message)
        )
        return RepairedTransfer(start, chunk, links, bool(schedule.reduce[transfer]), message)

    def loads(self) -> NDArray[np.float64]:
        """The time that unaffected transfers occupy each link of the faulty machine; one entry more, which is 0."""
        timing = self.schedule.timing
        kept = ~self.is_affected[timing.hop_transfer]
        busy = (timing.hop_to_ps - timing.hop_from_ps)[kept]
        links = self.link[timing.hop_link[kept]]
        return np.bincount(links, busy, len(self.near.topology.links) + 1).astype(np.float64)

    def late(self) -> Schedule | None:
        """Return the schedule with its own routes on the faulty machine; None if it needs a link that is lost."""
        if np.any(self.link[self.schedule.routes.link] < 0):
            return None
        routes = Routes(self.schedule.routes.ptr, self.link[self.schedule.routes.link].astype(np.int32))
        return in_order_of(replace(self.schedule, topology=self.near.topology, routes=routes), self.schedule)


def scheduled(machine: FaultyMachine, rows: Sequence[RepairedTransfer]) -> Schedule:
    """Return the earliest schedule of some rows: in the order of their starts, or by longest tails.

    Rows that started together still do, so that nodes that exchange partial reductions send before they receive.
    """
    rounds = _rounds(rows)
    rows = [row for one in rounds for row in one]
    made = Schedule.from_links(
        machine.near.topology,
        machine.schedule.demand,
        np.array([row.chunk for row in rows], dtype=np.int32),
        Routes.from_lists([row.links for row in rows]),
        np.zeros(len(rows), dtype=np.int64),
        np.array([row.reduces for row in rows], dtype=np.bool_),
        machine.schedule.method,
        np.array([row.message for row in rows], dtype=np.int32),
    )
    number = np.repeat(np.arange(len(rounds)), [len(one) for one in rounds])
    ordered = in_rounds(made, number)
    listed = list_schedule(ordered)
    return ordered if listed is None else min(ordered, listed, key=lambda one: one.finish_ps)


def _rounds(rows: Sequence[RepairedTransfer]) -> list[list[RepairedTransfer]]:
    """The rows in the order of their starts, in rounds of rows that start together and share no link.

    Rows of a message stay together.
    """
    rounds: list[list[RepairedTransfer]] = []
    for _, together in groupby(sorted(rows, key=lambda row: row.start_ps), key=lambda row: row.start_ps):
        first, busy = len(rounds), dict[int, int]()  # the first round of this start in which each link is free
        of_message: dict[int, int] = {}
        for row in together:
            at = of_message.get(row.message, max([first, *(busy[link] for link in row.links if link in busy)]))
            if row.message >= 0:
                of_message[row.message] = at
            if at == len(rounds):
                rounds.append([])
            rounds[at].append(row)
            busy.update(dict.fromkeys(row.links, at + 1))
    return rounds


def in_rounds(schedule: Schedule, number: NDArray[np.int64]) -> Schedule:
    """Return the schedule with its transfers in numbered rounds, one round after the other, then left-shifted."""
    zero = replace(schedule, start_ps=np.zeros(len(schedule), dtype=np.int64))
    takes = np.zeros(number.max(initial=-1) + 1, dtype=np.int64)
    np.maximum.at(takes, number[zero.timing.end_transfer], zero.timing.end_arrival_ps)
    start = np.cumsum(takes) - takes + schedule.demand.available_ps.max(initial=0)
    return left_shift(replace(schedule, start_ps=start[number]))
