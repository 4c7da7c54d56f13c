"""From stages and segments to the messages and chunks of a plan."""

import numpy as np
from numpy.typing import NDArray

from flowccl.moe.blocks import Blocks
from flowccl.moe.lane_kernels import StageRows
from flowccl.moe.layout import HostLayout
from flowccl.moe.plan import Chunks, PlanMessages
from flowccl.moe.plan_kernels import messages_of
from flowccl.moe.plan_params import PlanParams
from flowccl.moe.table_kernels import LaneSegments
from flowccl.moe.tables import PlannerTables

Ints = NDArray[np.int64]


def made(
    layout: HostLayout,
    tables: PlannerTables,
    blocks: Blocks,
    lane_bytes: Ints,
    segments: LaneSegments,
    rows: StageRows,
    length: float,
    params: PlanParams,
    unit_bytes: int,
) -> tuple[PlanMessages, Chunks]:
    """Return the messages and chunks of segments whose lanes send in the order of stages; all stages take `length`."""
    horizon = length if length > 0 else float(blocks.bytes.sum()) * tables.slowest_ps
    messages, chunks = messages_of(
        rows, lane_bytes, unit_bytes, blocks.tables, segments, tables.pairs, layout.paths.tables, horizon,
        params.pieces, params.lead * length, layout.hosts, len(layout.host_of),
    )  # fmt: skip
    return PlanMessages(*messages), Chunks(*chunks)
