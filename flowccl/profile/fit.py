"""Fit latency and bandwidth of each link to noisy times with outliers.

A probe takes latencies x latency + bytes / bandwidth (TACCL section 2.1). The two parameters of a link are fitted by
iteratively reweighted least squares on relative errors with Huber weights. The fit starts from the medians of each kind
of probe, so a few outliers do not affect it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.profile.measurements import Floats, MeasuredProbe, link_name
from flowccl.profile.probes import Ends
from flowccl.units import format_bytes, format_us

_HUBER = 1.345  # in standard deviations: 95 % of the efficiency of least squares under normal noise
_FAR = 6.0  # in standard deviations: times farther from the median are reported as outliers
_CONFIDENCE = 1.96  # in standard deviations: a 95 % interval
_MAD = 1.4826  # median absolute deviation -> standard deviation


@dataclass(frozen=True)
class LinkFit:
    """Fit of one link; `*_error` is half of the 95 % interval, `residual` the median relative error of a time."""

    link: Ends
    latency_us: float
    latency_error_us: float
    bandwidth_GBps: float
    bandwidth_error_GBps: float
    residual: float
    samples: int
    outliers: tuple[str, ...] = ()

    def seconds(self, latencies: int, size_bytes: int) -> float:
        """Predicted duration of a probe."""
        return latencies * self.latency_us * 1e-6 + size_bytes / (self.bandwidth_GBps * 1e9)


@dataclass(frozen=True, eq=False)
class _LinkTimes:
    """Times of one link with their probe kind (`kind`) and the coefficients of the two unknowns."""

    link: Ends
    kind: NDArray[np.int64]
    latencies: Floats
    size_bytes: Floats
    seconds: Floats


def fit_links(measured: Iterable[MeasuredProbe]) -> dict[Ends, LinkFit]:
    """Fit every link that was probed alone with at least two kinds of probes; other links are omitted."""
    by_link: dict[Ends, list[MeasuredProbe]] = {}
    for one in measured:
        if one.probe.alone:
            by_link.setdefault(one.probe.links[0], []).append(one)
    found = {}
    for link, probes in sorted(by_link.items()):
        times = _times(link, probes)
        if len(set(zip(times.latencies.tolist(), times.size_bytes.tolist(), strict=True))) >= 2:
            found[link] = _fit(times)
    return found


def _times(link: Ends, probes: list[MeasuredProbe]) -> _LinkTimes:
    seconds = [one.seconds[:, 0][one.plausible[:, 0]] for one in probes]
    counts = [len(part) for part in seconds]
    return _LinkTimes(
        link,
        np.repeat(np.arange(len(probes)), counts),
        np.repeat([float(one.probe.latencies) for one in probes], counts),
        np.repeat([float(one.probe.link_bytes[0]) for one in probes], counts),
        np.concatenate([*seconds, np.empty(0)]),
    )


def _fit(times: _LinkTimes) -> LinkFit:
    kinds = np.unique(times.kind)
    medians = np.array([np.median(times.seconds[times.kind == kind]) for kind in kinds])
    first = np.searchsorted(times.kind, kinds)
    latency, per_byte = _solve(times.latencies[first], times.size_bytes[first], medians, 1 / medians)
    weight = np.ones(len(times.seconds))
    for _ in range(30):
        expected = latency * times.latencies + per_byte * times.size_bytes
        relative = times.seconds / expected - 1
        scale = max(_MAD * float(np.median(np.abs(relative))), 1e-6)
        weight = np.minimum(1.0, _HUBER * scale / np.maximum(np.abs(relative), 1e-12))
        before = latency, per_byte
        latency, per_byte = _solve(times.latencies, times.size_bytes, times.seconds, np.sqrt(weight) / expected)
        if np.allclose(before, (latency, per_byte), rtol=1e-6):
            break
    return _make_fit(times, latency, per_byte, weight)


def _solve(latencies: Floats, size_bytes: Floats, seconds: Floats, scale: Floats) -> tuple[float, float]:
    """Solve the row-scaled least-squares problem for (latency >= 0, seconds per byte > 0)."""
    rows = np.column_stack((latencies, size_bytes)) * scale[:, None]
    right = seconds * scale
    (latency, per_byte), *_ = np.linalg.lstsq(rows, right)
    if latency < 0:
        latency, per_byte = 0.0, float(rows[:, 1] @ right / (rows[:, 1] @ rows[:, 1]))
    if per_byte <= 0:  # the bandwidth is not visible: bound it by the fastest probe
        per_byte = float((seconds / size_bytes).min() / 10)
        latency = max(float(np.median((seconds - per_byte * size_bytes) / latencies)), 0.0)
    return float(latency), float(per_byte)


def _make_fit(times: _LinkTimes, latency: float, per_byte: float, weight: Floats) -> LinkFit:
    expected = latency * times.latencies + per_byte * times.size_bytes
    relative = times.seconds / expected - 1
    rows = np.column_stack((times.latencies, times.size_bytes)) / expected[:, None]
    inside = float((weight >= 1).mean())  # variance of a Huber estimate: weighted errors over the share of full weight
    noise = float(((weight * relative) ** 2).sum() / max(len(relative) - 2, 1)) / max(inside, 0.1) ** 2
    covariance = noise * np.linalg.inv(rows.T @ rows)
    error = _CONFIDENCE * np.sqrt(np.maximum(np.diag(covariance), 0))
    bandwidth = 1e-9 / per_byte
    return LinkFit(
        times.link,
        latency_us=latency * 1e6,
        latency_error_us=float(error[0]) * 1e6,
        bandwidth_GBps=bandwidth,
        bandwidth_error_GBps=bandwidth * float(error[1]) / per_byte,
        residual=float(np.median(np.abs(relative))),
        samples=len(relative),
        outliers=tuple(_outliers(times)),
    )


def _outliers(times: _LinkTimes) -> list[str]:
    """Describe the times that are far from the median of their kind."""
    found = []
    for kind in np.unique(times.kind):
        of_kind = times.kind == kind
        seconds = times.seconds[of_kind]
        medians = float(np.median(seconds))
        spread = max(_MAD * float(np.median(np.abs(seconds - medians))), 0.02 * medians)
        for far in seconds[np.abs(seconds - medians) > _FAR * spread].tolist():
            size = format_bytes(float(times.size_bytes[of_kind][0]))
            found.append(f"{link_name(times.link)}, {size}: {format_us(far * 1e6)}, usually {format_us(medians * 1e6)}")
    return found
