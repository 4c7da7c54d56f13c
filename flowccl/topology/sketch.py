"""A sketch: what a human knows of a machine and tells the synthesizer (TACCL sections 3 and 4.2).

Which connections between hosts may be used, through which GPU each one's data leaves its host, how to use switches,
which turns of the ranks leave everything unchanged, and into how many chunks to cut. Ranks are those of the machine.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import InputError
from flowccl.topology.symmetry.permutations import Verifier
from flowccl.topology.topology import Topology

Inclination = Literal["uc-min", "uc-max", "none"]
Reach = Literal["shortest", "any"]
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSketch:
    """GPUs behind one switch: use few different connections (uc-min), many (uc-max), or as it comes (none).

    `most` is how many others each GPU may send to: the next ones of the group, in a circle.
    """

    gpus: tuple[int, ...]
    inclination: Inclination = "none"
    most: int | None = None

    def __post_init__(self) -> None:
        if self.inclination not in get_args(Inclination):
            raise InputError(f"inclination must be uc-min, uc-max or none, got {self.inclination!r}")
        if self.most is not None and self.most < 1:
            raise InputError(f"most must be at least 1, got {self.most}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """What may be used, and how.

    between_hosts   (sender, receiver) pairs that may be used between hosts; None is all that the machine has
    closed          pairs that may not be used at all
    senders         for each rank, the GPU through which its data leaves the host; empty leaves it open
    switches        groups of GPUs behind a switch
    turns           (offset, size): rank r -> r + offset within its block of size ranks, which changes nothing
    chunks          pieces of each block of data
    reach           shortest: a chunk visits only GPUs on shortest ways from its source to a destination; any
    """

    name: str = ""
    between_hosts: tuple[Pair, ...] | None = None
    closed: tuple[Pair, ...] = ()
    senders: tuple[int, ...] = ()
    switches: tuple[SwitchSketch, ...] = ()
    turns: tuple[Pair, ...] = ()
    chunks: int = 1
    reach: Reach = "shortest"

    def __post_init__(self) -> None:
        if self.chunks < 1:
            raise InputError(f"chunks must be at least 1, got {self.chunks}")
        if self.reach not in get_args(Reach):
            raise InputError(f"reach must be shortest or any, got {self.reach!r}")


def check_sketch(sketch: Sketch, topology: Topology) -> None:
    """Every GPU that it names exists, and every turn leaves the machine and the sketch unchanged."""
    gpus = topology.num_gpus
    named = [("between_hosts", rank) for pair in sketch.between_hosts or () for rank in pair]
    named += [("closed", rank) for pair in sketch.closed for rank in pair]
    named += [("senders", rank) for rank in sketch.senders]
    named += [(f"switches[{n}]", rank) for n, switch in enumerate(sketch.switches) for rank in switch.gpus]
    for where, rank in named:
        if not 0 <= rank < gpus:
            raise InputError(f"{where}: there is no gpu {rank}; {topology.name} has 0 to {gpus - 1}")
    if sketch.senders and len(sketch.senders) != gpus:
        raise InputError(f"senders: needs one for each of the {gpus} gpus, got {len(sketch.senders)}")
    verifier = Verifier(topology)
    for offset, size in sketch.turns:
        moved = turned(topology, offset, size)
        if not verifier.accepts(moved[:gpus]):
            raise InputError(f"symmetry [{offset}, {size}]: {topology.name} does not have it; leave it out")
        broken = _broken_by(sketch, moved)
        if broken:
            raise InputError(f"symmetry [{offset}, {size}]: changes the {broken} of the sketch; leave it out")


def turned(topology: Topology, offset: int, size: int) -> NDArray[np.int32]:
    """Where each rank goes."""
    gpus = topology.num_gpus
    if not 0 < offset < size or gpus % size:
        words = f"needs 0 < offset < size and a size that divides the {gpus} gpus of {topology.name}"
        raise InputError(f"symmetry [{offset}, {size}]: {words}")
    rank = np.arange(gpus)
    return (rank // size * size + (rank + offset) % size).astype(np.int32)


def _broken_by(sketch: Sketch, moved: NDArray[np.int32]) -> str:
    """What of the sketch a turn changes."""

    def same(pairs: tuple[Pair, ...]) -> bool:
        return {(int(moved[a]), int(moved[b])) for a, b in pairs} == set(pairs)

    if not same(sketch.between_hosts or ()) or not same(sketch.closed):
        return "connections"
    if any(int(moved[sender]) != sketch.senders[moved[rank]] for rank, sender in enumerate(sketch.senders)):
        return "senders"
    groups = {(frozenset(switch.gpus), switch.inclination, switch.most) for switch in sketch.switches}
    image = {(frozenset(int(moved[g]) for g in gpus), how, most) for gpus, how, most in groups}
    return "" if image == groups else "switches"


def default_sketch(topology: Topology) -> Sketch:
    """A sketch from the machine alone: its hosts and switches, and the turns that leave it unchanged."""
    gpus = topology.num_gpus
    hosts = [node.host for node in topology.nodes[:gpus]]
    sizes = {hosts.count(host) for host in set(hosts)} if all(hosts) else {gpus}
    per_host = sizes.pop() if len(sizes) == 1 else gpus
    verifier = Verifier(topology)
    turns: list[Pair] = []
    for inside, size in ((1, per_host), (per_host, gpus)):
        for offset in (d for d in range(inside, size, inside) if size % d == 0):
            if verifier.accepts(turned(topology, offset, size)):
                turns.append((offset, size))
                break
    return Sketch(name="default", switches=_switch_groups(topology), turns=tuple(turns))


def _switch_groups(topology: Topology) -> tuple[SwitchSketch, ...]:
    """The GPUs of a host that one switch joins, to be used with few different connections."""
    groups = []
    for node in range(topology.num_gpus, len(topology.nodes)):
        if topology.nodes[node].kind != "switch" or not topology.nodes[node].host:
            continue
        members = set(topology.link_src[topology.link_dst == node].tolist())
        gpus = tuple(sorted(rank for rank in members if rank < topology.num_gpus))
        if len(gpus) > 2:
            groups.append(SwitchSketch(gpus=gpus, inclination="uc-min"))
    return tuple(groups)
