"""What a kind of calls could take: NCCL's model, the proved lower bound of the hardware, and the best plan found."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from flowccl.bounds.lower_bound import Bound, lower_bound
from flowccl.catalog.library import Shape, library_choice, shape_of
from flowccl.demand.demand import Demand
from flowccl.errors import FlowcclError, InputError
from flowccl.jobs.bottleneck import bottleneck_in_words
from flowccl.jobs.kinds import Kind
from flowccl.jobs.placing import EquivalentGroups, demand_of, fits, only_gpus, together
from flowccl.runtimes.limits import check_collective
from flowccl.runtimes.profiles import RuntimeProfile, served_bytes
from flowccl.synthesis import synthesize
from flowccl.topology.topology import Topology

EVEN = ("allreduce", "allgather", "reduce_scatter", "alltoall")
"""Collectives in which all ranks of a group do the same."""
_HELPS = 0.98  # of the bound without relays: below this, GPUs outside the group help a call that has them to itself
_MOST_TOGETHER = 4096  # deliveries of simultaneous calls whose common bound is computed


@dataclass(frozen=True, slots=True)
class CallBound:
    """A proved lower bound of a call in us, the bottleneck in words, and the witness."""

    us: float
    bottleneck: str
    witness: str


@dataclass(frozen=True, slots=True)
class CallPlan:
    """The best plan that was found: its predicted time in us, its method; or the reason why there is none."""

    us: float | None
    method: str = ""
    reason: str = ""


class Evaluator:
    """Bounds, NCCL's model and plans of kinds of calls on one machine; equivalent calls are computed once."""

    def __init__(
        self,
        topology: Topology,
        runtime: RuntimeProfile,
        *,
        time_limit_s: float,
        sms: int | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.topology, self.runtime, self.time_limit_s, self.sms = topology, runtime, time_limit_s, sms
        self.should_stop = should_stop
        self._equivalent = EquivalentGroups(topology)
        self._bounds: dict[Any, CallBound | None] = {}
        self._plans: dict[Any, CallPlan] = {}
        self._shape = lru_cache(maxsize=4096)(self._shape_of)

    def bound(self, kind: Kind, gpus: tuple[int, ...]) -> CallBound | None:
        """Return the bound of a call that has the whole machine to itself; None where it moves no known data."""
        found = self._bound(kind, gpus, relays=True)
        if found is None or kind.collective not in EVEN:
            return found
        words = [self._equivalent.renamed(text, gpus) for text in (found.bottleneck, found.witness)]
        return CallBound(found.us, *words)

    def bound_together(self, kinds: list[Kind], groups: list[tuple[int, ...]]) -> CallBound | None:
        """Return the bound of calls of disjoint groups that run at the same time; None where it adds nothing.

        It is only needed where a call alone could use GPUs outside its group, which the other calls now use.
        """
        key = ("together", kinds[0].collective, kinds[0].size_bytes, frozenset(frozenset(group) for group in groups))
        if key not in self._bounds:
            self._bounds[key] = self._together(kinds, groups)
        return self._bounds[key]

    def _together(self, kinds: list[Kind], groups: list[tuple[int, ...]]) -> CallBound | None:
        free, own = self._bound(kinds[0], groups[0], relays=True), self._bound(kinds[0], groups[0], relays=False)
        if free is None or (own is not None and free.us >= own.us * _HELPS):
            return None
        demands = [demand_of(kind, gpus, self.topology, relays=True) for kind, gpus in zip(kinds, groups, strict=True)]
        known = [demand for demand in demands if demand is not None]
        if len(known) < 2 or sum(len(demand.destination_rank) for demand in known) > _MOST_TOGETHER:
            return None
        return self._in_words(lower_bound(self.topology, together(known)))

    def _bound(self, kind: Kind, gpus: tuple[int, ...], *, relays: bool) -> CallBound | None:
        key = (relays, *self._key(kind, gpus))
        if key not in self._bounds:
            demand = demand_of(kind, gpus, self.topology, relays=relays)
            usable = demand is not None and fits(demand, self.topology)
            self._bounds[key] = self._in_words(lower_bound(self.topology, demand)) if usable and demand else None
        return self._bounds[key]

    def latency_us(self, kind: Kind, gpus: tuple[int, ...]) -> float:
        """Return the bound of the same call with one byte for each rank: what latency alone takes."""
        smallest = len(gpus)
        if kind.size_bytes <= smallest:
            return 0.0
        matrix = None if kind.matrix is None else (kind.matrix > 0).astype(kind.matrix.dtype)
        bound = self.bound(replace(kind, size_bytes=smallest, matrix=matrix), gpus)
        return 0.0 if bound is None else bound.us

    def _in_words(self, bound: Bound) -> CallBound:
        return CallBound(bound.us, bottleneck_in_words(self.topology, bound), bound.witness)

    def _key(self, kind: Kind, gpus: tuple[int, ...]) -> tuple[Any, ...]:
        """The same for calls that are equivalent by symmetry: those without a root and with even sizes."""
        even = kind.collective in EVEN
        members = self._equivalent.representative(gpus) if even else gpus
        matrix = kind.matrix.tobytes() if kind.matrix is not None else None
        return kind.collective, kind.size_bytes, members, None if even else kind.root, matrix

    def library_us(self, kind: Kind, gpus: tuple[int, ...]) -> float | None:
        """Return the time of NCCL's own model; None where it does not know the collective."""
        collective = "alltoall" if kind.collective == "alltoallv" else kind.collective
        if collective not in EVEN or len(gpus) < 2:
            return None
        choice = library_choice(self._shape(tuple(gpus)), collective, kind.size_bytes)
        return None if choice is None else choice.time_us

    def _shape_of(self, gpus: tuple[int, ...]) -> Shape:
        whole = only_gpus(self.topology, gpus)
        shape = shape_of(whole)
        return shape if shape.hosts > 1 or shape.gpu_GBps else replace(shape, gpu_GBps=shape.nics_GBps)

    def plan(self, kind: Kind, gpus: tuple[int, ...]) -> CallPlan:
        """Return the best plan that the group's own GPUs can run, found within the time limit."""
        key = self._key(kind, gpus)
        if key not in self._plans:
            self._plans[key] = self._searched(kind, gpus)
        return self._plans[key]

    def known_plan(self, kind: Kind, gpus: tuple[int, ...]) -> bool:
        """Whether the plan of an equivalent call was already searched for."""
        return self._key(kind, gpus) in self._plans

    def _searched(self, kind: Kind, gpus: tuple[int, ...]) -> CallPlan:
        """Search on the machine with the GPUs of the group only: a runtime runs a plan on one communicator."""
        own, group = only_gpus(self.topology, gpus), tuple(range(len(gpus)))
        first = demand_of(kind, group, own, relays=False)
        if first is None:
            return CallPlan(None, reason="moves no data that is known")
        relays = not fits(first, own)
        if relays and not self.runtime.is_ideal:
            return CallPlan(
                None, reason="GPUs of the group reach each other only through other GPUs: one plan has no others"
            )
        machine, members = (self.topology, gpus) if relays else (own, group)
        size = self._served(kind, len(gpus))

        def with_chunks(count: int) -> Demand:
            made = demand_of(kind, members, machine, relays=relays, chunks=count, size_bytes=size)
            if made is None:
                raise InputError("moves no data that is known")
            return replace(made, group=None, relays=None) if machine is own else made

        try:
            if self.runtime.limits is not None:
                check_collective(self.runtime.limits, first.collective)
            result = synthesize(
                machine,
                with_chunks,
                time_limit_s=self.time_limit_s,
                runtime=self.runtime,
                sms=self.sms,
                should_stop=self.should_stop,
            )
        except FlowcclError as error:
            return CallPlan(None, reason=str(error))
        us = result.schedule.finish_us if result.lowered is None else result.lowered.program_us
        return CallPlan(us, result.schedule.method)

    def _served(self, kind: Kind, ranks: int) -> int | None:
        """The size that a plan of the runtime can have; None without one, and for a matrix."""
        if self.runtime.is_ideal or kind.matrix is not None:
            return None
        return served_bytes(kind.size_bytes, ranks)
