"""Repair of a schedule after a fault: only transfers that use the faulty links get other routes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowccl.catalog.resize import stretched
from flowccl.schedule.generation.list_scheduling import list_schedule
from flowccl.schedule.generation.serial import sequence
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift
from flowccl.topology.faults import Fault, apply_faults
from flowccl.topology.neighbours import Neighbours, neighbours
from flowccl.topology.routes import Routes

_Piece = tuple[int, tuple[int, ...], bool]  # chunk, links, whether the end reduces


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
        return stretched(self.schedule, replace(self.schedule, topology=self.near.topology, routes=routes))

    def repaired(self) -> Schedule | None:
        """Return the schedule in which affected transfers take other paths, spread over the least loaded links.

        None where a multicast or a message of several chunks is affected, or where there is no other path. The result
        must be verified: it is invalid where two nodes exchange partial reductions at the same time.
        """
        schedule = self.schedule
        if schedule.has_messages or np.any(np.diff(schedule.shape.end_ptr) > 1):
            return None
        paths = _Detours(self)
        pieces: list[_Piece] = []
        for i in sequence(schedule).tolist():
            chunk, reduces = int(schedule.chunk[i]), bool(schedule.reduce[i])
            if not self.is_affected[i]:
                pieces.append((chunk, self.new_links(i), reduces))
                continue
            path = paths.find(i)
            if path is None:
                return None
            pieces += [(chunk, hop, reduces and hop == path[-1]) for hop in path]
        return in_rounds(_from_pieces(schedule, self.near, pieces), np.arange(len(pieces)))


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


def _from_pieces(schedule: Schedule, near: Neighbours, pieces: Sequence[_Piece]) -> Schedule:
    chunk = np.array([piece[0] for piece in pieces], dtype=np.int32)
    reduce = np.array([piece[2] for piece in pieces], dtype=np.bool_)
    routes = Routes.from_lists([piece[1] for piece in pieces])
    zero = np.zeros(len(pieces), dtype=np.int64)
    return Schedule.from_links(near.topology, schedule.demand, chunk, routes, zero, reduce, schedule.method)


class _Detours:
    """The quickest paths between GPUs on the faulty machine, where loaded links count as slower."""

    def __init__(self, machine: FaultyMachine) -> None:
        self.machine, self.schedule, self.near = machine, machine.schedule, machine.near
        self.load = machine.loads()
        self.first_route = [self.near.routes.links(int(r)) for r in self.near.pair_ptr[:-1]]
        self.pair = {(int(a), int(b)): n for n, (a, b) in enumerate(zip(self.near.src, self.near.end, strict=True))}
        self.values = _Values(self.schedule)

    def find(self, transfer: int) -> list[tuple[int, ...]] | None:
        """Return the links of each hop that replaces a transfer, and add them to the loads.

        A copy may come from any node that has the value by then. A contribution may take a detour, or be reduced at
        another node that sends its own contribution later.
        """
        a, b = self.machine.ends(transfer)
        own = self.near.pair_cost_ps(float(self.schedule.demand.chunk_bytes[self.schedule.chunk[transfer]]))
        cost = own + np.array([self.load[list(route)].max() for route in self.first_route])
        pairs, length = self._detour(transfer, a, b, cost)
        if self.schedule.reduce[transfer]:
            for node, slack_ps in self.values.later_senders(transfer, a).items():
                number = self.pair.get((a, node))
                if number is not None and cost[number] + max(own[number] - slack_ps, 0) < length:
                    pairs, length = [number], float(cost[number] + max(own[number] - slack_ps, 0))
        if not pairs:
            return None
        for number in pairs:
            self.load[list(self.first_route[number])] += own[number]
        return [self.first_route[number] for number in pairs]

    def _detour(self, transfer: int, a: int, b: int, cost: NDArray[np.float64]) -> tuple[list[int], float]:
        """The pairs of neighbours on the quickest path through nodes that can relay, and its length."""
        from scipy.sparse import csr_matrix
        from scipy.sparse.csgraph import dijkstra

        closed = self.values.needed(transfer, a, b)
        usable = ~(np.isin(self.near.src, closed) | np.isin(self.near.end, closed))
        count = len(self.near.topology.nodes)
        graph = csr_matrix((cost[usable], (self.near.src[usable], self.near.end[usable])), (count, count))
        starts = self.values.owners(transfer, a, b)
        length, before, _ = dijkstra(graph, indices=starts, return_predecessors=True, min_only=True)
        pairs: list[int] = []
        at = b
        while at not in starts:
            if before[at] < 0:
                return [], float("inf")
            pairs.append(self.pair[int(before[at]), at])
            at = int(before[at])
        return pairs[::-1], float(length[b])


class _Values:
    """When each node sends and receives each chunk: which values are complete, and which are still needed."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        timing, demand = schedule.timing, schedule.demand
        self.sends: dict[int, list[tuple[int, int, bool]]] = {}
        self.arrivals: dict[int, list[tuple[int, int, bool]]] = {}
        for i, node, at in zip(timing.root_transfer, timing.root_node, timing.root_from_ps, strict=True):
            self.sends.setdefault(int(schedule.chunk[i]), []).append((int(at), int(node), bool(schedule.reduce[i])))
        for i, node, at in zip(timing.end_transfer, timing.end_node, timing.end_arrival_ps, strict=True):
            self.arrivals.setdefault(int(schedule.chunk[i]), []).append((int(at), int(node), bool(schedule.reduce[i])))
        self.is_reduced = np.diff(demand.source_ptr) > 1

    def needed(self, transfer: int, *ends: int) -> list[int]:
        """Return the nodes, other than the ends, whose value must not be replaced by the data of a transfer."""
        chunk, at = self._when(transfer)
        if not self.is_reduced[chunk] or not self.schedule.reduce[transfer]:
            return []
        later = {node for time, node, _ in self.arrivals[chunk] if time > at}
        closed = {node for time, node, _ in self.sends[chunk] if time >= at}
        closed |= set(self.schedule.demand.destinations(chunk).tolist()) - later
        return sorted(closed - set(ends))

    def owners(self, transfer: int, a: int, b: int) -> list[int]:
        """Return the nodes that have the data of a transfer at its start: its source, and those with a copy."""
        chunk, at = self._when(transfer)
        if self.schedule.reduce[transfer]:
            return [a]
        copies = {node for time, node, reduces in self.arrivals[chunk] if time <= at and not reduces}
        if not self.is_reduced[chunk]:
            copies |= set(self.schedule.demand.sources(chunk).tolist())
        return sorted(({a} | copies) - {b})

    def later_senders(self, transfer: int, a: int) -> dict[int, int]:
        """Return the nodes that send their contribution to the chunk later, each with the time until then."""
        chunk, at = self._when(transfer)
        return {n: time - at for time, n, reduces in self.sends[chunk] if reduces and time >= at and n != a}

    def _when(self, transfer: int) -> tuple[int, int]:
        return int(self.schedule.chunk[transfer]), int(self.schedule.start_ps[transfer])
