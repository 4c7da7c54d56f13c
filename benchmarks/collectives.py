"""Every collective on several machines at three sizes: finish, lower bound, gap, and the best baseline.

`python -m benchmarks collectives [--time-limit S] [--collectives A,B] [--machines A,B] [--sizes 1KB,1GB] [--out FILE]`
"""

import argparse
import json
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import geometric_mean_gap
from flowccl.demand.collectives import COLLECTIVES_BY_NAME, alltoallv, collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.errors import DemandError, FlowcclError
from flowccl.methods.registry import load_method, methods_where
from flowccl.problem import Problem
from flowccl.search.context import SearchContext
from flowccl.synthesis import synthesize
from flowccl.topology.files import read_machine
from flowccl.topology.topology import Link, Node, Topology
from flowccl.units import format_bytes, parse_bytes
from flowccl.verifier.verify import verify
from flowccl.version import VERSION

MACHINES = ("dgx1", "ndv2:2", "dgx2:2", "mi250:1", "dgx_a100:2", "torus:4x4", "random")
SIZES = ("1KB", "1MB", "1GB")
COLLECTIVES = (*COLLECTIVES_BY_NAME, "alltoallv", "custom")


def main(arguments: Sequence[str]) -> int:
    """Print the table, and write it as JSON with --out."""
    options = _options(arguments)
    rows = []
    heads = f"{'finish us':>14}{'bound us':>14}{'gap':>8}{'baseline us':>14}"
    print(f"{'collective':<15}{'machine':<12}{'size':>7}{heads}  method")
    for row in table(options.collectives, options.machines, options.sizes, _limits(options)):
        rows.append(row)
        baseline = "" if row["baseline_us"] is None else f"{row['baseline_us']:.6g}"
        size = format_bytes(row["size_bytes"]).replace(" ", "")
        print(
            f"{row['collective']:<15}{row['machine']:<12}{size:>7}{row['finish_us']:>14.6g}"
            f"{row['lower_bound_us']:>14.6g}{row['gap']:>8.1%}{baseline:>14}  {row['method']}",
            flush=True,
        )
    print(summary(rows))
    if options.out is not None:
        head = {"version": VERSION, "seed": options.seed, "python": platform.python_version()}
        Path(options.out).write_text(json.dumps(head | {"rows": rows}, indent=1))
    return 0


def table(
    collectives: Sequence[str], machines: Sequence[str], sizes: Sequence[str], limits: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """One row per machine, collective and size."""
    for machine in machines:
        topology = random_machine(0) if machine == "random" else read_machine(machine)
        for name in collectives:
            for size in sizes:
                yield _row(topology, machine, name, parse_bytes(size), limits)


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Geometric mean and distribution of the gaps, and the number of rows on which a baseline is earlier."""
    gaps = [row["gap"] for row in rows]
    near = sum(gap <= 0.1 for gap in gaps)
    lost = sum(row["baseline_us"] is not None and row["finish_us"] > row["baseline_us"] for row in rows)
    return (
        f"{len(rows)} rows, all verified: geometric mean of the gaps {geometric_mean_gap(gaps):.2%}, "
        f"at most 10 % on {near} ({near / len(rows):.0%}), at most 30 % on {sum(gap <= 0.3 for gap in gaps)}, "
        f"largest {max(gaps):.1%}; later than the best baseline on {lost}"
    )


def random_machine(seed: int, gpus: int = 10) -> Topology:
    """A ring of GPUs plus the same number of random links, with random bandwidths and latencies."""
    random = np.random.default_rng(seed)
    nodes = [Node(name=f"gpu{rank}") for rank in range(gpus)]
    pairs = [(rank, (rank + 1) % gpus) for rank in range(gpus)]
    pairs += [tuple(random.choice(gpus, 2, replace=False).tolist()) for _ in range(gpus)]
    links = []
    for a, b in pairs:
        bandwidth, latency = float(random.choice([12.5, 25.0, 50.0])), float(random.choice([0.35, 0.7, 1.3]))
        links += [Link(src=s, dst=d, bandwidth_GBps=bandwidth, latency_us=latency) for s, d in ((a, b), (b, a))]
    return Topology("random", tuple(nodes), tuple(links))


def demand_of(name: str, gpus: int, size_bytes: int, chunks: int) -> Demand:
    """A collective; alltoallv has a matrix that follows Zipf's law, custom is a broadcast and a reduce."""
    if name == "alltoallv":
        return alltoallv(zipf_matrix(gpus, size_bytes), chunks)
    if name == "custom":
        block, every = size_bytes // gpus, tuple(range(gpus))
        if chunks > block:
            raise DemandError(f"custom: {chunks} chunks do not fit in a block of {block} bytes")
        parts = [block // chunks + (i < block % chunks) for i in range(chunks)]
        rows = [Chunk(bytes=part, sources=(0,), destinations=every[1:]) for part in parts]
        rows += [Chunk(bytes=part, sources=every, destinations=(gpus - 1,)) for part in parts]
        return Demand.from_chunks("custom", gpus, rows, pieces=chunks)
    return collective(name, gpus, size_bytes, chunks)


def zipf_matrix(gpus: int, size_bytes: int, seed: int = 0) -> list[list[int]]:
    """Bytes per destination proportional to 1 / k, in a random order for every row."""
    random = np.random.default_rng(seed)
    share = 1 / np.arange(1, gpus + 1)
    share /= share.sum()
    rows = [np.maximum(share[random.permutation(gpus)] * size_bytes, 8).astype(int) for _ in range(gpus)]
    return [row.tolist() for row in rows]


def _row(topology: Topology, machine: str, name: str, size_bytes: int, limits: dict[str, Any]) -> dict[str, Any]:
    gpus = topology.num_gpus
    result = synthesize(topology, lambda count: demand_of(name, gpus, size_bytes, count), **limits)
    return result.to_json() | {
        "collective": name,
        "machine": machine,
        "size_bytes": size_bytes,
        "baseline_us": _best_baseline_us(topology, demand_of(name, gpus, size_bytes, 1)),
    }


def _best_baseline_us(topology: Topology, demand: Demand) -> float | None:
    """Earliest verified finish of ring, tree, recursive doubling and direct, with one chunk per block."""
    finishes = []
    for name in methods_where(lambda info: info.baseline):
        try:
            schedule = next(load_method(name)(Problem(topology, demand), SearchContext.with_limit(1.0)))
        except FlowcclError:  # not applicable, for example if the number of GPUs is not a power of two
            continue
        if schedule is not None and not verify(schedule):
            finishes.append(schedule.finish_us)
    return min(finishes, default=None)


def _limits(options: argparse.Namespace) -> dict[str, Any]:
    """The options of the search, as `synthesize` takes them."""
    least = None if options.min_chunk is None else parse_bytes(options.min_chunk)
    kept = {"gap": options.gap, "lean": options.lean, "min_chunk_bytes": least, "seed": options.seed}
    return {"time_limit_s": options.time_limit, **kept}


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks collectives", description=__doc__)
    for name, values in (("collectives", COLLECTIVES), ("machines", MACHINES), ("sizes", SIZES)):
        parser.add_argument(f"--{name}", type=lambda text: tuple(text.split(",")), default=values, metavar="A,B")
    parser.add_argument("--time-limit", type=float, default=10.0, metavar="SECONDS")
    parser.add_argument("--gap", type=float, default=0.005)
    parser.add_argument("--lean", type=float, default=0.005)
    parser.add_argument("--min-chunk", metavar="SIZE", help="least chunk, e.g. 1B (default: 4KB)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", metavar="FILE", help="also write the rows as JSON")
    return parser.parse_args(arguments)
