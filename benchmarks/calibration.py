"""Calibration: measured allreduces of MSCCL++ and NCCL, beside the clock of flowccl, its bound, plans and NCCL's model.

`python -m benchmarks calibration MEASURED.csv` reads published times (source, machine, collective, runtime, bytes, us)
and prints the tables of docs/runtimes.md and docs/audit.md. The plan that MSCCL++ ships for several hosts is written
here by hand as a program: packets inside the host, packets between equal GPUs of all hosts, packets inside the host.
"""

import argparse
import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from flowccl import Topology, collective, lower_bound, machine, synthesize
from flowccl.catalog.library import library_ps, shape_of
from flowccl.export.proof.estimate import estimate_ps
from flowccl.export.proof.program import Operation, RuntimeProgram
from flowccl.runtimes.costs import MessageCost
from flowccl.runtimes.machine import on_runtime
from flowccl.runtimes.profiles import PROFILES, RuntimeProfile
from flowccl.units import format_bytes, ps_to_us

MACHINES = {"4 hosts x 8 H200": "dgx_h100:4", "8 H200, CUDA graph": "dgx_h100:1"}
HAND_WRITTEN = "mscclpp, hand-written plan, 57 threadblocks"


def shipped_program(hosts: int, per_host: int) -> RuntimeProgram:
    """The allreduce that MSCCL++ ships for several hosts: 1 + (GPUs - 1) threadblock groups on every GPU.

    A group of threadblocks is one threadblock here. Block 0 asks the proxy; block p talks to the p-th other GPU.
    """
    ranks = hosts * per_host
    operations: list[Operation] = []
    for rank in range(ranks):
        host, local = divmod(rank, per_host)
        inside = [host * per_host + n for n in range(per_host) if n != local]
        outside = [n * per_host + local for n in range(hosts) if n != host]
        blocks = range(1, per_host)

        def add(block: int, index: int, name: str, to: int = -1, rank: int = rank, **facts: object) -> None:
            size = hosts if to >= 0 else 0
            made = Operation(rank, block, index, name, size=size, sends_to=to, packets=to >= 0, is_published=True)
            operations.append(replace(made, **facts))

        for block, peer in zip(blocks, inside, strict=True):
            add(block, 0, "ppkt", peer, pushes=[("scattered", rank, peer, other) for other in blocks])
            add(block, 1, "repkt", pops=[("scattered", source, rank, block) for source in inside])
            add(block, 2, "repkt", pops=[("exchanged", source, rank, block) for source in outside])
            every = [(other, 2) for other in blocks if other != block]
            add(block, 3, "rppkt", peer, after=every, pushes=[("gathered", rank, peer)])
            add(block, 4, "upkt", pops=[("gathered", peer, rank)])
        reduced = [(block, 1) for block in blocks]
        for number, peer in enumerate(outside):
            add(0, number, "ppkt", peer, after=reduced, pushes=[("exchanged", rank, peer, other) for other in blocks])
    counts = [(ranks, ranks, 3 * ranks)] * ranks
    return RuntimeProgram("allreduce", ranks, (True,), ranks, counts, operations, None, packets=True)


def with_costs(nvlink_us: float, nic_us: float, efficiency: float) -> tuple[RuntimeProfile, float]:
    """The profile of MSCCL++ with other overheads per message; links reach a part of their bandwidth."""
    costs = PROFILES["mscclpp"].costs
    nvlink, nic = (
        replace(cost, overhead_us=max(us, 0.0)) for cost, us in ((costs.nvlink, nvlink_us), (costs.nic, nic_us))
    )
    assert isinstance(nvlink, MessageCost)
    return replace(PROFILES["mscclpp"], costs=replace(costs, nvlink=nvlink, nic=nic)), efficiency


def program_us(
    program: RuntimeProgram, topology: Topology, size: int, profile: RuntimeProfile, efficiency: float = 1.0
) -> float:
    """The time of a program in the clock of flowccl."""
    links = tuple(replace(link, bandwidth_GBps=link.bandwidth_GBps * efficiency) for link in topology.links)
    real = on_runtime(replace(topology, links=links), profile)
    return ps_to_us(estimate_ps(program, real, size, profile.costs))


def fitted(sizes: NDArray[np.int64], times: NDArray[np.float64], topology: Topology) -> NDArray[np.float64]:
    """Launch, overhead of a message on NVLink and on the NIC, and efficiency of links: least squares of log errors."""
    program = shipped_program(4, 8)

    def errors(x: NDArray[np.float64]) -> NDArray[np.float64]:
        profile, part = with_costs(x[1], x[2], x[3])
        predicted = [x[0] + program_us(program, topology, int(size), profile, part) for size in sizes]
        return np.log(np.array(predicted) / times)

    start, low, high = [3.0, 0.6, 2.0, 0.9], [0.0, 0.0, 0.0, 0.3], [20.0, 5.0, 10.0, 1.0]
    found: NDArray[np.float64] = least_squares(errors, start, bounds=(low, high), diff_step=0.02).x
    return found


def rows_of(path: Path) -> list[tuple[str, str, int, float]]:
    """The allreduces: machine, runtime, bytes, us."""
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["collective"] == "allreduce" and row["machine"] in MACHINES]
    return [(row["machine"], row["runtime"], int(row["bytes"]), float(row["us"])) for row in rows]


def calibration_table(rows: Sequence[tuple[str, str, int, float]], plan_s: float) -> None:
    """Print the shipped plan in our clock beside its measured times, with costs fitted on every other size."""
    topology = machine("dgx_h100:4")
    mine = [(size, us) for where, runtime, size, us in rows if runtime == HAND_WRITTEN and where in MACHINES]
    nccl = {size: us for where, runtime, size, us in rows if runtime == "nccl" and MACHINES[where] == "dgx_h100:4"}
    sizes, times = np.array([size for size, _ in mine]), np.array([us for _, us in mine])
    half = np.arange(len(sizes)) % 2 == 0
    costs = fitted(sizes[half], times[half], topology)
    profile, part = with_costs(*costs[1:])
    program = shipped_program(4, 8)
    print(
        f"fitted on every other size: launch {costs[0]:.2f} us, NVLink {costs[1]:.2f} us, NIC {costs[2]:.2f} us, ",
        end="",
    )
    print(f"links at {100 * part:.0f} % of their bandwidth\n")
    print(
        "| size | measured | clock, profile as it is | clock, fitted | error | used to fit | our plan | bound | "
        "NCCL measured | NCCL's model |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    held = []
    shape = shape_of(topology)
    for size, us, used in zip(sizes.tolist(), times.tolist(), half.tolist(), strict=True):
        plain = program_us(program, topology, size, PROFILES["mscclpp"])
        tuned = costs[0] + program_us(program, topology, size, profile, part)
        error = tuned / us - 1
        held += [] if used else [abs(error)]
        plan = "-"
        if plan_s:
            result = synthesize(topology, "allreduce", size, runtime="mscclpp", time_limit_s=plan_s)
            plan = f"{result.lowered.program_us if result.lowered else result.schedule.finish_us:.1f}"
        bound = lower_bound(topology, collective("allreduce", 32, size)).us
        model = ps_to_us(library_ps(shape, "allreduce", size) or 0)
        print(
            f"| {format_bytes(size)} | {us} | {plain:.1f} | {tuned:.1f} | {100 * error:+.0f} % | "
            f"{'yes' if used else 'no'} | {plan} | {bound:.1f} | {nccl.get(size, '')} | {model:.1f} |",
            flush=True,
        )
    print(f"\nmedian error on the held-out sizes {100 * float(np.median(held)):.0f} %, largest {100 * max(held):.0f} %")


def bounds_table(rows: Sequence[tuple[str, str, int, float]]) -> None:
    """Print measured / bound of every allreduce."""
    print("\n| machine | runtime | size | measured | bound | measured / bound |\n|---|---|---|---|---|---|")
    for where, runtime, size, us in rows:
        topology = machine(MACHINES[where])
        bound = lower_bound(topology, collective("allreduce", topology.num_gpus, size)).us
        print(f"| {where} | {runtime} | {format_bytes(size)} | {us} | {bound:.2f} | {us / bound:.1f} |", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks calibration", description=__doc__)
    parser.add_argument("measured", type=Path, help="CSV: source, machine, collective, runtime, bytes, us")
    parser.add_argument("--plan-seconds", type=float, default=0.0, help="search plans of flowccl for so long each")
    options = parser.parse_args(arguments)
    rows = rows_of(options.measured)
    calibration_table(rows, options.plan_seconds)
    bounds_table(rows)
    return 0
