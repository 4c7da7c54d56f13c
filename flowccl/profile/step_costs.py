"""`flowccl profile --on mscclpp`: what each operation costs on the GPUs at hand, by size and threadblocks."""

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np

from flowccl.profile.step_plans import FEW, MANY, MOVES_DATA, OPERATIONS, StepProbe
from flowccl.run.mscclpp import cuda
from flowccl.run.mscclpp.cases import PlanCase
from flowccl.run.mscclpp.run_plans import GpuOptions, run_cases_of_plans
from flowccl.runtimes.costs import LocalCost, MessageCost
from flowccl.runtimes.profiles import PROFILES, RuntimeProfile

SIZES = (4096, 32768, 262144, 2097152)  # bytes of one operation
BLOCKS = (1, 4, 16)
THREADS = (256, 1024)


@dataclass(frozen=True, slots=True)
class OperationCost:
    """The cost of an operation: a fixed part, and a rate in payload bytes of one threadblock (0: it moves no data)."""

    operation: str
    threadblocks: int
    threads: int
    overhead_us: float
    GBps: float


@dataclass(frozen=True, slots=True)
class StepSample:
    """The measured time of one operation on `size` bytes."""

    operation: str
    threadblocks: int
    threads: int
    size: int
    time_us: float


def measure_steps(one_gpu: bool, iterations: int, timeout_s: float = 60.0) -> list[StepSample] | None:
    """Run all probes on two ranks; return the samples, or None if another process has them."""
    with tempfile.TemporaryDirectory(prefix="flowccl-profile-") as folder:
        keys, cases = [], []
        for operation, blocks, threads, repeats in product(OPERATIONS, BLOCKS, THREADS, (FEW, MANY)):
            probe = StepProbe(operation, blocks, threads, repeats)
            path = Path(folder) / f"{probe.name}.json"
            path.write_text(json.dumps(probe.plan()))
            for size in SIZES if operation in MOVES_DATA else SIZES[:1]:
                keys.append((probe, size))
                cases.append(PlanCase(str(path), size * blocks, "float32", iterations=iterations))
        rows = run_cases_of_plans(cases, GpuOptions(one_gpu=one_gpu, timeout_s=timeout_s))
    if rows is None:
        return None
    times = {key: row.out_of_place.median_us for key, row in zip(keys, rows, strict=True) if row.out_of_place}
    return samples_of(times)


def samples_of(times: dict[tuple[StepProbe, int], float]) -> list[StepSample]:
    """Return the time of one operation: the difference between many and few repetitions, for each operation more."""
    samples = []
    for (probe, size), many_us in times.items():
        if probe.repeats == MANY:
            few_us = times[replace(probe, repeats=FEW), size]
            one = max(many_us - few_us, 0.0) / (MANY - FEW)
            samples.append(StepSample(probe.operation, probe.blocks, probe.threads, size, one))
    return samples


def fit_costs(samples: Sequence[StepSample]) -> list[OperationCost]:
    """Return the fixed part and the rate of every operation, by threadblocks and threads."""
    groups: dict[tuple[str, int, int], list[StepSample]] = {}
    for sample in samples:
        groups.setdefault((sample.operation, sample.threadblocks, sample.threads), []).append(sample)
    return [_fit(key, group) for key, group in groups.items()]


def _fit(key: tuple[str, int, int], group: Sequence[StepSample]) -> OperationCost:
    """Fit a line by the median of all slopes (Theil and Sen); outliers do not move it."""
    size = np.array([sample.size for sample in group], dtype=float)
    time = np.array([sample.time_us for sample in group])
    slopes = [(time[b] - time[a]) / (size[b] - size[a]) for a, b in combinations(range(len(group)), 2)]
    slope = max(float(np.median(slopes)), 0.0) if slopes else 0.0
    small = np.argsort(size)[: max(len(group) // 2, 1)]
    overhead = max(float(np.median(time[small] - slope * size[small])), 0.0)
    return OperationCost(*key, round(overhead, 4), round(1e-3 / slope, 3) if slope else 0.0)


def runtime_profile_of(costs: Sequence[OperationCost], one_gpu: bool) -> RuntimeProfile:
    """Return the profile of MSCCL++ with these costs. From one GPU it has the usual costs of links.

    Between GPUs, a message is a put of one threadblock with its signal: the fixed part of the put occupies the sender,
    and the signal and its wait come after it.
    """
    found = {cost.operation: cost for cost in costs if (cost.threadblocks, cost.threads) == (1, max(THREADS))}
    local = tuple(LocalCost(cost.operation, cost.overhead_us, cost.GBps) for cost in found.values())
    usual = PROFILES["mscclpp"]
    usual = replace(usual, costs=replace(usual.costs, local=local))
    if one_gpu:
        source = f"local operations measured on one GPU, which has no NVLink and no NIC; links: {usual.source}"
        return replace(usual, source=source)
    message = MessageCost(found["put"].overhead_us, found["signal"].overhead_us)
    source = f"NVLink and PCIe: measured between two GPUs; NIC: {usual.source}"
    return replace(usual, costs=replace(usual.costs, nvlink=message, pcie=message), source=source)


def to_json(profile: dict[str, Any], costs: Sequence[OperationCost]) -> dict[str, Any]:
    """Return the file: a runtime profile, with the measured operations as "local"."""
    return profile | {"local": [asdict(cost) for cost in costs]}


def describe_costs(costs: Sequence[OperationCost], one_gpu: bool) -> str:
    """Return a table of the costs as text."""
    gpu = cuda.devices()[0]
    lines = [f"sm_{gpu.architecture}, {gpu.multiprocessors} multiprocessors", ""]
    lines.append(f"{'operation':<18}{'threadblocks':>13}{'threads':>9}{'fixed us':>10}{'GB/s per block':>16}")
    for cost in costs:
        rate = f"{cost.GBps:.1f}" if cost.GBps else "-"
        lines.append(f"{cost.operation:<18}{cost.threadblocks:>13}{cost.threads:>9}{cost.overhead_us:>10.3f}{rate:>16}")
    if one_gpu:
        lines += [
            "",
            "measured on one GPU: this says nothing about NVLink and NICs, whose costs stay as they are;",
            "`synth --for` takes only the costs of copies, reductions and packets that are read from it",
        ]
    return "\n".join(lines)
