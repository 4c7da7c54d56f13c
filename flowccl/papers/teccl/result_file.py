"""The result JSON of TE-CCL, so that TE-CCL's tables and figures can be made from flowccl's schedules.

TE-CCL counts epochs, but a schedule in continuous time has none. An epoch is therefore the shortest time for which a
transfer of the schedule occupies a link, and a transfer belongs to the epoch in which it starts. Times are in seconds
and bandwidths in GB/s, as in TE-CCL.
"""

import re
from collections.abc import Iterator
from typing import Any

from flowccl.errors import InputError
from flowccl.schedule.schedule import Schedule

_FLOW = re.compile(r"Chunk (\d+) from (\d+) traveled over (\d+)->(\d+) in epoch (\d+)( via switches [\d,]+)?")
_CLOSE = 1e-9  # relative tolerance for times
_PS_PER_S = 1e12


def teccl_json(schedule: Schedule) -> dict[str, Any]:
    """Return the schedule under TE-CCL's keys; nodes have flowccl's numbers, switches after the GPUs."""
    demand, timing, topology = schedule.demand, schedule.timing, schedule.topology
    if demand.reduces:
        raise InputError(
            f"teccl does not support {demand.collective}: it has no reductions; export allgather or alltoall"
        )
    if not len(schedule):
        raise InputError("the schedule has no transfers")
    epoch_ps = int((timing.hop_to_ps - timing.hop_from_ps).min())
    source = demand.source.tolist()
    place = _places(source)
    met: dict[str, dict[str, dict[str, float]]] = {}
    flows = []
    arrival = {
        (int(schedule.chunk[i]), int(node)): int(at)
        for i, node, at in zip(timing.end_transfer, timing.end_node, timing.end_arrival_ps, strict=True)
    }
    for chunk, rank in zip(demand.destination_chunk.tolist(), demand.destination_rank.tolist(), strict=True):
        row = met.setdefault(f"GPU {rank}", {}).setdefault(f"GPU {source[chunk]}", {})
        row[f"Chunk {place[chunk]}"] = arrival[chunk, rank] / _PS_PER_S
    root = dict(zip(timing.root_transfer.tolist(), timing.root_node.tolist(), strict=True))
    for i, end in sorted(zip(timing.end_transfer.tolist(), timing.end_node.tolist(), strict=True)):
        links = schedule.routes.links(int(schedule.route[i]))
        ends = [topology.links[link].dst for link in links]
        switches = [str(node) for node in ends if not topology.nodes[node].stores]
        chunk, start = int(schedule.chunk[i]), int(schedule.start_ps[i])
        via = f" via switches {','.join(switches)}" if switches else ""
        what = f"Chunk {place[chunk]} from {source[chunk]} traveled over {root[i]}->{end}"
        flows.append((start, f"{what} in epoch {start // epoch_ps}{via}"))
    finish_s = schedule.finish_ps / _PS_PER_S
    return {
        "1-Epoch_Duration": epoch_ps / _PS_PER_S,
        "2-Expected_Epoch_Duration": epoch_ps / _PS_PER_S,
        "3-Epochs_Required": -(-schedule.finish_ps // epoch_ps),
        "4-Collective_Finish_Time": finish_s,
        "5-Algo_Bandwidth": demand.size_bytes / 1e9 / finish_s,
        "6-Demand_Met": met,
        "7-Flows": [text for _, text in sorted(flows)],
    }


def _places(source: list[int]) -> list[int]:
    """Return the index of each chunk among the chunks of its source, as TE-CCL numbers them."""
    seen: dict[int, int] = {}
    places = []
    for rank in source:
        places.append(seen.get(rank, 0))
        seen[rank] = places[-1] + 1
    return places


def followed(value: dict[str, Any]) -> tuple[str, int, Iterator[tuple[str, str]]]:
    """Return what a result is about, the number of its flows, and (kind, words) for everything that is wrong with it.

    Flows are followed in the order of the file; each must leave a GPU that has the chunk. At the end, every demand that
    the file lists as met has arrived, none later than the finish.
    """
    flows = [_flow(text) for text in value["7-Flows"]]
    met = [
        (_number(chunk), _number(source), _number(rank), float(at))
        for rank, sources in value["6-Demand_Met"].items()
        for source, row in sources.items()
        for chunk, at in row.items()
    ]
    about = f"{len(met)} demands in {int(value['3-Epochs_Required'])} epochs"
    end = float(value["4-Collective_Finish_Time"])
    epochs = int(value["3-Epochs_Required"]) * float(value["1-Epoch_Duration"])
    return about, len(flows), _met(flows, met, end, epochs)


def _flow(text: str) -> tuple[int, int, int, int, int]:
    found = _FLOW.fullmatch(text)
    if found is None:
        raise ValueError(f"flow {text!r}")
    chunk, source, src, dst, epoch = map(int, found.groups()[:5])
    return chunk, source, src, dst, epoch


def _number(text: str) -> int:
    return int(text.split(" ")[1])


def _met(
    flows: list[tuple[int, int, int, int, int]], met: list[tuple[int, int, int, float]], end: float, epochs: float
) -> Iterator[tuple[str, str]]:
    has: set[tuple[int, int, int]] = set()  # rank, source, chunk
    last = 0
    for chunk, source, src, dst, epoch in flows:
        place = f"chunk {chunk} from {source} over {src}->{dst} in epoch {epoch}"
        if epoch < last:
            yield ("order", f"{place}: comes after a flow of epoch {last}")
        if src != source and (src, source, chunk) not in has:
            yield ("order", f"{place}: the sender does not have the data yet")
        last = max(last, epoch)
        has.add((dst, source, chunk))
    for chunk, source, rank, at in met:
        if (rank, source, chunk) not in has:
            yield ("result", f"rank {rank} never gets chunk {chunk} from {source}")
        if at > end * (1 + _CLOSE):
            yield ("result", f"chunk {chunk} from {source} reaches rank {rank} after the finish")
    if end > epochs * (1 + _CLOSE):
        yield ("limit", f"the finish, {end:g} s, is after the last epoch, {epochs:g} s")
