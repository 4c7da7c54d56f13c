"""A second, slow verifier, written from docs/concepts.md with dicts and loops instead of arrays.

It shares no code with flowccl/verifier, flowccl/schedule/timing.py and flowccl/topology/routes.py. It returns the kinds
of violations that it finds, with the same names as `verify`, and the finish.
"""

import math
from dataclasses import dataclass, field

from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Topology

PS_PER_US = 1_000_000


@dataclass
class Hop:
    """One transfer on one link."""

    link: int
    begin: int
    end: int
    GBps: float


@dataclass
class Replayed:
    """The replay of one transfer: its hops, the times of its roots, and the first and last byte at its ends."""

    chunk: int
    reduce: bool
    hops: list[Hop] = field(default_factory=list)
    roots: list[tuple[int, int, int]] = field(default_factory=list)  # node, begin, end
    ends: list[tuple[int, int, int]] = field(default_factory=list)  # node, first byte, whole


@dataclass
class Replay:
    """The kinds of violations, and the last arrival."""

    kinds: set[str]
    finish_ps: int


def slow_replay(schedule: Schedule) -> Replay:
    """Verify a schedule."""
    topology, demand = schedule.topology, schedule.demand
    kinds: set[str] = set()
    transfers = []
    if any(_differ(schedule, i, j) for i in range(len(schedule)) for j in range(i)):
        kinds.add("message")
    for i in range(len(schedule)):
        links = schedule.routes.links(int(schedule.route[i]))
        start, chunk = int(schedule.start_ps[i]), int(schedule.chunk[i])
        if start < 0:
            kinds.add("start")
        if not route_is_valid(topology, links):
            kinds.add("route")
            continue
        mates = [j for j in range(len(schedule)) if j == i or 0 <= schedule.message[i] == schedule.message[j]]
        size = sum(int(demand.chunk_bytes[schedule.chunk[j]]) for j in mates)
        replayed = _travel(topology, links, size, start, Replayed(chunk, bool(schedule.reduce[i])))
        if mates[0] != i:  # the hops of the first transfer include its bytes
            replayed.hops = []
        transfers.append(replayed)
    outside = set(demand.forbidden)
    if any(node in outside for j in transfers for node, _, _ in (*j.roots, *j.ends)):
        kinds.add("relay")
    kinds |= _links(topology, transfers) | _limits(topology, transfers) | _buffers(schedule, transfers)
    for chunk in range(len(demand)):
        kinds |= _follow(schedule, chunk, [j for j in transfers if j.chunk == chunk])
    last = max([whole for j in transfers for _, _, whole in j.ends] + demand.available_ps.tolist())
    return Replay(kinds, max(last, 0))


def _differ(schedule: Schedule, i: int, j: int) -> bool:
    """Whether two transfers of one message differ in route, start or `reduce` flag."""
    if schedule.message[i] < 0 or schedule.message[i] != schedule.message[j]:
        return False
    routes = [schedule.routes.links(int(schedule.route[k])) for k in (i, j)]
    return bool(
        routes[0] != routes[1]
        or schedule.start_ps[i] != schedule.start_ps[j]
        or schedule.reduce[i] != schedule.reduce[j]
    )


# -- routes and times -------------------------------------------------------------------------------------------------


def _stores(topology: Topology, node: int) -> bool:
    return bool(topology.nodes[node].stores)


def route_is_valid(topology: Topology, links: tuple[int, ...]) -> bool:
    """One tree of links that meet in switches only; switches copy and reduce only if they can."""
    if not links or len(set(links)) < len(links) or any(not 0 <= k < len(topology.links) for k in links):
        return False
    ends = [(topology.links[k].src, topology.links[k].dst) for k in links]
    roots = [a for a, _ in ends if _stores(topology, a)]
    leaves = [b for _, b in ends if _stores(topology, b)]
    if len(roots) > 1 and len(leaves) > 1:  # a transfer reduces or copies, not both
        return False
    if len(set(roots)) < len(roots) or len(set(leaves)) < len(leaves) or set(roots) & set(leaves):
        return False
    switches = {node for pair in ends for node in pair if not _stores(topology, node)}
    for switch in switches:
        into, out = sum(b == switch for _, b in ends), sum(a == switch for a, _ in ends)
        node = topology.nodes[switch]
        if not into or not out or (out > 1 and not node.copies) or (into > 1 and not node.reduces):
            return False
        if into > 1 and node.crossing == "store-and-forward":
            return False
    # Connected and without cycles: every link is reached from the first, and the number of nodes fits a tree.
    connected, grown = {0}, True
    while grown:
        grown = False
        for i, pair in enumerate(ends):
            if i not in connected and any(
                node in switches and node in other for node in pair for other in (ends[j] for j in connected)
            ):
                connected.add(i)
                grown = True
    if len(connected) < len(links) or len(links) != len(switches) + len(roots) + len(leaves) - 1:
        return False
    fed = [sum(_is_fed(topology, links, k) for k in segment) for segment in _segments(topology, links)]
    return max(fed) <= 1


def _segments(topology: Topology, links: tuple[int, ...]) -> list[set[int]]:
    """Sets of links connected by cut-through switches, which run at one rate. Several branches of one
    store-and-forward switch are several segments."""
    segments = [{k} for k in links]
    for node in range(len(topology.nodes)):
        if _stores(topology, node) or topology.nodes[node].crossing == "store-and-forward":
            continue
        met = [s for s in segments if any(node in (topology.links[k].src, topology.links[k].dst) for k in s)]
        segments = [s for s in segments if s not in met] + ([set().union(*met)] if met else [])
    return segments


def _is_fed(topology: Topology, links: tuple[int, ...], link: int) -> bool:
    """Whether a store-and-forward switch sends on this link."""
    switch = topology.links[link].src
    return not _stores(topology, switch) and topology.nodes[switch].crossing == "store-and-forward"


def _overhead_ps(topology: Topology, link: int) -> int:
    return math.ceil(round(topology.links[link].overhead_us * PS_PER_US, 3))


def _latency_ps(topology: Topology, link: int) -> int:
    return math.ceil(round(topology.links[link].latency_us * PS_PER_US, 3))


def _bandwidth(topology: Topology, link: int, begin: int, end: int) -> float:
    """The slowest that a link is between two times."""
    link_ = topology.links[link]
    table = [(0, link_.bandwidth_GBps)]
    table += [(math.ceil(round(at * PS_PER_US, 3)), GBps) for at, GBps in link_.changes]
    values = []
    for i, (since, GBps) in enumerate(table):
        until = table[i + 1][0] if i + 1 < len(table) else math.inf
        if since < end and until > begin:
            values.append(GBps)
    return min(values or [table[0][1]])  # before time zero, as at zero


def _travel(topology: Topology, links: tuple[int, ...], size: int, start: int, replayed: Replayed) -> Replayed:
    """Begin, end and rate of every hop."""
    offset = _latency_offsets(topology, links)
    first = min(offset.values())
    begin: dict[int, int] = {}
    end: dict[int, int] = {}
    rate: dict[int, float] = {}
    left = _segments(topology, links)
    while left:
        for segment in left:
            fed = [k for k in segment if _is_fed(topology, links, k)]
            if fed:
                feeder = next(k for k in links if topology.links[k].dst == topology.links[fed[0]].src)
                if feeder not in end:
                    continue
                delay = end[feeder] + _latency_ps(topology, feeder) - offset[fed[0]]
            else:
                delay = start - first
            break
        left.remove(segment)
        for k in segment:
            begin[k] = delay + offset[k]
        rates = [n.bandwidth_GBps / len(segment & set(n.links)) for n in topology.limits if segment & set(n.links)]
        busy = max([1] + [math.ceil(size * 1000.0 / rate) for rate in rates])
        while True:  # a slower rate makes the time longer, which may include a still slower bandwidth
            now = {k: _bandwidth(topology, k, begin[k], begin[k] + busy) for k in segment}
            GBps = min([*now.values(), *rates])
            longer = max(_overhead_ps(topology, k) + math.ceil(size * 1000.0 / now[k]) for k in segment)
            if longer <= busy:
                break
            busy = longer
        if any(link.overhead_us for link in topology.links):  # then the rate includes the overhead
            GBps = size * 1000.0 / busy
        for k in segment:
            end[k], rate[k] = begin[k] + busy, GBps
    for k in links:
        link, latency = topology.links[k], _latency_ps(topology, k)
        replayed.hops.append(Hop(k, begin[k], end[k], rate[k]))
        if _stores(topology, link.src):
            replayed.roots.append((link.src, begin[k], end[k]))
        if _stores(topology, link.dst):
            replayed.ends.append((link.dst, begin[k] + latency, end[k] + latency))
    return replayed


def _latency_offsets(topology: Topology, links: tuple[int, ...]) -> dict[int, int]:
    """When each link begins relative to the others: all data of a transfer is in a switch at the same time."""
    offset = {links[0]: 0}
    while len(offset) < len(links):
        for k in links:
            if k in offset:
                continue
            for other, at in list(offset.items()):
                a, b = topology.links[k], topology.links[other]
                if a.src == b.dst and not _stores(topology, a.src):
                    offset[k] = at + _latency_ps(topology, other)
                elif a.dst == b.src and not _stores(topology, a.dst):
                    offset[k] = at - _latency_ps(topology, k)
                elif a.src == b.src and not _stores(topology, a.src):
                    offset[k] = at
                elif a.dst == b.dst and not _stores(topology, a.dst):
                    offset[k] = at + _latency_ps(topology, other) - _latency_ps(topology, k)
    return offset


# -- capacities -------------------------------------------------------------------------------------------------------


def _links(topology: Topology, transfers: list[Replayed]) -> set[str]:
    """The rates on a link add up to at most its bandwidth; on some kinds of links there is one transfer at a time."""
    changing = any(link.changes for link in topology.links)
    for k in {hop.link for transfer in transfers for hop in transfer.hops}:
        link = topology.links[k]
        hops = [hop for transfer in transfers for hop in transfer.hops if hop.link == k]
        for now in hops:
            active = [hop for hop in hops if hop.begin <= now.begin < hop.end]
            if link.overhead_us or changing:
                if len(active) > 1:
                    return {"link"}
            elif sum(hop.GBps for hop in active) > link.bandwidth_GBps * (1 + 1e-9):
                return {"link"}
    return set()


def _limits(topology: Topology, transfers: list[Replayed]) -> set[str]:
    for limit in topology.limits:
        hops = [hop for replayed in transfers for hop in replayed.hops if hop.link in limit.links]
        for at in {hop.begin for hop in hops}:
            if sum(hop.GBps for hop in hops if hop.begin <= at < hop.end) > limit.bandwidth_GBps * (1 + 1e-9):
                return {"limit"}
    return set()


def _buffers(schedule: Schedule, transfers: list[Replayed]) -> set[str]:
    """A chunk that a node neither owns nor wants needs space from its first byte until its last copy has left."""
    demand = schedule.demand
    for node, what in enumerate(schedule.topology.nodes):
        if what.buffer_bytes is None:
            continue
        stays = []
        for chunk in range(len(demand)):
            if node in demand.sources(chunk) or node in demand.destinations(chunk):
                continue
            mine = [j for j in transfers if j.chunk == chunk]
            came = [(first, whole) for j in mine for n, first, whole in j.ends if n == node]
            left = [end for j in mine for n, _, end in j.roots if n == node]
            if came:
                until = max([whole for _, whole in came] + left)
                stays.append((min(first for first, _ in came), until, int(demand.chunk_bytes[chunk])))
        for at, _, _ in stays:
            if sum(size for since, until, size in stays if since <= at < until) > what.buffer_bytes:
                return {"buffer"}
    return set()


# -- contributions ----------------------------------------------------------------------------------------------------


def _follow(schedule: Schedule, chunk: int, transfers: list[Replayed]) -> set[str]:
    """Replay one chunk: at equal times, arrivals come before sends."""
    nodes = schedule.topology.nodes
    demand = schedule.demand
    ranks = demand.sources(chunk).tolist()
    ready = dict(zip(ranks, demand.available_ps[demand.source_ptr[chunk] :].tolist(), strict=False))
    sources = set(ranks)
    adds = len(sources) > 1 or any(j.reduce or len(j.roots) > 1 for j in transfers)
    has: dict[int, set[int]] = {rank: {rank} for rank in sources if not ready[rank]}
    copies = dict.fromkeys(has, 1)  # how many copies a node has that cannot copy
    carried: dict[int, set[int]] = {}
    kinds: set[str] = set()
    events = [(at, -1, rank, rank) for rank, at in ready.items() if at]
    events += [(whole, 0, i, node) for i, j in enumerate(transfers) for node, _, whole in j.ends]
    events += [(begin, 1, i, node) for i, j in enumerate(transfers) for node, begin, _ in j.roots]
    for _, sends, i, node in sorted(events):
        if sends < 0:
            has[node] = has.get(node, set()) | {node}
            copies[node] = copies.get(node, 0) + 1
            continue
        if sends:
            if not has.get(node):
                gave = node in copies and not nodes[node].copies
                kinds.add("copy" if gave else "source")
            load = has.get(node, set()) if adds else sources
            if carried.get(i, set()) & load and adds:
                kinds.add("reduce")
            carried[i] = carried.get(i, set()) | load
            if has.get(node) and not nodes[node].copies:
                copies[node] -= 1
                if adds or not copies[node]:
                    has[node] = set()
            continue
        came = carried.get(i, set())
        copies[node] = copies.get(node, 0) + 1
        if not transfers[i].reduce:
            has[node] = set(came)
            continue
        if not nodes[node].reduces or came & has.get(node, set()):
            kinds.add("reduce")
        has[node] = has.get(node, set()) | came
    for rank in schedule.demand.destinations(chunk).tolist():
        if has.get(rank, set()) != sources:
            gave = not adds and rank in copies and not nodes[rank].copies
            kinds.add("copy" if gave else "destination")
    return kinds
