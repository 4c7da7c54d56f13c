"""Which link is slower than the machine says: the one whose users are slow and whose other calls are not.

Calls are compared with calls of the same collective and size in groups that are equivalent by the symmetry of the
machine, so the algorithm of the library does not matter. Waiting for a link that is slow shows only in calls that are
limited by bandwidth, so calls count by that part of their time. Differences below the spread of equal calls are noise.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flowccl.jobs.placing import EquivalentGroups
from flowccl.jobs.rows import AuditRow
from flowccl.topology.topology import Topology
from flowccl.wording import listed

_SLOW = 0.10  # relative excess over equivalent calls from which calls count as slow
_SAME = 0.02  # relative difference of two explanations that the calls cannot tell apart
_EXPLAINS = 0.5  # part of the squared excess that a single link must explain


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A link that may be slow: its name, its GPU, how much of the excess it explains, and the factor on its calls."""

    name: str
    gpu: int
    explains: float
    factor: float
    users: int


@dataclass(frozen=True, slots=True)
class Suspicion:
    """The links that may be slow, best first; of `alike` links, the calls cannot tell which one it is."""

    suspects: tuple[SlowLink, ...]
    alike: int
    compared: int

    def in_words(self) -> str:
        """Return a sentence; empty where nothing is slow."""
        if not self.suspects:
            return ""
        best = self.suspects[0]
        slower = f"{best.users} kinds of calls that use it take {best.factor:.2f} times as long as equivalent ones"
        if self.alike == 1:
            return f"{best.name} looks slow: {slower}"
        names = listed(suspect.name for suspect in self.suspects[: self.alike])
        return f"one of {names} looks slow, the calls cannot tell which: {slower}"


NO_SUSPICION = Suspicion((), 0, 0)
"""Nothing was compared."""


def suspicion(rows: Sequence[AuditRow], topology: Topology, latency_us: Callable[[AuditRow], float]) -> Suspicion:
    """Return the links that explain why some calls are slower than equivalent ones.

    `latency_us` returns what latency alone takes of a call.
    """
    chosen = [row for row in rows if row.measured_us and row.bound is not None and len(row.gpus) > 1]
    excess, compared = _excess(chosen, topology)
    kept = np.flatnonzero(compared)
    if not len(kept) or excess[kept].max() < np.log1p(_SLOW):
        return Suspicion((), 0, len(kept))
    chosen, excess = [chosen[at] for at in kept.tolist()], excess[kept]
    weight = np.array([_by_bandwidth(row, latency_us(row)) for row in chosen]) * np.sqrt(
        [row.kind.count for row in chosen]
    )
    found = []
    for name, gpu, uses in _links(chosen, topology):
        if uses.any():
            explains, factor = _explained(excess, weight, uses)
            found.append(SlowLink(name, gpu, explains, factor, int(uses.sum())))
    found.sort(key=lambda suspect: (-round(suspect.explains, 9), -suspect.factor, suspect.gpu))
    if not found or found[0].explains < _EXPLAINS:
        return Suspicion((), 0, len(kept))
    alike = sum(suspect.explains >= found[0].explains - _SAME for suspect in found)
    return Suspicion(tuple(found[: max(8, alike)]), alike, len(kept))


def _excess(rows: Sequence[AuditRow], topology: Topology) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The logarithm of the time over that of the fastest equivalent call, and whether there is an equivalent one."""
    equivalent = EquivalentGroups(topology)
    classes: dict[tuple[str, int, frozenset[int]], list[int]] = defaultdict(list)
    for at, row in enumerate(rows):
        classes[row.kind.collective, row.kind.size_bytes, equivalent.representative(row.gpus)].append(at)
    excess, compared = np.zeros(len(rows)), np.zeros(len(rows), dtype=np.bool_)
    for members in classes.values():
        times = np.array([rows[at].measured_us for at in members], dtype=np.float64)
        spread = max(rows[at].kind.spread_ns / rows[at].kind.measured_ns for at in members)
        excess[members] = np.log(times / times.min())
        excess[members] *= excess[members] > np.log1p(spread)  # less than calls of one kind differ: that is noise
        compared[members] = len({rows[at].gpus for at in members}) > 1
    return excess, compared


def _by_bandwidth(row: AuditRow, latency_us: float) -> float:
    """The part of a call's bound that its bytes take: that of the size over that of no size."""
    if row.bound is None or not row.bound.us:
        return 0.0
    return max(1 - min(latency_us / row.bound.us, 1.0), 0.01)


def _links(rows: Sequence[AuditRow], topology: Topology) -> list[tuple[str, int, NDArray[np.bool_]]]:
    """The NIC and the other ports of each GPU, with the calls that may use them: those of groups that need them."""
    hosts = [node.host for node in topology.nodes[: topology.num_gpus]]
    found = []
    for gpu in range(topology.num_gpus):
        outgoing = (topology.link_src == gpu).nonzero()[0].tolist()
        for kind in sorted({topology.link_kinds[link] for link in outgoing}):
            outside = kind == "nic"
            uses = [gpu in row.gpus and _requires(row.gpus, gpu, hosts, outside) for row in rows]
            ends = [topology.nodes[int(topology.link_dst[k])].name for k in outgoing if topology.link_kinds[k] == kind]
            own = topology.nodes[gpu].name
            name = f"{'NIC' if outside else 'port'} of {own} ({own} <-> {ends[0]})"
            found.append((name, gpu, np.array(uses, dtype=np.bool_)))
    return found


def _requires(gpus: Sequence[int], gpu: int, hosts: Sequence[str], outside: bool) -> bool:
    """Whether a group has GPUs in other hosts, or others in this one."""
    return any((hosts[other] != hosts[gpu]) == outside for other in gpus if other != gpu)


def _explained(
    excess: NDArray[np.float64], weight: NDArray[np.float64], uses: NDArray[np.bool_]
) -> tuple[float, float]:
    """The part of the squared excess that one common factor on the users explains, and the factor."""
    total = float((weight * excess**2).sum())
    inside = weight[uses]
    mean = float((inside * excess[uses]).sum() / inside.sum())
    left = float((inside * (excess[uses] - mean) ** 2).sum() + (weight[~uses] * excess[~uses] ** 2).sum())
    return 1 - left / total, float(np.exp(mean))
