"""From the fluid optimum to a schedule: routes that fill the links as the optimum does, then whole chunks along them.

allgather, broadcast   trees packed into what the optimum puts on each link (`trees`)
alltoall               paths of the flow of each source; each chunk takes the path that leaves the links least full
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.fluid.optimum import FluidOptimum, fluid_optimum
from flowccl.methods.fluid.paths import Path, paths_of
from flowccl.methods.reroute.tree_kernels import Trees
from flowccl.methods.trees import everybody, packed_jobs
from flowccl.methods.trees.pacing import dispatched
from flowccl.problem import Problem
from flowccl.schedule.generation.job_shop import Jobs, jobs_of
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.topology import Topology

F64 = NDArray[np.float64]

_SWEEPS = 4  # in which each chunk may choose its path again
_STEEP = 16.0
_GOLDEN = 0.6180339887498949  # its multiples spread evenly: where the rounding of each pair begins


def fluid(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """Allgather, broadcast and alltoall of all GPUs: the optimum once, then runs of the shop."""
    topology, demand = problem.topology, problem.demand
    name = _pattern(topology, demand)
    root = int(demand.source[0]) if name == "broadcast" else 0
    optimum = _known(topology, name, root, context)
    if demand.collective != "allreduce":  # else it is the optimum of one half
        per_block = demand.size_bytes / (1 if name == "broadcast" else topology.num_gpus)
        context.notes["optimum_us"] = optimum.bound_s_per_GB * per_block / 1000
    if name == "alltoall":
        jobs, rounds = _jobs_on_paths(topology, demand, optimum), 1
    else:
        jobs, rounds = packed_jobs(
            topology, demand, "fluid", context.incumbents.hints, optimum.link_GB / optimum.link_GB.max()
        )
    yield from dispatched(jobs, rounds, context)


def _known(topology: Topology, name: str, root: int, context: SearchContext) -> FluidOptimum:
    """The optimum, solved once for all numbers of chunks."""
    key = f"fluid {name} {root} {topology.fingerprint}"
    found = context.incumbents.hints.get(key)
    if not isinstance(found, FluidOptimum):
        found = context.incumbents.hints[key] = fluid_optimum(topology, name, root=root)
    return found


def _pattern(topology: Topology, demand: Demand) -> str:
    """Which collective of all GPUs it is, as one block per source (and destination)."""
    count, sources = topology.num_gpus, np.bincount(demand.source_rank, minlength=topology.num_gpus)
    if demand.num_gpus == count and not demand.reduces and demand.is_unicast:
        pair = demand.source.astype(np.int64) * count + demand.destination_rank
        many = np.unique(pair, return_counts=True)[1]
        if len(many) == count * (count - 1) and np.all(many == many[0]):
            return "alltoall"
    everybody(topology, demand, "fluid")
    if np.count_nonzero(sources) == 1 and demand.num_gpus == count:
        return "broadcast"
    if demand.num_gpus == count and np.all(sources == sources[0]):
        return "allgather"
    raise DemandError(f"fluid is for allgather, broadcast and alltoall of all gpus, not for this {demand.collective}")


def _jobs_on_paths(topology: Topology, demand: Demand, optimum: FluidOptimum) -> Jobs:
    """Every chunk on a path of its source's flow, so that the fullest link is least full."""
    paths: dict[tuple[int, int], list[Path]] = {}
    for rank, flow in optimum.source_GB.items():
        for source, moved in optimum.group.moves_of(rank).items():
            there = np.zeros_like(flow)
            there[moved] = flow
            for end, found in paths_of(topology, source, there).items():
                paths[source, end] = found
    pairs = zip(demand.source.tolist(), demand.destination_rank.tolist(), strict=True)
    chosen = _balanced(topology, demand, [paths[pair] for pair in pairs])
    ptr = np.concatenate(([0], np.cumsum([len(path.links) for path in chosen]))).astype(np.int64)
    link = np.array([link for path in chosen for link in path.links], dtype=np.int32)
    parent = (np.arange(len(link)) - np.repeat(ptr[:-1], np.diff(ptr)) - 1).astype(np.int32)
    return replace(jobs_of(topology, demand, Trees(ptr, link, parent)), method="fluid")


def _balanced(topology: Topology, demand: Demand, choices: list[list[Path]]) -> list[Path]:
    """A path for each chunk: first by the shares of the flow, then, a few times, the one that meets less full links."""
    hold = 1.0 / topology.link_GBps
    places = [[np.array(path.links) for path in paths] for paths in choices]
    size = demand.chunk_bytes.tolist()
    turn = _by_shares(demand, choices)
    load = np.zeros(len(topology.links))
    for chunk, ways in enumerate(places):
        load[ways[turn[chunk]]] += size[chunk] * hold[ways[turn[chunk]]]
    best, least = turn.copy(), float(load.max())
    for _ in range(_SWEEPS):
        full = float(load.max())
        for chunk, ways in enumerate(places):
            if len(ways) == 1:
                continue
            load[ways[turn[chunk]]] -= size[chunk] * hold[ways[turn[chunk]]]
            dear = [_crowd(load[way], size[chunk] * hold[way], full) for way in ways]
            turn[chunk] = int(np.argmin(dear))
            load[ways[turn[chunk]]] += size[chunk] * hold[ways[turn[chunk]]]
        if load.max() < least:
            best, least = turn.copy(), float(load.max())
    return [paths[at] for paths, at in zip(choices, best, strict=True)]


def _crowd(before: F64, more: F64, full: float) -> float:
    """How much fuller full links get: powers of the load, so that the fullest count most."""
    return float((((before + more) / full) ** _STEEP - (before / full) ** _STEEP).sum())


def _by_shares(demand: Demand, choices: list[list[Path]]) -> list[int]:
    """Of every pair as many chunks on each path as its share says, rounded here up and there down."""
    pair = demand.source.astype(np.int64) * demand.num_gpus + demand.destination_rank
    order = np.argsort(pair, kind="stable")
    first = np.searchsorted(pair[order], pair[order])
    many = np.bincount(pair)[pair[order]]
    spot = (np.arange(len(pair)) - first + pair[order] * _GOLDEN % 1.0) / many
    turn = [0] * len(pair)
    for chunk, at in zip(order.tolist(), spot.tolist(), strict=True):
        shares = np.cumsum([path.share for path in choices[chunk]])
        turn[chunk] = min(int(np.searchsorted(shares, at * shares[-1], side="right")), len(shares) - 1)
    return turn
