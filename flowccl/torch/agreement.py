"""Agreement of all ranks of a group through a store of torch.distributed, even if some of them do not take part.

Each rank publishes a value. The first rank compares them and proposes the verdict; a rank that has waited in vain
proposes the library. The store accepts the first proposal only (`compare_set`), so all ranks read the same verdict:
ranks that chose differently would wait for each other for ever.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

PATIENCE_S = float(os.environ.get("FLOWCCL_PATIENCE_S") or 30.0)
"""How long the first rank waits for the others, which are in the same call; other ranks wait for it twice as long."""

_GOOD, _BAD = "plans ", "library "


@dataclass(frozen=True, slots=True)
class Verdict:
    """What all ranks do: use the plans if `value` is given, else the library. `is_speaker`: this rank decided."""

    value: str | None
    reason: str
    is_speaker: bool


def agree(store: Any, rank: int, size: int, value: str, problem: str, patience_s: float = PATIENCE_S) -> Verdict:
    """Return the verdict of all ranks: `value` if all have the same one and none has a problem.

    The keys of the store must be new: see `new_keys`.
    """
    place = "verdict"
    store.set(f"value-{rank}", _BAD + problem if problem else _GOOD + value)
    if rank == 0:
        proposal = _proposal(store, size, patience_s)
    else:
        proposal = ""
        if not _wait(store, [place], 2 * patience_s):
            proposal = f"{_BAD}rank 0 takes no part: is FLOWCCL_CATALOG set there?"
    signed = f"{rank} {proposal}"
    said = bytes(store.compare_set(place, "", signed) if proposal else store.get(place)).decode()
    speaker, _, text = said.partition(" ")
    is_speaker = speaker == str(rank)
    if text.startswith(_GOOD):
        return Verdict(text[len(_GOOD) :], "", is_speaker)
    return Verdict(None, text[len(_BAD) :], is_speaker)


def new_keys(store: Any, rank: int) -> str:
    """Return a prefix that all ranks of a group get alike, and another one when the group is made again."""
    return f"flowccl-{store.add(f'flowccl-made-{rank}', 1)}"


def _proposal(store: Any, size: int, patience_s: float) -> str:
    """What the first rank proposes."""
    keys = [f"value-{other}" for other in range(size)]
    if not _wait(store, keys, patience_s):
        silent = [other for other, key in enumerate(keys) if not store.check([key])]
        return f"{_BAD}{_ranks(silent)} no part: is FLOWCCL_CATALOG set there?"
    values = [bytes(store.get(key)).decode() for key in keys]
    for other, text in enumerate(values):
        if text.startswith(_BAD):
            return f"{_BAD}rank {other}: {text[len(_BAD) :]}"
    different = [other for other, text in enumerate(values) if text != values[0]]
    return f"{_BAD}{_ranks(different, 'have', 'has')} another catalog than rank 0" if different else values[0]


def _ranks(ranks: Sequence[int], several: str = "take", one: str = "takes") -> str:
    names = ", ".join(map(str, ranks[:4])) + (" and others" if len(ranks) > 4 else "")
    return f"rank {names} {one}" if len(ranks) == 1 else f"ranks {names} {several}"


def _wait(store: Any, keys: list[str], seconds: float) -> bool:
    """Whether all keys are there in time."""
    try:
        store.wait(keys, timedelta(seconds=seconds))
    except RuntimeError:
        return bool(store.check(keys))
    return True
