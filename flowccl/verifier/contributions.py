"""Contributions of reductions: every source must count exactly once."""

import numpy as np
from numpy.typing import NDArray

from flowccl.schedule.schedule import Schedule
from flowccl.verifier.violation import Violation, exact_us, transfer_name

_READY, _ARRIVAL, _SEND = -1, 0, 1  # the order at equal times


def check_contributions(schedule: Schedule) -> list[Violation]:
    """Return the violations of all chunks that are reduced.

    The value of a node is the set of contributions in it (bits of an int). At equal times, data becomes available
    first, then arrivals count, then sends. An arrival is reduced into the value if the transfer says so, otherwise it
    replaces the value. A node that cannot copy gives away what it sends.
    """
    reduced = reduced_chunks(schedule)
    if not reduced.any():
        return []
    timing = schedule.timing
    of_root, of_end = schedule.chunk[timing.root_transfer], schedule.chunk[timing.end_transfer]
    roots, ends = np.flatnonzero(reduced[of_root]), np.flatnonzero(reduced[of_end])
    demand = schedule.demand
    late = np.flatnonzero((demand.available_ps > 0) & reduced[demand.source_chunk])
    time = np.concatenate((timing.root_from_ps[roots], timing.end_arrival_ps[ends], demand.available_ps[late]))
    sends = np.repeat(np.array([_SEND, _ARRIVAL, _READY], dtype=np.int8), (len(roots), len(ends), len(late)))
    row = np.concatenate((roots, ends, late))
    chunk = np.concatenate((of_root[roots], of_end[ends], demand.source_chunk[late]))
    order = np.lexsort((row, sends, time, chunk))
    bounds = np.searchsorted(chunk[order], np.arange(len(schedule.demand) + 1)).tolist()
    transfer = np.concatenate((timing.root_transfer[roots], timing.end_transfer[ends], np.full(len(late), -1)))
    node = np.concatenate((timing.root_node[roots], timing.end_node[ends], demand.source_rank[late]))
    columns = (sends, row, transfer, node, schedule.reduce[transfer] if len(schedule) else transfer >= 0)
    events = list(zip(*(column[order].tolist() for column in columns), strict=True))
    result: list[Violation] = []
    for c in np.flatnonzero(reduced).tolist():
        result += _follow(schedule, c, events[bounds[c] : bounds[c + 1]])
    return result


def reduced_chunks(schedule: Schedule) -> NDArray[np.bool_]:
    """Return which chunks are reduced: those with several sources, a reducing transfer, or one with several roots."""
    reduced = np.asarray(np.diff(schedule.demand.source_ptr) > 1)
    reduced[schedule.chunk[schedule.reduce]] = True
    reduced[schedule.chunk[np.diff(schedule.shape.root_ptr)[schedule.route] > 1]] = True
    return reduced


def _follow(schedule: Schedule, chunk: int, events: list[tuple[int, int, int, int, bool]]) -> list[Violation]:
    """Replay the events of one chunk (what, row, transfer, node, whether it is reduced) in order of time."""
    timing, nodes, demand = schedule.timing, schedule.topology.nodes, schedule.demand
    sources = demand.sources(chunk).tolist()
    ready = demand.available_ps[demand.source_ptr[chunk] : demand.source_ptr[chunk + 1]].tolist()
    value = {rank: 1 << bit for bit, rank in enumerate(sources) if not ready[bit]}
    sent: dict[int, int] = {}
    gave: set[int] = set()
    result = []
    for what, row, i, node, adds in events:
        if what == _READY:
            value[node] = value.get(node, 0) | 1 << row - int(demand.source_ptr[chunk])
            continue
        if what == _SEND:
            have = value.get(node, 0)
            if not have:
                sends = f"{nodes[node].name} sends at {exact_us(int(timing.root_from_ps[row]))}"
                words = "but has given it away and cannot copy" if node in gave else "but has no contribution then"
                kind = "copy" if node in gave else "source"
                result.append(Violation(kind, f"{transfer_name(schedule, i)}: {sends}, {words}", (i,)))
            elif not nodes[node].copies:
                value[node] = 0
                gave.add(node)
            if sent.get(i, 0) & have:
                words = _twice(schedule, sources, sent[i] & have, "the switch")
                result.append(Violation("reduce", f"{transfer_name(schedule, i)}: {words}", (i,)))
            sent[i] = sent.get(i, 0) | have
            continue
        came, have = sent.get(i, 0), value.get(node, 0)
        if not adds:
            value[node] = came
            continue
        if not nodes[node].reduces:
            words = f"{nodes[node].name} cannot reduce"
            result.append(Violation("reduce", f"{transfer_name(schedule, i)}: {words}", (i,)))
        if came & have:
            words = _twice(schedule, sources, came & have, nodes[node].name)
            result.append(Violation("reduce", f"{transfer_name(schedule, i)}: {words}", (i,)))
        value[node] = have | came
    full = (1 << len(sources)) - 1
    for rank in demand.destinations(chunk).tolist():
        if value.get(rank, 0) != full:
            lacks = [s for bit, s in enumerate(sources) if not value.get(rank, 0) >> bit & 1]
            names = ", ".join(nodes[s].name for s in lacks[:5]) + (" ..." if len(lacks) > 5 else "")
            result.append(Violation("destination", f"{nodes[rank].name} ends without {names} in chunk {chunk}"))
    return result


def _twice(schedule: Schedule, sources: list[int], bits: int, where: str) -> str:
    names = [schedule.topology.nodes[s].name for bit, s in enumerate(sources) if bits >> bit & 1]
    return f"counts {', '.join(names[:5])}{' ...' if len(names) > 5 else ''} twice at {where}"
