"""Faults of a machine: lost and slow links, written as "gpu3 <-> rail3" and "gpu3 -> rail3=100Gb/s"."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain

import numpy as np

from flowccl.arrays import components
from flowccl.errors import InputError
from flowccl.topology.topology import Link, Topology
from flowccl.topology.variants import with_links
from flowccl.units import format_GBps, parse_GBps
from flowccl.wording import listed


@dataclass(frozen=True, slots=True)
class Fault:
    """Links that are lost (`bandwidth_GBps` is None) or slow, as the user wrote them and as indices in the machine."""

    name: str
    links: tuple[int, ...]
    bandwidth_GBps: float | None = None

    def __str__(self) -> str:
        rate = self.bandwidth_GBps
        return f"without {self.name}" if rate is None else f"{self.name} at {format_GBps(rate)}"


def with_faults(topology: Topology, *, without: Sequence[str] = (), slow: Sequence[str] = ()) -> Topology:
    """Return the machine without the links of `without` ("gpu3 <-> rail3") and with those of `slow` slower.

    "->" means one direction, "<->" both; spaces do not matter. A slow link is written with its bandwidth: "gpu3 ->
    rail3=100Gb/s". All parallel links between the two nodes are meant. Raises InputError if there is no such link, if a
    slow link would not become slower, or if GPUs that could reach each other no longer can.
    """
    return apply_faults(topology, find_faults(topology, without=without, slow=slow))


def find_faults(topology: Topology, *, without: Sequence[str] = (), slow: Sequence[str] = ()) -> tuple[Fault, ...]:
    """Return the faults that the texts describe, lost links first; raises InputError for texts that name no link."""
    faults = [Fault(*links_named(topology, text, "--without")) for text in without]
    for text in slow:
        name, equals, rate = text.rpartition("=")
        if not equals:
            example = topology.link_name(0) if topology.links else "gpu0 -> gpu1"
            raise InputError(f"--slow {text!r}: write the bandwidth behind the link, for example '{example}=100Gb/s'")
        GBps = parse_GBps(rate.strip(), f"--slow {text!r}")
        faults.append(Fault(*links_named(topology, name, "--slow"), GBps))
    _check(topology, faults)
    return tuple(faults)


def apply_faults(topology: Topology, faults: Sequence[Fault]) -> Topology:
    """Return the machine with these faults; its name lists them. Raises InputError if GPUs are disconnected."""
    if not faults:
        return topology
    rate = {link: fault.bandwidth_GBps for fault in faults for link in fault.links}
    keep = np.array([rate.get(link, 0.0) is not None for link in range(len(topology.links))])
    links = [_slowed(link, rate.get(index)) for index, link in enumerate(topology.links)]
    words = ", ".join(map(str, faults))
    result = with_links(replace(topology, links=tuple(links)), keep, words)[0]
    _check_connected(topology, result, words)
    return result


def links_named(topology: Topology, text: str, option: str) -> tuple[str, tuple[int, ...]]:
    """Return the name "gpu0 -> rail0" or "gpu0 <-> rail0" and the indices of its links; spaces do not matter.

    Raises InputError, which starts with `option`, if there is no such link.
    """
    arrow = "<->" if "<->" in text else "->"
    ends = ["".join(end.split()) for end in text.split(arrow)]
    if len(ends) != 2 or not all(ends):
        example = topology.link_name(0) if topology.links else "gpu0 -> gpu1"
        raise InputError(f"{option} {text!r}: write the two ends of a link, for example '{example}'")
    index = {"".join(node.name.split()): position for position, node in enumerate(topology.nodes)}
    for end in ends:
        if end not in index:
            raise InputError(f"{option} {text!r}: {_no_node(topology, end)}")
    a, b = (index[end] for end in ends)
    found: list[int] = []
    for src, dst in ((a, b), (b, a)) if arrow == "<->" else ((a, b),):
        between = np.flatnonzero((topology.link_src == src) & (topology.link_dst == dst)).tolist()
        if not between:
            raise InputError(f"{option} {text!r}: {_no_link(topology, src, dst)}")
        found += between
    return f"{topology.nodes[a].name} {arrow} {topology.nodes[b].name}", tuple(found)


def _no_node(topology: Topology, end: str) -> str:
    names = [node.name for node in topology.nodes]
    near = get_close_matches(end, names, 3, 0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else f"its nodes are {listed(names)}"
    return f"{topology.name} has no node {end!r}; {hint}"


def _no_link(topology: Topology, src: int, dst: int) -> str:
    """The reason why a link does not exist, and the links that its source has."""
    names = [node.name for node in topology.nodes]
    others = dict.fromkeys(names[node] for node in topology.link_dst[topology.link_src == src].tolist())
    hint = f"the links of {names[src]} go to {listed(others)}" if others else f"no link starts at {names[src]}"
    return f"{topology.name} has no link from {names[src]} to {names[dst]}; {hint}"


def _slowed(link: Link, GBps: float | None) -> Link:
    """The link with at most this bandwidth at all times."""
    if GBps is None:
        return link
    changes = tuple((at, min(rate, GBps)) for at, rate in link.changes)
    return replace(link, bandwidth_GBps=min(link.bandwidth_GBps, GBps), changes=changes)


def _check(topology: Topology, faults: Iterable[Fault]) -> None:
    """Refuse two faults of one link, and slow links that would not be slower than they are."""
    seen: dict[int, Fault] = {}
    for fault in faults:
        for link in fault.links:
            if link in seen:
                raise InputError(f"{topology.link_name(link)} has two faults: {seen[link]}; {fault}")
            seen[link] = fault
            peak = float(topology.link_peak_GBps[link])
            if fault.bandwidth_GBps is not None and fault.bandwidth_GBps >= peak:
                raise InputError(
                    f"--slow {fault.name}: {topology.link_name(link)} has {format_GBps(peak)}, "
                    f"and {format_GBps(fault.bandwidth_GBps)} is not slower; give a lower bandwidth"
                )


def _check_connected(whole: Topology, broken: Topology, words: str) -> None:
    """Refuse faults after which GPUs cannot reach each other, if they could before."""
    parts = _components(broken)
    if len(parts) == 1 or len(_components(whole)) > 1:
        return
    main, *others = sorted(parts, key=lambda part: (-len(part), part[0]))
    names = [listed(broken.nodes[gpu].name for gpu in part) for part in (sorted(chain(*others)), main)]
    raise InputError(f"{words}: disconnects {names[0]} from {names[1]} on {whole.name}")


def _components(topology: Topology) -> list[list[int]]:
    """The GPUs in groups that can reach each other, in both directions."""
    label = components(len(topology.nodes), topology.link_src, topology.link_dst, strong=True)
    groups: dict[int, list[int]] = {}
    for gpu, group in enumerate(label[: topology.num_gpus].tolist()):
        groups.setdefault(group, []).append(gpu)
    return list(groups.values())
