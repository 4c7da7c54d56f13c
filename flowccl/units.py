"""Parsing, conversion and formatting of units; no other module does this.

Internally, time is int64 picoseconds and data is whole bytes. Users write "64MB", "12.5GB/s" or "0.7us".
Sizes are decimal: 1 KB = 1000 bytes, 1 KiB = 1024 bytes. A number without a unit is bytes, GB/s or microseconds.
"""

import math
import re

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import InputError

PS_PER_US = 1_000_000

_NUMBER = re.compile(r"\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ/]*)\s*")

_BYTES = {"": 1, "B": 1}
_BYTES |= {f"{prefix}B": 1000**power for power, prefix in enumerate("KMGTP", start=1)}
_BYTES |= {f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGTP", start=1)}
_BYTES |= {"kB": 1000, "K": 1000, "k": 1000, "M": 1000**2, "G": 1000**3}

_GBPS = {"": 1.0, "B/s": 1e-9, "KB/s": 1e-6, "MB/s": 1e-3, "GB/s": 1.0, "TB/s": 1e3, "GBps": 1.0}
_GBPS |= {"MiB/s": 1024**2 / 1e9, "GiB/s": 1024**3 / 1e9}
_GBPS |= {"Mb/s": 1e-3 / 8, "Gb/s": 1 / 8, "Tb/s": 1e3 / 8, "Gbps": 1 / 8, "Gbit/s": 1 / 8}

_US = {"": 1.0, "ps": 1e-6, "ns": 1e-3, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}


def parse_bytes(value: str | float, what: str = "size") -> int:
    """Return the bytes in "64MB", "1KiB" or a number of bytes, as a whole number of at least 1."""
    number = value if type(value) is int else _parse(value, _BYTES, what, "64MB, 1KiB or 4096")
    if number < 0:
        raise InputError(f"{what} {value!r}: must not be negative")
    if number < 1:
        raise InputError(f"{what} {value!r}: must be at least 1 byte")
    if number != int(number):
        raise InputError(f"{what} {value!r}: {number:g} bytes is not a whole number of bytes")
    if number > 2**60:
        raise InputError(f"{what} {value!r}: must be at most 2^60 bytes")
    return int(number)


def parse_GBps(value: str | float, what: str = "bandwidth_GBps") -> float:
    """Return the GB/s in "12.5GB/s", "400Gb/s" or a number of GB/s; always positive."""
    number = _parse(value, _GBPS, what, "12.5GB/s, 100Gb/s or 12.5")
    if number <= 0:
        raise InputError(f"{what} must be > 0, got {value}")
    if not 1e-6 <= number <= 1e9:
        raise InputError(f"{what} must be between 1e-6 and 1e9 GB/s, got {value}")
    return number


def parse_us(value: str | float, what: str = "latency_us") -> float:
    """Return the microseconds in "0.7us", "300ns" or a number of microseconds; never negative."""
    number = _parse(value, _US, what, "0.7us, 300ns or 0.7")
    if number < 0:
        raise InputError(f"{what} must be >= 0, got {value}")
    if number > 1e9:
        raise InputError(f"{what} must be at most 1e9 us, got {value}")
    return number


def _parse(value: str | float, scale: dict[str, float] | dict[str, int], what: str, example: str) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError(f"{what}: expected text or a number such as {example}, got {type(value).__name__}")
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        if match is None or match[2] not in scale:
            raise InputError(f"{what}: cannot read {value!r}; write for example {example}")
        factor = scale[match[2]]
        number = float(match[1]) / (1 / factor) if factor < 1 else float(match[1]) * factor
    else:
        if isinstance(value, int) and abs(value) > 10**300:
            raise InputError(f"{what} is too large, got {str(value)[:12]}...")
        number = float(value)
    if not math.isfinite(number):
        raise InputError(f"{what}: must be finite, got {value}")
    return number


def us_to_ps(us: float) -> int:
    """Return picoseconds, rounded up; values that are whole up to floating-point noise are not rounded up."""
    return math.ceil(round(us * PS_PER_US, 3))


def ps_to_us(ps: float) -> float:
    """Return microseconds as a float, for output and files."""
    return ps / PS_PER_US


def busy_ps(size_bytes: int, bandwidth_GBps: float) -> int:
    """Return the time for which a link is busy with a message: ceil(bytes * 1000 / GBps) picoseconds."""
    return math.ceil(size_bytes * 1000.0 / bandwidth_GBps)


def busy_times_ps(size_bytes: NDArray[np.int64], bandwidth_GBps: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return `busy_ps` of each entry of two arrays."""
    return np.ceil(size_bytes * 1000.0 / bandwidth_GBps).astype(np.int64)


def with_overhead_GBps(size_bytes: int, bandwidth_GBps: float, overhead_ps: int) -> float:
    """Return the bandwidth at which the bytes alone take as long as overhead plus bytes at the given bandwidth."""
    if not overhead_ps:
        return bandwidth_GBps
    return size_bytes * 1000.0 / (overhead_ps + busy_ps(size_bytes, bandwidth_GBps))


def format_bytes(size_bytes: float) -> str:
    """1000000 -> "1 MB"."""
    for unit, scale in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if abs(size_bytes) >= scale:
            return f"{size_bytes / scale:.4g} {unit}"
    return f"{size_bytes:.4g} B"


def format_us(us: float) -> str:
    """43.17 -> "43.17 us", 40471.0 -> "40.47 ms"."""
    for unit, scale in (("s", 1e6), ("ms", 1e3)):
        if abs(us) >= scale:
            return f"{us / scale:.4g} {unit}"
    return f"{us:.4g} us"


def format_GBps(bandwidth_GBps: float) -> str:
    """12.5 -> "12.5 GB/s"."""
    return f"{bandwidth_GBps:.4g} GB/s"
