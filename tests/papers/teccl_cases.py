"""Small machines whose fewest epochs are known, by derivation or by exhaustive search."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from flowccl.demand.demand import Chunk, Demand
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.topology import Link, Node, Topology
from flowccl.verifier.verify import verify

MB = 1_000_000
MBPS = 0.001  # 1 MB/s in GB/s: one chunk of 1 MB takes one second


def machine_of(names: str, *links: str, **node: Any) -> Topology:
    """machine_of("s h d", "s h", "h d 1 0.5"): links of 1 MB/s by default, latency in seconds."""
    nodes = tuple(Node(name=name, **node) for name in names.split())
    index = {n.name: i for i, n in enumerate(nodes)}
    rows = []
    for text in links:
        src, dst, *numbers = text.split()
        rate, late = (float(numbers[0]) if numbers else 1.0), (float(numbers[1]) if len(numbers) > 1 else 0.0)
        rows.append(Link(src=index[src], dst=index[dst], bandwidth_GBps=rate * MBPS, latency_us=late * 1e6))
    return Topology("manual", nodes, tuple(rows))


def demand_of(topology: Topology, *chunks: tuple[str, str], size: int = MB) -> Demand:
    """demand_of(t, ("s", "d1 d2"))."""
    rows = [
        Chunk(bytes=size, sources=(topology.index[s],), destinations=tuple(topology.index[d] for d in ds.split()))
        for s, ds in chunks
    ]
    return Demand.from_chunks("custom", topology.num_gpus, rows)


def run(
    method: str, topology: Topology, demand: Demand, time_limit_s: float = 60, **options: Any
) -> tuple[Schedule, dict[str, Any]]:
    """The schedule of a method, verified, and its notes."""
    context = SearchContext.with_limit(time_limit_s, options=options)
    *_, schedule = [s for s in load_method(method)(Problem(topology, demand), context) if s is not None]
    assert verify(schedule) == []
    return schedule, dict(context.notes)


def without_latency(topology: Topology) -> Topology:
    return replace(topology, links=tuple(replace(link, latency_us=0.0) for link in topology.links))


def random_grid_machine(rng: np.random.Generator, gpus: int) -> Topology:
    """A strongly connected machine whose links take 1 or 2 seconds per chunk, or half of one, and 0 or 1 s latency."""
    order = rng.permutation(gpus)
    pairs = {(int(a), int(b)) for a, b in zip(order, np.roll(order, -1), strict=True)}
    others = [p for p in itertools.permutations(range(gpus), 2) if p not in pairs]
    pairs |= {others[i] for i in rng.choice(len(others), size=int(rng.integers(0, 3)), replace=False)}
    links = [
        Link(
            src=a,
            dst=b,
            bandwidth_GBps=float(rng.choice([0.5, 1.0, 2.0])) * MBPS,
            latency_us=float(rng.choice([0, 1e6])),
        )
        for a, b in sorted(pairs)
    ]
    return Topology("random", tuple(Node(name=f"gpu{i}") for i in range(gpus)), tuple(links))


def fewest_epochs(topology: Topology, demand: Demand, most: int = 9) -> int:
    """Exhaustive search, epoch by epoch, in epochs of one second: independent of the code under test.

    A state is the chunks at each node, those in flight (arrival, chunk, node) and when each link becomes free.
    """
    time = [MB / 1e9 / link.bandwidth_GBps for link in topology.links]
    busy_epochs = [max(1, int(np.ceil(t - 1e-9))) for t in time]
    capacity = [max(1, int(np.floor(1 / t + 1e-9))) for t in time]
    delay = [int(np.ceil(t + link.latency_us / 1e6 - 1e-9)) for t, link in zip(time, topology.links, strict=True)]
    wanted = {(c, int(d)) for c in range(len(demand)) for d in demand.destinations(c)}
    first = (frozenset((c, int(s)) for c, s in enumerate(demand.source)), frozenset(), (0,) * len(busy_epochs))
    states = {first}
    for epoch in range(most + 1):
        following = set()
        for stored, flying, busy in states:
            now = stored | {(c, n) for at, c, n in flying if at <= epoch}
            if wanted <= now:
                return epoch
            coming = frozenset(f for f in flying if f[0] > epoch)
            in_flight = {(c, n) for _, c, n in coming}
            choices = []
            for i, link in enumerate(topology.links):
                can = [c for c in range(len(demand)) if (c, link.src) in now and (c, link.dst) not in now | in_flight]
                picks = (
                    [()]
                    if busy[i] > epoch
                    else [p for r in range(capacity[i] + 1) for p in itertools.combinations(can, r)]
                )
                choices.append(picks)
            for picks in itertools.product(*choices):
                sent = [(epoch + delay[i], c, topology.links[i].dst) for i, p in enumerate(picks) for c in p]
                if len({(c, n) for _, c, n in sent}) < len(sent):
                    continue  # sending a chunk twice to one node never helps
                until = tuple(epoch + busy_epochs[i] if p else max(busy[i], epoch) for i, p in enumerate(picks))
                following.add((frozenset(now), coming | set(sent), until))
        states = following
    raise AssertionError(f"not done in {most} epochs")
