"""Rounds: an order of the transfers between groups in which the ports of the network cards are never idle.

Between groups, a transfer holds the port of its sender and that of its receiver. List scheduling with equal tails pairs
senders and receivers as they come, so that some wait for each other while others are done early. Where every GPU has
the same share, turns in a circle avoid that; with a lost or slow network card, shares differ. Here the transfers are
the edges of a graph of ports and get colours such that no port has two edges of one colour, with as few colours as the
busiest port has transfers. A colour is a round; transfers inside groups go with those that need them or feed them.

In an allreduce with roots, the results of some chunks are spread while further chunks are reduced: the rounds of the
first part of the chunks come first, then those of the second part with the results of the first one, and so on.

Or the transfers of each port are put into an order, and each one has a latest start: it must leave the port the time
for those that come after it. So what a busy port waits for goes before what an idle port could send later.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
_MOST_UNITS = 8  # of the time of the shortest transfer, as which a longer one counts
_MOST_PLACES = 50_000_000  # of the table of ports and colours, which has 8 bytes for each


@dataclass(frozen=True, eq=False)
class Crossings:
    """The transfers between groups: for each its ports, as numbers of lanes, and how long it holds them.

    `units` is that time in units of the shortest.
    """

    transfer: I64
    out: I64
    into: I64
    takes_ps: tuple[I64, I64]
    units: I64

    @classmethod
    def of(
        cls, crossing: NDArray[np.bool_], hop_ptr: I64, link: NDArray[np.int32], takes: I64, lane_ptr: I64
    ) -> "Crossings":
        """The ports of the transfers that are `crossing`: the busiest links of the two halves of their routes."""
        load = np.bincount(link, takes, len(lane_ptr) - 1) / np.diff(lane_ptr)
        owner = np.repeat(np.arange(len(crossing)), np.diff(hop_ptr))
        place, size = np.arange(len(link)) - hop_ptr[owner], np.diff(hop_ptr)[owner]
        first = place < (size + 1) // 2
        sides = [crossing[owner] & some for some in (first, ~first | (size == 1))]
        out, into = (_busiest(np.flatnonzero(some), owner, load[link]) for some in sides)
        rows = owner[out]
        units = np.clip(np.rint(takes[out] / takes[out].min()), 1, _MOST_UNITS)
        ports = _lanes(link[out], lane_ptr), _lanes(link[into], lane_ptr)
        return cls(rows, *ports, (takes[out], takes[into]), units.astype(np.int64))

    def latest_starts(self, order: I64) -> I64:
        """The latest start of each transfer, if its ports carry those with a lower `order` before it.

        All ports end at the same time, so that the busiest one starts at time zero.
        """
        rest = np.maximum(*(_rest(*side, order) for side in zip((self.out, self.into), self.takes_ps, strict=True)))
        return np.asarray(rest.max(initial=0) - rest)

    def rounds(self, part: I64) -> I64 | None:
        """The round of each transfer: all of one `part` before those of the next; None where a table would be large."""
        from flowccl.methods.hierarchical.round_kernels import edge_colours

        result, begin = np.zeros(len(self.transfer), dtype=np.int64), 0
        for number in np.unique(part).tolist():
            rows = np.flatnonzero(part == number)
            unit = np.repeat(rows, self.units[rows])
            (out, outs), (into, intos) = (_renumbered(port[unit]) for port in (self.out, self.into))
            degree = max(int(np.bincount(one).max()) for one in (out, into))
            if 2 * max(outs, intos) * degree > _MOST_PLACES:
                return None
            colour = edge_colours(out, into, max(outs, intos), degree)
            least = np.full(len(result), degree)
            np.minimum.at(least, unit, colour)
            result[rows], begin = begin + least[rows], begin + degree
        return result


def _rest(port: I64, takes_ps: I64, order: I64) -> I64:
    """The time that the port of each transfer needs for it and for those that come after it."""
    last_first = np.lexsort((order, port))[::-1]
    total = np.cumsum(takes_ps[last_first])
    begins = np.diff(port[last_first], prepend=-1) != 0
    rest = np.empty(len(port), dtype=np.int64)
    rest[last_first] = total - np.maximum.accumulate(np.where(begins, total - takes_ps[last_first], 0))
    return rest


def _busiest(hops: I64, owner: I64, load: NDArray[np.float64]) -> I64:
    """For each transfer, in order, the one of its hops with the most load."""
    hops = hops[np.lexsort((load[hops], owner[hops]))]
    return np.asarray(hops[np.diff(owner[hops], append=-1) != 0])


def _lanes(link: NDArray[np.int32], lane_ptr: I64) -> I64:
    """A lane of each link, all lanes of a link in turn."""
    order = np.argsort(link, kind="stable")
    turn = np.empty(len(link), dtype=np.int64)
    turn[order] = np.arange(len(link)) - np.searchsorted(link[order], link[order])
    return np.asarray(lane_ptr[link] + turn % np.diff(lane_ptr)[link], dtype=np.int64)


def _renumbered(port: I64) -> tuple[I64, int]:
    """The ports numbered from 0, and how many there are."""
    used, number = np.unique(port, return_inverse=True)
    return number.reshape(-1).astype(np.int64), len(used)
