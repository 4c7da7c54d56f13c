"""Tables that compiled loops share, as tuples of arrays."""

from typing import NamedTuple

from flowccl.compiled import F64, I32, I64


class BlockArrays(NamedTuple):
    """The arrays of `Blocks`."""

    ptr: I64
    source: I32
    bytes: I64
    to_ptr: I64
    to: I32


class PathTables(NamedTuple):
    """What placing messages needs of `Paths`: the pair's receiver, its routes, and the resources that these hold.

    Resource r has the places `server_ptr[r]` to `server_ptr[r + 1] - 1`. Row p of `quick` has, for pairs with one route
    over one or two links: GB/s, latency, overhead, GB/s with the overhead, and resource and offset of the first and of
    the last link.
    """

    dst: I64
    path_ptr: I64
    path_route: I64
    route_GBps: F64
    route_latency_ps: I64
    route_overhead_ps: I64
    route_overhead_GBps: F64
    use_ptr: I64
    use_resource: I64
    use_offset_ps: I64
    use_more_ps: I64
    server_ptr: I64
    quick: F64


class PairTables(NamedTuple):
    """The pairs of GPUs inside hosts, and the lanes.

    The pair of GPUs a and b of a host is `slot[a] + place[b]`; its bandwidth is `inside_GBps`, and b is `turn` places
    behind a. Lane `at[rail, a * hosts + b]` goes from host a to host b over a rail (-1: there is none), to GPU
    `lane_in`; it is pair `lane_pair`. No host has more than `widest` GPUs.
    """

    slot: I64
    place: I64
    inside_GBps: F64
    turn: I64
    at: I64
    lane_in: I64
    lane_pair: I32
    widest: int


class LaneSegments(NamedTuple):
    """What lanes carry, see `assign`."""

    ptr: I64
    rows: I64
    gathered: I64
    fanned: I64
