"""Method `fluid`: routes that load the links as the fluid optimum does, then whole chunks along them.

allgather, broadcast   trees that load each link as the optimum does, at the rates of a linear program
alltoall               paths of the flow of each source; chunks are dealt to them, then balanced
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from flowccl.arrays import NEVER, pointers
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.methods.rates.network import Path, PricedNetwork
from flowccl.methods.rates.rounding import Columns, balanced, deal_columns
from flowccl.methods.rates.trees import tree_rates
from flowccl.papers.flow_paths import FlowPath, flow_paths
from flowccl.papers.fluid.optimum import FluidOptimum, fluid_optimum
from flowccl.portable import power_of_ten
from flowccl.problem import Problem
from flowccl.schedule.generation.chunk_trees import ChunkTrees
from flowccl.schedule.generation.job_shop import Jobs, jobs_on_trees
from flowccl.schedule.generation.serial import within_limits
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.topology import Topology

_RATES_SHARE = 0.2  # of the time limit, for the rates of trees
_UNUSED = 1e-6  # of the largest load, as the load of links that the optimum does not use


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
        jobs = _jobs_on_paths(topology, demand, optimum)
    else:
        jobs = _jobs_on_trees(topology, demand, optimum, context)
    random, best_ps, noise = np.random.default_rng(context.seed), NEVER, 0.0
    while True:  # the longest remaining path first, later with noise
        found = jobs.schedule(random, noise, best_ps)
        if found is not None and topology.limits:  # the job shop ignores limits
            found = within_limits(found)
        best_ps = best_ps if found is None else min(best_ps, found.finish_ps)
        yield found
        noise = power_of_ten(float(random.uniform(-2.0, -0.3)))


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
    if demand.reduces or np.any(np.diff(demand.destination_ptr) != count - 1):
        raise DemandError("method fluid needs chunks that go to all ranks, as in allgather; use greedy or reroute")
    if np.count_nonzero(sources) == 1 and demand.num_gpus == count:
        return "broadcast"
    if demand.num_gpus == count and np.all(sources == sources[0]):
        return "allgather"
    raise DemandError(
        f"method fluid supports allgather, broadcast and alltoall of all GPUs; got another {demand.collective}"
    )


def _jobs_on_trees(topology: Topology, demand: Demand, optimum: FluidOptimum, context: SearchContext) -> Jobs:
    """Put every chunk on a tree from its source; together, the trees load each link as the optimum does."""
    load = np.maximum(optimum.link_GB / optimum.link_GB.max(), _UNUSED).tolist()
    links = [replace(link, bandwidth_GBps=part) for link, part in zip(topology.links, load, strict=True)]
    network = PricedNetwork(replace(topology, links=tuple(links), limits=()))
    data = np.bincount(demand.source, demand.chunk_bytes, topology.num_gpus)
    rates = tree_rates(network, data / data.sum(), context.budget.part_s(_RATES_SHARE))
    columns = Columns.of(np.array([tree.root for tree in rates.trees]), rates.amount, rates.load)
    source, rows, ends = demand.source.astype(np.int64), list[tuple[int, int]](), [0]
    dealt = deal_columns(columns, source)
    for choice in balanced(columns, source, demand.chunk_bytes, network.capacity, dealt).tolist():
        last = {rates.trees[choice].root: -1}  # the hop that brings the chunk to each GPU
        for above, node, path in rates.trees[choice].edges:
            last[node] = last[above]
            for link in path:
                rows.append((link, last[node]))
                last[node] = len(rows) - 1 - ends[-1]
        ends.append(len(rows))
    link, parent = np.array(rows, dtype=np.int32).T.copy()
    trees = ChunkTrees(np.array(ends, dtype=np.int64), link, parent)
    return replace(jobs_on_trees(topology, demand, trees), method="fluid")


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
    return replace(jobs_on_trees(topology, demand, ChunkTrees(ptr, link, parent)), method="fluid")


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
