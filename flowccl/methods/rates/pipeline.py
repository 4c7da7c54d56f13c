"""Periodic pipelines: every round moves the same amount over the same trees, all at constant rates.

In each period, the chunks of one round enter their trees. Every transfer has a constant rate: on each link and limit,
the bandwidth is divided among the transfers of a round in proportion to their bytes. So the transfers of a round take
at most one period each, whichever of them run side by side, and rounds follow each other by one period.
The completion time is (rounds - 1) periods and the time of one round: no order has to be found, and nothing waits.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.methods.rates.network import F64, I64, Path, PricedNetwork
from flowccl.methods.rates.trees import TreeColumn
from flowccl.schedule.schedule import Schedule
from flowccl.topology.routes import Routes

_ROUNDING = 1e-9  # by which rates stay below the bandwidth that is left to them


@dataclass(frozen=True, slots=True)
class PlannedTransfer:
    """A transfer of a slot: its path, whether it reduces, and the steps of the same slot that it waits for."""

    path: Path
    reduces: bool
    after: tuple[int, ...]


Plan = tuple[PlannedTransfer, ...]
"""The transfers that bring a chunk from its source to all destinations, each after those that it waits for."""


def tree_steps(tree: TreeColumn) -> Plan:
    """The transfers of a chunk over a tree: from the root, or into it with the farthest GPUs first."""
    if not tree.inward:
        place = {node: i for i, (_, node, _) in enumerate(tree.edges)}
        return tuple(
            PlannedTransfer(path, False, (place[above],) if above in place else ()) for above, _, path in tree.edges
        )
    edges = tree.edges[::-1]
    below: dict[int, list[int]] = {}
    steps = []
    for i, (above, node, path) in enumerate(edges):
        steps.append(PlannedTransfer(tuple(reversed(path)), True, tuple(below.get(node, ()))))
        below.setdefault(above, []).append(i)
    return tuple(steps)


def up_and_down(up: Plan, down: Plan) -> Plan:
    """A reduction into a root, and then a distribution from there."""
    waited = {i for step in up for i in step.after}
    last = tuple(i for i in range(len(up)) if i not in waited)
    moved = [PlannedTransfer(step.path, step.reduces, tuple(i + len(up) for i in step.after) or last) for step in down]
    return (*up, *moved)


@dataclass(frozen=True, eq=False)
class Rounds:
    """Which chunk goes into which slot of which round; the chunks of a slot have at most `slot_bytes` bytes."""

    slot: I64
    number: I64
    slot_bytes: I64

    @property
    def count(self) -> int:
        """Number of rounds."""
        return int(self.number.max()) + 1


def rounds_of_blocks(demand: Demand, together: int) -> Rounds:
    """Rounds of `together` chunks of every block."""
    block, piece = np.divmod(np.arange(len(demand)), demand.pieces)
    slot = block * together + piece % together
    return _rounds(demand, slot, piece // together)


def rounds_of_any(demand: Demand, size: int, sequence: I64) -> Rounds:
    """Rounds of `size` chunks, in the order of a sequence."""
    place = np.argsort(sequence)
    return _rounds(demand, place % size, place // size)


def _rounds(demand: Demand, slot: I64, number: I64) -> Rounds:
    size = np.zeros(int(slot.max()) + 1, dtype=np.int64)
    np.maximum.at(size, slot, demand.chunk_bytes)
    return Rounds(slot, number, size)


def periodic_schedule(
    network: PricedNetwork, demand: Demand, rounds: Rounds, plans: list[Plan], method: str
) -> Schedule:
    """Return the schedule in which the chunks of every slot follow its plan, one period after the round before."""
    topology = network.topology
    steps = [(slot, step) for slot, plan in enumerate(plans) for step in plan]
    first = np.concatenate(([0], np.cumsum([len(plan) for plan in plans]))).astype(np.int64)
    size = rounds.slot_bytes[[slot for slot, _ in steps]]
    links = Routes.from_lists([step.path for _, step in steps])
    rate = _rates(network, links, size)
    full = np.minimum.reduceat(topology.link_GBps[links.link], links.ptr[:-1])
    rate = np.where(rate >= full * (1 - 2 * _ROUNDING), full, rate)  # alone on its slowest link
    takes = np.ceil(size * 1000.0 / rate).astype(np.int64)
    latency = np.add.reduceat(topology.link_latency_ps[links.link], links.ptr[:-1])
    start = np.zeros(len(steps), dtype=np.int64)
    end = takes + latency
    for i, (slot, step) in enumerate(steps):
        for other in step.after:
            start[i] = max(start[i], start[first[slot] + other] + end[first[slot] + other])
    period = int(takes.max())
    per_chunk = np.diff(first)[rounds.slot]
    chunk = np.repeat(np.arange(len(demand)), per_chunk)
    row = first[rounds.slot[chunk]] + np.arange(len(chunk)) - np.repeat(np.cumsum(per_chunk) - per_chunk, per_chunk)
    routes, route = links.distinct()
    return Schedule(
        topology,
        demand,
        routes,
        chunk.astype(np.int32),
        route[row],
        start[row] + rounds.number[chunk] * period,
        np.array([step.reduces for _, step in steps], dtype=np.bool_)[row],
        method,
        rate_GBps=np.where(rate < full, rate, 0.0)[row],
    )


def _rates(network: PricedNetwork, links: Routes, size: NDArray[np.int64]) -> F64:
    """The rate of each transfer of a round: the least of its shares of links and limits."""
    topology = network.topology
    owner = np.repeat(np.arange(len(links)), np.diff(links.ptr))
    resource, member = links.link.astype(np.int64), owner
    if topology.limits:
        pointer, limit = topology.link_limits
        times = np.diff(pointer)[links.link]
        again = np.repeat(np.arange(len(links.link)), times)
        within = np.arange(len(again)) - np.repeat(np.cumsum(times) - times, times)
        which = limit[np.repeat(pointer[:-1][links.link], times) + within]
        resource = np.concatenate((resource, len(topology.links) + which))
        member = np.concatenate((owner, owner[again]))
    load = np.bincount(resource, size[member], len(network.capacity))
    share = network.capacity[resource] / load[resource] * (1 - _ROUNDING)
    least = np.full(len(links), np.inf)
    np.minimum.at(least, member, share)
    return np.asarray(least * size)
