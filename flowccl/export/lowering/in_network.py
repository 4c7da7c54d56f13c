"""Operations of a switch (NVLS): which transfers of a schedule become `gstore` and `glres`.

A multicast from a GPU to all other GPUs of its host is one `gstore`. A reduction inside the switch of what all GPUs of
a host contribute is one `glres`: the GPU that issues it loads the reduction through the switch and stores it to all
GPUs of the host. If the schedule goes on with a multicast of the same data, that is part of the `glres`. Every GPU can
issue it then, and the chunks are spread over all of them: the issuing GPU loads and stores all data once more.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from flowccl.export.lowering.moves import Move
from flowccl.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class _Transfer:
    """A transfer with all its ends: the GPUs that it leaves and enters, and the time of the first arrival."""

    number: int
    roots: frozenset[int]
    ends: frozenset[int]
    start_ps: int
    arrival_ps: int
    adds: bool
    message: int


def switch_moves(schedule: Schedule, groups: dict[int, tuple[int, ...]]) -> tuple[list[Move], set[int]]:
    """Return the moves that are operations of a switch, and the transfers that they represent.

    `groups` are, for each GPU, the GPUs that share its switch. A multicast that a GPU does not need, because it has the
    chunk already, is left to separate sends, and so is one that reaches only some GPUs of a host. A reduction inside a
    switch can be expressed only if it combines what the GPUs contribute themselves.
    """
    timing = schedule.timing
    several = (np.bincount(timing.end_transfer, minlength=len(schedule)) > 1) | (
        np.bincount(timing.root_transfer, minlength=len(schedule)) > 1
    )
    if not groups or not several.any():
        return [], set()
    moves, used = [], set()
    for chunk, transfers in sorted(_by_chunk(schedule, set(schedule.chunk[several].tolist())).items()):
        sources = set(schedule.demand.sources(chunk).tolist())
        for k, one in enumerate(transfers):
            first = next(iter(one.ends if len(one.roots) > 1 else one.roots))
            group = groups.get(first, ())
            if one.number in used or one.roots | one.ends != set(group):
                continue
            before = [other for other in transfers if other.arrival_ps <= one.start_ps and other.ends & set(group)]
            if len(one.roots) > 1 and len(one.ends) == 1 and set(group) <= sources and not before:
                follows = _multicast_after(transfers[k + 1 :], one, group)
                issuer = first if follows is None else group[chunk * len(group) // len(schedule.demand)]
                arrival = one.arrival_ps if follows is None else follows.arrival_ps
                used |= {one.number} | ({follows.number} if follows else set())
                stores = follows is not None
                moves.append(_move(chunk, issuer, group, one, arrival, loads=True, keeps=stores))
            elif len(one.roots) == 1 and not one.adds and not _present(one, before, sources):
                used.add(one.number)
                moves.append(_move(chunk, first, group, one, one.arrival_ps, loads=False, keeps=True))
    return moves, used


def _by_chunk(schedule: Schedule, chunks: set[int]) -> dict[int, list[_Transfer]]:
    """Return all transfers of some chunks in the order of their starts."""
    timing = schedule.timing
    roots: dict[int, set[int]] = defaultdict(set)
    ends: dict[int, set[int]] = defaultdict(set)
    arrival: dict[int, int] = {}
    for i, node in zip(timing.root_transfer.tolist(), timing.root_node.tolist(), strict=True):
        roots[i].add(node)
    for i, node, ps in zip(
        timing.end_transfer.tolist(), timing.end_node.tolist(), timing.end_arrival_ps.tolist(), strict=True
    ):
        ends[i].add(node)
        arrival[i] = min(ps, arrival.get(i, ps))
    result: dict[int, list[_Transfer]] = defaultdict(list)
    for i in np.argsort(schedule.start_ps, kind="stable").tolist():
        if (chunk := int(schedule.chunk[i])) in chunks:
            start, adds = int(schedule.start_ps[i]), bool(schedule.reduce[i])
            one = _Transfer(
                i, frozenset(roots[i]), frozenset(ends[i]), start, arrival[i], adds, int(schedule.message[i])
            )
            result[chunk].append(one)
    return result


def _multicast_after(later: list[_Transfer], load: _Transfer, group: tuple[int, ...]) -> _Transfer | None:
    """Return the multicast of what a load with reduction returned; None if it changes before, or is not sent on."""
    for other in later:
        if other.roots == load.ends and other.roots | other.ends == set(group) and not other.adds:
            return other
        if (other.ends | other.roots) & set(group):
            return None
    return None


def _present(multicast: _Transfer, before: list[_Transfer], sources: set[int]) -> bool:
    """Whether a GPU has the chunk before a multicast; contributions to a reduction are not the chunk."""
    has = {end for other in before if len(other.roots) == 1 and len(sources) == 1 for end in other.ends}
    return bool(multicast.ends & (has | (sources if len(sources) == 1 else set())))


def _move(
    chunk: int, issuer: int, group: tuple[int, ...], one: _Transfer, arrival_ps: int, *, loads: bool, keeps: bool
) -> Move:
    kind = "glres" if loads else "gstore"
    return Move(
        chunk,
        issuer,
        -1,
        False,
        one.start_ps,
        arrival_ps,
        one.number,
        message=one.message,
        switch=kind,
        group=group,
        is_result=keeps,
    )
