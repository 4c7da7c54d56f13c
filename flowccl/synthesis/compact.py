"""Synthesis in compact form, for machines with too many GPUs to list all transfers: one source, and a group."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flowccl.bounds.lower_bound import Bound
from flowccl.compilation import warm_up
from flowccl.demand.collectives import busbw_factor, collective_name
from flowccl.errors import DemandError, InputError, InvalidScheduleError, NothingFoundError
from flowccl.result import peak_memory_MB
from flowccl.schedule.compact import COMPACT, CompactSchedule
from flowccl.schedule.repaired import RepairedSchedule
from flowccl.synthesis.options import SearchOptions
from flowccl.topology.symmetry.whole_machine import whole_machine
from flowccl.topology.topology import Topology
from flowccl.verifier.compact import symmetric_bound, verify_whole
from flowccl.verifier.repaired import faulty_bound, verify_repaired
from flowccl.verifier.violation import Violation

if TYPE_CHECKING:
    from flowccl.methods.symmetric.one_source import OneSource
    from flowccl.methods.symmetric.routes import SourceRoutes

_MOST_PAIRS = 4_000_000  # (GPU, GPU) pairs; larger machines get the compact form
_PIECES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_RUNS = 3  # per chunk count
_FOLLOWING = 3  # times the last run that must fit into the time: one more run, and the verification
_NEVER = 2**61


@dataclass(frozen=True)
class CompactResult:
    """A verified compact schedule with its lower bound."""

    compact: CompactSchedule | RepairedSchedule
    bound: Bound
    synthesis_s: float
    peak_memory_MB: float
    seed: int

    @property
    def gap(self) -> float:
        """Finish / lower bound - 1."""
        return self.compact.finish_ps / max(self.bound.ps, 1) - 1

    def to_json(self) -> dict[str, Any]:
        """One flat object, for scripts."""
        whole = self.compact
        algbw = whole.size_bytes / 1000 / whole.finish_us
        return {
            "machine": whole.topology.name,
            "gpus": whole.topology.num_gpus,
            "collective": whole.collective,
            "size_bytes": whole.size_bytes,
            "chunks": whole.pieces,
            "method": "symmetric",
            "form": "compact",
            "finish_us": whole.finish_us,
            "lower_bound_us": self.bound.us,
            "gap": self.gap,
            "bound_witness": self.bound.witness,
            "algbw_GBps": algbw,
            "busbw_GBps": algbw * busbw_factor(whole.collective, whole.topology.num_gpus),
            "transfers": len(whole),
            "transfers_of_one_source": whole.transfers_of_one_source,
            "exceptions": whole.num_exceptions,
            "synthesis_s": round(self.synthesis_s, 3),
            "peak_memory_MB": round(self.peak_memory_MB, 1),
            "verified": True,
            "seed": self.seed,
        }


def too_large(topology: Topology, name: str) -> bool:
    """Whether a full schedule of this collective has too many transfers."""
    return collective_name(name) in COMPACT and topology.num_gpus**2 > _MOST_PAIRS


def synthesize_compact(
    topology: Topology,
    name: str,
    size_bytes: int,
    search: SearchOptions | None = None,
    **changed: Any,
) -> CompactResult:
    """Return a verified compact schedule; of the options, the chunks, the time limit, the gap and the seed count."""
    from flowccl.methods.symmetric import symmetric_routes

    options = replace(search or SearchOptions(), **changed)
    chunks, seed = options.chunks, options.seed
    kind = collective_name(name)
    if kind not in COMPACT:
        raise DemandError(f"the compact form is for {', '.join(COMPACT)}, not for {kind}")
    if size_bytes < topology.num_gpus * (chunks or 1):
        raise InputError(f"{kind}: {size_bytes} bytes are too few for the chunks of {topology.num_gpus} gpus")
    warm_up(["symmetric"])
    began = time.monotonic()
    paths, whole = symmetric_routes(topology), topology
    if paths is None and (restored := whole_machine(topology)) is not None:
        paths, whole = symmetric_routes(restored), restored
    if paths is None:
        raise DemandError(f"the compact form needs a machine that looks the same from every gpu; not {topology.name}")
    bound = faulty_bound(whole, topology, kind, size_bytes)
    forward = kind if kind in ("allgather", "alltoall") else "allgather"
    enough_ps = symmetric_bound(whole, forward, size_bytes).ps * (1 + options.gap)
    best: OneSource | None = None
    last = time.monotonic()
    for best in _runs(paths, forward, size_bytes, chunks, seed):
        now = time.monotonic()
        if best.finish_ps <= enough_ps or now - began + _FOLLOWING * (now - last) > options.time_limit_s:
            break
        last = now
    if best is None:
        raise NothingFoundError(f"no schedule found; the lower bound is {bound.us:g} us")
    compact, violations = _verified(best, kind, size_bytes, topology)
    if violations:
        raise InvalidScheduleError(f"symmetric made an invalid schedule, please report it: {violations[0]}")
    return CompactResult(compact, bound, time.monotonic() - began, peak_memory_MB(), seed)


def _verified(
    best: "OneSource", kind: str, size_bytes: int, topology: Topology
) -> tuple[CompactSchedule | RepairedSchedule, list[Violation]]:
    """The schedule of all data, repaired where the machine has faults, and what the verifier finds."""
    from flowccl.methods.symmetric.halves import backwards, reduced_by_halves
    from flowccl.methods.symmetric.repair import opposite_phase, repaired_phase

    group = best.source_routes.group
    block, forward = _block(size_bytes, topology), kind if kind in ("allgather", "alltoall") else "allgather"
    one = best.compact(block)
    if group.topology is topology:
        compact = CompactSchedule(kind, size_bytes, one if kind == forward else reduced_by_halves(one, kind), group)
        return compact, verify_whole(compact)
    phases = []
    if kind != "reduce_scatter":
        phases.append(repaired_phase(best, CompactSchedule(forward, size_bytes, one, group), topology))
    if kind != forward:
        back = backwards(best)
        turned = replace(back.compact(block), topology=group.topology.reversed)
        whole = CompactSchedule(forward, size_bytes, turned, group)
        opposite = opposite_phase(phases[0], whole) if phases else None
        phases.insert(0, opposite or repaired_phase(back, whole, topology.reversed))
    repaired = RepairedSchedule(kind, size_bytes, tuple(phases))
    return repaired, verify_repaired(repaired)


def _block(size_bytes: int, topology: Topology) -> int:
    """The bytes of the largest block."""
    return -(-size_bytes // topology.num_gpus)


def _runs(paths: "SourceRoutes", kind: str, size_bytes: int, chunks: int | None, seed: int) -> "Iterator[OneSource]":
    """Yield the best schedule after each run: a few runs per chunk count, while more chunks help."""
    from flowccl.methods.symmetric.one_source import deliver_one, spread_one

    topology, random = paths.group.topology, np.random.default_rng(seed)
    best: OneSource | None = None
    for pieces in _PIECES if chunks is None else (chunks,):
        if pieces > size_bytes // topology.num_gpus:
            return
        kinds, before = paths.kinds(-(-_block(size_bytes, topology) // pieces)), best
        for _ in range(_RUNS):
            deadline = _NEVER if best is None else best.finish_ps - 1
            if kind == "allgather":
                found = spread_one(paths, kinds, pieces, random, deadline)
            else:
                found = deliver_one(paths, kinds, pieces, random)
            if found is not None and (best is None or found.finish_ps < best.finish_ps):
                best = found
            if best is not None:
                yield best
        if best is before:
            return
