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
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from flowccl import Topology, collective, lower_bound, machine, synthesize
from flowccl.catalog.library import library_ps, shape_of
from flowccl.export.proof.estimate import estimate_ps
from flowccl.export.proof.program import Operation, RuntimeProgram
from flowccl.runtimes.profiles import PROFILES
from flowccl.units import format_bytes, ps_to_us

MACHINES = {"4 hosts x 8 H200": "dgx_h100:4", "8 H200, CUDA graph": "dgx_h100:1"}
HAND_WRITTEN = "mscclpp, hand-written plan, 57 threadblocks"


def shipped_program(hosts: int, per_host: int, group: int = 8) -> RuntimeProgram:
    """The allreduce that MSCCL++ ships for several hosts: `group` threadblocks for every other GPU, and one for NICs.

    Each threadblock of a group moves and reads its part of the data. Block 0 asks the proxy. MSCCL++ posts to all other
    hosts within microseconds, in the same order on all hosts, and the network shares links as it goes; in our clock a
    send has one constant rate, so here every host begins with the next one.
    """
    ranks = hosts * per_host
    operations: list[Operation] = []
    for rank in range(ranks):
        host, local = divmod(rank, per_host)
        inside = [host * per_host + n for n in range(per_host) if n != local]
        outside = [(host + n) % hosts * per_host + local for n in range(1, hosts)]
        places = range(per_host - 1)

        def add(
            block: int, index: int, name: str, to: int = -1, parts: int = 1, rank: int = rank, **facts: Any
        ) -> None:
            size = hosts * parts
            made = Operation(rank, block, index, name, size=size, sends_to=to, packets=to >= 0, is_published=True)
            operations.append(replace(made, **facts))

        for place, peer in enumerate(inside):
            for part in range(group):
                block = 1 + place * group + part
                add(block, 0, "ppkt", peer, pushes=[("scattered", rank, peer, part, other) for other in places])
                add(block, 1, "repkt", pops=[("scattered", source, rank, part, place) for source in inside])
                read = -(-(hosts - 1) // (per_host - 1))  # of the parts of all other hosts, shared by all threadblocks
                add(block, 2, "repkt", pops=[("exchanged", source, rank, block) for source in outside], size=read)
                every = [(1 + other * group + part, 2) for other in places if other != place]
                add(block, 3, "rppkt", peer, after=every, pushes=[("gathered", rank, peer, part)])
                add(block, 4, "upkt", pops=[("gathered", peer, rank, part)])
        blocks = range(1, 1 + (per_host - 1) * group)
        for number, peer in enumerate(outside):
            pushes = [("exchanged", rank, peer, block) for block in blocks]
            add(0, number, "ppkt", peer, group, after=[(block, 1) for block in blocks], pushes=pushes)
    chunks = ranks * group
    counts = [(chunks, chunks, 3 * chunks)] * ranks
    return RuntimeProgram("allreduce", ranks, (True,), chunks, counts, operations, None, packets=True)


def program_us(program: RuntimeProgram, topology: Topology, size: int) -> float:
    """The time of a program in the clock of flowccl, with the costs of the profile of MSCCL++."""
    return ps_to_us(estimate_ps(program, topology, size, PROFILES["mscclpp"]))


def fitted(clock: NDArray[np.float64], times: NDArray[np.float64]) -> tuple[float, float]:
    """The constant and the factor on the clock that fit measured times best: least squares of relative errors."""
    columns = np.stack((1 / times, clock / times), axis=1)
    constant, factor = nnls(columns, np.ones(len(times)))[0]
    return float(constant), float(factor)


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
    program = shipped_program(4, 8)
    clock = np.array([program_us(program, topology, size) for size in sizes.tolist()])
    constant, factor = fitted(clock[half], times[half])
    print(f"fitted on every other size: {constant:.1f} us + {factor:.2f} x clock\n")
    print(
        "| size | measured | clock | fitted | error | used to fit | our plan | bound | NCCL measured | NCCL's model |\n"
        "|---|---|---|---|---|---|---|---|---|---|"
    )
    held = []
    shape = shape_of(topology)
    for size, us, used, plain in zip(sizes.tolist(), times.tolist(), half.tolist(), clock.tolist(), strict=True):
        tuned = constant + factor * plain
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
