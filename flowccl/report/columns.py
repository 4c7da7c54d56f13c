"""The data of a report: columns of hops, transfers and arrivals, as few and as small as the page needs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.explain import Explanation, binding_constraints
from flowccl.plot.timeline import link_rows
from flowccl.schedule.schedule import Schedule
from flowccl.units import PS_PER_US

MOST_HOPS = 400_000
"""Transfers on links in the timeline; a page with more is slow to open. The rest is left out, which the page says."""

_INSTANTS = 1_500  # of the curve of bytes in flight: more than a screen has pixels
_ARRIVALS = 400  # per GPU, in the animation

Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class ReportColumns:
    """The columns of one schedule. `hops` are sorted by link and start; `links` are the links in the timeline.

    Left out are `left_out_hops` on `left_out_links`, and the last `late_hops` on the links that are shown.
    """

    hops: Columns
    transfers: Columns
    arrivals: Columns
    in_flight: Columns
    links: NDArray[np.int64]
    left_out_hops: int
    left_out_links: int
    late_hops: int


def report_columns(explanation: Explanation) -> ReportColumns:
    """Return the columns of one schedule."""
    schedule = explanation.schedule
    used = link_rows(schedule)
    links = _kept_links(schedule, explanation, used)
    timing = schedule.timing
    rows = np.flatnonzero(np.isin(timing.hop_link, links))
    rows = rows[np.lexsort((timing.hop_from_ps[rows], timing.hop_link[rows]))]
    late = max(0, len(rows) - MOST_HOPS)  # of a single link, where it alone has too many
    rows = rows[: len(rows) - late]
    kept, transfer = np.unique(timing.hop_transfer[rows], return_inverse=True)
    hops: Columns = {
        "link": timing.hop_link[rows].astype(np.int32),
        "start": timing.hop_from_ps[rows] / PS_PER_US,
        "end": timing.hop_to_ps[rows] / PS_PER_US,
        "transfer": transfer.reshape(-1).astype(np.int32),
    }
    return ReportColumns(
        hops,
        _transfers(explanation, kept),
        _arrivals(schedule),
        _in_flight(schedule),
        links,
        len(timing.hop_link) - len(rows) - late,
        len(used) - len(links),
        late,
    )


def _kept_links(schedule: Schedule, explanation: Explanation, used: NDArray[np.int64]) -> NDArray[np.int64]:
    """The links in the timeline: all, or those of the critical path and the busiest, up to `MOST_HOPS`."""
    timing = schedule.timing
    hops = np.bincount(timing.hop_link, minlength=len(schedule.topology.links))
    if len(timing.hop_link) <= MOST_HOPS:
        return used
    busy = np.bincount(timing.hop_link, timing.hop_to_ps - timing.hop_from_ps, len(hops))
    on_path = np.zeros(len(hops), dtype=np.bool_)
    on_path[[row.link for row in explanation.links]] = True
    order = used[np.lexsort((-busy[used], ~on_path[used]))]
    keep = order[np.cumsum(hops[order]) <= MOST_HOPS]
    return used[np.isin(used, keep if len(keep) else order[:1])]


def _transfers(explanation: Explanation, kept: NDArray[np.int64]) -> Columns:
    """The story of each transfer: what, from where to where, when, what it waited for."""
    schedule, timing = explanation.schedule, explanation.schedule.timing
    binding = binding_constraints(schedule)
    first_root = np.searchsorted(timing.root_transfer, kept)
    last_end = np.searchsorted(timing.end_transfer, kept, side="right") - 1
    arrival = np.zeros(len(schedule), dtype=np.int64)
    np.maximum.at(arrival, timing.end_transfer, timing.end_arrival_ps)
    critical = np.zeros(len(schedule), dtype=np.uint8)
    critical[[schedule.leader[step.transfer] for step in explanation.path]] = 1
    demand = schedule.demand
    chunk = schedule.chunk[kept]
    return {
        "number": kept.astype(np.int32),
        "chunk": chunk.astype(np.int32),
        "source": _only(demand.source_ptr, demand.source_rank)[chunk],
        "destination": _only(demand.destination_ptr, demand.destination_rank)[chunk],
        "src": timing.root_node[first_root].astype(np.int32),
        "dst": timing.end_node[last_end].astype(np.int32),
        "roots": np.bincount(timing.root_transfer, minlength=len(schedule))[kept].astype(np.int32),
        "ends": np.bincount(timing.end_transfer, minlength=len(schedule))[kept].astype(np.int32),
        "chunks": np.bincount(schedule.leader, minlength=len(schedule))[kept].astype(np.int32),
        "bytes": schedule.sent_bytes[kept].astype(np.float64),
        "start": schedule.start_ps[kept] / PS_PER_US,
        "arrival": arrival[kept] / PS_PER_US,
        "reduce": schedule.reduce[kept].astype(np.uint8),
        "cause": binding.kind[kept].astype(np.int32),
        "before": binding.before[kept].astype(np.int32),
        "idle": (schedule.start_ps - binding.allowed_ps)[kept] / PS_PER_US,
        "slack": explanation.slack_ps[kept] / PS_PER_US,
        "critical": critical[kept],
    }


def _only(ptr: NDArray[np.int64], rank: NDArray[np.int32]) -> NDArray[np.int32]:
    """The rank of each chunk that has only one; -1 for the others."""
    one = np.diff(ptr) == 1
    return np.where(one, rank[np.where(one, ptr[:-1], 0)], -1).astype(np.int32)


def completed(schedule: Schedule) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return (GPU, time, bytes) of every chunk that a GPU must get: when it is there, or reduced completely."""
    demand, timing, nodes = schedule.demand, schedule.timing, len(schedule.topology.nodes)
    wanted = demand.destination_chunk.astype(np.int64) * nodes + demand.destination_rank
    key = schedule.chunk[timing.end_transfer].astype(np.int64) * nodes + timing.end_node
    order = np.lexsort((timing.end_arrival_ps, key))
    keys, first, count = np.unique(key[order], return_index=True, return_counts=True)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    reduced = (np.diff(demand.source_ptr) > 1)[demand.destination_chunk]
    row = order[first[place] + np.where(reduced, count[place] - 1, 0)]
    time = np.where(keys[place] == wanted, timing.end_arrival_ps[row], 0)
    return demand.destination_rank.astype(np.int64), time, demand.chunk_bytes[demand.destination_chunk]


def _arrivals(schedule: Schedule) -> Columns:
    """For each GPU, the part of its data that it has over time; at most `_ARRIVALS` points per GPU."""
    gpu, time, size = completed(schedule)
    order = np.lexsort((time, gpu))
    gpu, time, size = gpu[order], time[order], size[order]
    total = np.bincount(gpu, size, schedule.topology.num_gpus)
    before = np.concatenate(([0.0], np.cumsum(total)))[gpu]
    part = (np.cumsum(size) - before) / np.maximum(total[gpu], 1)
    count = np.bincount(gpu, minlength=schedule.topology.num_gpus)
    place = np.arange(len(gpu)) - np.repeat(np.cumsum(count) - count, count)
    step = np.maximum(1, -(-count // _ARRIVALS))[gpu]
    keep = ((place + 1) % step == 0) | (place == count[gpu] - 1)
    return {
        "gpu": gpu[keep].astype(np.int32),
        "time": time[keep] / PS_PER_US,
        "part": part[keep].astype(np.float32),
    }


def _in_flight(schedule: Schedule) -> Columns:
    """Bytes of the transfers that are on their way, from start to arrival, at instants in even distances."""
    timing = schedule.timing
    arrival = np.zeros(len(schedule), dtype=np.int64)
    np.maximum.at(arrival, timing.end_transfer, timing.end_arrival_ps)
    size = schedule.demand.chunk_bytes[schedule.chunk]
    at = np.linspace(0, schedule.finish_ps, _INSTANTS)

    def until(times: NDArray[np.int64]) -> NDArray[np.float64]:
        order = np.argsort(times, kind="stable")
        total = np.concatenate(([0], np.cumsum(size[order])))
        return np.asarray(total[np.searchsorted(times[order], at, side="right")], dtype=np.float64)

    return {"time": at / PS_PER_US, "bytes": until(schedule.start_ps) - until(arrival)}
