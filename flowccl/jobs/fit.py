"""Latency and bandwidth of NVLink and NIC from the calls of a job, with confidence intervals.

A ring takes hops times the latency of a hop, plus the bytes that cross the slowest link over its bandwidth. Calls in
one host tell about NVLink, calls between hosts about NICs. Both numbers are only told apart if the sizes are spread
widely; otherwise the fit says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.collectives import busbw_factor
from flowccl.jobs.rows import AuditRow
from flowccl.topology.topology import Topology
from flowccl.units import format_bytes

_ROUNDS = {"allreduce": 2, "allgather": 1, "reduce_scatter": 1}
_LEAST_SPREAD = 16  # largest size / smallest size, below which latency and bandwidth are not told apart
_LEAST_SIZES = 4
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class JobLinkFit:
    """What the calls say about one kind of link: us per hop and GB/s, or the reason why they say nothing."""

    link: str
    calls: int
    latency_us: Estimate | None
    bandwidth_GBps: Estimate | None
    misfit: float
    reason: str = ""

    def in_words(self) -> str:
        """Return one line."""
        if self.reason:
            return f"{self.link:<8} {self.reason}"
        parts = [f"{self.link:<8}"]
        for name, unit, found in (
            ("latency", "us per hop", self.latency_us),
            ("bandwidth", "GB/s", self.bandwidth_GBps),
        ):
            if found is None:
                parts.append(f"{name} is not identified by these sizes;")
            else:
                parts.append(f"{name} {found.value:.4g} {unit} (95 %: {found.low:.4g} to {found.high:.4g});")
        return f"{' '.join(parts)} {self.calls} kinds of calls, median error {100 * self.misfit:.0f} %"


def fitted(rows: Sequence[AuditRow], topology: Topology) -> tuple[JobLinkFit, JobLinkFit]:
    """Return the estimates of NVLink (calls in one host) and of the NIC of a GPU (calls between hosts)."""
    host = [node.host for node in topology.nodes[: topology.num_gpus]]
    usable = [row for row in rows if row.measured_us and row.kind.collective in _ROUNDS]
    inside = [row for row in usable if len({host[gpu] for gpu in row.gpus}) == 1]
    between = [row for row in usable if len({host[gpu] for gpu in row.gpus}) > 1]
    nvlink = _fit("NVLink", inside, [_hops(row) for row in inside], [1.0] * len(inside))
    hop_us = nvlink.latency_us.value if nvlink.latency_us is not None else 0.0
    hosts = [len({host[gpu] for gpu in row.gpus}) for row in between]
    outside = [_ROUNDS[row.kind.collective] * count for row, count in zip(between, hosts, strict=True)]
    known = [hop_us * max(_hops(row) - out, 0.0) for row, out in zip(between, outside, strict=True)]
    nics = [len(row.gpus) / count for row, count in zip(between, hosts, strict=True)]
    return nvlink, _fit("NIC", between, [float(out) for out in outside], nics, known)


def _hops(row: AuditRow) -> float:
    return float(_ROUNDS[row.kind.collective] * (len(row.gpus) - 1))


def _fit(
    link: str, rows: Sequence[AuditRow], hops: Sequence[float], lanes: Sequence[float], known_us: Sequence[float] = ()
) -> JobLinkFit:
    """Weighted least squares of time = hops x latency + bytes / bandwidth, errors relative to the time."""
    sizes = np.array([row.kind.size_bytes for row in rows], dtype=np.float64)
    if len(np.unique(sizes)) < 2:
        return JobLinkFit(link, len(rows), None, None, 0.0, "no calls of at least two sizes: not identified")
    time = np.array([row.measured_us or 0.0 for row in rows])
    rest = time - np.array(known_us) if len(known_us) else time
    factor = np.array([busbw_factor(row.kind.collective, len(row.gpus)) for row in rows])
    columns = np.stack((np.array(hops), factor * sizes / 1000 / np.array(lanes)), axis=1)
    scaled, target = columns / time[:, None], rest / time
    value, width = _least_squares(scaled, target)
    misfit = float(np.median(np.abs(scaled @ value - target)))
    spread = sizes.max() / sizes.min()
    if spread < _LEAST_SPREAD or len(np.unique(sizes)) < _LEAST_SIZES:
        words = f"sizes from {format_bytes(sizes.min())} to {format_bytes(sizes.max())}"
        return JobLinkFit(link, len(rows), None, None, misfit, f"latency and bandwidth are not identified: {words}")
    return JobLinkFit(link, len(rows), _latency(value[0], width[0]), _bandwidth(value[1], width[1]), misfit)


def _least_squares(columns: Floats, target: Floats) -> tuple[Floats, Floats]:
    """The coefficients, none negative, and half of their 95 % intervals."""
    from scipy.optimize import nnls
    from scipy.stats import t

    value: Floats = nnls(columns, target)[0]
    freedom = max(len(target) - 2, 1)
    variance = float(((columns @ value - target) ** 2).sum()) / freedom
    covariance = np.linalg.pinv(columns.T @ columns) * variance
    return value, float(t.ppf(0.975, freedom)) * np.sqrt(np.maximum(np.diag(covariance), 0.0))


def _latency(value: float, width: float) -> Estimate | None:
    return None if value <= 0 or width > value else Estimate(value, value - width, value + width)


def _bandwidth(per_GB: float, width: float) -> Estimate | None:
    if per_GB <= 0 or width >= per_GB:
        return None
    return Estimate(1 / per_GB, 1 / (per_GB + width), 1 / (per_GB - width))
