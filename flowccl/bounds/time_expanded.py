"""The floor of the fluid in time: data that flows without chunks, epoch by epoch, with all latencies.

For allgather and alltoall, and what is one of them backwards.

Bytes that enter a link in an epoch leave it not before its latency, rounded down to epochs, is over. So every schedule
that is over in time is a solution of a linear program: per source and link, how much has entered by the end of each
epoch. If even the program cannot bring everything to everybody, no schedule can. Sources and links that a symmetry of
the machine takes to each other are one variable each, since solutions can be averaged.

    rise      what has entered a link only grows
    room      all sources together enter a link at no more than its bandwidth, from when the first byte can be there
              until when it is too late for the nearest destination
    have      a node that stores or copies sends no more of a block over a link than has come; over a link to a plain
              switch as often as there are destinations behind it
    pass      a plain switch sends no more than has come
    once      nobody needs a block twice
    all       every destination gets the part `reached` of every block, which shall be as large as possible

In an alltoall nothing is copied: every node passes on no more than has come, and keeps its part of each source's data.

That `reached` stays below 1 is proved by the duals: any of them gives an upper bound, computed here, whatever the
solver says. Only the room depends on the time, so the duals of one time prove the floor for others too.
"""

import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.bounds.commodities import Commodities
from flowccl.solver import ProgramBuilder, SolverOptions, solve
from flowccl.solver.builder import Block, RowFamily
from flowccl.solver.program import LinearProgram
from flowccl.topology.symmetry.automorphisms import automorphisms
from flowccl.topology.symmetry.permutations import Symmetry

I32 = NDArray[np.int32]
F64 = NDArray[np.float64]

_MOST_COLUMNS = 6_000  # of the program; beyond, it would take too long
_EPOCHS = (6, 60)  # the fewest that are worth it, and the most that are sought
_WORTH = 0.01  # a floor that is not better by such a part is not sought
_EVEN = 1.01  # blocks that differ by more are not alike; the least counts for all
_CLOSE = 0.003  # the floor is sought to such a part of itself


def time_expanded_bound_ps(commodities: Commodities, bound_ps: float, finish_ps: float, seconds: float) -> float:
    """A floor above the one known, below a finish that is known to be possible; the known one where there is none.

    About so many seconds are spent; a program that would be too large is not even begun.
    """
    topology = commodities.topology
    copies = _is_allgather(commodities)
    even = commodities.bytes.max() <= _EVEN * commodities.bytes.min() and not (
        commodities.ready_ps.any() or commodities.rest_ps.any()
    )
    known = even and (copies or _is_alltoall(commodities))
    if not known or topology.limits or topology.changes or finish_ps <= bound_ps:
        return bound_ps
    flow = _Flow(commodities, automorphisms(topology), finish_ps, copies)
    until, low, high = time.monotonic() + seconds, bound_ps, finish_ps
    guess = low * (1 + _WORTH)
    while flow.fits and guess < high and time.monotonic() < until:
        proof = flow.proof(guess, until - time.monotonic())
        if proof is None or proof.reached(guess) >= 1:
            break
        low = proof.latest(guess, high)
        guess = low * (1 + _CLOSE)
    return low


def _is_allgather(commodities: Commodities) -> bool:
    """Whether every GPU has one block for all others."""
    count = commodities.topology.num_gpus
    return (
        len(commodities.bytes) == len(commodities.source) == count > 2
        and len(np.unique(commodities.source)) == count
        and bool(np.all(np.diff(commodities.destination_ptr) == count - 1))
    )


def _is_alltoall(commodities: Commodities) -> bool:
    """Whether every GPU has one block for each other."""
    count = commodities.topology.num_gpus
    pairs = count * (count - 1)
    if not len(commodities.bytes) == len(commodities.source) == len(commodities.destination) == pairs > 2:
        return False
    return len(np.unique(commodities.source.astype(np.int64) * count + commodities.destination)) == pairs


@dataclass(frozen=True, eq=False)
class _Source:
    """One source of `many` that look alike, and the classes of links and nodes as seen from it."""

    rank: int
    many: int
    link_class: I32
    node_class: I32

    @cached_property
    def first_links(self) -> NDArray[np.int64]:
        return np.unique(self.link_class, return_index=True)[1]

    @cached_property
    def first_nodes(self) -> NDArray[np.int64]:
        return np.unique(self.node_class, return_index=True)[1]


@dataclass(frozen=True, eq=False)
class _Proof:
    """Duals: at most `others` + price . room of every block can be everywhere, whatever the time is."""

    flow: "_Flow"
    others: float
    price: F64

    def reached(self, within_ps: float) -> float:
        """How much of every block can be everywhere in this time, at most."""
        return self.others + float((self.price * self.flow.room(within_ps)).sum())

    def latest(self, low: float, high: float) -> float:
        """The longest time that is proved to be too short, as `low` is."""
        while high - low > 1e-4 * low:
            middle = (low + high) / 2
            low, high = (middle, high) if self.reached(middle) < 1 else (low, middle)
        return low


class _Flow:
    """The program of one machine and block, for any time up to `most_ps` in which it shall be over."""

    def __init__(self, commodities: Commodities, group: Symmetry, most_ps: float, copies: bool) -> None:
        self.commodities, self.topology, self.group, self.copies = commodities, commodities.topology, group, copies
        gpus = self.topology.num_gpus
        ranks, many = np.unique(group.node_orbits[:gpus], return_index=True, return_counts=True)[1:]
        self.sources = []
        for rank, number in zip(ranks.tolist(), many.tolist(), strict=True):
            around = group.stabilizer(rank)
            self.sources.append(_Source(rank, number, around.link_orbits, around.node_orbits))
        classes = sum(len(source.first_links) for source in self.sources)
        latency = self.topology.link_latency_ps[self.topology.link_latency_ps > 0].astype(np.float64)
        least = float(latency.min(initial=most_ps))
        epochs = min(_EPOCHS[1], _MOST_COLUMNS / classes)
        parts = max(np.floor(epochs * least / most_ps), 1)  # so that most latencies are whole epochs
        self.step = least / parts * (1 - 1e-12)
        self.epochs = int(np.ceil(most_ps / self.step - 1e-9))
        self.fits = _EPOCHS[0] <= self.epochs <= 2 * _EPOCHS[1] and classes * self.epochs <= _MOST_COLUMNS

    def proof(self, within_ps: float, seconds: float) -> _Proof | None:
        """The duals of the program for this time; None where there was no time for them."""
        room, program = self._program(within_ps)
        solution = solve(program, SolverOptions(time_limit_s=max(seconds, 0.0), method="ipm"))
        if solution.duals is None:
            return None
        rows = np.arange(len(program.row_upper)) if program.row_number is None else program.row_number
        dual = np.where(np.isneginf(program.row_lower), np.minimum(solution.duals, 0.0), solution.duals)
        dual = np.where(np.isposinf(program.row_upper), np.maximum(dual, 0.0), dual)
        every = np.zeros(int(rows.max()) + 1)
        every[rows] = dual
        price = -every[np.asarray(room)]
        inside = rows < np.asarray(room).size
        side = np.where(dual > 0, program.row_lower, program.row_upper)
        counts = ~inside & (dual != 0)
        reduced = program.reduced_costs(dual)
        cost = float(np.where(reduced > 0, reduced * program.lower, reduced * program.upper).sum())
        return _Proof(self, -cost - float((dual[counts] * side[counts]).sum()), price)

    def _program(self, within_ps: float) -> tuple[RowFamily, LinearProgram]:
        topology, epochs = self.topology, self.epochs
        model = ProgramBuilder()
        orbit = self.group.link_orbits
        room = model.rows("room", (int(orbit.max()) + 1, epochs), upper=self.room(within_ps))
        part = model.variables("reached", upper=1.0, cost=-1.0)
        lag = (topology.link_latency_ps // self.step).astype(np.int64)
        for source in self.sources:
            first = source.first_links
            sent = model.variables("sent", (len(first), epochs), upper=self._most(source))
            model.rows("rise", (len(first), epochs - 1), lower=0).add(sent[:, 1:]).add(sent[:, :-1], times=-1)
            weight = (source.many * np.bincount(source.link_class)).astype(np.float64)[:, None]
            room.add_at(np.s_[orbit[first]], sent, times=weight)
            room.add_at(np.s_[orbit[first], 1:], sent[:, :-1], times=-weight)
            self._nodes(model, part, sent, source, lag)
        return room, model.build()

    def _nodes(self, model: ProgramBuilder, part: Block, sent: Block, source: _Source, lag: NDArray[np.int64]) -> None:
        """What nodes have, pass on and want."""
        topology, epochs = self.topology, sent.shape[1]
        columns = np.asarray(sent)
        for node in source.first_nodes.tolist():
            if node == source.rank:
                continue
            came = np.full((0, epochs), -1)
            for link in np.flatnonzero(topology.link_dst == node).tolist():
                row = np.full(epochs, -1)
                row[lag[link] :] = columns[source.link_class[link], : max(epochs - lag[link], 0)]
                came = np.vstack((came, row))
            out = np.flatnonzero(topology.link_src == node)
            if not (self.copies and (topology.stores[node] or topology.copies[node])):
                went = columns[source.link_class[out]]
                model.rows("pass", epochs, upper=0).add(went, sum_axis=0).add(came, times=-1, sum_axis=0)
                if node < topology.num_gpus:
                    kept = model.rows("all", lower=0).add(came[:, -1], sum_axis=0).add(part, times=-1)
                    kept.add(went[:, -1], times=-1, sum_axis=0)
                continue
            for kind in np.unique(source.link_class[out]).tolist():
                times = self._times(source.first_links[kind])
                model.rows("have", epochs, upper=0).add(columns[kind]).add(came, times=-times, sum_axis=0)
            if node < topology.num_gpus:
                model.rows("once", upper=1).add(came[:, -1], sum_axis=0)
                model.rows("all", lower=0).add(came[:, -1], sum_axis=0).add(part, times=-1)

    def _times(self, link: int) -> float:
        """How many blocks of a source may go over a link; of an allgather, how often the one."""
        end = self.topology.link_dst[link]
        once = self.copies and (self.topology.stores[end] or self.topology.copies[end])
        return 1.0 if once else float(self.topology.num_gpus - 1)

    def _most(self, source: _Source) -> F64:
        """Bounds of what has entered each link: nothing before the first byte can be there, nothing that comes back."""
        topology, first = self.topology, source.first_links
        most = np.array([self._times(link) for link in first])
        most[topology.link_dst[first] == source.rank] = 0.0
        away = self.commodities.latency_ps[source.rank, topology.link_src[first]]
        return np.where((np.arange(self.epochs) + 1)[None, :] * self.step > away[:, None], most[:, None], 0.0)

    def room(self, within_ps: float) -> F64:
        """What all links of an orbit can take in each epoch so that it is over in this time, in blocks."""
        topology, latency, epoch = self.topology, self.commodities.latency_ps, np.arange(self.epochs)[None, :]
        orbit, first = np.unique(self.group.link_orbits, return_index=True)
        gpus = slice(0, topology.num_gpus)
        opens = latency[gpus][:, topology.link_src[first]].min(axis=0)[:, None]
        behind = topology.link_latency_ps[first] + latency[topology.link_dst[first], gpus].min(axis=1)
        begin = np.maximum(epoch * self.step, opens)
        end = np.minimum((epoch + 1) * self.step, (within_ps - behind)[:, None])
        rate = topology.link_peak_GBps[first] / 1000.0 / float(self.commodities.bytes.min())
        number = np.bincount(self.group.link_orbits, minlength=len(orbit))
        return np.asarray(np.maximum(end - begin, 0.0) * (rate * number)[:, None] * (1 + 1e-9))
