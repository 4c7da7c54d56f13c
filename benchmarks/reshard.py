"""The table of docs/reshard.md: plans between layouts against the lower bound and the baselines.

`NICs` are the NICs of the source ranks that send and those of the target ranks that receive, of all that they have.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from flowccl.resharding.baselines import baseline_us
from flowccl.resharding.layout import Layout, Mesh, Placement
from flowccl.resharding.planning import reshard
from flowccl.resharding.traffic import traffic
from flowccl.schedule.schedule import Schedule
from flowccl.topology.faults import with_faults
from tests.resharding import cases

ROWS = [
    ("8 trainers to 2 x 8, 16 GB", cases.trainers_to_replicas, ("gpu3 <-> rail3", "gpu9 <-> rail1")),
    ("1 rank to 15, 16 GB", cases.one_to_all, ("gpu2 <-> net",)),
    ("4 x 2 to 8, same GPUs, 6.4 GB", cases.stages_to_tensor_parallel, ()),
    ("4 x 2 to 8, next host, 6.4 GB", lambda: cases.stages_to_tensor_parallel(same=False), ("gpu3 <-> rail3",)),
    ("64 trainers to 8 x 8, 200 GB", cases.many_to_many, ("gpu67 <-> rail3", "gpu3 <-> rail3")),
    ("64 trainers to 64, 200 GB", lambda: cases.many_to_many(replicas=False), ("gpu67 <-> rail3",)),
]


def main(arguments: Sequence[str]) -> int:
    """Print one line per case, with and without a lost NIC."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks reshard", description=__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=10.0, help="time limit of each search (default: 10)")
    cases_help = "numbers of the cases; " + ", ".join(f"{n}: {row[0]}" for n, row in enumerate(ROWS))
    parser.add_argument("cases", nargs="*", type=int, help=f"{cases_help}, {len(ROWS)}: 10,000 tensors (default: all)")
    options = parser.parse_args(arguments)
    seconds, chosen = options.seconds, options.cases
    topology, source, target = cases.stages_to_tensor_parallel(count=1, shape=(80, 80))
    reshard(topology, source, target)  # loads compiled code
    for number, (name, make, lost) in enumerate(ROWS):
        if chosen and number not in chosen:
            continue
        topology, source, target = make()
        for fault in (None, *lost):
            machine = topology if fault is None else with_faults(topology, without=[fault])
            began = time.process_time()
            found = reshard(machine, source, target, time_limit_s=seconds)
            used_s = time.process_time() - began
            staged = reshard(machine, source, target, time_limit_s=seconds, bucket_bytes=256_000_000)
            times = baseline_us(machine, found.plan.traffic)
            best = min(times.items(), key=lambda row: row[1] or float("inf"))
            print(
                f"{name:<32}{fault or '-':<18}bound {found.result.bound.us / 1000:9.3f} ms  gap {found.gap:7.2%}  "
                f"{found.result.synthesis_s:5.1f} s ({used_s:.1f} s CPU)  {len(found.result.schedule):6} transfers  "
                f"NICs {_nics(found.result.schedule, source, target)}  "
                f"256 MB: {staged.finish_us / found.finish_us - 1:6.2%} in {staged.plan.stages} stages  "
                f"best baseline {best[0]} {(best[1] or 0) / found.finish_us:.3f}x",
                flush=True,
            )
            print("   ", {key: None if us is None else round(us / found.finish_us, 3) for key, us in times.items()})
    if not chosen or len(ROWS) in chosen:
        _many_tensors(seconds)
    return 0


def _nics(schedule: Schedule, source: Layout, target: Layout) -> str:
    """Return how many NICs of the source ranks send, and how many of the target ranks receive, each of how many."""
    topology = schedule.topology
    is_nic = np.array([kind == "nic" for kind in topology.link_kinds])
    used = np.isin(np.arange(len(topology.links)), schedule.timing.hop_link)
    sends = is_nic & np.isin(topology.link_src, list(source.ranks))
    receives = is_nic & np.isin(topology.link_dst, list(target.ranks))
    return f"{(sends & used).sum()}/{sends.sum()} {(receives & used).sum()}/{receives.sum()}"


def _many_tensors(seconds: float) -> None:
    """10,000 tensors of different shapes, from 64 trainers to 8 engines of 8 GPUs."""
    topology = cases.many_to_many(count=1)[0]
    meshes = Mesh((64,), tuple(range(64))), Mesh((8, 8), tuple(range(64, 128)))
    placements = (Placement(0),), (Placement(), Placement(1))
    source, target = (
        Layout(
            tuple(
                replace(cases.tensors("w", 1, (2000 + n % 997, 4096 + n % 13), mesh, placed)[0], name=f"w{n}")
                for n in range(10_000)
            )
        )
        for mesh, placed in zip(meshes, placements, strict=True)
    )
    began = time.process_time()
    traffic(source, target)
    demand_s = time.process_time() - began
    found = reshard(topology, source, target, time_limit_s=seconds)
    used_s = time.process_time() - began - demand_s
    print(
        f"10,000 tensors, {source.bytes / 1e9:.0f} GB: demand {demand_s:.2f} s CPU, gap {found.gap:.2%}, "
        f"{found.result.synthesis_s:.1f} s ({used_s:.1f} s CPU), {found.result.peak_memory_MB:.0f} MB"
    )
