"""Method `fluid`: routes that load the links as the fluid optimum does, then whole chunks along them.

allgather, broadcast   trees packed into the load of the optimum on each link (as in `trees`)
alltoall               paths of the flow of each source; each chunk takes the path with the least congestion
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.trees import check_destinations, packed_jobs
from flowccl.methods.trees.pacing import dispatch_runs
from flowccl.papers.fluid.optimum import FluidOptimum, fluid_optimum
from flowccl.papers.fluid.paths import FlowPath, paths_of
from flowccl.problem import Problem
from flowccl.schedule.generation.chunk_trees import ChunkTrees
from flowccl.schedule.generation.job_shop import Jobs, jobs_of
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.topology import Topology

F64 = NDArray[np.float64]

_SWEEPS = 4  # sweeps in which each chunk may choose its path again
_CONGESTION_POWER = 16.0  # exponent of the load
_GOLDEN = 0.6180339887498949  # its multiples are evenly distributed: offset of the rounding for each pair


def fluid(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Yield schedules of an allgather, broadcast or alltoall of all GPUs: solve the optimum, then dispatch jobs."""
    topology, demand = problem.topology, problem.demand
    name = _pattern(topology, demand)
    root = int(demand.source[0]) if name == "broadcast" else 0
    optimum = _optimum_of(topology, name, root, context)
    if demand.collective != "allreduce":  # for allreduce, this is the optimum of one half
        per_block = demand.size_bytes / (1 if name == "broadcast" else topology.num_gpus)
        context.notes["optimum_us"] = optimum.bound_s_per_GB * per_block / 1000
    if name == "alltoall":
        jobs, rounds = _jobs_on_paths(topology, demand, optimum), 1
    else:
        jobs, rounds = packed_jobs(
            topology, demand, "fluid", context.incumbents.hints, optimum.link_GB / optimum.link_GB.max()
        )
    yield from dispatch_runs(jobs, rounds, context)


def _optimum_of(topology: Topology, name: str, root: int, context: SearchContext) -> FluidOptimum:
    """Return the optimum, solved once for all chunk counts."""
    key = f"fluid {name} {root} {topology.fingerprint}"
    found = context.incumbents.hints.get(key)
    if not isinstance(found, FluidOptimum):
        found = context.incumbents.hints[key] = fluid_optimum(topology, name, root=root)
    return found


def _pattern(topology: Topology, demand: Demand) -> str:
    """Return which collective of all GPUs the demand is, with one block per source (and destination)."""
    count, sources = topology.num_gpus, np.bincount(demand.source_rank, minlength=topology.num_gpus)
    if demand.num_gpus == count and not demand.reduces and demand.is_unicast:
        pair = demand.source.astype(np.int64) * count + demand.destination_rank
        many = np.unique(pair, return_counts=True)[1]
        if len(many) == count * (count - 1) and np.all(many == many[0]):
            return "alltoall"
    check_destinations(demand, "fluid")
    if np.count_nonzero(sources) == 1 and demand.num_gpus == count:
        return "broadcast"
    if demand.num_gpus == count and np.all(sources == sources[0]):
        return "allgather"
    raise DemandError(
        f"method fluid supports allgather, broadcast and alltoall of all GPUs; got another {demand.collective}"
    )


def _jobs_on_paths(topology: Topology, demand: Demand, optimum: FluidOptimum) -> Jobs:
    """Put every chunk on a path of the flow of its source, such that the largest link load is small."""
    paths: dict[tuple[int, int], list[FlowPath]] = {}
    for rank, flow in optimum.source_GB.items():
        for source, moved in optimum.group.moves_of(rank).items():
            there = np.zeros_like(flow)
            there[moved] = flow
            for end, found in paths_of(topology, source, there).items():
                paths[source, end] = found
    pairs = zip(demand.source.tolist(), demand.destination_rank.tolist(), strict=True)
    chosen = _balanced(topology, demand, [paths[pair] for pair in pairs])
    ptr = pointers([len(path.links) for path in chosen])
    link = np.array([link for path in chosen for link in path.links], dtype=np.int32)
    parent = (np.arange(len(link)) - np.repeat(ptr[:-1], np.diff(ptr)) - 1).astype(np.int32)
    return replace(jobs_of(topology, demand, ChunkTrees(ptr, link, parent)), method="fluid")


def _balanced(topology: Topology, demand: Demand, choices: list[list[FlowPath]]) -> list[FlowPath]:
    """Choose a path for each chunk: first in proportion to the flow, then in a few sweeps by least congestion."""
    ns_per_byte = 1.0 / topology.link_GBps
    places = [[np.array(path.links) for path in paths] for paths in choices]
    size = demand.chunk_bytes.tolist()
    chosen_path = _by_fractions(demand, choices)
    load = np.zeros(len(topology.links))
    for chunk, paths in enumerate(places):
        load[paths[chosen_path[chunk]]] += size[chunk] * ns_per_byte[paths[chosen_path[chunk]]]
    best, least = chosen_path.copy(), float(load.max())
    for _ in range(_SWEEPS):
        peak = float(load.max())
        for chunk, paths in enumerate(places):
            if len(paths) == 1:
                continue
            load[paths[chosen_path[chunk]]] -= size[chunk] * ns_per_byte[paths[chosen_path[chunk]]]
            congestion = [_congestion(load[path], size[chunk] * ns_per_byte[path], peak) for path in paths]
            chosen_path[chunk] = int(np.argmin(congestion))
            load[paths[chosen_path[chunk]]] += size[chunk] * ns_per_byte[paths[chosen_path[chunk]]]
        if load.max() < least:
            best, least = chosen_path.copy(), float(load.max())
    return [paths[at] for paths, at in zip(choices, best, strict=True)]


def _congestion(before: F64, more: F64, peak: float) -> float:
    """Increase of a power of the relative load, so that the most loaded links count most."""
    return float((((before + more) / peak) ** _CONGESTION_POWER - (before / peak) ** _CONGESTION_POWER).sum())


def _by_fractions(demand: Demand, choices: list[list[FlowPath]]) -> list[int]:
    """Distribute the chunks of every pair over its paths in proportion to the flow."""
    pair = demand.source.astype(np.int64) * demand.num_gpus + demand.destination_rank
    order = np.argsort(pair, kind="stable")
    first = np.searchsorted(pair[order], pair[order])
    many = np.bincount(pair)[pair[order]]
    spot = (np.arange(len(pair)) - first + pair[order] * _GOLDEN % 1.0) / many
    chosen_path = [0] * len(pair)
    for chunk, at in zip(order.tolist(), spot.tolist(), strict=True):
        fractions = np.cumsum([path.share for path in choices[chunk]])
        chosen_path[chunk] = min(int(np.searchsorted(fractions, at * fractions[-1], side="right")), len(fractions) - 1)
    return chosen_path
