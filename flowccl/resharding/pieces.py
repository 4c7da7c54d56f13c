"""Classes of bytes, divided into pieces of nearly equal size; the pieces come in rounds, all alike."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.resharding.traffic import TrafficClass

I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Pieces:
    """Pieces of classes: piece i has bytes `begin[i]` to `end[i]` of the stream of class `cls[i]`.

    It travels in round `round_number[i]`, on the tree of piece `template[i]`, which is a piece of round 0.
    """

    cls: I64
    begin: I64
    end: I64
    round_number: I64
    template: I64

    def __len__(self) -> int:
        return len(self.cls)

    @property
    def bytes(self) -> I64:
        """Bytes of each piece."""
        return self.end - self.begin

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return int(self.round_number.max()) + 1


def divided(classes: list[TrafficClass], rounds: int, quantum: float) -> Pieces:
    """Divide classes into pieces of about `quantum` bytes in `rounds` rounds.

    A class has the same number of pieces in every round, or fewer pieces than rounds.
    """
    total = np.array([one.bytes for one in classes], dtype=np.int64)
    per_round = np.rint(total / (rounds * quantum)).astype(np.int64)
    count = np.where(per_round > 0, per_round * rounds, np.ceil(total / quantum).astype(np.int64))
    count = np.minimum(np.maximum(count, 1), total)
    per_round = np.maximum(per_round, 1)
    cls = np.repeat(np.arange(len(total)), count)
    number = np.arange(len(cls)) - np.repeat(np.cumsum(count) - count, count)
    size, rest = np.divmod(total, count)
    begin = number * size[cls] + np.minimum(number, rest[cls])
    end = begin + size[cls] + (number < rest[cls])
    place = number % per_round[cls]
    order = number // per_round[cls]  # the place of the round among those in which the class has pieces
    spread = np.maximum(-(-count // per_round), 1)
    round_number = order * rounds // spread[cls]
    ordered = np.lexsort((place, cls, round_number))
    cls, begin, end, round_number, place = (one[ordered] for one in (cls, begin, end, round_number, place))
    first = np.flatnonzero(round_number == 0)
    start = np.searchsorted(cls[first], np.arange(len(total)))
    return Pieces(cls, begin, end, round_number, first[start[cls] + place])
