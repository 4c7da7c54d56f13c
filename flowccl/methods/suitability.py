"""Where `auto` tries which method: conditions on a problem, one function each."""

import numpy as np

from flowccl.demand.demand import Demand
from flowccl.problem import Problem
from flowccl.topology.neighbours import neighbours
from flowccl.topology.topology import Topology

MOST_SEARCHED = 200_000  # deliveries; beyond, on large regular machines, only the symmetric schedule is tried
_MOST_FOR_BASELINES = 20_000  # deliveries
_MOST_IN_WAVES = 5_000  # deliveries
_LARGE_MACHINE = 64  # GPUs
_SMALL_ALLREDUCE, _TINY_ALLREDUCE = 20.0, 2.0  # time of the bytes over the latency
_MOST_ONE_SHOT_TRANSFERS = 60_000
_MOST_FOR_RATES = 128  # GPUs: cheapest trees of all roots take time with the cube of their number


def is_searchable(problem: Problem) -> bool:
    """Small enough for searches over all sources."""
    return problem.deliveries <= MOST_SEARCHED or not is_large_and_regular(problem)


def has_message_overheads(problem: Problem) -> bool:
    """Links have an overhead per message, so that it pays to send chunks together."""
    return is_searchable(problem) and problem.topology.has_overheads and not problem.topology.has_buffer_limits


def has_operations_of_switches(problem: Problem) -> bool:
    """Hosts have switches that reduce and copy, for a runtime."""
    from flowccl.methods.nvls import has_nvls

    return is_searchable(problem) and has_nvls(problem)


def suits_aggregation(problem: Problem) -> bool:
    """As `has_message_overheads`, where all GPUs take part and every host can send to every other one itself."""
    from flowccl.methods.aggregation import collecting_groups

    if not (has_message_overheads(problem) and problem.is_whole_machine):
        return False
    return bool(collecting_groups(problem, neighbours(problem.topology, 1)))


def is_plain_search(problem: Problem) -> bool:
    """Dedicated links only."""
    return is_searchable(problem) and problem.is_plain


def is_large_and_regular(problem: Problem) -> bool:
    """A collective of all GPUs, on a large machine that looks the same from each of them."""
    named = problem.demand.collective in ("allgather", "alltoall", "reduce_scatter", "allreduce")
    large = problem.topology.num_gpus >= _LARGE_MACHINE
    return problem.is_plain and named and problem.is_whole_machine and large and problem.is_regular


def suits_packed_trees(problem: Problem) -> bool:
    """All GPUs receive all data, or reduce it, over links whose bandwidth does not change."""
    demand = problem.demand
    if not _suits_rates(problem) or not is_searchable(problem):
        return False
    if demand.reduces:
        return problem.allreduce_ranks is not None or (demand.is_unicast and is_for_all(demand.backward))
    return is_for_all(demand)


def suits_packed_paths(problem: Problem) -> bool:
    """Each chunk has one source and one destination, and links do not change their bandwidth."""
    unicast = not problem.is_reduction and problem.demand.is_unicast
    return unicast and _suits_rates(problem) and is_searchable(problem)


def _suits_rates(problem: Problem) -> bool:
    """All GPUs of a machine of moderate size take part; all that constrains transfers are links and limits."""
    topology = problem.topology
    if topology.changes or topology.has_buffer_limits or topology.has_overheads or topology.has_reduce_rate:
        return False
    return problem.is_whole_machine and topology.num_gpus <= _MOST_FOR_RATES and _cuts_through(topology)


def _cuts_through(topology: Topology) -> bool:
    """Whether all nodes are GPUs and cut-through switches."""
    return bool(np.all(topology.cuts_through[topology.num_gpus :]))


def is_for_all(demand: Demand) -> bool:
    """Whether every chunk goes from one GPU to all others."""
    if demand.reduces:
        return False
    own = demand.destination_rank == demand.source[demand.destination_chunk]
    others = np.bincount(demand.destination_chunk, ~own, len(demand))
    return bool(np.all(others == demand.num_gpus - 1))


def suits_baselines(problem: Problem) -> bool:
    """All GPUs take part, no buffer limits, and few deliveries."""
    few = problem.deliveries <= _MOST_FOR_BASELINES
    return few and not problem.topology.has_buffer_limits and problem.demand.group is None


def suits_ring(problem: Problem) -> bool:
    """All GPUs receive all data, or reduce it, and a ring takes few transfers."""
    demand = problem.demand
    if not suits_baselines(problem) or not problem.is_whole_machine:
        return False
    return problem.is_allreduce or is_for_all(demand.backward if problem.is_reduction else demand)


def suits_hierarchy(problem: Problem) -> bool:
    """All GPUs of a machine with several levels take part, and there are no buffer limits."""
    usual = not problem.topology.has_buffer_limits and problem.demand.group is None
    return usual and bool(problem.hierarchy.levels)


def suits_hierarchical_halves(problem: Problem) -> bool:
    """An allreduce on a machine with several levels: other reductions with several destinations are halves anyway."""
    return suits_hierarchy(problem) and problem.allreduce_ranks is not None


def suits_justification(problem: Problem) -> bool:
    """A collective of all GPUs in which latency counts, but no alltoall; an allreduce of any size on direct links."""
    if not _has_messages_for_free(problem) or not problem.is_whole_machine:
        return False
    if is_plain_search(problem) and problem.is_allreduce and bool(problem.topology.stores.all()):
        return True
    copies = problem.is_reduction or problem.is_multicast
    return copies and problem.deliveries <= _MOST_IN_WAVES and problem.bytes_over_latency < _SMALL_ALLREDUCE


def suits_waves(problem: Problem) -> bool:
    """An allreduce of all GPUs in which latency counts, on a machine without overheads."""
    few = problem.is_whole_machine and problem.deliveries <= _MOST_IN_WAVES
    return (
        problem.is_allreduce
        and few
        and _has_messages_for_free(problem)
        and problem.bytes_over_latency < _SMALL_ALLREDUCE
    )


def _has_messages_for_free(problem: Problem) -> bool:
    """GPUs reduce in no time, links have no overheads and do not change, and buffers have no limits."""
    topology = problem.topology
    costs = topology.has_reduce_rate or topology.has_overheads
    return not (costs or topology.has_buffer_limits or topology.changes)


def suits_tree_exchange(problem: Problem) -> bool:
    """A small allreduce of all GPUs, on a machine of direct links."""
    direct = bool(problem.topology.stores.all()) and problem.topology.num_gpus == len(problem.topology.nodes)
    return direct and suits_staged_exchange(problem) and problem.is_whole_machine


def suits_staged_exchange(problem: Problem) -> bool:
    """A small allreduce among GPUs that reduce at no cost."""
    if not _is_allreduce_on_links(problem) or problem.topology.has_reduce_rate:
        return False
    return problem.bytes_over_latency < _SMALL_ALLREDUCE


def suits_one_shot(problem: Problem) -> bool:
    """An allreduce so small that sending all contributions to all ranks costs less than a second hop."""
    if not _is_allreduce_on_links(problem) or problem.allreduce_ranks is None:
        return False
    ranks = len(problem.allreduce_ranks)
    return problem.bytes_over_latency * ranks < _TINY_ALLREDUCE and (
        problem.deliveries * ranks <= _MOST_ONE_SHOT_TRANSFERS
    )


def has_reducing_switch(problem: Problem) -> bool:
    """All ranks of an allreduce share a switch that reduces and copies."""
    return _is_allreduce_on_links(problem) and problem.reducing_switch is not None


def _is_allreduce_on_links(problem: Problem) -> bool:
    """An allreduce of the same ranks everywhere, without limits."""
    return is_plain_search(problem) and problem.is_allreduce and problem.allreduce_ranks is not None
