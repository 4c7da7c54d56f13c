"""The verifier of repaired schedules: that of the whole machine, without what a fault touches, and exceptions.

Why this is enough: the schedule of the whole machine is verified. Of its transfers, those stay that use no faulty link
and wait for none that is left out, so they are valid on the machine with faults. The exceptions start when these have
ended, so only exceptions share links in time. An exception may send what its sender has: its own data, what a
transfer that stays brought, or what an earlier exception brought. Every GPU receives a chunk at most once where the
phase runs backwards as a reduction, so that every contribution is counted once; that is verified for all phases in
which all GPUs receive all data.
"""

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import NEVER, distinct, is_among, without_any
from flowccl.bounds.cuts import Cut
from flowccl.bounds.lower_bound import Bound
from flowccl.schedule.repaired import PHASES, RepairedPhase, RepairedSchedule, faulty_links
from flowccl.topology.topology import Topology
from flowccl.verifier.compact import cut_bound, symmetric_bound, verify_whole
from flowccl.verifier.verify import check_links
from flowccl.verifier.violation import Violation, exact_us, transfer_name

I64 = NDArray[np.int64]


def verify_repaired(repaired: RepairedSchedule) -> list[Violation]:
    """Return all violations, of all phases; an empty list proves that the schedule is valid."""
    wanted = PHASES[repaired.collective]
    if len(repaired.phases) != wanted:
        return [Violation("machine", f"{repaired.collective} has {wanted} phases, got {len(repaired.phases)}")]
    result = list[Violation]()
    is_reduction = repaired.collective in ("reduce_scatter", "allreduce")
    for number, phase in enumerate(repaired.phases):
        name = "allgather" if is_reduction else repaired.collective
        machine = repaired.topology.reversed if is_reduction and number == 0 else repaired.topology
        if (phase.whole.collective, phase.whole.size_bytes) != (name, repaired.size_bytes):
            result.append(Violation("destination", f"phase {number} is no {name} of {repaired.size_bytes} bytes"))
        elif phase.topology.links != machine.links or phase.topology.nodes != machine.nodes:
            result.append(Violation("machine", f"phase {number} is not for {machine.name}"))
        else:
            result += _phase(phase)
    return result


def _phase(phase: RepairedPhase) -> list[Violation]:
    whole, own = phase.whole.topology, phase.exceptions
    if whole.nodes != phase.topology.nodes or len(phase.topology.links) > len(whole.links):
        return [Violation("machine", f"{whole.name} has other nodes than {phase.topology.name}, or lacks its links")]
    given = len(phase.topology.links)
    ends = [(getattr(whole, name)[:given], getattr(phase.topology, name)) for name in ("link_src", "link_dst")]
    if not all(np.array_equal(*pair) for pair in ends) or phase.topology.has_extra_constraints:
        return [Violation("machine", f"the first links of {whole.name} are not those of {phase.topology.name}")]
    if own.demand != phase.whole.one.demand or own.topology is not phase.topology:
        return [Violation("destination", "the exceptions have another demand or machine than their phase")]
    if np.any(phase.owner < 0) or np.any(phase.owner >= len(phase.group)) or len(phase.owner) != len(own):
        return [Violation("source", "an exception is of the data of a GPU that does not exist")]
    if violations := verify_whole(phase.whole):
        return violations
    if len(repeated := _repeated(_delivered(phase))):
        return [Violation("destination", f"a GPU receives chunk {repeated[0]} of gpu 0's data twice")]
    if own.shape.problem:
        number, words = next(iter(own.shape.problem.items()))
        return [Violation("route", f"the route {number} of the exceptions {words}")]
    return [*_starts(phase), *_sources_and_destinations(phase), *check_links(phase.exceptions)]


def _delivered(phase: RepairedPhase) -> I64:
    """A number for each chunk and GPU that receives it, of all transfers of GPU 0's data."""
    one = phase.whole.one
    return one.chunk.astype(np.int64) * len(phase.group) + one.timing.end_node


def _repeated(keys: I64) -> I64:
    """The numbers that appear several times."""
    ordered = np.sort(keys)
    return distinct(ordered[1:][ordered[1:] == ordered[:-1]])


def _starts(phase: RepairedPhase) -> list[Violation]:
    """Exceptions start when the transfers of the whole machine have ended."""
    end_ps, own = phase.whole.one.finish_ps, phase.exceptions
    return [
        Violation("start", f"{transfer_name(own, i)}: starts before the end of the others at {exact_us(end_ps)}", (i,))
        for i in np.flatnonzero(own.start_ps < end_ps).tolist()
    ]


def _sources_and_destinations(phase: RepairedPhase) -> list[Violation]:
    """Senders of exceptions have the chunk; what is left out and wanted arrives, and nothing that is there."""
    own, group, timing = phase.exceptions, phase.group, phase.exceptions.timing
    if len(timing.root_node) != len(own) or len(timing.end_node) != len(own):
        return [Violation("route", "an exception has several senders or receivers")]
    count, chunks = len(group), len(own.demand)
    block = (phase.owner.astype(np.int64) * chunks + own.chunk) * count
    sends, arrives = block + timing.root_node, block + timing.end_node
    one, lost = phase.whole.one, phase.left_out
    end = one.timing.end_node[lost.row]
    missing = np.sort((lost.owner * chunks + one.chunk[lost.row]) * count + group.image(end, lost.owner))
    order = np.lexsort((timing.end_arrival_ps, arrives))
    first = np.flatnonzero(np.diff(arrives[order], prepend=-1))
    keys, since = arrives[order][first], timing.end_arrival_ps[order][first]
    result = []
    place = np.minimum(np.searchsorted(keys, sends), max(len(keys) - 1, 0))
    early = np.where(keys[place] == sends, since[place], NEVER) if len(keys) else np.zeros(0, dtype=np.int64)
    has = _had(phase, timing.root_node, missing, sends) | (early <= timing.root_from_ps)
    for i in np.flatnonzero(~has).tolist():
        result.append(Violation("source", f"{transfer_name(own, i)}: its sender does not have the chunk yet", (i,)))
    wanted = missing
    if phase.whole.collective == "alltoall":
        is_end = end == one.chunk[lost.row] // phase.whole.pieces + 1
        wanted = np.sort(((lost.owner * chunks + one.chunk[lost.row]) * count + group.image(end, lost.owner))[is_end])
    else:
        twice = without_any(arrives, missing), _repeated(arrives)
        result += [Violation("destination", f"gpu {k % count} receives a chunk again") for k in np.concatenate(twice)]
    never = without_any(wanted, keys)
    result += [Violation("destination", f"gpu {k % count} never gets chunk {k // count}") for k in never.tolist()]
    return result


def _had(phase: RepairedPhase, node: NDArray[np.int32], missing: I64, keys: I64) -> NDArray[np.bool_]:
    """Whether each sender of an exception has the chunk when all transfers that are not left out have ended."""
    own, count = phase.exceptions, len(phase.group)
    like = phase.group.difference(node, phase.owner).astype(np.int64)  # where gpu 0's chunk is then
    brought = is_among(own.chunk.astype(np.int64) * count + like, np.sort(_delivered(phase)))
    return np.asarray((like == 0) | (brought & ~is_among(keys, missing)))


def repaired_bound(repaired: RepairedSchedule) -> Bound:
    """Return a lower bound: that of the whole machine, and cuts around the GPUs and hosts whose links are faulty."""
    phase = repaired.phases[-1]
    whole = phase.whole.topology.reversed if repaired.collective == "reduce_scatter" else phase.whole.topology
    return faulty_bound(whole, repaired.topology, repaired.collective, repaired.size_bytes)


def faulty_bound(whole: Topology, topology: Topology, collective: str, size_bytes: int) -> Bound:
    """Return the same for a machine and the whole machine behind it, whose first links are those of the machine."""
    best = symmetric_bound(whole, collective, size_bytes)
    if collective == "reduce_scatter":
        return max(best, _cut_bounds(whole.reversed, topology.reversed, "allgather", size_bytes, "out of"), key=_ps)
    best = max(best, _cut_bounds(whole, topology, collective, size_bytes, "into"), key=_ps)
    if collective == "allgather":
        return best
    return max(best, _cut_bounds(whole.reversed, topology.reversed, collective, size_bytes, "out of"), key=_ps)


def _ps(bound: Bound) -> int:
    return bound.ps


def _cut_bounds(whole: Topology, topology: Topology, collective: str, size_bytes: int, word: str) -> Bound:
    """Cuts into the GPUs at faulty links, and into their hosts.

    An allreduce brings at least its size into every set of GPUs: there, it can be reduced to no less.
    """
    count, nodes, best = topology.num_gpus, topology.nodes, Bound(0, "cut", "nothing")
    faulty = faulty_links(whole, topology)
    gpus = {int(n) for n in np.append(whole.link_src[faulty], whole.link_dst[faulty]) if n < count}
    sides = {nodes[gpu].name: np.arange(len(nodes)) == gpu for gpu in sorted(gpus)}
    for host in sorted({nodes[gpu].host for gpu in gpus} - {""}):
        sides[host] = np.array([node.host == host for node in nodes])
    for name, far in sides.items():
        inside = int(far[:count].sum())
        if inside == count:
            continue
        blocks = {"allgather": count - inside, "alltoall": (count - inside) * inside}.get(collective, count)
        best = max(best, cut_bound(Cut(topology, f"{word} {name}", far), blocks * (size_bytes // count)), key=_ps)
    return best
