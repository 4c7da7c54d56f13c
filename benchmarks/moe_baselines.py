"""Other ways to run an alltoallv, as plans in the same clock as the planner's own.

fast        after the description of FAST (MangoBoost/FAST): balance inside hosts, then whole stages of a Birkhoff
            decomposition, while data that has crossed is passed on. In its favour, a network card does not wait for
            the others at the end of a stage, and stages with large entries come first
rails       every host balances what it sends over its network cards, and sends to the other hosts in turn (after RailS,
            arXiv 2510.19262, where hosts do not coordinate)
spread-out  no balancing; every GPU sends to the hosts behind its own in turn: shifted permutations
direct      no balancing; every GPU sends to all hosts in rank order

Each is planned with messages in pieces and with whole messages, and the earlier plan counts.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flowccl.moe.plan_params import DIRECT, FAST, RAILS, SPREAD_OUT
from flowccl.moe.planner import Planner

_PARAMS = {"fast": FAST, "rails": RAILS, "spread-out": SPREAD_OUT, "direct": DIRECT}
BASELINES = tuple(_PARAMS)


def baseline_us(name: str, planner: Planner, matrix: NDArray[np.int64]) -> float:
    """Return the completion time of a baseline."""
    pieces = _PARAMS[name]
    whole = replace(pieces, pieces=1, cuts=())
    return min(planner.plan(matrix, params=params).finish_us for params in {pieces, whole})
