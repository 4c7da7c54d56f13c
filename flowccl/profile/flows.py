"""What flows at once shares links and limits evenly: rates, and when each flow is through."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Uses = NDArray[np.bool_]
"""`uses[i, j]`: whether flow i needs thing j, a link or a limit."""


def fair_rates(uses: Uses, room: Floats) -> Floats:
    """Max-min fair rates of flows, where flow i uses what `uses[i]` says and each thing has so much room.

    The thing that gives its flows least fills first; what its flows take is gone for the others.
    """
    rates = np.zeros(len(uses))
    waiting = np.ones(len(uses), dtype=np.bool_)
    left = room.astype(np.float64).copy()
    while waiting.any():
        count = uses[waiting].sum(axis=0)
        share = np.where(count > 0, left / np.maximum(count, 1), np.inf)
        tightest = int(np.argmin(share))
        filled = waiting & uses[:, tightest]
        rates[filled] = max(float(share[tightest]), 1e-9)
        left = np.maximum(left - uses[filled].sum(axis=0) * share[tightest], 0.0)
        waiting &= ~filled
    return rates


def flow_s(uses: Uses, room: Floats, size_bytes: Floats) -> Floats:
    """When each flow is through, in seconds, if all begin at once; who is through leaves its share to the others."""
    left, end = size_bytes.astype(np.float64).copy(), np.zeros(len(uses))
    flowing, now = left > 0, 0.0
    while flowing.any():
        rates = fair_rates(uses[flowing], room)
        step = float((left[flowing] / rates).min())
        now += step
        left[flowing] -= rates * step
        through = flowing & (left <= 1e-9 * size_bytes)
        end[through] = now
        flowing &= ~through
    return end
