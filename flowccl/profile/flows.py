"""Concurrent flows that share links and limits max-min fairly: their rates and completion times."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Uses = NDArray[np.bool_]
"""`uses[i, j]`: whether flow i uses resource j, a link or a limit."""


def fair_rates(uses: Uses, capacity: Floats) -> Floats:
    """Max-min fair rates of flows that use the resources `uses[i]` with the given capacities.

    Progressive filling: the resource with the smallest fair share saturates first, and the rates of its flows are
    subtracted from the other capacities.
    """
    rates = np.zeros(len(uses))
    waiting = np.ones(len(uses), dtype=np.bool_)
    left = capacity.astype(np.float64).copy()
    while waiting.any():
        count = uses[waiting].sum(axis=0)
        share = np.where(count > 0, left / np.maximum(count, 1), np.inf)
        tightest = int(np.argmin(share))
        filled = waiting & uses[:, tightest]
        rates[filled] = max(float(share[tightest]), 1e-9)
        left = np.maximum(left - uses[filled].sum(axis=0) * share[tightest], 0.0)
        waiting &= ~filled
    return rates


def flow_s(uses: Uses, capacity: Floats, size_bytes: Floats) -> Floats:
    """Completion time of each flow in seconds if all start together; rates are recomputed after each completion."""
    left, end = size_bytes.astype(np.float64).copy(), np.zeros(len(uses))
    flowing, now = left > 0, 0.0
    while flowing.any():
        rates = fair_rates(uses[flowing], capacity)
        step = float((left[flowing] / rates).min())
        now += step
        left[flowing] -= rates * step
        through = flowing & (left <= 1e-9 * size_bytes)
        end[through] = now
        flowing &= ~through
    return end
