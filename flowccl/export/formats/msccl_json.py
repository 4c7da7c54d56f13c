"""The exchange format of msccl-tools (.msccl.json), which `msccl ncclize` lowers to XML.

The format has steps, not times: all sends of a step start together and carry the data that earlier steps delivered. An
address is a chunk of data; if several ranks contribute to it, each contribution is a separate chunk at that address.
"""

from typing import Any

from flowccl.errors import InputError
from flowccl.export.lowering.moves import Event, Move, moves_of, order_events
from flowccl.schedule.schedule import Schedule

_RUNTIME = {"allgather": "allgather", "alltoall": "alltoall", "allreduce": "allreduce"}


def msccl_json(schedule: Schedule) -> dict[str, Any]:
    """Return the schedule as a JSON value."""
    demand, gpus = schedule.demand, schedule.demand.num_gpus
    if demand.collective == "alltoallv":
        raise InputError("msccl-json does not support alltoallv: all chunks of the format have the same size")
    moves = moves_of(schedule)
    steps = _steps(moves, order_events(moves, 1, ahead=True))
    rounds = [_busiest(step) for step in steps]
    links = [[0] * gpus for _ in range(gpus)]
    for move in moves:
        links[move.dst][move.src] = 1
    chunks_of: dict[str, list[list[int]]] = {"input": [[] for _ in range(gpus)], "output": [[] for _ in range(gpus)]}
    chunks = []
    for address in range(len(demand)):
        sources, wanted = demand.sources(address).tolist(), demand.destinations(address).tolist()
        post = sorted({*wanted, *sources} if len(sources) == 1 and demand.collective == "allgather" else wanted)
        for rank in sources:
            chunks_of["input"][rank].append(address)
            chunks.append({"msccl_type": "chunk", "pre": [rank], "post": post, "addr": address})
        for rank in post:
            chunks_of["output"][rank].append(address)
    return {
        "msccl_type": "algorithm",
        "name": f"flowccl-{demand.collective}-{schedule.topology.name}",
        "instance": {
            "msccl_type": "instance",
            "steps": len(steps),
            "extra_rounds": sum(rounds) - len(steps),
            "chunks": 1,
            "pipeline": None,
            "extra_memory": None,
            "allow_exchange": True,
        },
        "input_map": {str(rank): found for rank, found in enumerate(chunks_of["input"]) if found},
        "output_map": {str(rank): found for rank, found in enumerate(chunks_of["output"]) if found},
        "steps": [
            {
                "msccl_type": "step",
                "rounds": count,
                "sends": sorted([move.chunk, move.src, move.dst] for move in step),
            }
            for count, step in zip(rounds, steps, strict=True)
        ],
        "collective": {
            "msccl_type": "collective",
            "name": f"{demand.collective}(n={gpus})",
            "nodes": gpus,
            "chunks": chunks,
            "triggers": {},
            "runtime_name": _RUNTIME.get(demand.collective, "custom"),
        },
        "topology": {"msccl_type": "topology", "name": schedule.topology.name, "switches": [], "links": links},
    }


def _busiest(step: list[Move]) -> int:
    """Return the number of sends of the busiest pair of GPUs in a step."""
    pairs = [(move.src, move.dst) for move in step]
    return max(pairs.count(pair) for pair in set(pairs))


def _steps(moves: list[Move], events: list[Event]) -> list[list[Move]]:
    """Group moves by step: after the arrival of the chunk, and not before the last read of the data it replaces."""
    level = [0] * len(moves)
    arrived: dict[tuple[int, int], int] = {}
    read: dict[tuple[int, int], int] = {}
    for event in events:
        move = moves[event.move]
        if event.sends:
            level[event.move] = arrived.get((move.src, move.chunk), -1) + 1
            key = move.src, move.chunk
            read[key] = max(read.get(key, 0), level[event.move])
            continue
        key = move.dst, move.chunk
        before = arrived.get(key, -1) + (0 if move.reduce else 1)
        level[event.move] = max(level[event.move], before, read.get(key, 0))
        arrived[key] = level[event.move]
    steps: list[list[Move]] = [[] for _ in range(1 + max(level, default=-1))]
    for move, at in zip(moves, level, strict=True):
        steps[at].append(move)
    return steps
