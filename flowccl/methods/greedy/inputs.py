"""Inputs of a run of the list scheduler: the machine, the demand and the parameters, as arrays."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]


class GreedyNetwork(NamedTuple):
    """The machine: pairs of neighbouring storing nodes, the routes of each pair, and links."""

    node_ptr: I64  # pairs of each node
    pair_src: I32
    pair_end: I32
    pair_cost: F64
    route_ptr: I64  # routes of each pair
    hop_ptr: I64  # hops of each route
    hop_link: I32
    hop_offset: I64
    hop_segment: I64  # counted from 0 in each route
    segment_ptr: I64  # segments of each route
    segment_GBps: F64
    distance: F64  # node x node
    link_src: I32
    link_GBps: F64
    link_latency: I64
    copies: Bool  # of each node
    cuts_through: Bool
    buffer: I64  # bytes, or -1
    change_ptr: I64  # changes of bandwidth of each link
    change_from: I64
    change_GBps: F64


class GreedyDemand(NamedTuple):
    """The demand: chunks with one source each."""

    chunk_bytes: I64
    source: I32
    ready: I64  # time at which each chunk is available at its source
    destination_ptr: I64
    destination: I32


class GreedyParams(NamedTuple):
    """Parameters of one run: weights and noise of the score, patience with slow links, cutoff time."""

    seed: int
    gain_weight: float
    tail_weight: float
    noise: float
    patience: float
    cutoff_ps: int
