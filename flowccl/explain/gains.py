"""The completion time if links or limits had more bandwidth, with the same transfers in the same order."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import InputError
from flowccl.schedule.generation.engine import in_same_order
from flowccl.schedule.generation.precedence import (
    RowPairs,
    between_messages,
    precedence_pairs,
    soonest_starts,
    stacked,
)
from flowccl.schedule.generation.serial import fits
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.timing import Timing, replay
from flowccl.topology.routes import segment_GBps
from flowccl.topology.topology import Topology
from flowccl.units import ps_to_us

FASTER = 1.1  # 10 % more bandwidth
_LEAST_RATE = 0.1  # of its rate: what a transfer has beside others, or it waits


@dataclass(frozen=True, slots=True)
class Gain:
    """The time saved by 10 % more bandwidth of some links, or of a limit, with the same transfers in the same order."""

    name: str
    links: int
    bandwidth_GBps: float
    finish_ps: int
    saved_ps: int

    @property
    def finish_us(self) -> float:
        """The completion time with more bandwidth, in microseconds."""
        return ps_to_us(self.finish_ps)

    @property
    def saved_us(self) -> float:
        """The saved time in microseconds."""
        return ps_to_us(self.saved_ps)


def finish_if_faster(
    schedule: Schedule, links: Sequence[int] = (), limits: Sequence[int] = (), factor: float = FASTER
) -> int:
    """Return the completion time in ps if some links and limits had `factor` times their bandwidth.

    The transfers stay, and so does their order on every link; each starts as early as possible. Without links and
    limits, this is the completion time of `left_shift`. Faster transfers may not fit beside each other on a limit or on
    a link that several transfers share; then all transfers there keep their rates. Where transfers have chosen rates,
    the engine chooses them again; the schedule as it is remains possible.
    """
    if schedule.topology.changes:
        raise InputError("links change their bandwidth over time: the duration of a transfer depends on its start")
    machine = _faster(schedule.topology, links, limits, factor) if links or limits else schedule.topology
    if (links or limits) and schedule.rate_GBps.any():
        found = in_same_order(replace(schedule, topology=machine), schedule, _LEAST_RATE)
        return schedule.finish_ps if found is None else min(found.finish_ps, schedule.finish_ps)
    pairs, timing = _pairs(schedule), _timing_on(schedule, machine)
    start = _earliest(schedule, pairs, timing)
    sharing = _beside_others(schedule)
    if (links or limits) and sharing.any() and not fits(replace(schedule, topology=machine, start_ps=start)):
        timing = _partly(schedule.timing, timing, sharing)
        start = _earliest(schedule, pairs, timing)
    end = timing.end_arrival_ps + (start - schedule.start_ps)[timing.end_transfer]
    return int(end.max(initial=schedule.demand.available_ps.max(initial=0)))


def _pairs(schedule: Schedule) -> list[RowPairs]:
    """The order of the transfers, kept in the schedule's cache because every gain needs it."""
    if "precedence pairs" not in schedule.cache:
        schedule.cache["precedence pairs"] = precedence_pairs(schedule)
    pairs: list[RowPairs] = schedule.cache["precedence pairs"]
    return pairs


def _faster(topology: Topology, links: Sequence[int], limits: Sequence[int], factor: float) -> Topology:
    """The machine with more bandwidth of some links and limits."""
    every, shared = list(topology.links), list(topology.limits)
    for link in links:
        every[link] = replace(every[link], bandwidth_GBps=every[link].bandwidth_GBps * factor)
    for limit in limits:
        shared[limit] = replace(shared[limit], bandwidth_GBps=shared[limit].bandwidth_GBps * factor)
    return replace(topology, links=tuple(every), limits=tuple(shared))


def _timing_on(schedule: Schedule, machine: Topology) -> Timing:
    """The timing of the same transfers from the same starts on a machine with other bandwidths."""
    shape = schedule.shape
    link = shape.routes.link
    rate = segment_GBps(machine, link, shape.hop_segment, len(shape.segment_GBps), machine.link_GBps)
    leader = schedule.leader if schedule.has_messages else None
    shape = replace(shape, segment_GBps=rate)
    rates = _rates_on(schedule, machine) if schedule.rate_GBps.any() else None
    return replay(
        machine, shape, schedule.sent_bytes, schedule.route, schedule.start_ps, leader, schedule.reduce, None, rates
    )


def _rates_on(schedule: Schedule, machine: Topology) -> NDArray[np.float64]:
    """The chosen rates of transfers on a machine with other bandwidths: faster where all that they cross is faster."""
    topology, timing = schedule.topology, schedule.timing
    factor = machine.link_GBps / topology.link_GBps
    for old, new in zip(topology.limits, machine.limits, strict=True):
        factor[list(old.links)] = np.minimum(factor[list(old.links)], new.bandwidth_GBps / old.bandwidth_GBps)
    least = np.full(len(schedule), np.inf)
    np.minimum.at(least, timing.hop_transfer, factor[timing.hop_link])
    return np.asarray(schedule.rate_GBps * np.where(np.isfinite(least), least, 1.0))


def _earliest(schedule: Schedule, pairs: list[RowPairs], timing: Timing) -> NDArray[np.int64]:
    """The earliest starts that keep the order of the transfers."""
    from flowccl.schedule.generation.generation_kernels import earliest_starts

    before, after, lag = between_messages(schedule, stacked(schedule, pairs, timing))
    soonest, leader = soonest_starts(schedule), schedule.leader
    np.maximum.at(soonest, leader, soonest.copy())
    by_after = np.argsort(after, kind="stable")
    ptr = np.searchsorted(after[by_after], np.arange(len(schedule) + 1)).astype(np.int64)
    order = np.argsort(schedule.start_ps, kind="stable").astype(np.int64)
    latest = np.full(len(schedule), 2 * schedule.finish_ps + 1, dtype=np.int64)  # never reached
    start = earliest_starts(order, ptr, before[by_after], lag[by_after], latest, soonest)
    return np.asarray(start[leader])


def _beside_others(schedule: Schedule) -> NDArray[np.bool_]:
    """The transfers that cross a limit or a link that carries several transfers at once."""
    timing, topology = schedule.timing, schedule.topology
    link = timing.shared_links(topology)
    for limit in topology.limits:
        link[list(limit.links)] = True
    leaders = np.zeros(len(schedule), dtype=np.bool_)
    leaders[timing.hop_transfer[link[timing.hop_link]]] = True
    return np.asarray(leaders[schedule.leader])


def _partly(old: Timing, new: Timing, keep: NDArray[np.bool_]) -> Timing:
    """The new timing, with the old times of some transfers."""
    columns = {}
    for column in fields(Timing):
        part = column.name.split("_")[0]
        if column.name.endswith("_ps"):
            kept = keep[getattr(old, f"{part}_transfer")]
            columns[column.name] = np.where(kept, getattr(old, column.name), getattr(new, column.name))
    return replace(new, **columns)
