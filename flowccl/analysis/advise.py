"""Bottlenecks of a machine by the fluid relaxation: which links and limits bind, and the gain from more bandwidth."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.demand.collectives import collective_name
from flowccl.papers.fluid import FluidOptimum, fluid_optimum
from flowccl.topology.faults import links_named
from flowccl.topology.symmetry.automorphisms import known_symmetry
from flowccl.topology.symmetry.permutations import Symmetry
from flowccl.topology.topology import Topology
from flowccl.units import format_bytes, format_GBps, format_us

_WHOLE = ("broadcast", "reduce", "allreduce")  # each block is the whole buffer
_BINDS = 1 - 1e-6  # utilization from which a link or limit counts as a bottleneck
_WIDER = 1.001  # factor on a bandwidth, to measure the time that it saves


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Equivalent links (both directions) or a limit: its utilization, and the time saved by 1 GB/s more on each."""

    name: str
    links: int
    bandwidth_GBps: float
    use: float
    saved_us_per_GBps: float


@dataclass(frozen=True, slots=True)
class Advice:
    """The optimum for very large buffers, scaled to a size; links and limits, the largest saving first."""

    machine: str
    collective: str
    size_bytes: int
    optimum_us: float
    bound_us: float
    proved: bool
    proof: str
    bottlenecks: tuple[Bottleneck, ...]
    sweep: tuple[tuple[float, float], ...]

    def to_json(self) -> dict[str, Any]:
        """One JSON object, for scripts."""
        names = ("machine", "collective", "size_bytes", "optimum_us", "bound_us", "proved", "proof")
        rows = [{key: getattr(b, key) for key in Bottleneck.__slots__} for b in self.bottlenecks]
        sweep = [{"bandwidth_GBps": GBps, "optimum_us": us} for GBps, us in self.sweep]
        return {name: getattr(self, name) for name in names} | {"bottlenecks": rows, "sweep": sweep}


def advise(
    topology: Topology,
    collective: str,
    size_bytes: int,
    *,
    root: int = 0,
    link: str | None = None,
    bandwidths_GBps: Sequence[float] = (),
) -> Advice:
    """The fluid optimum and its bottlenecks.

    With `link` ("gpu0 -> rail0"), also the optimum at other bandwidths of this link and of all equivalent links.
    """
    name = collective_name(collective)
    group = known_symmetry(topology)
    GB = size_bytes / 1e9 / (1 if name in _WHOLE else topology.num_gpus)
    optimum = fluid_optimum(topology, name, root=root, group=group)
    link_class = _link_classes(topology, group)
    sweep = []
    if link is not None:
        alike = np.isin(link_class, link_class[list(links_named(topology, link, "--link")[1])])
        for GBps in bandwidths_GBps:
            other = fluid_optimum(_with(topology, alike, GBps), name, root=root)
            sweep.append((float(GBps), other.bound_s_per_GB * GB * 1e6))
    us = 1e6 * GB
    return Advice(
        topology.name,
        name,
        size_bytes,
        optimum.seconds_per_GB * us,
        optimum.bound_s_per_GB * us,
        optimum.proved,
        optimum.proof,
        tuple(_bottlenecks(optimum, link_class, root, us)),
        tuple(sweep),
    )


def _link_classes(topology: Topology, group: Symmetry) -> NDArray[np.int64]:
    """The class of each link: equivalent links of both directions have the same number, the first orbit of the two."""
    orbit, count = group.link_orbits.astype(np.int64), len(topology.nodes)
    there = topology.link_src.astype(np.int64) * count + topology.link_dst
    back = topology.link_dst.astype(np.int64) * count + topology.link_src
    first = dict(zip(there.tolist()[::-1], orbit.tolist()[::-1], strict=True))
    other = np.array([first.get(key, itself) for key, itself in zip(back.tolist(), orbit.tolist(), strict=True)])
    return np.asarray(np.minimum(orbit, other), dtype=np.int64)


def _with(topology: Topology, chosen: NDArray[np.bool_], GBps: NDArray[np.float64] | float) -> Topology:
    """The machine with other bandwidths on the chosen links."""
    every = np.where(chosen, GBps, topology.link_GBps).tolist()
    links = [replace(k, bandwidth_GBps=b) if a else k for k, a, b in zip(topology.links, chosen, every, strict=True)]
    return replace(topology, links=tuple(links))


def _bottlenecks(optimum: FluidOptimum, link_class: NDArray[np.int64], root: int, us: float) -> list[Bottleneck]:
    """Every class of links and every limit, with the time that more bandwidth saves.

    Where several classes bind together, the duals are not unique, and more bandwidth of one class alone may save
    nothing. So the bandwidth of each bottleneck is raised slightly, and the optimum is computed again.
    """
    topology, bound = optimum.topology, optimum.bound_s_per_GB
    busy = optimum.link_GB / topology.link_GBps / bound
    result = []

    def saved(other: Topology, more_GBps: float) -> float:
        found = fluid_optimum(other, optimum.collective, root=root).bound_s_per_GB
        return max(bound - found, 0.0) / more_GBps * us

    for first in np.unique(link_class, return_index=True)[1].tolist():
        alike = link_class == link_class[first]
        GBps, use = float(topology.link_GBps[first]), float(busy[alike].max())
        gain = saved(_with(topology, alike, topology.link_GBps * _WIDER), GBps * (_WIDER - 1)) if use >= _BINDS else 0.0
        result.append(Bottleneck(topology.link_name(first), int(alike.sum()), GBps, use, gain))
    for at, limit in enumerate(topology.limits):
        use = float(optimum.link_GB[list(limit.links)].sum()) / limit.bandwidth_GBps / bound
        more = replace(limit, bandwidth_GBps=limit.bandwidth_GBps * _WIDER)
        wider = replace(topology, limits=(*topology.limits[:at], more, *topology.limits[at + 1 :]))
        gain = saved(wider, more.bandwidth_GBps - limit.bandwidth_GBps) if use >= _BINDS else 0.0
        result.append(Bottleneck(f"limit {limit.name}", len(limit.links), limit.bandwidth_GBps, use, gain))
    return sorted(result, key=lambda b: (-b.saved_us_per_GBps, -b.use))


def describe(advice: Advice) -> str:
    """The table that `flowccl advise` prints."""
    lines = [
        f"machine      {advice.machine}",
        f"collective   {advice.collective}, {format_bytes(advice.size_bytes)}",
        f"optimum      {format_us(advice.optimum_us)} by bandwidth alone, without latencies and chunks",
        f"proof        {advice.proof}",
        "",
        f"{'equivalent links':<32} {'links':>8} {'bandwidth':>12} {'use':>7}  time saved by 1 GB/s more on each",
    ]
    for b in advice.bottlenecks:
        saves = format_us(b.saved_us_per_GBps) if b.saved_us_per_GBps > 1e-6 else "none alone: other links bind too"
        words = saves if b.use >= _BINDS else "none"
        lines.append(f"{b.name:<32} {b.links:>8} {format_GBps(b.bandwidth_GBps):>12} {100 * b.use:>5.1f} %  {words}")
    if advice.sweep:
        lines += ["", f"{'bandwidth':>12}  optimum"]
        lines += [f"{format_GBps(GBps):>12}  {format_us(us)}" for GBps, us in advice.sweep]
    return "\n".join(lines)
