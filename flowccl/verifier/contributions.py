"""Contributions of reductions: every source must count exactly once."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flowccl.schedule.schedule import Schedule
from flowccl.verifier.violation import Violation, exact_us, transfer_name

_READY, _ARRIVAL, _SEND = -1, 0, 1  # the order at equal times
_WORD = 64  # contributions in a word
_MOST_WORDS = 30_000_000  # of the sets of contributions that are followed together


class _Events(NamedTuple):
    """Events of chunks: what happens, its row, its transfer, at which node, and whether it is reduced there."""

    what: NDArray[np.int8]
    row: NDArray[np.integer]
    transfer: NDArray[np.integer]
    node: NDArray[np.integer]
    adds: NDArray[np.bool_]


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
    bounds = np.searchsorted(chunk[order], np.arange(len(schedule.demand) + 1))
    transfer = np.concatenate((timing.root_transfer[roots], timing.end_transfer[ends], np.full(len(late), -1)))
    node = np.concatenate((timing.root_node[roots], timing.end_node[ends], demand.source_rank[late]))
    adds = schedule.reduce[transfer] if len(schedule) else transfer >= 0
    columns = _Events(sends[order], row[order], transfer[order], node[order], adds[order])
    result: list[Violation] = []
    for c in _suspects(schedule, columns, bounds, np.flatnonzero(reduced)):
        own = slice(bounds[c], bounds[c + 1])
        result += _follow(schedule, c, list(zip(*(column[own].tolist() for column in columns), strict=True)))
    return result


def reduced_chunks(schedule: Schedule) -> NDArray[np.bool_]:
    """Return which chunks are reduced: those with several sources, a reducing transfer, or one with several roots."""
    reduced = np.asarray(np.diff(schedule.demand.source_ptr) > 1)
    reduced[schedule.chunk[schedule.reduce]] = True
    reduced[schedule.chunk[np.diff(schedule.shape.root_ptr)[schedule.route] > 1]] = True
    return reduced


def _suspects(
    schedule: Schedule, events: _Events, bounds: NDArray[np.int64], chunks: NDArray[np.int64]
) -> Iterator[int]:
    """The chunks in which something is wrong; those that are followed together fit into memory."""
    words = -(-int(np.diff(schedule.demand.source_ptr).max()) // _WORD)
    each = (len(schedule.topology.nodes) + int(np.diff(bounds).max())) * words
    some = max(_MOST_WORDS // each, 1)
    for low in range(0, len(chunks), some):
        yield from _wrong(schedule, events, bounds, chunks[low : low + some], words)


def _wrong(
    schedule: Schedule, events: _Events, bounds: NDArray[np.int64], chunks: NDArray[np.int64], words: int
) -> list[int]:
    """Replay the first events of all these chunks together, then the second ones, and so on."""
    count, nodes = bounds[chunks + 1] - bounds[chunks], schedule.topology.nodes
    number = np.repeat(np.arange(len(chunks)), count)
    turn = np.arange(len(number)) - np.repeat(np.cumsum(count) - count, count)
    event = np.repeat(bounds[chunks], count) + turn
    transfers, of = np.unique(events.transfer[event], return_inverse=True)
    sent = np.zeros((len(transfers), words), dtype=np.uint64)
    copies, reduces = (np.array([getattr(node, name) for node in nodes]) for name in ("copies", "reduces"))
    value, full = _first_values(schedule, chunks, words)
    wrong = np.zeros(len(chunks), dtype=np.bool_)
    order = np.argsort(turn, kind="stable")
    steps = np.searchsorted(turn[order], np.arange(int(count.max(initial=0)) + 1))
    for k in range(len(steps) - 1):
        at = order[steps[k] : steps[k + 1]]
        what, c, i, node, adds = (
            events.what[event[at]],
            number[at],
            of[at],
            events.node[event[at]],
            events.adds[event[at]],
        )
        have, came = value[c, node], sent[i]
        is_send, is_ready = what == _SEND, what == _READY
        wrong[c] |= is_send & ~have.any(axis=1)
        wrong[c] |= (is_send | (adds & ~is_ready)) & (came & have).any(axis=1)
        wrong[c] |= (what == _ARRIVAL) & adds & ~reduces[node]
        sent[i[is_send]] |= have[is_send]
        kept = (what == _ARRIVAL) & ~adds | is_send & ~copies[node]
        have[kept] = 0
        have[what == _ARRIVAL] |= came[what == _ARRIVAL]
        if is_ready.any():
            bit = events.row[event[at]] - schedule.demand.source_ptr[chunks[c]]
            have[is_ready, bit[is_ready] // _WORD] |= np.uint64(1) << (bit[is_ready] % _WORD).astype(np.uint64)
        value[c, node] = have
    size = np.diff(schedule.demand.destination_ptr)[chunks]
    first = np.repeat(schedule.demand.destination_ptr[chunks] - (np.cumsum(size) - size), size)
    wants, where = np.repeat(np.arange(len(chunks)), size), first + np.arange(size.sum())
    wrong[wants[(value[wants, schedule.demand.destination_rank[where]] != full[wants]).any(axis=1)]] = True
    return [int(c) for c in chunks[wrong]]


def _first_values(
    schedule: Schedule, chunks: NDArray[np.int64], words: int
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The contributions at each node when the replay begins, and all of them, for each chunk."""
    demand = schedule.demand
    size = np.diff(demand.source_ptr)[chunks]
    number = np.repeat(np.arange(len(chunks)), size)
    bit = np.arange(len(number)) - np.repeat(np.cumsum(size) - size, size)
    source = demand.source_ptr[chunks][number] + bit
    word, mask = bit // _WORD, np.uint64(1) << (bit % _WORD).astype(np.uint64)
    full = np.zeros((len(chunks), words), dtype=np.uint64)
    np.bitwise_or.at(full, (number, word), mask)
    value = np.zeros((len(chunks), len(schedule.topology.nodes), words), dtype=np.uint64)
    now = demand.available_ps[source] == 0
    np.bitwise_or.at(value, (number[now], demand.source_rank[source[now]], word[now]), mask[now])
    return value, full


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
