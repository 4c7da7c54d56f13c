"""Scaling without symmetry: the first schedule of an allgather on 2D meshes with random bandwidths."""

import argparse
import resource
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.report import store
from flowccl.auto.portfolio import portfolio
from flowccl.bounds.lower_bound import lower_bound
from flowccl.compilation import warm_up
from flowccl.demand.collectives import allgather
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.search.context import SearchContext
from flowccl.topology.builders import mesh
from flowccl.topology.topology import Link, Topology
from flowccl.verifier.verify import verify


def uneven_mesh(side: int, seed: int) -> Topology:
    """A mesh whose links have random bandwidths between 25 and 100 GB/s."""
    random = np.random.default_rng(seed)
    plain = mesh(side, side)
    links = [
        Link(src=k.src, dst=k.dst, bandwidth_GBps=float(25 * random.uniform(1, 4)), latency_us=k.latency_us)
        for k in plain.links
    ]
    return Topology(f"uneven mesh {side}x{side}", plain.nodes, tuple(links))


def main(arguments: Sequence[str]) -> int:
    """Print one line per size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks first-schedules", description=__doc__)
    parser.add_argument("--sides", default="8,16,32")
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", default="auto", help="auto: the first method of the portfolio (default: auto)")
    parser.add_argument("--json", metavar="FILE", help="store all rows")
    options = parser.parse_args(arguments)
    warm_up(["greedy", "reroute"] if options.method == "auto" else [options.method])
    rows: list[dict[str, Any]] = []
    print("  gpus  transfers    first   verify       finish        bound  ratio    memory")
    for side in map(int, options.sides.split(",")):
        topology = uneven_mesh(side, options.seed)
        demand = allgather(side * side, options.size)
        name = portfolio(Problem(topology, demand))[0] if options.method == "auto" else options.method
        began = time.perf_counter()
        schedule = next(
            load_method(name)(Problem(topology, demand), SearchContext.with_limit(600.0, seed=options.seed))
        )
        first = time.perf_counter() - began
        assert schedule is not None
        began = time.perf_counter()
        wrong = verify(schedule)
        verify_s = time.perf_counter() - began
        bound = lower_bound(topology, demand)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        rows.append(
            {
                "gpus": side * side,
                "method": name,
                "transfers": len(schedule),
                "first_s": first,
                "verify_s": verify_s,
                "valid": not wrong,
                "finish_us": schedule.finish_us,
                "lower_bound_us": bound.us,
                "peak_memory_GB": memory,
            }
        )
        ratio = schedule.finish_us / bound.us
        print(
            f"{side * side:6} {len(schedule):10} {first:7.2f}s {verify_s:7.2f}s {schedule.finish_us:10.4g}us "
            f"{bound.us:10.4g}us {ratio:6.3f} {memory:7.2f}GB{'' if not wrong else '  INVALID'}",
            flush=True,
        )
    store(options.json, vars(options), rows)
    return 0 if all(row["valid"] for row in rows) else 1
