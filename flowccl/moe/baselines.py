"""Other ways to run an alltoallv, in the same clock as the planner's own plans.

rails       every host balances what it sends over its network cards, and sends to the other hosts in turn (after RailS,
            arXiv 2510.19262, where hosts do not coordinate)
spread-out  no balancing; every GPU sends to the hosts behind its own in turn: shifted permutations
direct      no balancing; every GPU sends to all hosts in rank order
fast        after the description of FAST (MangoBoost/FAST): balance inside hosts, then stages of a Birkhoff
            decomposition one after the other; what a stage brought is passed on during the next stage
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.moe.crossing_kernels import decompose
from flowccl.moe.planner import FINE, SIMPLE, Planner

BASELINES = ("fast", "rails", "spread-out", "direct")


def baseline_us(name: str, planner: Planner, matrix: NDArray[np.int64]) -> float:
    """Return the completion time of a baseline."""
    if name == "fast":
        return _fast_us(planner, matrix)
    params = dict(zip(BASELINES[1:], SIMPLE, strict=True))[name]
    return planner.plan(matrix, params=params).finish_us


def _fast_us(planner: Planner, matrix: NDArray[np.int64]) -> float:
    """The time of stages one after the other, each as long as its longest message, behind all balancing.

    In favour of this baseline, balancing takes only the time of the busiest GPU, data that stays in its host takes
    none, and fan-out is complete one stage later at the latest.
    """
    layout, paths = planner.layout, planner.layout.paths
    plan = planner.plan(matrix, params=replace(FINE, residual=0.0))
    messages, first = plan.messages, plan.messages.first
    gpus, pair = planner.topology.num_gpus, messages.pair
    rate = paths.route_GBps[paths.path_route[paths.path_ptr[pair]]]
    busy = messages.bytes * 1000.0 / rate
    latency = paths.route_latency_ps + paths.route_overhead_ps
    across, inside = slice(first[1], first[2]), slice(first[2], first[3])
    ends = [np.bincount(end[pair[inside]], busy[inside], gpus).max(initial=0.0) for end in (paths.src, paths.dst)]
    gather = max(ends) + (latency[paths.path_route[paths.path_ptr[pair[inside]]]].max(initial=0) if max(ends) else 0)
    host = layout.host_of
    load = np.zeros((layout.hosts, layout.hosts))
    rails = np.zeros((layout.rails, layout.hosts, layout.hosts))
    sender, receiver = paths.src[pair[across]], paths.dst[pair[across]]
    rail = np.zeros(len(paths.src), dtype=np.int64)
    rail[layout.lane_pair] = layout.lane_rail
    np.add.at(rails, (rail[pair[across]], host[sender], host[receiver]), busy[across])
    load = rails.max(axis=0)
    stages, time, _ = decompose(load, 0.0, np.zeros((0, layout.hosts), dtype=np.int64), 2 * layout.hosts**2 + 8)
    slowest = float(latency[paths.path_route[paths.path_ptr[pair[across]]]].max(initial=0))
    crossing = float(_with_trunks(planner, load, stages, time).sum()) + len(stages) * slowest
    fanned = pair[first[3] :]
    last = 0.0
    if len(fanned) and len(time):  # the fan-out of the last stage
        ports = np.bincount(paths.src[fanned], busy[first[3] :], gpus).max() * float(time[-1] / max(time.sum(), 1e-9))
        last = ports + float(latency[paths.path_route[paths.path_ptr[fanned]]].max())
    return float((gather + crossing + last) / 1e6)


def _with_trunks(
    planner: Planner, load: NDArray[np.float64], stages: NDArray[np.int64], time: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The times of stages in which trunks may need longer than network cards."""
    left, result, hosts = load.copy(), time.copy(), np.arange(len(load))
    for stage, receiver in enumerate(stages):
        sent = np.minimum(left[hosts, receiver], time[stage])
        left[hosts, receiver] -= sent
        result[stage] = max(time[stage], planner.trunk_ps(hosts * len(load) + receiver, sent))
    return result
