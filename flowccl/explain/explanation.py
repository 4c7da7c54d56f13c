"""`explain`: the critical path of a schedule, the links on it, and what more bandwidth would save."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import InputError, InvalidScheduleError
from flowccl.explain.binding import binding_constraints
from flowccl.explain.gains import Gain, finish_if_faster
from flowccl.explain.path import PathStep, busy_link, cause_of, critical_path
from flowccl.schedule.metrics import measure
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift
from flowccl.units import format_GBps, ps_to_us
from flowccl.verifier.verify import verify

MOST_LINKS = 8  # links of the critical path whose gain is computed, those with the most time on it


@dataclass(frozen=True, slots=True)
class LinkOnPath:
    """A link on the critical path: the transfers there, their time, and the use of the link in the whole schedule."""

    link: int
    name: str
    transfers: int
    time_ps: int
    use: float


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why a schedule ends when it ends.

    `path` is the critical path; `links` are the links on it, the one with the most time first. `slack_ps` says for each
    transfer how much later it could start without a later completion time. `left_shift_ps` is the completion time if
    every transfer started as early as possible in the same order. `gains` are relative to it; None if links change
    their bandwidth over time, because then the duration of a transfer depends on its start.
    """

    schedule: Schedule
    path: tuple[PathStep, ...]
    links: tuple[LinkOnPath, ...]
    slack_ps: NDArray[np.int64]
    left_shift_ps: int
    gains: tuple[Gain, ...] | None

    @property
    def parts_ps(self) -> dict[str, int]:
        """The completion time in parts: released late, sending, latency, reducing, idle."""
        return {
            "release": self.path[0].start_ps - self.path[0].idle_ps if self.path else self.schedule.finish_ps,
            "sending": sum(step.sending_ps for step in self.path),
            "latency": sum(step.latency_ps for step in self.path),
            "reducing": sum(step.reducing_ps for step in self.path),
            "idle": sum(step.idle_ps for step in self.path),
        }

    @property
    def critical_transfers(self) -> int:
        """The number of transfers without slack."""
        return int(np.sum(self.slack_ps == 0))

    def to_json(self) -> dict[str, Any]:
        """One JSON object, for scripts."""
        nodes, topology = self.schedule.topology.nodes, self.schedule.topology
        steps = [
            {
                "transfer": step.transfer,
                "chunk": step.chunk,
                "from": nodes[step.src].name,
                "to": nodes[step.dst].name,
                "link": topology.link_name(step.link),
                "start_us": step.start_us,
                "arrival_us": step.arrival_us,
                "idle_us": ps_to_us(step.idle_ps),
                "cause": step.cause,
                "because": cause_of(self.schedule, self.path, number),
            }
            for number, step in enumerate(self.path)
        ]
        links = [
            {"link": row.name, "transfers": row.transfers, "time_us": ps_to_us(row.time_ps), "use": row.use}
            for row in self.links
        ]
        return {
            "machine": topology.name,
            "collective": self.schedule.demand.collective,
            "size_bytes": self.schedule.demand.size_bytes,
            "transfers": len(self.schedule),
            "finish_us": self.schedule.finish_us,
            "left_shift_us": ps_to_us(self.left_shift_ps),
            "parts_us": {name: ps_to_us(ps) for name, ps in self.parts_ps.items()},
            "critical_path": steps,
            "links": links,
            "critical_transfers": self.critical_transfers,
            "median_slack_us": ps_to_us(float(np.median(self.slack_ps))),
            "gains": None if self.gains is None else [_gain_json(gain) for gain in self.gains],
        }


def _gain_json(gain: Gain) -> dict[str, Any]:
    times = {"finish_us": gain.finish_us, "saved_us": gain.saved_us}
    return {"name": gain.name, "links": gain.links, "bandwidth_GBps": gain.bandwidth_GBps, **times}


def explain(schedule: Schedule) -> Explanation:
    """Return why a schedule ends when it ends.

    Raises InputError for a schedule without transfers, and InvalidScheduleError for one that the verifier refuses.
    """
    if not len(schedule):
        raise InputError("the schedule has no transfers, so there is nothing to explain")
    violations = verify(schedule)
    if violations:
        raise InvalidScheduleError(f"an invalid schedule cannot be explained: {violations[0]}")
    path = critical_path(schedule)
    links = _links(schedule, path)
    shifted = schedule.finish_ps if schedule.topology.changes else left_shift(schedule).finish_ps
    gains = None if schedule.topology.changes else tuple(_gains(schedule, path, links, shifted))
    return Explanation(schedule, path, links, binding_constraints(schedule).slack_ps, shifted, gains)


def _links(schedule: Schedule, path: tuple[PathStep, ...]) -> tuple[LinkOnPath, ...]:
    """The links on the path, with the time of the steps that `busy_link` attributes to them."""
    use, topology = measure(schedule).link_use, schedule.topology
    time: Counter[int] = Counter()
    transfers: Counter[int] = Counter()
    for number, step in enumerate(path):
        link = busy_link(schedule, path, number)
        time[link] += step.sending_ps
        transfers[link] += 1
    order = sorted(time, key=lambda link: (-time[link], link))
    return tuple(LinkOnPath(k, topology.link_name(k), transfers[k], time[k], float(use[k])) for k in order)


def _gains(
    schedule: Schedule, path: tuple[PathStep, ...], links: tuple[LinkOnPath, ...], shifted: int
) -> Iterator[Gain]:
    """The gain of links on the path, one by one; of all links with the same bandwidth; and of limits on the path.

    A link that is not on the path saves nothing, because the path stays as long as it is.
    """
    topology = schedule.topology

    def gain(name: str, members: list[int], limits: list[int], GBps: float) -> Gain:
        finish = min(finish_if_faster(schedule, members, limits), shifted)  # it may also stay as it is
        return Gain(name, len(members), GBps, finish, shifted - finish)

    for row in links[:MOST_LINKS]:
        yield gain(row.name, [row.link], [], float(topology.link_GBps[row.link]))
    routes = np.unique(schedule.route[[step.transfer for step in path]]).tolist()
    crossed = sorted({link for route in routes for link in schedule.routes.links(route)})
    for GBps in np.unique(topology.link_GBps[crossed]).tolist():
        alike = np.flatnonzero(topology.link_GBps == GBps).tolist()
        if len(alike) > 1:
            yield gain(f"all {format_GBps(GBps)} links", alike, [], GBps)
    for number, limit in enumerate(topology.limits):
        if {*limit.links} & {*crossed}:
            yield gain(f"limit {limit.name}", [], [number], limit.bandwidth_GBps)
