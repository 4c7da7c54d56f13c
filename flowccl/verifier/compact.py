"""The verifier of compact schedules: the transfers of GPU 0's data, and a group that maps them to all sources.

Why this is enough: an element of the group maps a valid schedule of GPU 0's data to a valid one of another GPU's data,
because it leaves the machine unchanged. It remains to show that transfers of different sources do not overlap on a
link. If two did, the group would map them to two transfers of GPU 0's data that use links of one orbit at the same
time. So if no two uses of an orbit overlap, and only the identity fixes a used link, no two transfers overlap. The same
holds for reductions: the data of GPU 0 is then the block that is reduced at GPU 0, with the contributions of all GPUs.

On a runtime, transfers share links by rate: a link carries one image of each use of its orbit, so the rates of all
uses of an orbit add up to at most the bandwidth of a link. Every GPU issues and receives one image of each message, so
no two messages may occupy a group of threadblocks of the same number, or a proxy, at the same time.
"""

from dataclasses import replace

import numpy as np

from flowccl.bounds.cuts import Cut
from flowccl.bounds.lower_bound import Bound
from flowccl.bounds.partitions import Crossing
from flowccl.schedule.compact import CompactSchedule, made_from
from flowccl.schedule.schedule import Schedule
from flowccl.topology.symmetry.permutations import verified
from flowccl.topology.symmetry.regular_groups import RegularGroup
from flowccl.topology.topology import Topology
from flowccl.units import format_bytes, format_GBps
from flowccl.verifier.issuers import check_overlaps
from flowccl.verifier.verify import excess, verify
from flowccl.verifier.violation import Violation, exact_us
from flowccl.wording import counted


def verify_whole(compact: CompactSchedule) -> list[Violation]:
    """Return all violations of a compact schedule, including a demand that is not its part of the collective."""
    wanted, got = compact.demand_of_one, compact.one.demand
    if got != wanted:
        words = f"gpu 0 has the demand {got!r}; its part of the {compact.collective} is {wanted!r}"
        return [Violation("destination", words)]
    return verify_compact(compact.one, compact.group)


def verify_found(schedule: Schedule) -> list[Violation]:
    """Return all violations of a schedule that a search has found: of its compact form, where it was made from one."""
    compact = made_from(schedule)
    return verify(schedule) if compact is None else verify_whole(compact)


def symmetric_bound(topology: Topology, collective: str, size_bytes: int) -> Bound:
    """Return a lower bound for machines that look the same from every GPU: cuts into a GPU, a host and half the ranks.

    n - m blocks (allgather) or m (n - m) blocks (alltoall) must enter a set of m of n GPUs; n - m partly reduced blocks
    must leave it in a reduce_scatter. An allreduce also has the bound of `_partition_bound`.
    """
    if collective in ("reduce_scatter", "allreduce"):
        reduction = symmetric_bound(topology.reversed, "allgather", size_bytes)
        reduction = replace(reduction, witness=reduction.witness.replace("must cross into", "must cross out of"))
        if collective == "reduce_scatter":
            return reduction
        return max(reduction, *_partition_bounds(topology, size_bytes), key=lambda bound: bound.ps)
    count, nodes = topology.num_gpus, topology.nodes
    host = np.array([bool(nodes[0].host) and node.host == nodes[0].host for node in nodes])
    rank = np.arange(len(nodes))
    sides = {f"into {nodes[0].name}": rank == 0, "into half of the ranks": rank < count // 2}
    if host[:count].sum() not in (0, 1, count):
        sides[f"into {nodes[0].host}"] = host
    best = Bound(0, "cut", "nothing")
    for name, far in sides.items():
        inside = int(far[:count].sum())
        blocks = (count - inside) * (1 if collective == "allgather" else inside)
        volume = blocks * (size_bytes // count)  # the smallest blocks
        best = max(best, cut_bound(Cut(topology, name, far), volume), key=lambda bound: bound.ps)
    return best


def cut_bound(cut: Cut, volume: int) -> Bound:
    """Return the lower bound of a cut that so many bytes must cross."""
    latency_ps = cut.topology.link_latency_ps[cut.links].min()
    ps = int(np.ceil((volume * 1000 / cut.GBps + latency_ps) * (1 - 1e-12)))
    links = counted(len(cut.links), "link")
    return Bound(ps, "cut", f"{format_bytes(volume)} must cross {cut.name}, {format_GBps(cut.GBps)} ({links})")


def _partition_bounds(topology: Topology, size_bytes: int) -> list[Bound]:
    """Allreduce: with every GPU or every host a part, p parts need 2 p - 2 arrivals of each block.

    This is theorem 18 of the thesis; no node between the parts may reduce. See `flowccl.bounds.partitions`.
    """
    gpus, nodes, result = topology.num_gpus, topology.nodes, [Bound(0, "partition", "nothing")]
    every = np.where(np.arange(len(nodes)) < gpus, np.arange(len(nodes)), -1)
    place = {host: i for i, host in enumerate(topology.hosts)}
    hosts = np.array([place.get(node.host, -1) for node in nodes], dtype=np.int64)
    for name, part in (("gpus", every), ("hosts", hosts)):
        count = int(part.max()) + 1
        if count < 2 or np.any(part[:gpus] < 0) or np.any(topology.reduces[part < 0]):
            continue
        words, none = f"into each of {count} {name}", np.zeros(0, dtype=np.bool_)
        crossing = Crossing(topology, words, none, part, inward=True, operates=False)
        volume = (2 * count - 2) * (size_bytes // gpus * gpus)
        ps = int(np.ceil(volume * 1000 / crossing.GBps * (1 - 1e-12)))
        GBps = format_GBps(crossing.GBps)
        words = f"{format_bytes(volume)} must cross {crossing.name}, all together, {GBps} ({len(crossing.links)} links)"
        result.append(Bound(ps, "partition", words))
    return result


def verify_compact(schedule: Schedule, group: RegularGroup) -> list[Violation]:
    """Return all violations; an empty list proves that the images of this schedule under the group are valid."""
    found = [*_group(schedule, group), *verify(schedule)]
    execution = schedule.execution
    if execution is None:
        return [*found, *_orbits(schedule, group)]
    return [*found, *_shared_orbits(schedule, group), *check_overlaps(schedule, execution, by_one=True)]


def _group(schedule: Schedule, group: RegularGroup) -> list[Violation]:
    """The generators are symmetries of this machine with exactly one element per GPU, and all data is GPU 0's."""
    topology, rotations = schedule.topology, group.rotations
    known = verified(topology, rotations.nodes)
    if len(known) != len(rotations) or not np.array_equal(known.links, rotations.links):
        return [Violation("machine", "a permutation of the group is no symmetry of the machine")]
    count, total = topology.num_gpus, 1
    for nodes, inside, order in zip(rotations.nodes, group.inside, group.order, strict=True):
        rank = np.arange(count)
        digit = rank // inside % order
        if total != inside or not np.array_equal(nodes[:count], rank + ((digit + 1) % order - digit) * inside):
            return [Violation("machine", "a permutation of the group is not the expected rotation of a digit")]
        total *= order
    if total != count:
        return [Violation("machine", f"the group has {total} elements for {count} gpus")]
    if not schedule.demand.reduces and np.any(schedule.demand.source_rank != 0):
        return [Violation("source", "in compact form all data must be that of gpu 0")]
    if topology.has_extra_constraints:
        return [Violation("machine", "the compact form does not support limits, buffers or changes of bandwidth")]
    return []


def _fixed(schedule: Schedule, group: RegularGroup) -> list[Violation]:
    """Used links that an element of the group fixes, beside the identity."""
    timing = schedule.timing
    stuck = np.flatnonzero(~group.free_links[timing.hop_link])
    if not len(stuck):
        return []
    link = int(timing.hop_link[stuck[0]])
    words = f"link {link} ({schedule.topology.link_name(link)}) is fixed by an element of the group"
    return [Violation("link", words, (int(timing.hop_transfer[stuck[0]]),))]


def _shared_orbits(schedule: Schedule, group: RegularGroup) -> list[Violation]:
    """Only the identity fixes a used link, and the rates on an orbit add up to at most the bandwidth of a link."""
    result, topology = _fixed(schedule, group), schedule.topology
    if result:
        return result
    orbit = group.link_orbits[schedule.timing.hop_link]
    order = np.argsort(orbit, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(orbit[order])) + 1):
        if len(rows):
            link = int(schedule.timing.hop_link[rows[0]])
            name = f"orbit {orbit[rows[0]]} of links ({topology.link_name(link)})"
            result += excess(schedule, "link", name, rows, topology.link_GBps[link])
    return result


def _orbits(schedule: Schedule, group: RegularGroup) -> list[Violation]:
    """Only the identity fixes a used link, and the links of an orbit carry one chunk at a time."""
    timing = schedule.timing
    if found := _fixed(schedule, group):
        return found
    orbit = group.link_orbits[timing.hop_link]
    order = np.lexsort((timing.hop_from_ps, orbit))
    same = orbit[order][1:] == orbit[order][:-1]
    clash = np.flatnonzero(same & (timing.hop_from_ps[order][1:] < timing.hop_to_ps[order][:-1]))
    result = []
    for at in clash.tolist():
        pair = (int(timing.hop_transfer[order[at]]), int(timing.hop_transfer[order[at + 1]]))
        until, since = timing.hop_to_ps[order[at]], timing.hop_from_ps[order[at + 1]]
        words = f"until {exact_us(int(until))}, but transfer {pair[1]} starts on it at {exact_us(int(since))}"
        result.append(Violation("link", f"orbit {orbit[order[at]]} of links carries transfer {pair[0]} {words}", pair))
    return result
