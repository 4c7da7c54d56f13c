"""A list scheduler in continuous time, with restarts.

Every pair of neighbours (two storing nodes joined by a link, or through switches) keeps the chunks that its source has
in a heap, by how much each would help at its end. Whenever links are free, the best chunk that still helps goes. What
helps: bringing the chunk nearer to destinations that lack it. The score is the sum of all those gains, plus the longest
way still to go, with noise; many runs with other weights and noise follow while time is left, and the best one is kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.greedy.problem import Knobs, Net, Work
from flowccl.methods.greedy.run_kernels import list_schedule
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift, prune
from flowccl.search.context import SearchContext
from flowccl.topology.neighbours import Neighbours, neighbours
from flowccl.topology.routes import Routes, segment_GBps
from flowccl.topology.topology import Topology

_NEVER = np.iinfo(np.int64).max
_FEW_DELIVERIES = 20_000  # up to here, the first step has a run with what was good elsewhere and one without
_FIRST = (  # gain_weight, tail_weight, noise, patience of the first runs
    (1.0, 1.0, 0.0, np.inf),
    (1.0, 0.01, 0.0, 1.5),
    (1.0, 30.0, 0.05, 1.5),
    (1.0, 1.0, 0.0, 3.0),
    (0.0, 1.0, 0.0, 1.5),
    (1.0, 1.0, 0.0, 1.0),
)


@dataclass
class GreedySearch:
    """Runs of the list scheduler on one problem: each call of `step` is one run, and may improve `best`."""

    topology: Topology
    demand: Demand
    seed: int = 0
    told: object = None  # knobs that were good elsewhere

    def __post_init__(self) -> None:
        if self.demand.reduces:
            raise DemandError(f"greedy moves chunks with one source each; {self.demand.collective} adds up several")
        near = neighbours(self.topology)
        if not self.demand.is_unicast:
            near = near.without(~self.topology.copies)  # relays pass on several copies
        mean_bytes = float(self.demand.chunk_bytes.mean())
        self.net = _net(near.quickest_first(mean_bytes), mean_bytes)
        demand = self.demand
        self.work = Work(
            demand.chunk_bytes,
            demand.source,
            demand.available_ps,
            demand.destination_ptr,
            demand.destination_rank,
        )
        self.random = np.random.default_rng(self.seed)
        self.best: Schedule | None = None
        first = [Knobs(self.seed, *knobs, _NEVER) for knobs in _FIRST]
        self.best_knobs = self.told if isinstance(self.told, Knobs) else first[0]
        self.first = [self.best_knobs, *(knobs for knobs in first if knobs[1:5] != self.best_knobs[1:5])]
        self.steps = 0

    @property
    def best_ps(self) -> int:
        """The finish of the best schedule so far."""
        return self.best.finish_ps if self.best is not None else _NEVER

    def step(self) -> bool:
        """One run; whether it gave a better schedule."""
        knobs = self._next_knobs()
        self.steps += 1
        done, _, chunk, start, ptr, link = list_schedule(self.net, self.work, knobs)
        if not done:
            return False
        raw = Schedule.from_links(self.topology, self.demand, chunk, Routes(ptr, link), start, method="greedy")
        schedule = left_shift(prune(raw))
        if schedule.finish_ps >= self.best_ps:
            return False
        self.best, self.best_knobs = schedule, knobs
        return True

    def _next_knobs(self) -> Knobs:
        """The first runs are given; half of the others stay near the best, the rest try anything."""
        seed = self.seed * 1_000_003 + self.steps
        give_up = self.best_ps
        if self.steps < len(self.first):
            return self.first[self.steps]._replace(seed=seed, give_up_ps=give_up)
        if self.best is None:
            return Knobs(seed, 1.0, 1.0, 0.1, np.inf, _NEVER)
        random = self.random
        if random.random() < 0.5:
            noise = float(np.clip(self.best_knobs.noise + 0.01, 0.01, 1.0) * np.exp(random.normal(0, 0.5)))
            tail = self.best_knobs.tail_weight * float(np.exp(random.normal(0, 0.5)))
            return self.best_knobs._replace(seed=seed, noise=min(noise, 1.0), tail_weight=tail, give_up_ps=give_up)
        return Knobs(
            seed,
            1.0 if random.random() < 0.8 else 0.0,
            float(10 ** random.uniform(-2, 2)),
            float(10 ** random.uniform(-2.5, 0)),
            float(random.choice([1.5, 3.0, 6.0, np.inf])),
            give_up,
        )


def greedy(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """One run of the list scheduler after the other, for ever; whoever asks decides when it is enough."""
    topology, demand = problem.topology, problem.demand
    search = GreedySearch(topology, demand, context.seed, context.incumbents.hints.get("greedy"))
    few = search.told is not None and len(demand.destination_rank) <= _FEW_DELIVERIES
    runs = 2 if few else 1  # what was good elsewhere is not always good here
    while True:
        better = sum(search.step() for _ in range(runs)) > 0
        runs = 1
        if better and search.best is not None:
            context.incumbents.report(search.best)
            context.incumbents.report_hint("greedy", search.best_knobs, search.best_ps)
        yield search.best if better else None


def _net(near: Neighbours, mean_bytes: float) -> Net:
    topology, shape = near.topology, near.shape
    segments = np.bincount(shape.segment_route, minlength=len(near.routes))
    segment_ptr = np.concatenate(([0], np.cumsum(segments))).astype(np.int64)
    route_of_hop = np.repeat(np.arange(len(near.routes)), np.diff(near.routes.ptr))
    limit_ptr, limit_of = topology.link_limits
    buffers = [-1 if node.buffer_bytes is None else node.buffer_bytes for node in topology.nodes]
    return Net(
        near.node_ptr,
        near.src,
        near.end,
        near.pair_cost_ps(mean_bytes),
        near.pair_ptr,
        near.routes.ptr,
        near.routes.link,
        shape.hop_offset_ps,
        shape.hop_segment - segment_ptr[route_of_hop],
        segment_ptr,
        segment_GBps(topology, near.routes.link, shape.hop_segment, len(shape.segment_route), topology.link_peak_GBps),
        near.distance_ps(mean_bytes),
        topology.link_src,
        topology.link_GBps,
        topology.link_latency_ps,
        topology.copies,
        topology.cuts_through,
        np.array(buffers, dtype=np.int64),
        limit_ptr,
        limit_of,
        topology.limit_GBps,
        *topology.link_changes,
    )
