"""Schedules with times on a runtime, made by a simple timer that is independent of the engine."""

from dataclasses import replace

import numpy as np

from flowccl.runtimes.execution import Execution
from flowccl.runtimes.profiles import PROFILES
from flowccl.schedule.schedule import Schedule


def execution(sms: int = 32, width: int = 1, posters: int = 0, protocol: str = "Simple") -> Execution:
    return Execution(PROFILES["mscclpp"], sms, width, posters, protocol)


def timed(schedule: Schedule, runs_on: Execution) -> Schedule:
    """Start the messages one after the other, in order; each has its links, groups and proxy for itself."""
    count = len(schedule)
    given = replace(
        schedule,
        execution=runs_on,
        issuer=np.zeros(0, dtype=np.int32),
        receiver=np.zeros(0, dtype=np.int32),
        rate_GBps=np.zeros(0),
    )
    costs, timing, shape = given.costs, given.timing, given.shape
    nodes = len(schedule.topology.nodes)
    start, issuer, receiver = np.zeros(count, dtype=np.int64), np.full(count, -1), np.full(count, -1)
    group_free = np.zeros((nodes, runs_on.groups), dtype=np.int64)
    proxy_free, link_free = np.zeros(nodes, dtype=np.int64), np.zeros(len(schedule.topology.links), dtype=np.int64)
    usable: dict[tuple[int, int], int] = {}
    for leader in sorted(set(given.leader.tolist()), key=lambda i: (given.start_ps[i], i)):
        rows = np.flatnonzero(given.leader == leader)
        chunks, route = given.chunk[rows].tolist(), int(given.route[leader])
        roots = shape.root_node[shape.root_ptr[route] : shape.root_ptr[route + 1]].tolist()
        ends = shape.end_node[shape.end_ptr[route] : shape.end_ptr[route + 1]].tolist()
        src, dst = (ends[0] if len(roots) > 1 else roots[0]), ends[0]
        base = int(given.start_ps[leader])
        hops = np.flatnonzero(timing.hop_transfer == leader)
        arrive = int(timing.end_arrival_ps[timing.end_transfer == leader].max()) - base
        work, pack = int(costs.work_ps[leader]), int(costs.pack_ps[leader])
        issued = int(timing.root_to_ps[timing.root_transfer == leader].max()) - base
        t = max([0, *(usable.get((root, c), 0) for root in roots for c in chunks)])
        t = max([t, *(link_free[timing.hop_link[h]] - int(timing.hop_from_ps[h]) + base for h in hops)])
        if work:
            busy = max([0, *(usable.get((dst, c), 0) for c in chunks), int(group_free[dst].min())])
            t = max(t, busy - (arrive - work))
        if costs.is_proxied[leader]:
            t = max(t, int(proxy_free[src]) - pack)
        if not costs.is_proxied[leader] or pack:
            t = max(t, int(group_free[src].min()))
        while True:  # until groups are free at both ends
            needs = not costs.is_proxied[leader] or pack
            own = int(np.argmin(group_free[src])) if needs else -1
            other = -1
            if work:
                free = group_free[dst] <= t + arrive - work
                if src == dst and own >= 0:
                    free[own] = False
                other = int(np.flatnonzero(free)[0])
            break
        start[rows], issuer[rows], receiver[rows] = t, own, other
        if own >= 0:
            group_free[src, own] = t + (pack if costs.is_proxied[leader] else issued)
        if other >= 0:
            group_free[dst, other] = t + arrive
        if costs.is_proxied[leader]:
            proxy_free[src] = t + pack + int(costs.overhead_ps[leader])
        for h in hops:
            link_free[timing.hop_link[h]] = t + int(timing.hop_to_ps[h]) - base
        for end in ends:
            for c in chunks:
                usable[end, c] = max(usable.get((end, c), 0), t + arrive)
    return replace(given, start_ps=start, issuer=issuer.astype(np.int32), receiver=receiver.astype(np.int32))
