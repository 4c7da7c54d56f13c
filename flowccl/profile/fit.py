"""Latency and bandwidth of each link, from times that are noisy and sometimes wrong.

A probe takes latencies x latency + bytes / bandwidth (TACCL section 2.1). Two numbers explain all times of a link: by
least squares on relative errors with Huber's weights, from a start on the medians of each kind of probe, so that a few
times that are far off move nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.profile.measurements import Floats, Measured, link_name
from flowccl.profile.probes import Ends
from flowccl.units import format_bytes, format_us

_HUBER = 1.345  # in standard deviations: 95 % as good as least squares where nothing is wrong
_FAR = 6.0  # in standard deviations: named as an outlier
_CONFIDENCE = 1.96  # standard deviations: 95 %
_MAD = 1.4826  # median absolute deviation -> standard deviation


@dataclass(frozen=True)
class LinkFit:
    """A link as measured; `*_error` is half of the 95 % interval, `residual` the median relative error of a time."""

    link: Ends
    latency_us: float
    latency_error_us: float
    bandwidth_GBps: float
    bandwidth_error_GBps: float
    residual: float
    samples: int
    outliers: tuple[str, ...] = ()

    def seconds(self, latencies: int, size_bytes: int) -> float:
        """How long a probe should take."""
        return latencies * self.latency_us * 1e-6 + size_bytes / (self.bandwidth_GBps * 1e9)


@dataclass(frozen=True, eq=False)
class _Times:
    """The times of one link: `kind` numbers the kinds of probes; unit rows of the two unknowns."""

    link: Ends
    kind: NDArray[np.int64]
    latencies: Floats
    size_bytes: Floats
    seconds: Floats


def fit_links(measured: Iterable[Measured]) -> dict[Ends, LinkFit]:
    """Every link that was probed alone in at least two kinds of probes; the others are left out."""
    by_link: dict[Ends, list[Measured]] = {}
    for one in measured:
        if one.probe.alone:
            by_link.setdefault(one.probe.links[0], []).append(one)
    found = {}
    for link, probes in sorted(by_link.items()):
        times = _times(link, probes)
        if len(set(zip(times.latencies.tolist(), times.size_bytes.tolist(), strict=True))) >= 2:
            found[link] = _fit(times)
    return found


def _times(link: Ends, probes: list[Measured]) -> _Times:
    seconds = [one.seconds[:, 0][one.sane[:, 0]] for one in probes]
    counts = [len(part) for part in seconds]
    return _Times(
        link,
        np.repeat(np.arange(len(probes)), counts),
        np.repeat([float(one.probe.latencies) for one in probes], counts),
        np.repeat([float(one.probe.link_bytes[0]) for one in probes], counts),
        np.concatenate([*seconds, np.empty(0)]),
    )


def _fit(times: _Times) -> LinkFit:
    kinds = np.unique(times.kind)
    middle = np.array([np.median(times.seconds[times.kind == kind]) for kind in kinds])
    first = np.searchsorted(times.kind, kinds)
    latency, per_byte = _solve(times.latencies[first], times.size_bytes[first], middle, 1 / middle)
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
    return _described(times, latency, per_byte, weight)


def _solve(latencies: Floats, size_bytes: Floats, seconds: Floats, scale: Floats) -> tuple[float, float]:
    """Least squares of rows that are scaled; a latency is not negative, and some time per byte remains."""
    rows = np.column_stack((latencies, size_bytes)) * scale[:, None]
    right = seconds * scale
    (latency, per_byte), *_ = np.linalg.lstsq(rows, right)
    if latency < 0:
        latency, per_byte = 0.0, float(rows[:, 1] @ right / (rows[:, 1] @ rows[:, 1]))
    if per_byte <= 0:  # nothing seen of the bandwidth: as much as the fastest probe shows
        per_byte = float((seconds / size_bytes).min() / 10)
        latency = max(float(np.median((seconds - per_byte * size_bytes) / latencies)), 0.0)
    return float(latency), float(per_byte)


def _described(times: _Times, latency: float, per_byte: float, weight: Floats) -> LinkFit:
    expected = latency * times.latencies + per_byte * times.size_bytes
    relative = times.seconds / expected - 1
    rows = np.column_stack((times.latencies, times.size_bytes)) / expected[:, None]
    inside = float((weight >= 1).mean())  # Huber's variance: of the errors as they count, over the share that count
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


def _outliers(times: _Times) -> list[str]:
    """Times that are far from the others of the same kind, in words."""
    found = []
    for kind in np.unique(times.kind):
        mine = times.kind == kind
        seconds = times.seconds[mine]
        middle = float(np.median(seconds))
        spread = max(_MAD * float(np.median(np.abs(seconds - middle))), 0.02 * middle)
        for far in seconds[np.abs(seconds - middle) > _FAR * spread].tolist():
            size = format_bytes(float(times.size_bytes[mine][0]))
            found.append(f"{link_name(times.link)}, {size}: {format_us(far * 1e6)}, usually {format_us(middle * 1e6)}")
    return found
