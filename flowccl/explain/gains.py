"""The completion time if links or limits had more bandwidth, with the same transfers in the same order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flowccl.errors import InputError
from flowccl.schedule.generation.engine import in_same_order
from flowccl.schedule.generation.serial import fits
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import in_order_of, left_shift
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
    limits, this is the completion time of `left_shift`. Where transfers have chosen rates, or faster ones would not fit
    beside each other on a limit or on a link that several share, the engine chooses their rates again; the schedule as
    it is remains possible.
    """
    if schedule.topology.changes:
        raise InputError("links change their bandwidth over time: the duration of a transfer depends on its start")
    if not links and not limits:
        return left_shift(schedule).finish_ps
    faster = replace(schedule, topology=_faster(schedule.topology, links, limits, factor))
    if not schedule.rate_GBps.any():
        made = in_order_of(faster, schedule)
        if fits(made):
            return made.finish_ps
    found = in_same_order(faster, schedule, _LEAST_RATE)
    return schedule.finish_ps if found is None else min(found.finish_ps, schedule.finish_ps)


def _faster(topology: Topology, links: Sequence[int], limits: Sequence[int], factor: float) -> Topology:
    """The machine with more bandwidth of some links and limits."""
    every, shared = list(topology.links), list(topology.limits)
    for link in links:
        every[link] = replace(every[link], bandwidth_GBps=every[link].bandwidth_GBps * factor)
    for limit in limits:
        shared[limit] = replace(shared[limit], bandwidth_GBps=shared[limit].bandwidth_GBps * factor)
    return replace(topology, links=tuple(every), limits=tuple(shared))
