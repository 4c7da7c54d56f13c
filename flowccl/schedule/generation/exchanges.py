"""Exchanges: two nodes send each other partial reductions, so that both must send before they receive.

Each of the two transfers thus waits for the other one, and no order of them serves both. In list scheduling, both wait
for the data of both nodes instead: one may start before the other's data is there, by at most half the time that it
takes itself. That leaves the other half to the other one, which may have to wait for its link. Whether it was in time
is checked in the end.
"""

import numpy as np
from numpy.typing import NDArray

from flowccl.schedule.generation.precedence import Triples

I64 = NDArray[np.int64]


def without_mutual(waits: Triples, takes_ps: I64) -> tuple[Triples, Triples]:
    """Take the pairs of transfers that wait for each other out of constraints (before, after, lag).

    Returns the others, in which the two wait for the data of both, and those that were taken out. `takes_ps` is the
    time of each transfer.
    """
    before, after, lag = waits
    count = len(takes_ps)
    mutual = np.isin(before * count + after, after * count + before)
    partner = np.arange(count)
    partner[before[mutual]] = after[mutual]
    others = before[~mutual], after[~mutual], lag[~mutual]
    return waiting_for_both(others, partner, takes_ps), (before[mutual], after[mutual], lag[mutual])


def waiting_for_both(waits: Triples, partner: I64, takes_ps: I64) -> Triples:
    """Let each transfer also wait for the data of its partner, the transfer that it is exchanged for; or of itself."""
    before, after, lag = waits
    other = partner[after]
    rows = np.flatnonzero(other != after)
    early_ps = takes_ps[other[rows]] // 2
    return np.append(before, before[rows]), np.append(after, other[rows]), np.append(lag, lag[rows] - early_ps)


def keeps(waits: Triples, start_ps: I64) -> bool:
    """Whether starts satisfy constraints (before, after, lag)."""
    before, after, lag = waits
    return bool(np.all(start_ps[after] >= start_ps[before] + lag))
