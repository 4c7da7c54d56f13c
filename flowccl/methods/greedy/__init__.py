"""Greedy: list scheduling in continuous time, with restarts.

Every pair of neighbours (two storing nodes connected by a link or through switches) keeps a heap of the chunks that its
first node has. The key of a chunk is its score: how much the transfer shortens the distances to the destinations that
lack the chunk, plus the largest remaining distance, with noise. Whenever the links of a pair are free, the chunk with
the highest positive score is sent. Further runs with other weights and other noise follow; the best schedule is kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flowccl.arrays import NEVER, pointers
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.greedy.inputs import GreedyDemand, GreedyNetwork, GreedyParams
from flowccl.methods.greedy.run_kernels import run_list_scheduler
from flowccl.portable import exponential, power_of_ten
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import left_shift, prune
from flowccl.search.context import SearchContext
from flowccl.topology.neighbours import Neighbours, neighbours
from flowccl.topology.routes import Routes, segment_GBps
from flowccl.topology.topology import Topology

_FEW_DELIVERIES = 20_000  # up to here, the first step runs once with the hinted parameters and once without
_FIRST = (  # gain_weight, tail_weight, noise and patience of the first runs
    (1.0, 1.0, 0.0, np.inf),
    (1.0, 0.01, 0.0, 1.5),
    (1.0, 30.0, 0.05, 1.5),
    (1.0, 1.0, 0.0, 3.0),
    (0.0, 1.0, 0.0, 1.5),
    (1.0, 1.0, 0.0, 1.0),
)


@dataclass
class GreedySearch:
    """Runs of the list scheduler on one problem: each call of `step` is one run and may improve `best`."""

    topology: Topology
    demand: Demand
    seed: int = 0
    hint: object = None  # parameters of a good run on a similar problem

    def __post_init__(self) -> None:
        if self.demand.reduces:
            raise DemandError(
                f"method greedy needs chunks with one source each; {self.demand.collective} reduces several"
            )
        near = neighbours(self.topology)
        if not self.demand.is_unicast:
            near = near.without(~self.topology.copies)  # relays forward several copies
        mean_bytes = float(self.demand.chunk_bytes.mean())
        self.net = _net(near.quickest_first(mean_bytes), mean_bytes)
        demand = self.demand
        self.demand_arrays = GreedyDemand(
            demand.chunk_bytes,
            demand.source,
            demand.available_ps,
            demand.destination_ptr,
            demand.destination_rank,
        )
        self.random = np.random.default_rng(self.seed)
        self.best: Schedule | None = None
        first = [GreedyParams(self.seed, *params, NEVER) for params in _FIRST]
        self.best_params = self.hint if isinstance(self.hint, GreedyParams) else first[0]
        self.first = [self.best_params, *(params for params in first if params[1:5] != self.best_params[1:5])]
        self.steps = 0

    @property
    def best_ps(self) -> int:
        """Completion time of the best schedule so far."""
        return self.best.finish_ps if self.best is not None else NEVER

    def step(self) -> bool:
        """Run the list scheduler once; return whether the schedule is better than all before."""
        params = self._next_params()
        self.steps += 1
        done, _, chunk, start, ptr, link = run_list_scheduler(self.net, self.demand_arrays, params)
        if not done:
            return False
        raw = Schedule.from_links(self.topology, self.demand, chunk, Routes(ptr, link), start, method="greedy")
        schedule = left_shift(prune(raw))
        if schedule.finish_ps >= self.best_ps:
            return False
        self.best, self.best_params = schedule, params
        return True

    def _next_params(self) -> GreedyParams:
        """Fixed parameters for the first runs; then, with equal probability, near the best ones or random."""
        seed = self.seed * 1_000_003 + self.steps
        cutoff = self.best_ps
        if self.steps < len(self.first):
            return self.first[self.steps]._replace(seed=seed, cutoff_ps=cutoff)
        if self.best is None:
            return GreedyParams(seed, 1.0, 1.0, 0.1, np.inf, NEVER)
        random = self.random
        if random.random() < 0.5:
            noise = float(np.clip(self.best_params.noise + 0.01, 0.01, 1.0) * exponential(float(random.normal(0, 0.5))))
            tail = self.best_params.tail_weight * exponential(float(random.normal(0, 0.5)))
            return self.best_params._replace(seed=seed, noise=min(noise, 1.0), tail_weight=tail, cutoff_ps=cutoff)
        return GreedyParams(
            seed,
            1.0 if random.random() < 0.8 else 0.0,
            power_of_ten(float(random.uniform(-2, 2))),
            power_of_ten(float(random.uniform(-2.5, 0))),
            float(random.choice([1.5, 3.0, 6.0, np.inf])),
            cutoff,
        )


def greedy(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Run the list scheduler again and again; the caller decides when to stop."""
    topology, demand = problem.topology, problem.demand
    search = GreedySearch(topology, demand, context.seed, context.incumbents.hints.get("greedy"))
    few = search.hint is not None and len(demand.destination_rank) <= _FEW_DELIVERIES
    runs = 2 if few else 1  # parameters that are good on one problem are not always good on a similar one
    while True:
        better = sum(search.step() for _ in range(runs)) > 0
        runs = 1
        if better and search.best is not None:
            context.incumbents.report(search.best)
            context.incumbents.report_hint("greedy", search.best_params, search.best_ps)
        yield search.best if better else None


def _net(near: Neighbours, mean_bytes: float) -> GreedyNetwork:
    topology, shape = near.topology, near.shape
    segments = np.bincount(shape.segment_route, minlength=len(near.routes))
    segment_ptr = pointers(segments)
    route_of_hop = np.repeat(np.arange(len(near.routes)), np.diff(near.routes.ptr))
    buffers = [-1 if node.buffer_bytes is None else node.buffer_bytes for node in topology.nodes]
    return GreedyNetwork(
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
        *topology.link_changes,
    )
