"""Communication sketches: hints from the user for the synthesizer (TACCL sections 3 and 4.2).

A sketch says which connections between hosts may be used, through which GPU the data of each rank leaves its host, how
to use switches, which rotations of the ranks are symmetries, and the number of chunks. Ranks are those of the machine.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import InputError
from flowccl.topology.symmetry.permutations import AutomorphismChecker
from flowccl.topology.topology import Topology

Inclination = Literal["uc-min", "uc-max", "none"]
Reach = Literal["shortest", "any"]
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSketch:
    """GPUs behind one switch: use few different connections (uc-min), many (uc-max), or no preference (none).

    `most` is the number of GPUs that each GPU may send to: the next ones of the group, in cyclic order.
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
    """A communication sketch.

    between_hosts   (sender, receiver) pairs that may be used between hosts; None: all pairs of the machine
    closed          pairs that may not be used
    senders         for each rank, the GPU through which its data leaves the host; empty: any GPU
    switches        groups of GPUs behind a switch
    rotations       (offset, size): rank r -> r + offset within its block of `size` ranks is a symmetry
    chunks          chunks of each block of data
    reach           shortest: a chunk visits only GPUs on shortest paths from its source to a destination; any: all GPUs
    """

    name: str = ""
    between_hosts: tuple[Pair, ...] | None = None
    closed: tuple[Pair, ...] = ()
    senders: tuple[int, ...] = ()
    switches: tuple[SwitchSketch, ...] = ()
    rotations: tuple[Pair, ...] = ()
    chunks: int = 1
    reach: Reach = "shortest"

    def __post_init__(self) -> None:
        if self.chunks < 1:
            raise InputError(f"chunks must be at least 1, got {self.chunks}")
        if self.reach not in get_args(Reach):
            raise InputError(f"reach must be shortest or any, got {self.reach!r}")


def check_sketch(sketch: Sketch, topology: Topology) -> None:
    """Raise InputError if the sketch names a missing GPU or a rotation that changes the machine or the sketch."""
    gpus = topology.num_gpus
    named = [("between_hosts", rank) for pair in sketch.between_hosts or () for rank in pair]
    named += [("closed", rank) for pair in sketch.closed for rank in pair]
    named += [("senders", rank) for rank in sketch.senders]
    named += [(f"switches[{n}]", rank) for n, switch in enumerate(sketch.switches) for rank in switch.gpus]
    for where, rank in named:
        if not 0 <= rank < gpus:
            raise InputError(f"{where}: there is no gpu {rank}; {topology.name} has 0 to {gpus - 1}")
    if sketch.senders and len(sketch.senders) != gpus:
        raise InputError(f"senders: must have one entry for each of the {gpus} gpus, got {len(sketch.senders)}")
    checker = AutomorphismChecker(topology)
    for offset, size in sketch.rotations:
        moved = rotated_ranks(topology, offset, size)
        if not checker.accepts(moved[:gpus]):
            raise InputError(f"symmetry [{offset}, {size}]: {topology.name} does not have this symmetry; remove it")
        broken = _broken_by(sketch, moved)
        if broken:
            raise InputError(f"symmetry [{offset}, {size}]: changes the {broken} of the sketch; remove it")


def rotated_ranks(topology: Topology, offset: int, size: int) -> NDArray[np.int32]:
    """Return the image of each rank under the rotation by `offset` within blocks of `size` ranks."""
    gpus = topology.num_gpus
    if not 0 < offset < size or gpus % size:
        rule = f"must have 0 < offset < size and a size that divides the {gpus} gpus of {topology.name}"
        raise InputError(f"symmetry [{offset}, {size}]: {rule}")
    rank = np.arange(gpus)
    return (rank // size * size + (rank + offset) % size).astype(np.int32)


def _broken_by(sketch: Sketch, moved: NDArray[np.int32]) -> str:
    """Return the part of the sketch that a rotation changes; "" if it changes nothing."""

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
    """Return a sketch from the machine alone: its hosts, its switches, and the rotations that are symmetries."""
    gpus = topology.num_gpus
    hosts = [node.host for node in topology.nodes[:gpus]]
    sizes = {hosts.count(host) for host in set(hosts)} if all(hosts) else {gpus}
    per_host = sizes.pop() if len(sizes) == 1 else gpus
    checker = AutomorphismChecker(topology)
    rotations: list[Pair] = []
    for inside, size in ((1, per_host), (per_host, gpus)):
        for offset in (d for d in range(inside, size, inside) if size % d == 0):
            if checker.accepts(rotated_ranks(topology, offset, size)):
                rotations.append((offset, size))
                break
    return Sketch(name="default", switches=_switch_groups(topology), rotations=tuple(rotations))


def _switch_groups(topology: Topology) -> tuple[SwitchSketch, ...]:
    """Return the GPUs behind each switch of a host, to be used with few different connections."""
    groups = []
    for node in range(topology.num_gpus, len(topology.nodes)):
        if topology.nodes[node].kind != "switch" or not topology.nodes[node].host:
            continue
        members = set(topology.link_src[topology.link_dst == node].tolist())
        gpus = tuple(sorted(rank for rank in members if rank < topology.num_gpus))
        if len(gpus) > 2:
            groups.append(SwitchSketch(gpus=gpus, inclination="uc-min"))
    return tuple(groups)
