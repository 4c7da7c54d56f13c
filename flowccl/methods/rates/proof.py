"""Lower bounds from the prices of the linear programs of rates, proved anew for the prices alone.

Let every link and limit have a price of at least 0 per byte, such that bandwidth times price adds up to one unit per
second over all of them. In time T, no schedule uses links and limits worth more than T units. Every byte that goes from
one GPU to another costs at least as much as the cheapest path between them. Every byte that all GPUs receive costs at
least as much as the cheapest spanning tree from its source, whose edges are cheapest routes over switches: each GPU
receives the byte a first time, from a GPU that had it before. This needs switches that do not copy.
"""

import numpy as np

from flowccl.demand.demand import Demand
from flowccl.methods.rates.network import F64, PricedNetwork
from flowccl.search.incumbents import Incumbents

_SAFE = 1 - 1e-9  # more than the rounding errors of the sums


def report_tree_bound(network: PricedNetwork, demand: Demand, price: F64, incumbents: Incumbents) -> None:
    """Prove a bound for chunks that all GPUs receive, and report it."""
    from flowccl.methods.rates.pricing_kernels import cheapest_trees

    topology = network.topology
    if topology.copies[topology.num_gpus :].any() or topology.reduces[topology.num_gpus :].any():
        return
    count = topology.num_gpus
    between = network.exact_prices(price, through_gpus=False)
    far = 10 * count * max(float(between[np.isfinite(between)].max()), 1e-300)
    between = np.where(np.isfinite(between), between, far)
    ranks = np.arange(count)
    parents = cheapest_trees(between, ranks, 0.0)
    edge = between[parents, ranks]
    edge[ranks, ranks] = 0.0
    data = np.bincount(demand.source, demand.chunk_bytes, count)
    _report(incumbents, float(data @ edge.sum(axis=1)), "trees")


def report_path_bound(network: PricedNetwork, demand: Demand, price: F64, incumbents: Incumbents) -> None:
    """Prove a bound for chunks with one source and one destination, and report it."""
    between = network.exact_prices(price, through_gpus=True)
    paid = between[demand.source, demand.destination_rank] * demand.chunk_bytes
    _report(incumbents, float(paid.sum()), "paths")


def _report(incumbents: Incumbents, paid: float, what: str) -> None:
    words = f"prices of links and limits: with them, the cheapest {what} of all data cost what all earn in this time"
    incumbents.report_bound(int(paid * 1000.0 * _SAFE), words)
