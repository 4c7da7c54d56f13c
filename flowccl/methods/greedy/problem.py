"""What a run of the list scheduler is given: the machine, the demand, and how it chooses."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]


class Net(NamedTuple):
    """The machine: pairs of storing nodes, their routes ("paths"), links and limits."""

    node_ptr: I64  # pairs of each node
    pair_src: I32
    pair_end: I32
    pair_cost: F64
    path_ptr: I64  # paths of each pair
    hop_ptr: I64  # hops of each path
    hop_link: I32
    hop_offset: I64
    hop_segment: I64  # counted from 0 in each path
    segment_ptr: I64  # segments of each path
    segment_GBps: F64
    distance: F64  # node x node
    link_src: I32
    link_GBps: F64
    link_latency: I64
    copies: Bool  # of each node
    cuts_through: Bool
    buffer: I64  # bytes, or -1
    limit_ptr: I64  # limits of each link
    limit_of: I32
    limit_GBps: F64
    change_ptr: I64  # changes of bandwidth of each link
    change_from: I64
    change_GBps: F64


class Work(NamedTuple):
    """The demand: chunks with one source each."""

    chunk_bytes: I64
    source: I32
    ready: I64  # when each chunk is there
    destination_ptr: I64
    destination: I32


class Knobs(NamedTuple):
    """How one run chooses: weights of the score, noise on it, patience with slow links, when to give up."""

    seed: int
    gain_weight: float
    tail_weight: float
    noise: float
    patience: float
    give_up_ps: int
