"""What auto tries: by the machine, the demand and the bytes."""

import numpy as np

from flowccl.demand.demand import Demand
from flowccl.methods import BASELINES
from flowccl.topology.topology import Topology

_MOST_FOR_BASELINES = 20_000  # beyond so many (chunk, destination) pairs, auto leaves the classics out
_MOST_ROUND = 40_000  # transfers; a ring that takes more is hopeless beside the others
_MOST_FOR_SEARCHES = 200_000  # beyond, it has only mirrored, on machines that look alike from every GPU
_QUICK_FIRST = 10_000  # beyond so many, routed has its first schedule much earlier than greedy
_MOST_FOR_PROGRAMS = 5_000  # chunks for which a linear program over time is tried
_LARGE = 64  # GPUs
_MOST_FOR_TREES = 48  # gpus: packing trees grows with the cube of their number
_APART, _EXCHANGE = 2.0, 20.0  # how long the bytes of an allreduce may take for these, in times of the latency
_MOST_APART = 60_000  # transfers of an allreduce summed up apart
_LONG_HOLD = 5  # a block that holds a link so many times its latency is large: what counts is bandwidth


def portfolio(topology: Topology, demand: Demand) -> list[str]:
    """Names of methods in the order of their first steps: searches, those for the occasion, classics where cheap."""
    powers = demand.num_gpus & (demand.num_gpus - 1) == 0
    small = len(demand.destination_rank) <= _MOST_FOR_BASELINES
    long_way = _goes_round(demand) > _MOST_ROUND
    roomy = all(node.buffer_bytes is None for node in topology.nodes)  # only greedy knows buffer limits
    plain = roomy and not (topology.limits or topology.changes)
    whole = demand.group is None  # the classics are for all gpus
    left_out = {name for name, out in (("recursive-doubling", not powers), ("ring", long_way)) if out}
    extra = [name for name in BASELINES if small and roomy and whole and name not in left_out]
    extra += _for_allreduce(topology, demand) if roomy else []
    if plain and _looks_alike(topology, demand):
        if len(demand.destination_rank) > _MOST_FOR_SEARCHES:
            return ["symmetric"]
        extra = ["symmetric", *extra]
    first = (
        ["greedy", "taccl-quick"] if roomy and topology.has_overheads else ["greedy"]
    )  # it alone sends chunks together
    if not plain:
        return [*first, *extra]
    if _apart_from_each_other(topology, demand):
        return [*first, "phase-insertion", *(name for name in extra if name in BASELINES)]
    first = ["reroute", *first] if len(demand.destination_rank) > _QUICK_FIRST else [*first, "reroute"]
    late = ["lp-quick"] if _has_ways_only(demand) else []
    return [*first, *(_for_large_blocks(topology, demand) or [*_lns_quotient(topology), "lns"]), *extra, *late]


def _goes_round(demand: Demand) -> int:
    """How many transfers the chunks take around a ring: on average half of it to one destination, all of it to many."""
    one_each = len(demand.destination_rank) == len(demand)
    return len(demand.destination_rank) * (demand.num_gpus // 2 if one_each else 1)


def _has_ways_only(demand: Demand) -> bool:
    """Whether every chunk has one source and one destination, and there are few enough for a program with time."""
    one_each = not demand.reduces and len(demand.destination_rank) == len(demand)
    return one_each and len(demand) <= _MOST_FOR_PROGRAMS


def _lns_quotient(topology: Topology) -> list[str]:
    """The search on the folded machine, where there is a symmetry to fold it by."""
    from flowccl.topology.symmetry.free_groups import free_groups

    return ["lns-quotient"] if free_groups(topology) else []


def _for_allreduce(topology: Topology, demand: Demand) -> list[str]:
    """Methods for sums that everybody wants which have something to add on this machine."""
    from flowccl.adapters.reduction import bytes_over_latency, is_uneven
    from flowccl.methods.in_network import reducing_switch
    from flowccl.methods.staged_exchange import allreduce_ranks

    if not demand.reduces or len(demand.destination_rank) == len(demand):
        return []
    plain = not (topology.limits or topology.changes)
    ranks = allreduce_ranks(demand) if plain else None
    names = ["joint-trees"] if plain else []
    if ranks is not None:
        size, every = bytes_over_latency(topology, demand), len(demand.destination_rank) * len(ranks)
        names += ["staged-exchange"] if size < _EXCHANGE and not topology.has_reduce_rate else []
        names += ["one-shot"] if size * len(ranks) < _APART and every <= _MOST_APART else []
    names += ["in-network"] if ranks is not None and reducing_switch(topology, ranks) is not None else []
    names += ["greedy-weighted"] if not plain and is_uneven(topology, demand) else []  # else paired splits freely
    return names


def _apart_from_each_other(topology: Topology, demand: Demand) -> bool:
    """Whether what is added up is not what is copied, as in a reduce beside a broadcast, and latency counts."""
    from flowccl.adapters.reduction import bytes_over_latency

    if not demand.reduces or len(demand.destination_rank) == len(demand):
        return False
    sums, copies = demand.halves
    return not len(np.intersect1d(sums[1], copies[1])) and bytes_over_latency(topology, demand) < _EXCHANGE


def _looks_alike(topology: Topology, demand: Demand) -> bool:
    """Whether this is a collective of all GPUs on a large machine that looks the same from each: mirrored's ground."""
    from flowccl.methods.symmetric import symmetric_paths

    named = demand.collective in ("allgather", "alltoall", "reduce_scatter", "allreduce")
    whole = demand.group is None and demand.ready_ps is None and demand.num_gpus == topology.num_gpus
    return named and whole and topology.num_gpus >= _LARGE and symmetric_paths(topology) is not None


def _for_large_blocks(topology: Topology, demand: Demand) -> list[str]:
    """Methods that start from the fluid optimum, where every block goes to everybody and is large."""
    allreduce_ranks = demand.collective in ("allgather", "broadcast", "reduce", "reduce_scatter", "allreduce")
    whole = demand.group is None and demand.ready_ps is None
    if not (allreduce_ranks and whole and topology.num_gpus <= _MOST_FOR_TREES) or topology.limits or topology.changes:
        return []
    busy_ps = demand.chunk_bytes.mean() * 1000.0 / topology.link_GBps.mean()
    return ["trees"] if busy_ps >= _LONG_HOLD * topology.link_latency_ps.max() else []
