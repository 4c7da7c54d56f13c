"""Method `fluid`: routes that load the links as the fluid optimum does, then whole chunks along them.

allgather, broadcast   trees packed into the load of the optimum on each link (as in `trees`)
alltoall               paths of the flow of each source; chunks are dealt to them, then balanced
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from flowccl.arrays import pointers
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.rates.network import Path, PricedNetwork
from flowccl.methods.rates.rounding import Columns, balanced, deal_columns
from flowccl.methods.trees import check_destinations, packed_jobs
from flowccl.methods.trees.pacing import dispatch_runs
from flowccl.papers.flow_paths import FlowPath, flow_paths
from flowccl.papers.fluid.optimum import FluidOptimum, fluid_optimum
from flowccl.problem import Problem
from flowccl.schedule.generation.chunk_trees import ChunkTrees
from flowccl.schedule.generation.job_shop import Jobs, jobs_of
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.topology import Topology


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
    """Put every chunk on a path of the flow of its source, such that the largest load of a link is small."""
    network, count = PricedNetwork(topology), topology.num_gpus
    paths, group, share = list[Path](), list[int](), list[float]()
    for source, path in source_paths(optimum):
        paths.append(path.arcs)
        group.append(source * count + path.end)
        share.append(path.amount)
    loads = tuple(network.load(np.array(path)) for path in paths)
    columns = Columns.of(np.array(group), np.array(share), loads)
    pair = demand.source.astype(np.int64) * count + demand.destination_rank
    dealt = deal_columns(columns, pair)
    chosen = [paths[at] for at in balanced(columns, pair, demand.chunk_bytes, network.capacity, dealt).tolist()]
    ptr = pointers([len(path) for path in chosen])
    link = np.array([link for path in chosen for link in path], dtype=np.int32)
    parent = (np.arange(len(link)) - np.repeat(ptr[:-1], np.diff(ptr)) - 1).astype(np.int32)
    return replace(jobs_of(topology, demand, ChunkTrees(ptr, link, parent)), method="fluid")


def source_paths(optimum: FluidOptimum) -> Iterator[tuple[int, FlowPath]]:
    """Yield the paths of the data of every source: those of one of each class, mapped to the others by the group."""
    topology = optimum.topology
    src, dst = topology.link_src.astype(np.int64), topology.link_dst.astype(np.int64)
    count = len(topology.nodes)
    for rank, flow in optimum.source_GB.items():
        for source, moved in optimum.group.moves_of(rank).items():
            there = np.zeros_like(flow)
            there[moved] = flow
            kept = np.asarray(np.bincount(dst, there, count) - np.bincount(src, there, count), dtype=np.float64)
            for path in flow_paths(src, dst, there, source, kept):
                yield source, path
