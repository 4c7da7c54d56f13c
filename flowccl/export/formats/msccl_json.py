"""The exchange format of msccl-tools (.msccl.json), which `msccl ncclize` lowers to XML.

It knows steps, not times: everything in a step leaves at once, with what the steps before brought. An address is a
chunk of data; where several contribute to it, each contribution is a chunk of its own at that address.
"""

from typing import Any

from flowccl.errors import InputError
from flowccl.export.lowering.moves import Event, Move, moves_of, order_events
from flowccl.schedule.schedule import Schedule

_RUNTIME = {"allgather": "allgather", "alltoall": "alltoall", "allreduce": "allreduce"}


def msccl_json(schedule: Schedule) -> dict[str, Any]:
    """The schedule as a value for JSON."""
    demand, gpus = schedule.demand, schedule.demand.num_gpus
    if demand.collective == "alltoallv":
        raise InputError("msccl-json has no alltoallv: all its chunks have the same size")
    moves = moves_of(schedule)
    steps = _steps(moves, order_events(moves, 1, ahead=True))
    rounds = [_busiest(step) for step in steps]
    links = [[0] * gpus for _ in range(gpus)]
    for move in moves:
        links[move.dst][move.src] = 1
    held: dict[str, list[list[int]]] = {"input": [[] for _ in range(gpus)], "output": [[] for _ in range(gpus)]}
    chunks = []
    for address in range(len(demand)):
        sources, wanted = demand.sources(address).tolist(), demand.destinations(address).tolist()
        post = sorted({*wanted, *sources} if len(sources) == 1 and demand.collective == "allgather" else wanted)
        for rank in sources:
            held["input"][rank].append(address)
            chunks.append({"msccl_type": "chunk", "pre": [rank], "post": post, "addr": address})
        for rank in post:
            held["output"][rank].append(address)
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
        "input_map": {str(rank): found for rank, found in enumerate(held["input"]) if found},
        "output_map": {str(rank): found for rank, found in enumerate(held["output"]) if found},
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
    """How often the busiest pair of GPUs is used in a step."""
    pairs = [(move.src, move.dst) for move in step]
    return max(pairs.count(pair) for pair in set(pairs))


def _steps(moves: list[Move], events: list[Event]) -> list[list[Move]]:
    """Moves by step: after what brought the chunk, not before what still reads the chunk it replaces."""
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
