"""Traces for Perfetto and chrome://tracing, in the JSON trace event format.

The trace of a schedule has a track per link, and a further one ("lane") where transfers overlap, because the viewers
show no overlapping slices on one track. Arrows (flows) go from a transfer to the transfers that send its data on. The
trace of an exported file has a track per threadblock, with the times of the estimate. Times are rounded to
nanoseconds, starts and ends alike, so that neighbours do not overlap.
"""

import heapq
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.export.proof.estimate import StepTimes
from flowccl.export.proof.program import RuntimeProgram
from flowccl.schedule.generation.precedence import feeding
from flowccl.schedule.schedule import Schedule
from flowccl.version import VERSION

I64 = NDArray[np.int64]
_PS_PER_NS = 1000
_COUNTERS = 0  # the process of the counters of the whole machine; node n is process n + 1
_MOST_NAMED = 6  # chunks of a message that the name of a slice lists


def trace_bytes(events: list[dict[str, Any]], about: dict[str, Any]) -> bytes:
    """Return the contents of a trace file; `about` is shown as its metadata."""
    trace = {"displayTimeUnit": "ns", "otherData": {"flowccl": VERSION, **about}, "traceEvents": events}
    return (json.dumps(trace, separators=(",", ":"), allow_nan=False) + "\n").encode()


def schedule_trace(schedule: Schedule) -> bytes:
    """Return the trace of a schedule: a slice per transfer and link, a flow per data dependency, counters."""
    timing = schedule.timing
    begin, until = _ns(timing.hop_from_ps), _ns(timing.hop_to_ps)
    lane = lanes(timing.hop_link, begin, until)
    track = timing.hop_link.astype(np.int64) * (int(lane.max(initial=0)) + 1) + lane
    used, thread = np.unique(track, return_inverse=True)
    thread = thread.reshape(-1) + 1
    process = schedule.topology.link_src[timing.hop_link].astype(np.int64) + 1
    events = [*_link_tracks(schedule, used, int(lane.max(initial=0)) + 1)]
    events += _slices(schedule, begin, until, process, thread)
    source, target = data_flows(schedule)
    events += _flows("data", 1, source, target, np.maximum(until - 1, begin), begin, process, thread)
    events += _counters(schedule, begin, until)
    demand = schedule.demand
    about = {"machine": schedule.topology.name, "collective": demand.collective, "size_bytes": demand.size_bytes}
    return trace_bytes(events, {**about, "finish_us": schedule.finish_us, "method": schedule.method})


def data_flows(schedule: Schedule) -> tuple[I64, I64]:
    """Return the data dependencies as pairs of hop rows: the hop that brings data, and the hop that sends it on."""
    timing, shape, ptr = schedule.timing, schedule.shape, schedule.routes.ptr
    root, end = feeding(schedule)
    first = np.searchsorted(timing.hop_transfer, schedule.leader)  # the first hop row of the message of each transfer

    def hop_rows(rows: I64, transfers: I64, group_ptr: I64, hop: I64) -> I64:
        transfer = transfers[rows]
        route = schedule.route[transfer]
        place = rows - np.searchsorted(transfers, transfer)
        return np.asarray(first[transfer] + hop[group_ptr[route] + place] - ptr[route])

    pairs = (
        hop_rows(end, timing.end_transfer, shape.end_ptr, shape.end_hop),
        hop_rows(root, timing.root_transfer, shape.root_ptr, shape.root_hop),
    )
    both = np.unique(np.stack(pairs, axis=1), axis=0)
    return both[:, 0], both[:, 1]


def lanes(link: NDArray[np.int32], begin: I64, until: I64) -> I64:
    """Return a lane for each interval, so that intervals of one link and lane do not overlap; 0 where none overlap."""
    lane = np.zeros(len(link), dtype=np.int64)
    order = np.lexsort((until, begin, link))
    clash = (link[order][1:] == link[order][:-1]) & (begin[order][1:] < until[order][:-1])
    for crowded in np.unique(link[order][1:][clash]).tolist():
        busy: list[tuple[int, int]] = []  # (end, lane)
        free: list[int] = []
        for row in order[link[order] == crowded].tolist():
            while busy and busy[0][0] <= begin[row]:
                heapq.heappush(free, heapq.heappop(busy)[1])
            lane[row] = heapq.heappop(free) if free else len(busy)
            heapq.heappush(busy, (int(until[row]), int(lane[row])))
    return lane


def _ns(ps: I64) -> I64:
    return np.asarray((ps + _PS_PER_NS // 2) // _PS_PER_NS)


def _us(ns: int) -> float:
    """Nanoseconds as the microseconds of the format, exact to three digits."""
    return round(ns / 1000, 3)


def _track(process: int, thread: int, name: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": process, "tid": thread, "name": "thread_name", "args": {"name": name}}
    yield {"ph": "M", "pid": process, "tid": thread, "name": "thread_sort_index", "args": {"sort_index": thread}}


def _process(process: int, name: str) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": process, "tid": 0, "name": "process_name", "args": {"name": name}}
    yield {"ph": "M", "pid": process, "tid": 0, "name": "process_sort_index", "args": {"sort_index": process}}


def _link_tracks(schedule: Schedule, used: I64, most: int) -> Iterator[dict[str, Any]]:
    """The names of the processes (source nodes) and threads (links and lanes)."""
    topology = schedule.topology
    yield from _process(_COUNTERS, f"{topology.name}, {schedule.demand.collective}")
    for node in np.unique(topology.link_src[used // most]).tolist():
        host = f" ({topology.nodes[node].host})" if topology.nodes[node].host else ""
        yield from _process(node + 1, f"from {topology.nodes[node].name}{host}")
    for number, (link, lane) in enumerate(zip((used // most).tolist(), (used % most).tolist(), strict=True), start=1):
        name = topology.link_name(link) + (f", lane {lane + 1}" if lane else "")
        yield from _track(int(topology.link_src[link]) + 1, number, name)


def _slices(schedule: Schedule, begin: I64, until: I64, process: I64, thread: I64) -> Iterator[dict[str, Any]]:
    timing, nodes = schedule.timing, schedule.topology.nodes
    by_leader = np.argsort(schedule.leader, kind="stable")
    bounds = np.searchsorted(schedule.leader[by_leader], np.arange(len(schedule) + 1)).tolist()
    roots = np.searchsorted(timing.root_transfer, np.arange(len(schedule) + 1)).tolist()
    ends = np.searchsorted(timing.end_transfer, np.arange(len(schedule) + 1)).tolist()
    chunks, reduce = schedule.chunk[by_leader].tolist(), schedule.reduce.tolist()
    size, rate = schedule.sent_bytes.tolist(), np.round(timing.hop_GBps, 3).tolist()
    columns = (timing.hop_transfer, begin, until, process, thread)
    for row, (i, start, end, pid, tid) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        own = chunks[bounds[i] : bounds[i + 1]]
        args = {
            "transfer": i,
            "chunks": own,
            "bytes": size[i],
            "GBps": rate[row],
            "from": [nodes[n].name for n in timing.root_node[roots[i] : roots[i + 1]].tolist()],
            "to": [nodes[n].name for n in timing.end_node[ends[i] : ends[i + 1]].tolist()],
            "arrival_us": float(timing.end_arrival_ps[ends[i] : ends[i + 1]].max()) / 1e6,
        }
        category = "reduce" if reduce[i] else "copy"
        span = {"ts": _us(start), "dur": _us(end - start), "pid": pid, "tid": tid}
        yield {"ph": "X", "name": _chunk_name(own), "cat": category, **span, "args": args}


def _chunk_name(chunks: list[int]) -> str:
    if len(chunks) == 1:
        return f"chunk {chunks[0]}"
    shown = ", ".join(map(str, chunks[:_MOST_NAMED]))
    return f"chunks {shown}" + (f", ... ({len(chunks)})" if len(chunks) > _MOST_NAMED else "")


def _flows(
    name: str, first: int, source: I64, target: I64, leave: I64, enter: I64, process: I64, thread: I64
) -> Iterator[dict[str, Any]]:
    """An arrow per pair of slices, numbered from the first; it leaves the source and enters the target at their times.

    In a schedule, it leaves in the last nanosecond of the source and enters at the target's start; among steps, where
    the target ends its wait.
    """
    columns = (leave[source], process[source], thread[source], enter[target], process[target], thread[target])
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for number, (leaves, pid, tid, enters, to_pid, to_tid) in enumerate(rows, start=first):
        common = {"name": name, "cat": name, "id": number}
        yield {"ph": "s", **common, "ts": _us(leaves), "pid": pid, "tid": tid}
        yield {"ph": "f", "bp": "e", **common, "ts": _us(enters), "pid": to_pid, "tid": to_tid}


def _counters(schedule: Schedule, begin: I64, until: I64) -> Iterator[dict[str, Any]]:
    """Counters over time: the links in use, and the rate at which each node sends."""
    timing = schedule.timing
    ones = np.ones(len(begin))
    yield from _counter(_COUNTERS, "transfers on links", begin, until, ones)
    source = schedule.topology.link_src[timing.hop_link]
    for node in np.unique(source).tolist():
        rows = np.flatnonzero(source == node)
        yield from _counter(node + 1, "GB/s sent", begin[rows], until[rows], timing.hop_GBps[rows])


def _counter(process: int, name: str, begin: I64, until: I64, step: NDArray[np.float64]) -> Iterator[dict[str, Any]]:
    time = np.concatenate((begin, until))
    order = np.argsort(time, kind="stable")
    level = np.cumsum(np.concatenate((step, -step))[order])
    last = np.append(np.diff(time[order]) > 0, True)  # once per instant
    for at, value in zip(time[order][last].tolist(), np.round(np.abs(level[last]), 3).tolist(), strict=True):
        yield {"ph": "C", "name": name, "ts": _us(at), "pid": process, "tid": 0, "args": {"value": value}}


def program_trace(program: RuntimeProgram, times: StepTimes, machine: str, size_bytes: int) -> bytes:
    """Return the trace of an exported file: a slice per step, which begins when its threadblock reaches the step."""
    done = _ns(np.array(times.end_ps, dtype=np.int64))
    began = _ns(np.array(times.begin_ps, dtype=np.int64))
    operations = program.operations
    blocks = sorted({(step.rank, step.block) for step in operations})
    thread = {block: number for number, block in enumerate(blocks, start=1)}
    place = {(step.rank, step.block, step.index): n for n, step in enumerate(operations)}
    events: list[dict[str, Any]] = []
    for rank in range(program.num_gpus):
        events += _process(rank + 1, f"gpu {rank}")
    for (rank, block), number in thread.items():
        events += _track(rank + 1, number, f"threadblock {block}")
    reached = np.array([0 if not o.index else done[place[o.rank, o.block, o.index - 1]] for o in operations])
    for n, step in enumerate(operations):
        span = {"ts": _us(int(reached[n])), "dur": _us(int(done[n] - reached[n])), "pid": step.rank + 1}
        args = {"step": step.index, "chunks": step.size, "waited_us": _us(int(began[n] - reached[n]))}
        to = {"to": f"gpu {step.sends_to}"} if step.sends_to >= 0 else {}
        own = {"tid": thread[step.rank, step.block], "args": {**args, **to}}
        events.append({"ph": "X", "name": step.name, "cat": "step", **span, **own})
    process = np.array([step.rank + 1 for step in operations], dtype=np.int64)
    threads = np.array([thread[step.rank, step.block] for step in operations], dtype=np.int64)
    waits = [
        (place[step.rank, block, index], n)
        for n, step in enumerate(operations)
        for block, index in step.after
        if block != step.block
    ]
    last, number = np.maximum(done - 1, reached), 1
    for name, rows in (("signal", times.tokens), ("wait", waits)):  # of other GPUs and semaphores; of threadblocks
        source, target = np.array(rows, dtype=np.int64).reshape(-1, 2).T
        events += _flows(name, number, source, target, last, last, process, threads)
        number += len(rows)
    about = {"machine": machine, "collective": program.collective, "size_bytes": size_bytes}
    return trace_bytes(events, {**about, "finish_us": max(times.end_ps, default=0) / 1e6})
