"""Collectives inside a switch (NVLS): which GPU issues the operation of each chunk.

A switch that reduces and copies needs one operation per chunk. For allreduce, a GPU loads the reduction of all
contributions through the switch and stores it to all GPUs (`glres`). For allgather, the source stores the chunk to all
GPUs (`gstore`). The GPU that issues an operation loads and stores all its data, so for allreduce each GPU issues the
operations of one block. A collective is lowered as a whole, in the order in which the schedule starts its chunks.
"""

import numpy as np

from flowccl.schedule.schedule import Schedule
from flowccl.topology.gpu_models import GPU_MODELS


def switch_issuers(schedule: Schedule) -> list[tuple[int, int]] | None:
    """Return (chunk, issuing rank) for every chunk in the order of the schedule; None if switches only forward.

    An allreduce must have a reduction inside a switch, an allgather a multicast. All GPUs must be on one host and have
    NVLS; a machine that does not name its GPU model has it if one of its switches reduces.
    """
    demand, ranks = schedule.demand, schedule.demand.num_gpus
    nodes = schedule.topology.nodes
    gpus = nodes[: schedule.topology.num_gpus]
    if len(gpus) != ranks or len({node.host for node in gpus}) > 1:
        return None
    models = {node.model for node in gpus if node.model}
    known = all(model in GPU_MODELS and GPU_MODELS[model].nvls for model in models)
    if not known or not (models or any(node.reduces for node in nodes[ranks:])):
        return None
    first = np.full(len(demand), np.iinfo(np.int64).max)
    np.minimum.at(first, schedule.chunk, schedule.start_ps)
    order = np.argsort(first, kind="stable").tolist()
    if demand.collective == "allgather" and len(schedule.timing.end_transfer) > len(schedule):
        source = demand.source_rank[demand.source_ptr[:-1]].tolist()
        return [(chunk, source[chunk]) for chunk in order]
    whole = demand.collective == "allreduce" and len(demand) == ranks * demand.pieces  # not a one-shot allreduce
    if whole and len(schedule.timing.root_transfer) > len(schedule):
        return [(chunk, chunk // demand.pieces) for chunk in order]
    return None
