"""Prepare a synthesis: check what was asked for, and derive what is planned, on which machine, by which methods."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from flowccl.adapters.runtime import planning_problem
from flowccl.auto.arm import step_work_s
from flowccl.auto.portfolio import portfolio
from flowccl.demand.collectives import collective as named_collective
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError, InputError
from flowccl.memory import check_memory
from flowccl.methods.registry import REGISTRY, info_of
from flowccl.problem import Problem
from flowccl.runtimes.limits import check_collective
from flowccl.runtimes.machine import sms_of, used_by
from flowccl.runtimes.profiles import WARP_BYTES, RuntimeProfile, runtime_profile, served_bytes
from flowccl.synthesis.mirror import Mirror
from flowccl.synthesis.options import MIN_CHUNK_BYTES, SearchOptions
from flowccl.topology.topology import Topology
from flowccl.topology.trunks import Lanes, split_trunks

Wanted: TypeAlias = str | Demand | Callable[[int], Demand]
"""The name of a collective, a demand, or a function that makes the demand for a number of chunks per block."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be planned: the problem with one chunk per block, and the demand for any number of chunks.

    `topology` is the machine as it was given; that of `problem` is as the runtime uses it, with at most `sms`
    threadblocks on a GPU. Without a runtime, links that carry several transfers at once are split into `lanes`, since
    methods plan one transfer at a time on a link; `searched` is the problem on these. `planned` is the problem that
    methods receive: for a runtime, it has the costs of messages in its links. A reduction with one destination is
    searched for in its `mirror`; `searched_of` is the demand that is searched for, for any number of chunks.
    """

    options: SearchOptions
    topology: Topology
    target: RuntimeProfile
    problem: Problem
    demand_of: Callable[[int], Demand]
    method_options: dict[str, Any]
    sms: int | None
    lanes: Lanes | None
    searched: Problem
    planned: Problem
    searched_of: Callable[[int], Demand]
    mirror: Mirror | None

    @property
    def method_names(self) -> list[str]:
        """The names of the methods behind a name; for a runtime, each is asked about the machine on which it plans."""
        if self.options.method != "auto":
            return [info_of(self.options.method).name]
        if self.target.is_ideal:
            return portfolio(self.searched)
        names = portfolio(self.planned)
        for kind in ("operations", "by_rate"):
            planned = planning_problem(self.problem, self.target, **{kind: True})
            others = [info for info in REGISTRY.values() if getattr(info, kind) and info.name not in names]
            names += [info.name for info in others if info.suits(planned)]
        return names

    @property
    def least_chunk_bytes(self) -> int:
        """The least chunk in bytes; one that was asked for must not be larger than the smallest block.

        By default, what hides the costs of messages that the model does not have; where it has them, one access of a
        warp.
        """
        smallest, least = int(self.problem.demand.chunk_bytes.min()), self.options.min_chunk_bytes
        if least is None:
            return MIN_CHUNK_BYTES if self.target.is_ideal else WARP_BYTES
        if least < 1:
            raise InputError(f"the least chunk must have at least 1 byte, got {least}")
        if least > smallest:
            raise InputError(f"the smallest block has {smallest} bytes, below the least chunk of {least}")
        return least


def prepare(topology: Topology, wanted: Wanted, size_bytes: int | None, options: SearchOptions) -> Task:
    """Check what was asked for, and return what is to be planned."""
    target = runtime_profile(options.runtime) if isinstance(options.runtime, str) else options.runtime
    used, sms, chunks, method_options = topology, options.sms, options.chunks, dict(options.options)
    if not target.is_ideal:
        sms = _check_runtime(target, topology, wanted, sms)
        if isinstance(wanted, str) and size_bytes is not None:
            size_bytes = served_bytes(size_bytes, topology.num_gpus, chunks or 1)
        used = used_by(topology, target, in_network=True)
    info = None if options.method == "auto" else info_of(options.method)
    if info is not None and info.epochs and chunks is None:
        chunks = 1
    if info is not None and info.own_chunks:
        method_options, chunks = {**method_options, "chunks": chunks}, 1
    check_memory(used, wanted, chunks)
    demand_of = _demand_of(used, wanted, size_bytes, chunks, options.root)
    if chunks is None and not isinstance(wanted, Demand):
        demand_of = _multiples(demand_of, getattr(method_options.get("sketch"), "chunks", 1))
    first = demand_of(1)
    first.check_fits(used)
    _check_duration(used, first)
    if options.chunks is not None and options.steps is None:
        _check_chunks(options.chunks, first, options.time_limit_s)
    problem = Problem(used, first)
    mirror = Mirror.of(used, demand_of) if target.is_ideal and info is None else None
    machine, searched_of = (used, demand_of) if mirror is None else (mirror.machine, mirror.distribution)
    lanes = split_trunks(machine) if target.is_ideal else None
    searched = Problem(machine if lanes is None else lanes.topology, searched_of(1))
    planned = searched if target.is_ideal else planning_problem(problem, target)
    return Task(
        options,
        topology,
        target,
        problem,
        demand_of,
        method_options,
        sms,
        lanes,
        searched,
        planned,
        searched_of,
        mirror,
    )


def _check_runtime(
    target: RuntimeProfile,
    topology: Topology,
    collective: Wanted,
    sms: int | None,
) -> int:
    """Refuse a collective that the runtime does not have; return the most threadblocks that a GPU can run at once."""
    assert target.limits is not None
    name = collective if isinstance(collective, str) else getattr(collective, "collective", "")
    if name:
        check_collective(target.limits, name)
    return min(target.limits.blocks, sms_of(topology, sms))


def _demand_of(
    topology: Topology,
    collective: Wanted,
    size_bytes: int | None,
    chunks: int | None,
    root: int,
) -> Callable[[int], Demand]:
    """The demand for a number of chunks; one that is fixed has only one number."""
    if isinstance(collective, Demand):
        fixed = collective
    elif callable(collective) and chunks is None:
        return _same_size(collective)
    elif callable(collective):
        fixed = collective(chunks or 1)
    elif size_bytes is None:
        raise InputError(f"{collective} needs a size, for example 1MB")
    elif chunks is not None:
        fixed = named_collective(collective, topology.num_gpus, size_bytes, chunks, root)
    else:
        return lambda count: named_collective(collective, topology.num_gpus, size_bytes, count, root)

    def only(count: int) -> Demand:
        if count > 1:
            raise DemandError("the chunks are given")
        return fixed

    return only


def _same_size(demand_of: Callable[[int], Demand]) -> Callable[[int], Demand]:
    """The same; an error where the size depends on the number of chunks."""
    whole = demand_of(1)

    def checked(count: int) -> Demand:
        demand = demand_of(count)
        if demand.chunk_bytes.sum() != whole.chunk_bytes.sum():
            raise InputError(
                f"{demand.collective}: with {demand.pieces} chunks per block it has {demand.chunk_bytes.sum()} bytes, "
                f"with {whole.pieces} it has {whole.chunk_bytes.sum()}; both must have the same"
            )
        return demand

    return checked


def _multiples(demand_of: Callable[[int], Demand], least: int) -> Callable[[int], Demand]:
    """The same, with the number of chunks multiplied by `least`."""
    return lambda count: demand_of(count * least)


def _check_chunks(chunks: int, demand: Demand, limit_s: float) -> None:
    """Refuse a chunk count whose first schedule would take longer than the time limit."""
    work_s = step_work_s("greedy", demand, first=True)
    if chunks > 1 and work_s > limit_s:
        deliveries = f"{len(demand.destination_rank):,} deliveries"
        raise InputError(
            f"{chunks} chunks per block are {deliveries}, whose first schedule takes about {work_s:.0f} s; "
            "use fewer chunks, or a time limit above that"
        )


def _check_duration(topology: Topology, demand: Demand) -> None:
    """Times must fit 62 bits of picoseconds (53 days), even if every byte went over the slowest link in turn."""
    slowest = float(min(link.bandwidth_GBps for link in topology.links)) if topology.links else 1.0
    if float(demand.chunk_bytes.sum()) * 1000.0 / slowest * len(topology.nodes) > 2.0**62:
        raise DemandError(
            f"{demand.size_bytes} bytes over links of {slowest:g} GB/s may take over 53 days; check size and bandwidth"
        )
