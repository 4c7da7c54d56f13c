"""The tables of the threadblocks of an MSCCL++ plan: what its operations name by numbers; and fields of plans."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.export.proof.steps import BUFFERS


@dataclass(slots=True)
class PlanChannel:
    """A channel of a GPU: its peer, its type, and its index among the channels of its type to that peer.

    `out` and `into` are the numbers of its connections; -1: none yet.
    """

    peer: int
    kind: str
    place: int
    out: int = -1
    into: int = -1


@dataclass
class BlockTables:
    """The tables of all threadblocks, one after the other; threadblock b has channels of two types, 2 b and 2 b + 1.

    Channels are (peer, connection to it, connection from it), buffers of other GPUs (rank, buffer), switches numbers of
    groups, which are (buffer, ranks). `semaphores` are (first connection, number) of each threadblock.
    """

    rank: list[int] = field(default_factory=list)
    channels: list[list[tuple[int, int, int]]] = field(default_factory=list)
    remote: list[list[tuple[int, int]]] = field(default_factory=list)
    switches: list[list[int]] = field(default_factory=list)
    semaphores: list[tuple[int, int]] = field(default_factory=list)
    groups: dict[tuple[str, tuple[int, ...]], int] = field(default_factory=dict)
    connections: dict[Hashable, int] = field(default_factory=dict)

    def begin(self, rank: int, semaphores: int) -> None:
        """Add a threadblock without channels and buffers."""
        keys = [("semaphore", rank, rank, k) for k in range(semaphores)]
        numbers = [self.connections.setdefault(key, len(self.connections)) for key in keys]
        self.rank.append(rank)
        self.channels += [[], []]
        self.remote += [[], []]
        self.switches.append([])
        self.semaphores.append((numbers[0] if numbers else 0, semaphores))

    def add_channel(self, kind: int, channel: PlanChannel) -> int:
        """Add a channel to the last threadblock; return how many of its type it has."""
        rank, rest = self.rank[-1], (channel.kind, channel.place)
        if channel.out < 0:
            for name, a, b in (("out", rank, channel.peer), ("into", channel.peer, rank)):
                number = self.connections.setdefault(("signal", a, b, *rest), len(self.connections))
                setattr(channel, name, number)
        own = self.channels[kind - 2]
        own.append((channel.peer, channel.out, channel.into))
        return len(own)

    def add_buffers(self, kind: int, buffers: list[tuple[int, str]]) -> None:
        """Add buffers of other GPUs, which a type of channels accesses, to the last threadblock."""
        self.remote[kind - 2] += [(rank, BUFFERS.index(buffer)) for rank, buffer in buffers]

    def add_switch(self, buffer: str, ranks: tuple[int, ...]) -> int:
        """Add a channel of a switch to the last threadblock; return how many it has."""
        self.switches[-1].append(self.groups.setdefault((buffer, ranks), len(self.groups)))
        return len(self.switches[-1])


# -- fields ---


class PlanError(Exception):
    """A part of the plan is missing or malformed."""


def field_of(value: Any, key: str, kind: type, where: str) -> Any:
    """Return a field of a kind."""
    if not isinstance(value, dict):
        raise PlanError(f"{where}: must be an object")
    if key not in value:
        raise PlanError(f"{where}: {key} is missing")
    found = value[key]
    if type(found) is not kind:
        raise PlanError(f"{where}: {key} must be {_WORDS[kind]}, got {str(found)[:40]!r}")
    return found


_WORDS: dict[type, str] = {int: "a whole number", str: "text", list: "a list", bool: "true or false", dict: "an object"}


def numbers_of(value: Any, key: str, where: str, low: int, high: int) -> list[int]:
    """Return a list of whole numbers within limits."""
    found: list[Any] = field_of(value, key, list, where)
    for number in found:
        if type(number) is not int or not low <= number <= high:
            raise PlanError(f"{where}: {key} must contain whole numbers, {low} to {high}, got {str(number)[:40]!r}")
    return found


def number_of(value: Any, key: str, where: str, low: int = 0, high: int = 2**62) -> int:
    """Return a whole number within limits."""
    found: int = field_of(value, key, int, where)
    if not low <= found <= high:
        raise PlanError(f"{where}: {key} must be {low} to {high}, got {found}")
    return found


def blocks_of(plan: Any, ranks: int) -> NDArray[np.int64]:
    """Return the chunks that each rank sends to each other one, in a plan of an alltoallv."""
    rows = field_of(plan, "block_chunks", list, "plan")
    if len(rows) != ranks or any(type(row) is not list or len(row) != ranks for row in rows):
        raise PlanError(f"plan: block_chunks must have {ranks} rows of {ranks} numbers")
    for row in rows:
        numbers_of({"block_chunks": row}, "block_chunks", "plan", 0, 2**31 - 1)
    return np.array(rows, dtype=np.int64).reshape(ranks, ranks)
