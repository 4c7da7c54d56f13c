"""The time-expanded LP bound: data that flows without chunks, epoch by epoch, with all latencies.

For allgather, alltoall and their reversals.

Bytes that enter a link in an epoch leave it no earlier than its latency later, rounded down to epochs. So every
schedule that finishes in time is a solution of a linear program whose variables say, per source and link, how much has
entered by the end of each epoch. If the program cannot bring all data to all destinations, no schedule can. Sources and
links that a symmetry of the machine maps to each other share one variable, because solutions can be averaged.

    rise      the amount that has entered a link never decreases
    capacity  all sources together enter a link at no more than its bandwidth, from the first time a byte can be there
              until it is too late for the nearest destination
    have      a node that stores or copies sends no more of a block over a link than has arrived; over a link to a plain
              switch, this many times the number of destinations behind it
    pass      a plain switch sends no more than has arrived
    once      no node receives a block twice
    all       every destination gets the fraction `reached` of every block, which is maximized

In an alltoall nothing is copied: every node passes on no more than has arrived, and keeps its part of each source's
data.

The duals prove that `reached` stays below 1: any dual values give an upper bound, which is computed here and does not
depend on the solver's accuracy. Only the capacities depend on the time, so the duals of one time also prove bounds for
others.
"""

import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.bounds.commodities import Commodities
from flowccl.solver import ProgramBuilder, SolverOptions, solve
from flowccl.solver.builder import RowFamily, VariableBlock
from flowccl.solver.program import LinearProgram
from flowccl.topology.symmetry.automorphisms import automorphisms
from flowccl.topology.symmetry.permutations import Symmetry

I32 = NDArray[np.int32]
F64 = NDArray[np.float64]

_MOST_COLUMNS = 6_000  # of the program; a larger one takes too long
_EPOCHS = (6, 60)  # the fewest that are useful, and the target for the most
_MIN_GAIN = 0.01  # the first guess is this much above the known bound
_EVEN = 1.01  # largest ratio of block sizes; the smallest block counts for all
_CLOSE = 0.003  # relative accuracy of the bound


def time_expanded_bound_ps(commodities: Commodities, bound_ps: float, finish_ps: float, seconds: float) -> float:
    """Return a bound above `bound_ps` and at most `finish_ps`, a known finish; `bound_ps` if none is found.

    Takes about `seconds`; a program that would be too large is not built.
    """
    topology = commodities.topology
    copies = _is_allgather(commodities)
    even = commodities.bytes.max() <= _EVEN * commodities.bytes.min() and not (
        commodities.ready_ps.any() or commodities.tail_ps.any()
    )
    known = even and (copies or _is_alltoall(commodities))
    if not known or topology.has_limits_or_changes or finish_ps <= bound_ps:
        return bound_ps
    flow = _Flow(commodities, automorphisms(topology), finish_ps, copies)
    until, low, high = time.monotonic() + seconds, bound_ps, finish_ps
    guess = low * (1 + _MIN_GAIN)
    while flow.fits and guess < high and time.monotonic() < until:
        proof = flow.proof(guess, until - time.monotonic())
        if proof is None or proof.reached(guess) >= 1:
            break
        low = proof.latest(guess, high)
        guess = low * (1 + _CLOSE)
    return low


def _is_allgather(commodities: Commodities) -> bool:
    """Whether every GPU has one block for all other GPUs."""
    count = commodities.topology.num_gpus
    return (
        len(commodities.bytes) == len(commodities.source) == count > 2
        and len(np.unique(commodities.source)) == count
        and bool(np.all(np.diff(commodities.destination_ptr) == count - 1))
    )


def _is_alltoall(commodities: Commodities) -> bool:
    """Whether every GPU has one block for each other GPU."""
    count = commodities.topology.num_gpus
    pairs = count * (count - 1)
    if not len(commodities.bytes) == len(commodities.source) == len(commodities.destination) == pairs > 2:
        return False
    return len(np.unique(commodities.source.astype(np.int64) * count + commodities.destination)) == pairs


@dataclass(frozen=True, eq=False)
class _Source:
    """One of `many` symmetric sources, and the classes of links and nodes under the symmetries that fix it."""

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
    """Duals: at most the fraction `others` + price . capacity of every block reaches all destinations, for any time."""

    flow: "_Flow"
    others: float
    price: F64

    def reached(self, within_ps: float) -> float:
        """The largest fraction of every block that can reach all destinations within this time."""
        return self.others + float((self.price * self.flow.capacity(within_ps)).sum())

    def latest(self, low: float, high: float) -> float:
        """The longest time up to `high` that is proved too short, to 0.01 %; `low` is too short."""
        while high - low > 1e-4 * low:
            middle = (low + high) / 2
            low, high = (middle, high) if self.reached(middle) < 1 else (low, middle)
        return low


class _Flow:
    """The program of one machine and block, for any finish up to `most_ps`."""

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
        parts = max(np.floor(epochs * least / most_ps), 1)  # the least latency is a whole number of epochs
        self.step = least / parts * (1 - 1e-12)
        self.epochs = int(np.ceil(most_ps / self.step - 1e-9))
        self.fits = _EPOCHS[0] <= self.epochs <= 2 * _EPOCHS[1] and classes * self.epochs <= _MOST_COLUMNS

    def proof(self, within_ps: float, seconds: float) -> _Proof | None:
        """The duals of the program for this time; None if the solver ran out of time."""
        capacity, program = self._program(within_ps)
        solution = solve(program, SolverOptions(time_limit_s=max(seconds, 0.0), method="ipm"))
        if solution.duals is None:
            return None
        rows = np.arange(len(program.row_upper)) if program.row_number is None else program.row_number
        dual = np.where(np.isneginf(program.row_lower), np.minimum(solution.duals, 0.0), solution.duals)
        dual = np.where(np.isposinf(program.row_upper), np.maximum(dual, 0.0), dual)
        every = np.zeros(int(rows.max()) + 1)
        every[rows] = dual
        price = -every[np.asarray(capacity)]
        inside = rows < np.asarray(capacity).size
        side = np.where(dual > 0, program.row_lower, program.row_upper)
        counts = ~inside & (dual != 0)
        reduced = program.reduced_costs(dual)
        cost = float(np.where(reduced > 0, reduced * program.lower, reduced * program.upper).sum())
        return _Proof(self, -cost - float((dual[counts] * side[counts]).sum()), price)

    def _program(self, within_ps: float) -> tuple[RowFamily, LinearProgram]:
        topology, epochs = self.topology, self.epochs
        model = ProgramBuilder()
        orbit = self.group.link_orbits
        capacity = model.rows("capacity", (int(orbit.max()) + 1, epochs), upper=self.capacity(within_ps))
        part = model.variables("reached", upper=1.0, cost=-1.0)
        lag = (topology.link_latency_ps // self.step).astype(np.int64)
        for source in self.sources:
            first = source.first_links
            sent = model.variables("sent", (len(first), epochs), upper=self._most(source))
            model.rows("rise", (len(first), epochs - 1), lower=0).add(sent[:, 1:]).add(sent[:, :-1], times=-1)
            weight = (source.many * np.bincount(source.link_class)).astype(np.float64)[:, None]
            capacity.add_at(np.s_[orbit[first]], sent, times=weight)
            capacity.add_at(np.s_[orbit[first], 1:], sent[:, :-1], times=-weight)
            self._nodes(model, part, sent, source, lag)
        return capacity, model.build()

    def _nodes(
        self, model: ProgramBuilder, part: VariableBlock, sent: VariableBlock, source: _Source, lag: NDArray[np.int64]
    ) -> None:
        """Add the rows of all nodes: have, pass, once and all."""
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
        """How many blocks of one source may cross a link; in an allgather, how often its one block may."""
        end = self.topology.link_dst[link]
        once = self.copies and (self.topology.stores[end] or self.topology.copies[end])
        return 1.0 if once else float(self.topology.num_gpus - 1)

    def _most(self, source: _Source) -> F64:
        """Upper bounds of the amount in each link: 0 before the first byte can be there, and on links to the source."""
        topology, first = self.topology, source.first_links
        most = np.array([self._times(link) for link in first])
        most[topology.link_dst[first] == source.rank] = 0.0
        away = self.commodities.head_ps[source.rank, topology.link_src[first]]
        return np.where((np.arange(self.epochs) + 1)[None, :] * self.step > away[:, None], most[:, None], 0.0)

    def capacity(self, within_ps: float) -> F64:
        """The capacity of all links of an orbit in each epoch, in blocks, for arrivals within this time."""
        topology, latency, epoch = self.topology, self.commodities.latency_ps, np.arange(self.epochs)[None, :]
        orbit, first = np.unique(self.group.link_orbits, return_index=True)
        gpus = slice(0, topology.num_gpus)
        opens = self.commodities.head_ps[gpus][:, topology.link_src[first]].min(axis=0)[:, None]
        behind = topology.link_latency_ps[first] + latency[topology.link_dst[first], gpus].min(axis=1)
        begin = np.maximum(epoch * self.step, opens)
        end = np.minimum((epoch + 1) * self.step, (within_ps - behind)[:, None])
        rate = topology.link_peak_GBps[first] / 1000.0 / float(self.commodities.bytes.min())
        number = np.bincount(self.group.link_orbits, minlength=len(orbit))
        return np.asarray(np.maximum(end - begin, 0.0) * (rate * number)[:, None] * (1 + 1e-9))
