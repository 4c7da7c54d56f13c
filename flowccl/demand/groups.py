"""Process groups and late data: demands over some GPUs of a machine, and sources whose data is ready later."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from flowccl.demand.collectives import ROOTED, collective, collective_name
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError


def in_group(demand: Demand, group: Sequence[int], num_gpus: int, relays: Sequence[int] | None = None) -> Demand:
    """Return a demand over len(group) ranks, mapped to a group: its rank r becomes GPU group[r] of `num_gpus` GPUs.

    `relays` are the GPUs outside the group that may forward chunks; None means all of them.
    """
    members = _checked(group, num_gpus)
    if demand.num_gpus != len(members):
        raise DemandError(f"group: the demand is for {demand.num_gpus} gpus, the group has {len(members)}")
    place = np.array(members, dtype=np.int32)
    return replace(
        demand,
        num_gpus=num_gpus,
        source_rank=place[demand.source_rank],
        destination_rank=place[demand.destination_rank],
        group=members,
        relays=None if relays is None else tuple(relays),
    )


def group_collective(
    name: str,
    size_bytes: int,
    group: Sequence[int],
    num_gpus: int,
    *,
    chunks: int = 1,
    root: int | None = None,
    relays: Sequence[int] | None = None,
) -> Demand:
    """Return a named collective over a group of GPUs; the root is a GPU of the group, by default the first."""
    members = _checked(group, num_gpus)
    known = collective_name(name)
    if root is not None and root not in members:
        raise DemandError(f"{known}: root {root} is not in the group")
    if root is not None and known not in ROOTED:
        raise DemandError(f"{known} has no root, got root {root}")
    place = 0 if root is None else members.index(root)
    return in_group(collective(known, len(members), size_bytes, chunks, place), members, num_gpus, relays)


def with_late(demand: Demand, late_ps: Mapping[int, int]) -> Demand:
    """Return the demand with the data of rank r available only `late_ps[r]` picoseconds after the start."""
    delay = np.zeros(demand.num_gpus, dtype=np.int64)
    for rank, ps in late_ps.items():
        if not 0 <= rank < demand.num_gpus:
            raise DemandError(f"late: rank {rank} is not a gpu; ranks are 0 to {demand.num_gpus - 1}")
        if ps < 0:
            raise DemandError(f"late: the delay of rank {rank} must be at least 0 us, got {ps / 1e6:g} us")
        delay[rank] = ps
    return replace(demand, ready_ps=np.maximum(demand.available_ps, delay[demand.source_rank]))


def parse_ranks(text: str, num_gpus: int, what: str = "group") -> tuple[int, ...]:
    """Return the ranks in text such as "0-7,16-23" or "0,2,4"; each must exist and be named once."""
    ranks: list[int] = []
    for part in text.split(","):
        ends = part.strip().split("-")
        if not all(end.strip().isdecimal() for end in ends) or len(ends) > 2:
            raise DemandError(
                f"{what}: {part.strip()!r} is not a rank or a range of ranks; write for example 0-7,16-23"
            )
        first, last = int(ends[0]), int(ends[-1])
        if last < first:
            raise DemandError(f"{what}: the range {part.strip()} runs backwards; write {last}-{first}")
        if last >= num_gpus:
            raise DemandError(f"{what}: rank {last} is not a gpu; ranks are 0 to {num_gpus - 1}")
        ranks += range(first, last + 1)
    _check_once(ranks, what)
    return tuple(ranks)


def _checked(group: Sequence[int], num_gpus: int) -> tuple[int, ...]:
    for rank in group:
        if not 0 <= rank < num_gpus:
            raise DemandError(f"group: rank {rank} is not a gpu; ranks are 0 to {num_gpus - 1}")
    _check_once(list(group), "group")
    if len(group) < 2:
        raise DemandError(f"group: needs at least 2 gpus, got {len(group)}")
    return tuple(int(rank) for rank in group)


def _check_once(ranks: list[int], what: str) -> None:
    seen: set[int] = set()
    for rank in ranks:
        if rank in seen:
            raise DemandError(f"{what}: rank {rank} is named twice")
        seen.add(rank)
