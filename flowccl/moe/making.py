"""From stages and segments to the messages and chunks of a plan."""

import numpy as np
from numpy.typing import NDArray

from flowccl.moe.blocks import Blocks
from flowccl.moe.lane_kernels import StageRows
from flowccl.moe.layout import HostLayout
from flowccl.moe.plan import Chunks, PlanMessages
from flowccl.moe.plan_kernels import messages_of
from flowccl.moe.plan_params import PlanParams
from flowccl.moe.tables import PlannerTables

Ints = NDArray[np.int64]


def made(
    layout: HostLayout,
    tables: PlannerTables,
    blocks: Blocks,
    lane_bytes: Ints,
    segments: tuple[Ints, Ints, Ints, Ints],
    rows: StageRows,
    length: float,
    params: PlanParams,
    unit_bytes: int,
) -> tuple[PlanMessages, Chunks]:
    """Return the messages and chunks of segments whose lanes send in the order of stages; all stages take `length`."""
    paths = layout.paths
    horizon = length if length > 0 else float(blocks.bytes.sum()) * tables.slowest_ps
    messages, chunks = messages_of(
        *rows, tables.lane_at, lane_bytes, unit_bytes, blocks.ptr, blocks.source, blocks.bytes, blocks.to_ptr,
        blocks.to, *segments, tables.lane_in, tables.lane_pair, paths.slot, paths.place, tables.pair_turn,
        tables.inside_GBps, horizon, params.pieces, params.lead * length, layout.hosts, tables.most, paths.dst,
        paths.path_ptr, paths.path_route, paths.route_GBps, paths.route_latency_ps, paths.route_overhead_ps,
        paths.route_overhead_GBps, paths.use_ptr, paths.use_resource, paths.use_offset_ps, paths.use_more_ps,
        tables.server_ptr, paths.quick, len(layout.host_of),
    )  # fmt: skip
    return PlanMessages(*messages), Chunks(*chunks)
