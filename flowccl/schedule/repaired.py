"""Schedules of machines with a few faults in compact form: that of the whole machine, and a list of exceptions.

A machine that looks the same from every GPU but for a lost or slow link has no symmetric schedule. The symmetric
schedule of the whole machine still holds for nearly all data. What crosses a faulty link, and what forwards that data,
is left out; the exceptions, transfers of their own, follow when all others have ended. Reductions run backwards, on the
reversed machine. `verifier/repaired.py` verifies this form directly.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import distinct, pointers
from flowccl.demand.collectives import collective
from flowccl.errors import ScheduleError
from flowccl.schedule.compact import CompactSchedule
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.timing import spread
from flowccl.schedule.transform import reverse
from flowccl.topology.routes import Routes
from flowccl.topology.symmetry.regular_groups import RegularGroup
from flowccl.topology.topology import Topology
from flowccl.units import ps_to_us

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]

PHASES = {"allgather": 1, "alltoall": 1, "reduce_scatter": 1, "allreduce": 2}
"""How many phases each collective has: those of a reduction are allgathers, the first one runs backwards."""
_MOST_EXPANDED = 20_000_000  # transfers


@dataclass(frozen=True, eq=False)
class Images:
    """Images of transfers of GPU 0's data: the element of the group, which is the owner of the data, and the row."""

    owner: I64
    row: I64

    def __len__(self) -> int:
        return len(self.owner)


@dataclass(frozen=True, eq=False)
class RepairedPhase:
    """An allgather or alltoall on a machine with faults.

    `whole` is that of the whole machine, whose first links are those of `topology`. Exception i moves a chunk of the
    data of GPU `owner[i]`; `exceptions` numbers chunks as those of GPU 0's data in `whole.one`.
    """

    whole: CompactSchedule
    topology: Topology
    exceptions: Schedule
    owner: I32

    def __len__(self) -> int:
        return len(self.whole) - len(self.left_out) + len(self.exceptions)

    @property
    def group(self) -> RegularGroup:
        """The group of the whole machine."""
        return self.whole.group

    @property
    def finish_ps(self) -> int:
        """The last arrival."""
        return max(self.whole.one.finish_ps, self.exceptions.finish_ps if len(self.exceptions) else 0)

    @cached_property
    def left_out(self) -> Images:
        """The images that use a faulty link, or forward what such an image would have brought."""
        return left_out(self.whole.one, self.group, faulty_links(self.whole.topology, self.topology))


@dataclass(frozen=True, eq=False)
class RepairedSchedule:
    """A collective on a machine with faults; the first phase of a reduction is on the reversed machine."""

    collective: str
    size_bytes: int
    phases: tuple[RepairedPhase, ...]

    def __len__(self) -> int:
        return sum(map(len, self.phases))

    @property
    def topology(self) -> Topology:
        """The machine with its faults."""
        return self.phases[-1].topology.reversed if self.collective == "reduce_scatter" else self.phases[-1].topology

    @property
    def group(self) -> RegularGroup:
        """The group of the whole machine."""
        return self.phases[0].group

    @property
    def pieces(self) -> int:
        """The number of chunks per block."""
        return self.phases[0].whole.pieces

    @property
    def transfers_of_one_source(self) -> int:
        """The number of transfers of GPU 0's data on the whole machine."""
        return sum(len(phase.whole.one) for phase in self.phases)

    @property
    def num_exceptions(self) -> int:
        """The number of transfers that replace images."""
        return sum(len(phase.exceptions) for phase in self.phases)

    @property
    def finish_ps(self) -> int:
        """The last arrival of the last phase."""
        return sum(phase.finish_ps for phase in self.phases)

    @property
    def finish_us(self) -> float:
        """The last arrival in microseconds."""
        return ps_to_us(self.finish_ps)

    def expanded(self) -> Schedule:
        """Return the schedule of all data; raise ScheduleError if it has too many transfers."""
        if len(self) > _MOST_EXPANDED:
            raise ScheduleError(f"{len(self)} transfers are too many to expand; at most {_MOST_EXPANDED} are possible")
        count = self.topology.num_gpus
        parts = [_expanded(phase) for phase in self.phases]
        if self.collective not in ("reduce_scatter", "allreduce"):
            return parts[0]
        demand = collective("reduce_scatter", count, self.size_bytes, self.pieces)
        first = replace(reverse(parts[0], demand, reduce=True), topology=self.topology)
        if self.collective == "reduce_scatter":
            return first
        second, begin_ps = parts[1], self.phases[0].finish_ps
        routes = Routes(
            np.append(first.routes.ptr, first.routes.ptr[-1] + second.routes.ptr[1:]),
            np.append(first.routes.link, second.routes.link),
        )
        return Schedule(
            self.topology,
            collective("allreduce", count, self.size_bytes, self.pieces),
            routes,
            np.append(first.chunk, second.chunk),
            np.append(first.route, second.route + len(first.routes)).astype(np.int32),
            np.append(first.start_ps, second.start_ps + begin_ps),
            np.append(first.reduce, second.reduce),
            second.method,
        )


def _expanded(phase: RepairedPhase) -> Schedule:
    """All images that are kept, then the exceptions."""
    whole = phase.whole.expanded()
    size = len(phase.whole.one)
    keep = np.ones(len(whole), dtype=np.bool_)
    keep[phase.left_out.owner * size + phase.left_out.row] = False
    own = phase.exceptions
    routes = Routes(
        np.append(whole.routes.ptr, whole.routes.ptr[-1] + own.routes.ptr[1:]),
        np.append(whole.routes.link, own.routes.link),
    ).only(np.concatenate((whole.route[keep].astype(np.int64), own.route.astype(np.int64) + len(whole.routes))))
    chunk = np.append(whole.chunk[keep], phase.whole.chunks_of(own.chunk, phase.owner))
    start = np.append(whole.start_ps[keep], own.start_ps)
    return Schedule.from_links(phase.topology, whole.demand, chunk.astype(np.int32), routes, start, method=own.method)


def faulty_links(whole: Topology, topology: Topology) -> NDArray[np.bool_]:
    """The links of the whole machine that a machine with faults lacks, or of which it has slower ones."""
    given, every = len(topology.links), len(whole.links)
    result = np.ones(every, dtype=np.bool_)
    columns = ("link_src", "link_dst", "link_GBps", "link_latency_ps", "link_overhead_ps")
    same = [getattr(whole, name)[:given] == getattr(topology, name)[:every] for name in columns]
    result[:given] = ~np.all(same, axis=0)
    return result


def feeders(one: Schedule) -> I64:
    """For each transfer of GPU 0's data, the one that brought its chunk to its sender; -1 where GPU 0 had it."""
    nodes = len(one.topology.nodes)
    chunk = one.chunk.astype(np.int64)
    arrives, sends = chunk * nodes + one.timing.end_node, chunk * nodes + one.timing.root_node
    order = np.argsort(arrives)
    place = np.minimum(np.searchsorted(arrives[order], sends), len(order) - 1)
    return np.where(arrives[order][place] == sends, order[place], -1)


def left_out(one: Schedule, group: RegularGroup, faulty: NDArray[np.bool_]) -> Images:
    """The images of transfers that use a faulty link, and those that depend on them."""
    broken = broken_images(one, group, faulty)
    before, size = feeders(one), len(one)
    fed = np.flatnonzero(before >= 0)
    after = fed[np.argsort(before[fed], kind="stable")]
    ptr = pointers(np.bincount(before[fed], minlength=size))
    found = [broken.owner * size + broken.row]
    front = broken
    while len(front):
        at, member = spread(ptr, front.row.astype(np.int32))
        front = Images(front.owner[at], after[member])
        found.append(front.owner * size + front.row)
    return Images(*np.divmod(distinct(np.concatenate(found)), size))


def broken_images(one: Schedule, group: RegularGroup, faulty: NDArray[np.bool_]) -> Images:
    """The images of transfers that use a faulty link. Each link of an orbit is the image of a used one exactly once."""
    timing, every = one.timing, np.arange(len(group))
    orbit, found = group.link_orbits, []
    for link in np.flatnonzero(faulty).tolist():
        hop = np.flatnonzero(orbit[timing.hop_link] == orbit[link])
        if not len(hop):
            continue
        images = group.moved_links(np.array([link]), every)
        element = np.zeros(len(orbit), dtype=np.int32)
        element[images] = every  # that maps the faulty link to each link of its orbit
        owner = group.difference(np.zeros(len(hop), dtype=np.int32), element[timing.hop_link[hop]])
        found.append(owner.astype(np.int64) * len(one) + timing.hop_transfer[hop])
    none = np.zeros(0, dtype=np.int64)
    return Images(*np.divmod(distinct(np.concatenate([none, *found])), max(len(one), 1)))
