"""The verifier: replays a schedule and lists every violation of the model. It does not depend on any method."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER
from flowccl.schedule.schedule import Schedule
from flowccl.units import format_bytes, format_GBps
from flowccl.verifier.contributions import check_contributions, reduced_chunks
from flowccl.verifier.issuers import check_issuers
from flowccl.verifier.violation import Violation, exact_us, transfer_name

__all__ = ["Violation", "verify"]


def verify(schedule: Schedule) -> list[Violation]:
    """Return all violations, in no particular order; an empty list proves that the schedule is valid.

    Verified: routes exist, and switches copy or reduce only if they can; no transfer starts before time zero; GPUs that
    are neither in the group nor relays are not used; every transfer's source has the chunk when it starts; every link
    and limit is within its capacity at every instant; GPUs that take time to reduce do so one chunk at a time; on a
    runtime, a group of threadblocks or a proxy works on one message at a time; buffers stay within their limits; every
    destination ends with its data, every contribution counted exactly once.
    """
    if schedule.demand.num_gpus > schedule.topology.num_gpus:
        machine = f"{schedule.topology.name} has {schedule.topology.num_gpus}"
        return [Violation("machine", f"the demand is for {schedule.demand.num_gpus} gpus, {machine}")]
    return [
        *_routes(schedule),
        *_messages(schedule),
        *_starts(schedule),
        *_forbidden(schedule),
        *_availability(schedule),
        *check_contributions(schedule),
        *_copies(schedule),
        *check_links(schedule),
        *(_reducing(schedule) if schedule.execution is None else check_issuers(schedule, schedule.execution)),
        *_limits(schedule),
        *_buffers(schedule),
    ]


def _routes(schedule: Schedule) -> list[Violation]:
    problem = schedule.shape.problem
    if schedule.execution is None:
        problem = problem | schedule.shape.operation
    if not problem:
        return []
    rows = np.flatnonzero(np.isin(schedule.route, list(problem))).tolist()
    return [
        Violation("route", f"{transfer_name(schedule, i)}: the route {problem[int(schedule.route[i])]}", (i,))
        for i in rows
    ]


def _messages(schedule: Schedule) -> list[Violation]:
    """The transfers of a message have the same route, start and `reduce` flag."""
    if not schedule.has_messages:
        return []
    leader, result = schedule.leader, []
    words_of = {"route": "route", "start_ps": "start", "reduce": "reduce flag"}
    if schedule.execution is not None:
        words_of |= {"issuer": "issuer", "receiver": "receiver", "rate_GBps": "rate"}
    for column, words in words_of.items():
        values = getattr(schedule, column)
        for i in np.flatnonzero(values != values[leader]).tolist():
            partner = f"is in message {schedule.message[i]} with transfer {leader[i]}"
            text = f"{transfer_name(schedule, i)}: {partner}, but has another {words}"
            result.append(Violation("message", text, (int(leader[i]), i)))
    return result


def _starts(schedule: Schedule) -> list[Violation]:
    return [
        Violation(
            "start",
            f"{transfer_name(schedule, i)}: starts at {exact_us(int(schedule.start_ps[i]))}, before time zero",
            (i,),
        )
        for i in np.flatnonzero(schedule.start_ps < 0).tolist()
    ]


def _forbidden(schedule: Schedule) -> list[Violation]:
    """GPUs that are neither in the group nor relays neither send nor receive."""
    if not schedule.demand.forbidden and not schedule.demand.tenants:
        return []
    demand, timing, nodes = schedule.demand, schedule.timing, len(schedule.topology.nodes)
    banned = np.zeros((len(demand), nodes), dtype=np.bool_)
    banned[:, list(demand.forbidden)] = True
    first = 0
    for share in demand.tenants:
        banned[first : first + share.chunks, list(share.forbidden(demand.num_gpus))] = True
        first += share.chunks
    if not banned.any():
        return []
    transfer = np.concatenate((timing.root_transfer, timing.end_transfer))
    node = np.concatenate((timing.root_node, timing.end_node))
    wrong = np.flatnonzero(banned[schedule.chunk[transfer], node])
    found = sorted({(int(transfer[k]), int(node[k])) for k in wrong})
    names = [(i, schedule.topology.nodes[n].name) for i, n in found]
    words = "is neither in the group nor a relay"
    return [Violation("relay", f"{transfer_name(schedule, i)}: {name} {words}", (i,)) for i, name in names]


def _availability(schedule: Schedule) -> list[Violation]:
    """Every source has the chunk when it starts to send it; every destination gets its chunks."""
    timing, demand, nodes = schedule.timing, schedule.demand, len(schedule.topology.nodes)
    plain = ~reduced_chunks(schedule)
    key = schedule.chunk[timing.end_transfer].astype(np.int64) * nodes + timing.end_node
    own = demand.source_chunk.astype(np.int64) * nodes + demand.source_rank
    every = np.concatenate((own, key))
    always = np.iinfo(np.int64).min  # a start before time zero is not reported as a second violation
    ready = np.where(demand.available_ps > 0, demand.available_ps, always)
    when = np.concatenate((ready, timing.end_arrival_ps))
    order = np.lexsort((when, every))
    key_of, first = np.unique(every[order], return_index=True)
    since = when[order][first]

    def available_since(asked: NDArray[np.int64]) -> NDArray[np.int64]:
        place = np.minimum(np.searchsorted(key_of, asked), len(key_of) - 1)
        return np.where(key_of[place] == asked, since[place], NEVER)

    result = []
    root_chunk = schedule.chunk[timing.root_transfer]
    has = available_since(root_chunk.astype(np.int64) * nodes + timing.root_node)
    for row in np.flatnonzero((has > timing.root_from_ps) & plain[root_chunk]).tolist():
        i, node = int(timing.root_transfer[row]), schedule.topology.nodes[timing.root_node[row]].name
        start = f"{node} sends it at {exact_us(int(timing.root_from_ps[row]))}"
        never = has[row] == NEVER
        why = "but never gets it" if never else f"but has it only from {exact_us(int(has[row]))}"
        result.append(Violation("source", f"{transfer_name(schedule, i)}: {start} {why}", (i,)))
    has = available_since(demand.destination_chunk.astype(np.int64) * nodes + demand.destination_rank)
    for row in np.flatnonzero((has == NEVER) & plain[demand.destination_chunk]).tolist():
        node = schedule.topology.nodes[demand.destination_rank[row]].name
        result.append(Violation("destination", f"{node} never gets chunk {demand.destination_chunk[row]}"))
    return result


def _copies(schedule: Schedule) -> list[Violation]:
    """A storing node that cannot copy gives away what it sends: it sends and keeps no more copies than have arrived."""
    result = []
    plain = ~reduced_chunks(schedule)
    for node in np.flatnonzero(schedule.topology.stores & ~schedule.topology.copies).tolist():
        for chunk, events in _traffic(schedule, node).items():
            if not plain[chunk]:
                continue
            has = got = int(node in schedule.demand.sources(chunk))
            short = None
            for time, _, step, i in events:
                if step < 0 and has == 0 and got:
                    short = short or (time, i)
                has, got = max(has + step, 0), got + max(step, 0)
            name = f"{schedule.topology.nodes[node].name} cannot copy, but"
            if short is not None:
                words = f"{name} sends at {exact_us(short[0])} what it has given away before"
                result.append(Violation("copy", f"{transfer_name(schedule, short[1])}: {words}", (short[1],)))
            elif got and not has and node in schedule.demand.destinations(chunk):
                last = max(i for _, _, step, i in events if step < 0)
                words = f"{name} gives away the only copy, which it must keep"
                result.append(Violation("copy", f"{transfer_name(schedule, last)}: {words}", (last,)))
    return result


def _traffic(schedule: Schedule, node: int) -> dict[int, list[tuple[int, int, int, int]]]:
    """Arrivals and sends of a node per chunk, in order: (time, 0 for arrivals or 1 for sends, +1 or -1, transfer)."""
    timing = schedule.timing
    result: dict[int, list[tuple[int, int, int, int]]] = {}
    for row in np.flatnonzero(timing.end_node == node).tolist():
        i = int(timing.end_transfer[row])
        result.setdefault(int(schedule.chunk[i]), []).append((int(timing.end_arrival_ps[row]), 0, 1, i))
    for row in np.flatnonzero(timing.root_node == node).tolist():
        i = int(timing.root_transfer[row])
        result.setdefault(int(schedule.chunk[i]), []).append((int(timing.root_from_ps[row]), 1, -1, i))
    return {chunk: sorted(events) for chunk, events in sorted(result.items())}


def check_links(schedule: Schedule) -> list[Violation]:
    """Return where rates on a link add up to more than its bandwidth: it carries one transfer at its full rate."""
    timing, topology = schedule.timing, schedule.topology
    shared = timing.shared_links(topology)
    order = np.lexsort((timing.hop_from_ps, timing.hop_link))
    order = order[~np.isin(timing.hop_link[order], np.flatnonzero(shared))]
    link, begin, end = timing.hop_link[order], timing.hop_from_ps[order], timing.hop_to_ps[order]
    clash = np.flatnonzero((link[1:] == link[:-1]) & (begin[1:] < end[:-1]))
    result = []
    for bad in np.unique(link[clash]).tolist():
        result += _clashes(schedule, bad, order[link == bad])
    for index in np.flatnonzero(shared).tolist():
        name = f"link {index} ({topology.link_name(index)}), {format_GBps(topology.link_GBps[index])},"
        result += excess(schedule, "link", name, np.flatnonzero(timing.hop_link == index), topology.link_GBps[index])
    return result


def _clashes(schedule: Schedule, link: int, rows: NDArray[np.int64]) -> list[Violation]:
    """Transfers that start on a link while it carries another one; `rows` are its hops in order of time."""
    timing, result = schedule.timing, []
    longest = rows[0]
    for row in rows[1:]:
        if timing.hop_from_ps[row] < timing.hop_to_ps[longest]:
            pair = (int(timing.hop_transfer[longest]), int(timing.hop_transfer[row]))
            result.append(
                Violation(
                    "link",
                    f"link {link} ({schedule.topology.link_name(link)}) carries transfer {pair[0]} until "
                    f"{exact_us(int(timing.hop_to_ps[longest]))}, but transfer {pair[1]} starts on it at "
                    f"{exact_us(int(timing.hop_from_ps[row]))}",
                    pair,
                )
            )
        if timing.hop_to_ps[row] > timing.hop_to_ps[longest]:
            longest = row
    return result


def _reducing(schedule: Schedule) -> list[Violation]:
    """A node that takes time to reduce processes one chunk at a time."""
    timing, rows, result = schedule.timing, schedule.timing.reducing, []
    rows = rows[np.lexsort((timing.end_whole_ps[rows], timing.end_node[rows]))]
    last: dict[int, int] = {}  # node: the row that keeps it busy the longest
    for row in rows.tolist():
        node = int(timing.end_node[row])
        before = last.get(node, row)
        if before != row and timing.end_whole_ps[row] < timing.end_arrival_ps[before]:
            pair = (int(timing.end_transfer[before]), int(timing.end_transfer[row]))
            result.append(
                Violation(
                    "reduce rate",
                    f"{schedule.topology.nodes[node].name} reduces transfer {pair[0]} until "
                    f"{exact_us(int(timing.end_arrival_ps[before]))}, but transfer {pair[1]} arrives at "
                    f"{exact_us(int(timing.end_whole_ps[row]))}",
                    pair,
                )
            )
        if timing.end_arrival_ps[row] >= timing.end_arrival_ps[before]:
            last[node] = row
    return result


def _limits(schedule: Schedule) -> list[Violation]:
    """The total rate on the links of a limit never exceeds it."""
    result = []
    for limit in schedule.topology.limits:
        rows = np.flatnonzero(np.isin(schedule.timing.hop_link, limit.links))
        name = f"limit {limit.name} ({format_GBps(limit.bandwidth_GBps)})"
        result += excess(schedule, "limit", name, rows, limit.bandwidth_GBps)
    return result


def excess(schedule: Schedule, kind: str, name: str, rows: NDArray[np.int64], bandwidth_GBps: float) -> list[Violation]:
    """The instants at which the rates of some hops, given by their rows, add up to more than a bandwidth."""
    timing, result = schedule.timing, []
    time = np.concatenate((timing.hop_to_ps[rows], timing.hop_from_ps[rows]))
    step = np.concatenate((-timing.hop_GBps[rows], timing.hop_GBps[rows]))
    order = np.lexsort((np.arange(len(time)), time))  # at equal times, ends come before starts
    use = np.cumsum(step[order])
    last = np.append(time[order][1:] != time[order][:-1], True)  # once per instant, when all have started
    over = np.flatnonzero((use > bandwidth_GBps * (1 + 1e-9)) & (step[order] > 0) & last)
    for at in over.tolist():
        now = int(time[order[at]])
        active = rows[(timing.hop_from_ps[rows] <= now) & (timing.hop_to_ps[rows] > now)]
        names = tuple(sorted(set(timing.hop_transfer[active].tolist())))
        result.append(
            Violation(
                kind,
                f"{name} carries {format_GBps(float(use[at]))} at {exact_us(now)}, "
                f"by transfers {', '.join(map(str, names))}",
                names,
            )
        )
    return result


@dataclass(slots=True)
class _Buffered:
    """The time during which a node buffers a chunk that it neither owns nor wants."""

    since: int
    until: int


def _buffers(schedule: Schedule) -> list[Violation]:
    """The chunks that a node relays, from the first byte until the last copy has left, fit into its buffer."""
    result = []
    for node, what in enumerate(schedule.topology.nodes):
        if what.buffer_bytes is None:
            continue
        buffered = _buffered(schedule, node)
        events = sorted((time, step) for c, s in buffered.items() for time, step in _span(schedule, c, s))
        use, worst, at = 0, 0, 0
        for time, step in events:
            use += step
            if use > worst:
                worst, at = use, time
        if worst > what.buffer_bytes:
            result.append(
                Violation(
                    "buffer",
                    f"{what.name} buffers {format_bytes(worst)} for other GPUs at {exact_us(at)}, its buffer is "
                    f"{format_bytes(what.buffer_bytes)}",
                )
            )
    return result


def _span(schedule: Schedule, chunk: int, span: _Buffered) -> list[tuple[int, int]]:
    size = int(schedule.demand.chunk_bytes[chunk])
    return [(span.since, size), (span.until, -size)]


def _buffered(schedule: Schedule, node: int) -> dict[int, _Buffered]:
    timing, demand = schedule.timing, schedule.demand
    own = set(demand.source_chunk[demand.source_rank == node].tolist())
    own |= set(demand.destination_chunk[demand.destination_rank == node].tolist())
    buffered: dict[int, _Buffered] = {}
    for row in np.flatnonzero(timing.end_node == node).tolist():
        chunk = int(schedule.chunk[timing.end_transfer[row]])
        if chunk not in own:
            first, whole = int(timing.end_first_ps[row]), int(timing.end_arrival_ps[row])
            span = buffered.setdefault(chunk, _Buffered(first, whole))
            span.since, span.until = min(span.since, first), max(span.until, whole)
    for row in np.flatnonzero(timing.root_node == node).tolist():
        chunk = int(schedule.chunk[timing.root_transfer[row]])
        if chunk in buffered:
            buffered[chunk].until = max(buffered[chunk].until, int(timing.root_to_ps[row]))
    return buffered
