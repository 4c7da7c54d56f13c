"""Plans of mixture-of-experts alltoallv: planning time, gaps, and baselines in the same clock."""

import argparse
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.moe_baselines import BASELINES, baseline_us
from benchmarks.moe_workloads import WORKLOADS, Shape, matrix, routing
from benchmarks.report import store
from flowccl.moe.blocks import Blocks
from flowccl.moe.lane_kernels import blocks_of
from flowccl.moe.planner import Planner
from flowccl.moe.routing import ExpertPlacement
from flowccl.moe.routing_kernels import count_tokens
from flowccl.moe.search import improved
from flowccl.topology.builders import both
from flowccl.topology.faults import with_faults
from flowccl.topology.machines import machine
from flowccl.topology.topology import Link, Node, Topology
from flowccl.verifier.verify import verify

MATRICES = 20


def main(arguments: Sequence[str]) -> int:
    """Print planning times, then one line per machine with its gaps."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks moe", description=__doc__)
    parser.add_argument("--gpus", default="64,128,256,512", help="sizes whose planning is timed")
    parser.add_argument("--hosts", default="2,4,8", help="sizes whose gaps are measured, in hosts of 8 GPUs")
    parser.add_argument("--mean", type=float, default=1e6, help="bytes of a pair of GPUs on average")
    parser.add_argument("--search", type=float, default=0.0, help="seconds of search after the first answer")
    parser.add_argument("--for", dest="runtime", default="ideal", help="the runtime whose message costs count")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--fast", metavar="FOLDER", help="folder with fast8, fast16, ... (see moe_fast_driver.cc)")
    parser.add_argument("--no-verify", action="store_true", help="do not verify the plans")
    parser.add_argument("--json", metavar="FILE", help="store all rows")
    parser.add_argument("--plot", metavar="FILE", help="draw the gaps")
    parser.add_argument("--picture", metavar="FILE", help="only draw one step: hosts as rows, NICs as lanes")
    options = parser.parse_args(arguments)
    if options.picture:
        _picture(options.picture)
        return 0
    rows: list[dict[str, Any]] = []
    for gpus in map(int, filter(None, options.gpus.split(","))):
        rows.append(_timed(gpus, options.fast))
        print(_words(rows[-1]), flush=True)
    for hosts in map(int, filter(None, options.hosts.split(","))):
        for name, topology in machines(hosts):
            found = list(_gaps(name, topology, options))
            rows += found
            _summary(name, found)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"peak memory {peak:.0f} MB")
    store(options.json, vars(options), rows)
    if options.plot:
        _plot(rows, options.plot)
    return 0


def machines(hosts: int) -> Iterator[tuple[str, Topology]]:
    """A cluster of H100 hosts: whole, with faults, with hosts of two sizes, and with an oversubscribed spine."""
    whole = machine(f"dgx_h100:{hosts}")
    yield "rails", whole
    yield "lost NIC", with_faults(whole, without=["gpu3 <-> rail3"])
    yield "NIC at half rate", with_faults(whole, slow=["gpu3 <-> rail3=25GB/s"])
    yield "hosts of 8 and 4", unequal_hosts(hosts)
    leaves = max(1, hosts // 2)
    yield "2:1 spine", machine(f"dgx_h100:{hosts}:network=fat-tree:leaf_hosts={leaves}:oversubscription=2")


def unequal_hosts(hosts: int) -> Topology:
    """Hosts with 8 and 4 GPUs in turn on an NVSwitch, GPU i of every host on rail i; figures of DGX H100."""
    sizes = [8 if host % 2 == 0 else 4 for host in range(hosts)]
    gpus = [Node(name=f"gpu{k}", host=f"host{h}") for k, h in enumerate(np.repeat(range(hosts), sizes).tolist())]
    switches = [Node(name=f"nvswitch{h}", kind="switch", host=f"host{h}") for h in range(hosts)]
    rails = [Node(name=f"rail{i}", kind="switch") for i in range(8)]
    links, first = list[Link](), 0
    for host, size in enumerate(sizes):
        for place in range(size):
            links += both(first + place, len(gpus) + host, 450.0, 0.35)
            links += both(first + place, len(gpus) + hosts + place, 50.0, 1.3)
        first += size
    return Topology(f"hosts of 8 and 4 GPUs, {hosts}", (*gpus, *switches, *rails), tuple(links))


def _timed(gpus: int, fast: str | None) -> dict[str, Any]:
    """The median planning time of different matrices, in this thread, after compilation."""
    planner, shape = Planner(machine(f"dgx_h100:{gpus // 8}")), Shape(gpus)
    names = list(WORKLOADS)
    inputs = [matrix(names[k % len(names)], shape, 4e6, seed=1, step=k) for k in range(MATRICES)]
    planner.plan(inputs[0])
    times, busy = [], []
    for one in inputs:
        begun, used = time.perf_counter(), time.thread_time()
        plan = planner.plan(one)
        times.append(time.perf_counter() - begun)
        busy.append(time.thread_time() - used)  # less than that where other programs had the core meanwhile
    row: dict[str, Any] = {"gpus": gpus, "plan_ms": float(np.median(times)) * 1e3, "worst_ms": max(times) * 1e3}
    row |= {"cpu_ms": float(np.median(busy)) * 1e3, "least_ms": min(times) * 1e3}
    row["messages"], row["count_ms"] = len(plan.messages), _count_ms(planner, shape)
    program = None if fast is None else Path(fast) / f"fast{gpus // 8}"
    if program is not None and program.exists():
        with tempfile.NamedTemporaryFile(suffix=".bin") as file:
            np.concatenate([one.reshape(-1) for one in inputs]).tofile(file.name)
            printed = subprocess.run([program, str(gpus // 8), file.name], capture_output=True, text=True, check=False)
        row["fast_ms"] = float(printed.stdout) if printed.returncode == 0 else None
    return row


def _count_ms(planner: Planner, shape: Shape) -> float:
    """The median time to count the tokens of one GPU, 4,096 tokens with 8 of 256 experts."""
    tokens = routing(Shape(4), 256, 8, 4096)
    ptr, gpu = ExpertPlacement.even(256, shape.gpus).table
    layout, times = planner.layout, []
    for rank in (0, 0, 1, 2, 3):
        begun = time.perf_counter()
        count_tokens(tokens[rank], rank, ptr, gpu, layout.host_of, layout.paths.place, 1 << 17)
        times.append(time.perf_counter() - begun)
    return float(np.median(times)) * 1e3


def _words(row: dict[str, Any]) -> str:
    fast = f", FAST {row['fast_ms']:.2f} ms" if row.get("fast_ms") else ""
    return (
        f"{row['gpus']} GPUs: plan {row['plan_ms']:.2f} ms ({row['least_ms']:.2f} to {row['worst_ms']:.2f}; CPU time "
        f"{row['cpu_ms']:.2f}), {row['messages']} messages"
        f"{fast}; counting tokens {row['count_ms']:.2f} ms"
    )


def _gaps(name: str, topology: Topology, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The gaps of all workloads, and the times of the baselines as multiples of ours."""
    planner = Planner(topology, runtime=options.runtime)
    for workload in WORKLOADS:
        for seed in range(options.seeds):
            data = matrix(workload, Shape(topology.num_gpus), options.mean, seed)
            plan = planner.plan(data)
            if options.search:
                ptr, source, size, to, _ = blocks_of(data, planner.layout.host_ptr, planner.layout.host_gpu)
                blocks = Blocks(ptr, source, size, np.arange(len(to) + 1), to)
                plan = improved(planner, blocks, "alltoallv", options.search)
            valid = options.no_verify or not verify(plan.schedule())
            row = {"machine": name, "gpus": topology.num_gpus, "workload": workload, "seed": seed, "valid": valid}
            row |= {"finish_us": plan.finish_us, "lower_bound_us": plan.lower_bound_us, "gap": plan.gap}
            row |= {other: baseline_us(other, planner, data) / plan.finish_us for other in BASELINES}
            yield row


def _summary(name: str, rows: list[dict[str, Any]]) -> None:
    gaps = np.array([row["gap"] for row in rows])
    worst = rows[int(np.argmax(gaps))]
    others = "  ".join(
        f"{other} {np.exp(np.mean(np.log([row[other] for row in rows]))):.2f} (least "
        f"{min(row[other] for row in rows):.2f})"
        for other in BASELINES
    )
    valid = "" if all(row["valid"] for row in rows) else "  INVALID"
    print(
        f"{rows[0]['gpus']:>4} GPUs {name:<18} gap {np.expm1(np.log1p(gaps).mean()):6.2%}, at most {gaps.max():6.2%} "
        f"({worst['workload']})  {others}{valid}",
        flush=True,
    )


def _picture(path: str) -> None:
    """Draw what the NICs of four hosts send in one step, coloured by the receiving host."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    plan = Planner(machine("dgx_h100:4")).plan(matrix("zipf 0.8", Shape(32)))
    messages, paths, host = plan.messages, plan.layout.paths, plan.layout.host_of
    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots(4, 1, sharex=True)
    for k in range(int(messages.first[1]), int(messages.first[2])):
        pair = messages.pair[k]
        source, target = int(paths.src[pair]), int(host[paths.dst[pair]])
        begin, length = messages.start_ps[k] / 1e6, messages.bytes[k] / 50e3
        axes[host[source]].broken_barh(
            [(begin, length)], (source % 8 - 0.4, 0.8), color=f"C{target}", edgecolor="white", linewidth=0.4
        )
    for number, one in enumerate(axes):
        one.set(ylabel=f"host {number}", yticks=range(8), ylim=(7.6, -0.6))
        one.set_yticklabels([f"NIC {nic}" for nic in range(8)], fontsize=6)
        one.axvline(plan.lower_bound_us, color="black", linestyle="--", linewidth=0.8)
    axes[-1].set_xlabel(
        f"us; the lower bound (dashed) is {plan.lower_bound_us:.1f}, the plan ends at {plan.finish_us:.1f}"
    )
    figure.legend(
        handles=[Patch(color=f"C{h}", label=f"to host {h}") for h in range(4)], ncols=4, loc="outside upper center"
    )
    figure.savefig(path, dpi=110)


def _plot(rows: list[dict[str, Any]], path: str) -> None:
    from matplotlib.figure import Figure

    found = [row for row in rows if "gap" in row]
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.subplots()
    for name in dict.fromkeys(row["machine"] for row in found):
        mine = [row for row in found if row["machine"] == name]
        axes.plot([row["gpus"] for row in mine], [100 * row["gap"] for row in mine], "o", label=name, alpha=0.6)
    axes.set(xlabel="GPUs", ylabel="above the lower bound, %", title="First plans of all workloads")
    axes.legend()
    figure.savefig(path, dpi=120)
