"""The machine in epochs: how long a link is busy, when a chunk can be sent on, how many chunks fit an epoch.

This is the only module that rounds times. An arc is what one send uses: a link or, with hyper-edges (appendix C), a
whole route through switches. A send on arc a that starts in epoch k occupies each link of the arc for `busy_epochs`
(appendix F: links slower than an epoch need several), and the chunk can be sent on from the head of the arc in epoch
k + `delay`. A switch forwards it exactly then.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER
from flowccl.demand.demand import Demand
from flowccl.errors import InputError
from flowccl.papers.teccl.options import TecclOptions, epoch_choice
from flowccl.topology.neighbours import neighbours
from flowccl.topology.routes import Routes, route_shape
from flowccl.topology.topology import Topology
from flowccl.units import ps_to_us, us_to_ps

Ints = NDArray[np.int64]

LONGEST_LATENCY = 200
"""If a latency takes more epochs than this, epochs are made longer, so that there are fewer (section 6)."""
STRETCH = 5
_NOISE = 1e-6  # durations are whole picoseconds, so ratios are whole up to this rounding error


@dataclass(frozen=True, eq=False)
class Grid:
    """A machine and a chunk size in epochs of `epoch_ps`.

    Arc a goes from node `tail[a]` to `head[a]` over the links `routes.links(a)`. Hop h is one link of one arc: a send
    that starts in epoch k occupies it from epoch k + `hop_shift[h]` on.
    """

    topology: Topology
    chunk_bytes: float
    epoch_ps: int
    latency_threshold: float
    routes: Routes
    tail: Ints
    head: Ints
    hop_shift: Ints

    @cached_property
    def num_arcs(self) -> int:
        """Number of arcs."""
        return len(self.tail)

    @cached_property
    def hop_arc(self) -> Ints:
        """The arc of each hop."""
        return np.repeat(np.arange(self.num_arcs, dtype=np.int64), np.diff(self.routes.ptr))

    @cached_property
    def hop_link(self) -> Ints:
        """The link of each hop."""
        return self.routes.link.astype(np.int64)

    @property
    def epoch_us(self) -> float:
        """Length of an epoch."""
        return ps_to_us(self.epoch_ps)

    # -- sends --------------------------------------------------------------------------------------------------------

    @cached_property
    def rate_GBps(self) -> NDArray[np.float64]:
        """Bandwidth of a send on each arc: of the slowest of its links and limits."""
        link = self.topology.link_GBps.copy()
        for limit in self.topology.limits:
            rows = list(limit.links)
            link[rows] = np.minimum(link[rows], limit.bandwidth_GBps)
        return np.minimum(np.minimum.reduceat(link[self.hop_link], self.routes.ptr[:-1]), self._switch_GBps)

    @cached_property
    def send_ps(self) -> NDArray[np.float64]:
        """Time that one chunk occupies each arc; an arc through store-and-forward switches takes its links in turn."""
        shape = route_shape(self.topology, self.routes)
        segments = np.bincount(shape.segment_route, minlength=self.num_arcs)
        return np.asarray(segments * (self.chunk_bytes * 1000.0 / self.rate_GBps))

    @cached_property
    def busy_epochs(self) -> Ints:
        """Epochs that one chunk occupies each link of the arc; 1 if several chunks fit an epoch."""
        return np.maximum(epochs_up(self.send_ps, self.epoch_ps), 1)

    @cached_property
    def capacity(self) -> Ints:
        """Number of chunks that may start on each arc in one epoch."""
        return np.maximum(np.floor(self.epoch_ps / self.send_ps * (1 + _NOISE)).astype(np.int64), 1)

    @cached_property
    def share(self) -> NDArray[np.float64]:
        """Chunks per epoch, for rates; may be fractional."""
        return np.asarray(self.epoch_ps / self.send_ps)

    @cached_property
    def delay(self) -> Ints:
        """Number of epochs after which a whole chunk can be sent on."""
        return self._delay(self.send_ps)

    @cached_property
    def rate_delay(self) -> Ints:
        """The same for a fraction of a chunk that fits one epoch (section 4.1)."""
        return self._delay(np.full(self.num_arcs, float(self.epoch_ps)))

    def _delay(self, send_ps: NDArray[np.float64]) -> Ints:
        goes_on = self.topology.cuts_through[self.head]  # the chunk is forwarded while it is still arriving
        epochs = epochs_up(np.where(goes_on, 0.0, send_ps) + self.latency_ps, self.epoch_ps)
        return np.maximum(epochs, np.where(goes_on, 0, 1))

    # -- transfers ----------------------------------------------------------------------------------------------------

    def sends_of(self, links: tuple[int, ...]) -> list[tuple[int, int]]:
        """Return (arc, epochs after the start) of each send of a transfer; KeyError if a link is no arc."""
        if links not in self._sends:
            at: dict[int, int] = {}  # epoch in which a switch has the chunk
            result = []
            for link in links:  # each after the one that feeds it
                arc = self._sends[(link,)][0][0]
                shift = at.get(int(self.topology.link_src[link]), 0)
                at[int(self.topology.link_dst[link])] = shift + int(self.delay[arc])
                result.append((arc, shift))
            self._sends[links] = result
        return self._sends[links]

    @cached_property
    def _sends(self) -> dict[tuple[int, ...], list[tuple[int, int]]]:
        return {self.routes.links(arc): [(arc, 0)] for arc in range(self.num_arcs)}

    def ends_of(self, links: tuple[int, ...]) -> list[tuple[int, int]]:
        """Return (node, epochs after which it can send the chunk on) of each end of a transfer."""
        ends = [(int(self.head[arc]), shift + int(self.delay[arc])) for arc, shift in self.sends_of(links)]
        return [(node, at) for node, at in ends if self.topology.stores[node]]

    # -- switches -----------------------------------------------------------------------------------------------------

    @cached_property
    def latency_ps(self) -> Ints:
        """Latency of each arc; the common latency of the links into a cut-through switch counts behind the switch."""
        latency = np.add.reduceat(self.link_latency_ps[self.hop_link], self.routes.ptr[:-1])
        if self.is_hyper:
            return latency
        common = self.common_latency_ps
        moved: Ints = latency - common[self.head] + common[self.tail]
        return moved

    @cached_property
    def link_latency_ps(self) -> Ints:
        """Latency of each link; zero if it is below the threshold."""
        small = self.topology.link_latency_ps < self.latency_threshold * self.epoch_ps
        return np.where(small, 0, self.topology.link_latency_ps)

    @cached_property
    def common_latency_ps(self) -> Ints:
        """Per node: the latency of all links into a cut-through switch whose neighbours store data, if equal."""
        topology = self.topology
        common = np.zeros(len(topology.nodes), dtype=np.int64)
        for node in np.flatnonzero(topology.cuts_through).tolist():
            into = np.flatnonzero(topology.link_dst == node)
            latencies = np.unique(self.link_latency_ps[into])
            if len(latencies) == 1 and topology.stores[topology.link_src[into]].all():
                common[node] = latencies[0]
        return common

    @cached_property
    def is_hyper(self) -> bool:
        """Whether arcs are routes between storing nodes, so that no switch is left."""
        return bool(self.topology.stores[self.head].all() and self.topology.stores[self.tail].all())

    @cached_property
    def by_links(self) -> bool:
        """Whether arc i is link i."""
        return np.array_equal(self.routes.link, np.arange(len(self.topology.links))) and self.num_arcs == len(
            self.topology.links
        )

    @cached_property
    def _switch_GBps(self) -> NDArray[np.float64]:
        """A cut-through switch is crossed at the speed of its slowest link, so that is the speed of all its links."""
        topology = self.topology
        slowest = np.full(len(topology.nodes), np.inf)
        if self.is_hyper:
            return np.full(self.num_arcs, np.inf)
        np.minimum.at(slowest, topology.link_dst, topology.link_GBps)
        np.minimum.at(slowest, topology.link_src, topology.link_GBps)
        slowest[~topology.cuts_through] = np.inf
        for _ in range(len(topology.nodes)):  # switches in a row
            before = slowest.copy()
            both = topology.cuts_through[topology.link_src] & topology.cuts_through[topology.link_dst]
            np.minimum.at(slowest, topology.link_src[both], before[topology.link_dst[both]])
            np.minimum.at(slowest, topology.link_dst[both], before[topology.link_src[both]])
            if np.array_equal(before, slowest):
                break
        at_ends: NDArray[np.float64] = np.minimum(slowest[self.head], slowest[self.tail])
        return at_ends


def make_grid(topology: Topology, chunk_bytes: float, options: TecclOptions) -> Grid:
    """The grid that the options ask for."""
    epoch_ps = _epoch_ps(topology, chunk_bytes, options)
    if options.hyper_edges and topology.stores.all():
        raise InputError(f"hyper-edges replace switches, and {topology.name} has none; leave them out")
    threshold = options.latency_threshold
    if topology.stores.all() or not (options.hyper_edges or _requires_routes(topology)):
        single = Routes(np.arange(len(topology.links) + 1), np.arange(len(topology.links), dtype=np.int32))
        shift = np.zeros(len(topology.links), dtype=np.int64)
        src, dst = topology.link_src.astype(np.int64), topology.link_dst.astype(np.int64)
        return Grid(topology, chunk_bytes, epoch_ps, threshold, single, src, dst, shift)
    if options.hyper_edges and (topology.copies & ~topology.stores).any():
        name = topology.nodes[int(np.argmax(topology.copies & ~topology.stores))].name
        raise InputError(f"hyper-edges cannot copy, and switch {name} can; leave them out")
    near = neighbours(topology)
    offset = near.shape.hop_offset_ps // epoch_ps
    src, end = (np.repeat(nodes, np.diff(near.pair_ptr)).astype(np.int64) for nodes in (near.src, near.end))
    return Grid(topology, chunk_bytes, epoch_ps, threshold, near.routes, src, end, _even_shift(near.routes, offset))


def chunk_size(demand: Demand) -> float:
    """Return the chunk size on the grid: the mean if sizes differ by at most one byte, else the largest."""
    sizes = demand.chunk_bytes
    return float(sizes.mean() if sizes.max() - sizes.min() <= 1 else sizes.max())


def check_buffers(grid: Grid, demand: Demand, least_bytes: float) -> None:
    """Raise InputError if a chunk can reach a destination only through nodes with less space than `least_bytes`."""
    topology = grid.topology
    space = np.array([np.inf if n.buffer_bytes is None or not n.stores else n.buffer_bytes for n in topology.nodes])
    if (space >= least_bytes).all():
        return
    for chunk in range(len(demand)):
        reached = {int(demand.source[chunk])}
        passes = space >= least_bytes
        passes[[*reached, *demand.destinations(chunk).tolist()]] = True  # source and destinations keep the chunk anyway
        todo = list(reached)
        while todo:
            node = todo.pop()
            found = set(grid.head[grid.tail == node].tolist()) - reached if passes[node] else set()
            reached |= found
            todo += found
        for rank in demand.destinations(chunk).tolist():
            if rank not in reached:
                tight = topology.nodes[int(np.argmin(space))]
                raise InputError(
                    f"buffers are too small: every path of chunk {chunk} from"
                    f" {topology.nodes[demand.source[chunk]].name} to {topology.nodes[rank].name} needs space at other"
                    f" nodes, and {tight.name} has {tight.buffer_bytes} bytes; set the buffer limit to at least"
                    f" {int(np.ceil(least_bytes))}"
                )


def epochs_up(ps: NDArray[np.floating] | NDArray[np.integer], epoch_ps: int) -> Ints:
    """Return the number of whole epochs that cover a duration."""
    whole: Ints = np.ceil(np.asarray(ps) / epoch_ps - _NOISE).astype(np.int64)
    return whole


def _epoch_ps(topology: Topology, chunk_bytes: float, options: TecclOptions) -> int:
    kind, value = epoch_choice(options.epoch)
    if kind == "us":
        return max(us_to_ps(value), 1)
    bandwidth = topology.link_GBps.min() if kind == "slow" else topology.link_GBps.max()
    epoch_ps = chunk_bytes * 1000.0 / bandwidth * value
    if topology.link_latency_ps.max(initial=0) > LONGEST_LATENCY * epoch_ps:
        epoch_ps *= STRETCH
    return max(int(np.ceil(round(float(epoch_ps), 3))), 1)


def _requires_routes(topology: Topology) -> bool:
    """Whether links of different speed meet in a plain cut-through switch, so that each route has its own speed."""
    for node in np.flatnonzero(topology.cuts_through & ~topology.copies).tolist():
        at = (topology.link_src == node) | (topology.link_dst == node)
        if len(np.unique(topology.link_GBps[at])) > 1:
            return not (topology.copies & ~topology.stores).any()
    return False


def _even_shift(routes: Routes, offset: Ints) -> Ints:
    """Shifts of hops, less the shift that all uses of a link have in common: only differences matter."""
    least = np.full(int(routes.link.max(initial=0)) + 1, NEVER)
    np.minimum.at(least, routes.link, offset)
    shift: Ints = offset - least[routes.link]
    return shift
