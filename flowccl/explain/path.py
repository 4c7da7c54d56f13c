"""The critical path: the chain of transfers, each waiting for the one before it, that ends last."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.explain.binding import I64, KINDS, RELEASE, Binding, binding_constraints
from flowccl.schedule.schedule import Schedule
from flowccl.units import format_us, ps_to_us


@dataclass(frozen=True, slots=True)
class PathStep:
    """A transfer on the critical path, and what it waited for.

    `cause` is "link", "data", "limit", "reduce rate", "buffer", "reduction order", "release" or "start". `link` is the
    link for which it waited if the cause is "link", otherwise the first link of its route; `limit` is the index of the
    limit if the cause is "limit", otherwise -1. The time from its start to the start of the next step, or to the
    completion time, is `sending_ps + latency_ps + reducing_ps` and the next step's `idle_ps`: the time for which that
    step could have started earlier.
    """

    transfer: int
    chunk: int
    src: int
    dst: int
    link: int
    limit: int
    cause: str
    start_ps: int
    arrival_ps: int
    idle_ps: int
    sending_ps: int
    latency_ps: int
    reducing_ps: int

    @property
    def start_us(self) -> float:
        """The start in microseconds."""
        return ps_to_us(self.start_ps)

    @property
    def arrival_us(self) -> float:
        """The last arrival in microseconds."""
        return ps_to_us(self.arrival_ps)


def critical_path(schedule: Schedule) -> tuple[PathStep, ...]:
    """Return the transfers of the critical path, in order of time.

    Empty if the schedule ends with the release of data that no transfer moves.
    """
    timing, binding = schedule.timing, binding_constraints(schedule)
    last = np.flatnonzero(timing.end_arrival_ps == schedule.finish_ps)
    if not len(last):
        return ()
    transfer = int(timing.end_transfer[last[0]])
    chain = {transfer: None}
    while binding.before[transfer] >= 0 and int(binding.before[transfer]) not in chain:
        transfer = int(binding.before[transfer])
        chain[transfer] = None
    steps = list(chain)[::-1]
    return tuple(_step(schedule, binding, i, j) for i, j in zip(steps, [*steps[1:], -1], strict=True))


def _step(schedule: Schedule, binding: Binding, i: int, following: int) -> PathStep:
    timing = schedule.timing
    latency, reducing = _latency_and_reducing(schedule, binding, i, following)
    end = _last_end(schedule, i)
    until = int(timing.end_arrival_ps[end]) if following < 0 else int(binding.allowed_ps[following])
    link, limit = _places(schedule, binding, i)
    return PathStep(
        transfer=i,
        chunk=int(schedule.chunk[i]),
        src=int(timing.root_node[_rows(timing.root_transfer, i)][0]),
        dst=int(timing.end_node[end]),
        link=link,
        limit=limit,
        cause=_cause(binding, i),
        start_ps=int(schedule.start_ps[i]),
        arrival_ps=int(timing.end_arrival_ps[end]),
        idle_ps=int(schedule.start_ps[i] - binding.allowed_ps[i]),
        sending_ps=until - int(schedule.start_ps[i]) - latency - reducing,
        latency_ps=latency,
        reducing_ps=reducing,
    )


def _cause(binding: Binding, transfer: int) -> str:
    kind = int(binding.kind[transfer])
    return KINDS[kind] if kind >= 0 else "release" if kind == RELEASE else "start"


def _rows(transfers: I64, transfer: int) -> I64:
    """The rows of a transfer in a sorted column of transfers."""
    low, high = np.searchsorted(transfers, (transfer, transfer + 1))
    return np.arange(low, high, dtype=np.int64)


def _last_end(schedule: Schedule, transfer: int, nodes: NDArray[np.int32] | None = None) -> int:
    """The row of the last arrival of a transfer, or of the last one at some nodes."""
    timing = schedule.timing
    rows = _rows(timing.end_transfer, transfer)
    if nodes is not None and np.isin(timing.end_node[rows], nodes).any():
        rows = rows[np.isin(timing.end_node[rows], nodes)]
    return int(rows[np.argmax(timing.end_arrival_ps[rows])])


def _places(schedule: Schedule, binding: Binding, i: int) -> tuple[int, int]:
    """The link, and the limit or -1, for which a transfer waited; if neither, its first link."""
    timing, topology = schedule.timing, schedule.topology
    rows = _rows(timing.hop_transfer, int(schedule.leader[i]))
    own = timing.hop_link[rows].tolist()
    cause = _cause(binding, i)
    if cause not in ("link", "limit"):
        return own[0], -1
    earlier = _rows(timing.hop_transfer, int(binding.before[i]))
    ended = dict(zip(timing.hop_link[earlier].tolist(), timing.hop_to_ps[earlier].tolist(), strict=True))
    if cause == "link":
        began = zip(own, timing.hop_from_ps[rows].tolist(), strict=True)
        return min((at - ended[link], link) for link, at in began if ended.get(link, at + 1) <= at)[1], -1
    shared = [n for n, limit in enumerate(topology.limits) if {*limit.links} & {*own} and {*limit.links} & {*ended}]
    return next(link for link in own if link in topology.limits[shared[0]].links), shared[0]


def _latency_and_reducing(schedule: Schedule, binding: Binding, i: int, following: int) -> tuple[int, int]:
    """The parts of the time between two starts, or until the last arrival, that are latency and reducing.

    The time until a limit or a buffer has capacity counts as sending.
    """
    timing, shape, latency = schedule.timing, schedule.shape, schedule.topology.link_latency_ps
    cause = "" if following < 0 else _cause(binding, following)
    if cause == "link":
        link = _places(schedule, binding, following)[0]
        return _offset(schedule, i, link) - _offset(schedule, following, link), 0
    if cause == "reduce rate":
        end = _last_end(schedule, i, timing.end_node[_rows(timing.end_transfer, following)])
        return 0, int(timing.end_arrival_ps[end] - timing.end_whole_ps[end])
    if cause not in ("", "data"):
        return 0, 0
    roots = _rows(timing.root_transfer, following)
    end = _last_end(schedule, i, timing.root_node[roots] if cause else None)
    place = end - int(_rows(timing.end_transfer, i)[0])
    hop = int(shape.end_hop[shape.end_ptr[schedule.route[i]] + place])
    passed = int(shape.hop_offset_ps[hop] + latency[shape.routes.link[hop]])
    if cause:
        place = int(np.argmax(timing.root_node[roots] == timing.end_node[end]))
        passed -= int(shape.hop_offset_ps[shape.root_hop[shape.root_ptr[schedule.route[following]] + place]])
    return passed, int(timing.end_arrival_ps[end] - timing.end_whole_ps[end])


def _offset(schedule: Schedule, transfer: int, link: int) -> int:
    """The latency from the start of a transfer to the start of its hop on a link."""
    route = int(schedule.route[transfer])
    low, high = schedule.routes.ptr[route], schedule.routes.ptr[route + 1]
    hop = int(low + np.flatnonzero(schedule.routes.link[low:high] == link)[0])
    return int(schedule.shape.hop_offset_ps[hop])


def busy_link(schedule: Schedule, path: tuple[PathStep, ...], number: int) -> int:
    """Return the link whose time a step takes: the one for which the next step waits, or the slowest of its route."""
    if number + 1 < len(path) and path[number + 1].cause == "link":
        return path[number + 1].link
    route = schedule.routes.links(int(schedule.route[path[number].transfer]))
    return min(route, key=lambda link: (schedule.topology.link_GBps[link], link))


def cause_of(schedule: Schedule, path: tuple[PathStep, ...], number: int) -> str:
    """Return why a step of the critical path starts when it does."""
    step, topology = path[number], schedule.topology
    idle = f", {format_us(ps_to_us(step.idle_ps))} later than it could" if step.idle_ps else ""
    if not number:
        since = "the start" if step.start_ps == step.idle_ps else "then on"
        return f"{topology.nodes[step.src].name} has the data from {since}{idle}"
    before = path[number - 1]
    why = {
        "data": f"waits for data: transfer {before.transfer} brings it from {topology.nodes[before.src].name}",
        "link": f"waits for the link {topology.link_name(step.link)}, busy with transfer {before.transfer}",
        "limit": f"waits for the limit {topology.limits[step.limit].name}, used by transfer {before.transfer}"
        if step.limit >= 0
        else "",
        "reduce rate": f"waits until {topology.nodes[step.dst].name} has reduced transfer {before.transfer}",
        "buffer": f"waits for buffer space that transfer {before.transfer} frees",
        "reduction order": f"must arrive after transfer {before.transfer} for a correct reduction",
    }
    return why[step.cause] + idle
