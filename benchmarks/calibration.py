"""Calibration: measured allreduces of MSCCL++ and NCCL, beside the clock of flowccl, its bound, plans and NCCL's model.

`python -m benchmarks calibration MEASURED.csv` reads published times (source, machine, collective, runtime, bytes, us)
and prints the tables of docs/runtimes.md and docs/audit.md. The plan that MSCCL++ ships for several hosts is written
here by hand as a program: packets inside the host, packets between equal GPUs of all hosts, packets inside the host.
"""

import argparse
import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, nnls

from flowccl import Topology, collective, lower_bound, machine, synthesize
from flowccl.catalog.library import library_ps, shape_of
from flowccl.export.proof.estimate import estimate_ps
from flowccl.export.proof.program import Operation, RuntimeProgram
from flowccl.runtimes.profiles import PROFILES, RuntimeProfile
from flowccl.units import format_bytes, ps_to_us

MACHINES = {"4 hosts x 8 H200": "dgx_h100:4", "8 H200, CUDA graph": "dgx_h100:1"}
_EVALUATIONS = 60  # of the clock at all sizes of a fit
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
                read = -(-(hosts - 1) * hosts // (per_host - 1))  # parts of other hosts, shared by all threadblocks
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


@dataclass(frozen=True)
class Costs:
    """What is fitted: a constant for everything around the plan, and costs of the profile of MSCCL++."""

    launch_us: float
    nvlink_us: float
    nic_us: float
    rates: float

    def profile(self) -> RuntimeProfile:
        """The profile with these overheads of a message, and the rates of threadblocks times a factor."""
        known = PROFILES["mscclpp"]
        costs = replace(
            known.costs,
            nvlink=replace(known.costs.nvlink, overhead_us=self.nvlink_us),
            nic=replace(known.costs.nic, overhead_us=self.nic_us),
            local=tuple(replace(cost, GBps=cost.GBps * self.rates) for cost in known.costs.local),
        )
        return replace(known, costs=costs, proxy_us=())

    def in_words(self) -> str:
        """The costs in one line."""
        return (
            f"{self.launch_us:.1f} us around the plan; a message takes {self.nvlink_us:.2f} us on NVLink and "
            f"{self.nic_us:.2f} us on a NIC; threadblocks have {self.rates:.2f} times the rates of the profile"
        )


def program_us(program: RuntimeProgram, topology: Topology, size: int, profile: RuntimeProfile) -> float:
    """The time of a program in the clock of flowccl, with the costs of a profile."""
    return ps_to_us(estimate_ps(program, topology, size, profile))


def fitted(clock: Callable[[int, Costs], float], sizes: Sequence[int], times: NDArray[np.float64]) -> Costs:
    """The costs that fit measured times best: least squares of relative errors, a simplex search from the profile.

    The constant around the plan is the best one for the other three, none of which can be negative.
    """
    known = PROFILES["mscclpp"].costs
    start = np.array([known.nvlink.overhead_us, known.nic.overhead_us, 1.0])

    def costs_at(point: NDArray[np.float64]) -> tuple[Costs, float]:
        nvlink, nic, rates = (start * np.exp(point)).tolist()
        plain = np.array([clock(size, Costs(0.0, nvlink, nic, rates)) for size in sizes])
        launch = max(float(((1 - plain / times) / times).sum() / (1 / times**2).sum()), 0.0)
        error = float((((plain + launch) / times - 1) ** 2).sum())
        return Costs(launch, nvlink, nic, rates), error

    options = {"maxfev": _EVALUATIONS, "initial_simplex": np.vstack((np.zeros(3), 0.5 * np.eye(3))), "xatol": 0.01}
    best = minimize(lambda point: costs_at(point)[1], np.zeros(3), method="Nelder-Mead", options=options).x
    return costs_at(best)[0]


def scaled(clock: NDArray[np.float64], times: NDArray[np.float64]) -> tuple[float, float]:
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

    def clock(size: int, costs: Costs | None) -> float:
        profile = PROFILES["mscclpp"] if costs is None else costs.profile()
        return program_us(program, topology, size, profile)

    costs = fitted(clock, sizes[half].tolist(), times[half])
    plain = np.array([clock(size, None) for size in sizes.tolist()])
    constant, factor = scaled(plain[half], times[half])
    print(f"costs of the profile, fitted on every other size: {costs.in_words()}")
    print(f"clock with the profile as it is, scaled on the same sizes: {constant:.1f} us + {factor:.2f} x clock\n")
    print(
        "| size | measured | clock | scaled | error | costs fitted | error | used to fit | our plan | bound | "
        "NCCL measured | NCCL's model |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
    )
    held: list[tuple[float, float]] = []
    shape = shape_of(topology)
    for size, us, used, as_is in zip(sizes.tolist(), times.tolist(), half.tolist(), plain.tolist(), strict=True):
        found = constant + factor * as_is, costs.launch_us + clock(size, costs)
        errors = found[0] / us - 1, found[1] / us - 1
        held += [] if used else [(abs(errors[0]), abs(errors[1]))]
        bound = lower_bound(topology, collective("allreduce", 32, size)).us
        model = ps_to_us(library_ps(shape, "allreduce", size) or 0)
        cells = [format_bytes(size), us, f"{as_is:.1f}"]
        cells += [
            text for one, error in zip(found, errors, strict=True) for text in (f"{one:.1f}", f"{100 * error:+.0f} %")
        ]
        cells += [
            "yes" if used else "no",
            _plan(topology, size, plan_s),
            f"{bound:.1f}",
            nccl.get(size, ""),
            f"{model:.1f}",
        ]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    for name, column in zip(("scaled", "costs fitted"), np.array(held).T, strict=True):
        middle, most = 100 * float(np.median(column)), 100 * float(column.max())
        print(f"\n{name}: median error on the held-out sizes {middle:.0f} %, largest {most:.0f} %")


def _plan(topology: Topology, size: int, plan_s: float) -> str:
    """The time of the plan that flowccl finds for MSCCL++, in the clock with the profile as it is."""
    if not plan_s:
        return "-"
    result = synthesize(topology, "allreduce", size, runtime="mscclpp", time_limit_s=plan_s)
    return f"{result.lowered.program_us if result.lowered else result.schedule.finish_us:.1f}"


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
