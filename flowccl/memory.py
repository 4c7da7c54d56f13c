"""Memory of a search: estimated before anything is built, and watched while it runs.

A search needs memory in proportion to the transfers of its schedules. `FLOWCCL_MEMORY`, such as 8GB, sets the memory
that it may use; otherwise that is what the computer has available.
"""

import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from flowccl.demand.collectives import COLLECTIVES_BY_NAME, collective_name
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError
from flowccl.topology.topology import Topology
from flowccl.units import format_bytes, parse_bytes
from flowccl.wording import counted

VARIABLE = "FLOWCCL_MEMORY"
_BASE_BYTES = 250e6  # measured: 220 and 306 MB at the peak of two problems with 64 GPUs and one chunk
_TRANSFER_BYTES = 1500.0  # measured: 0.45 to 1.25 KB per transfer, one chunk, three problems of 512 to 1,024 GPUs
_MORE_CHUNKS = 2.0  # measured: up to 2.6 KB per transfer where schedules with several numbers of chunks are kept
_COPIED = 0.5  # transfers for each delivery where switches copy; measured: 0.25 where a transfer reaches a host of 8
_SHARE = 0.9  # of the available memory that a search may use; the rest is for other programs
_CHECK_EVERY_S = 0.2
_SAMPLE = 8  # GPUs from which the mean number of hops is estimated


def available_bytes() -> float:
    """The memory that a search may use: that of FLOWCCL_MEMORY, else what the computer or its container has left."""
    given = os.environ.get(VARIABLE)
    if given:
        return float(parse_bytes(given))
    left = [_meminfo(), _container(), _address_space()]
    return _SHARE * min([value for value in left if value is not None], default=float("inf"))


def transfers_of(topology: Topology, collective: str, chunks: int = 1) -> float:
    """About how many transfers a schedule of a collective has, with this many chunks per block."""
    n, name = topology.num_gpus, collective_name(collective)
    deliveries = {"broadcast": n - 1, "reduce": n - 1, "scatter": n - 1, "gather": n - 1}.get(name, n * (n - 1))
    hops = _mean_hops(topology) if name in ("alltoall", "scatter", "gather") else 1.0
    return chunks * deliveries * hops * (2 if name == "allreduce" else 1)


def check_memory(topology: Topology, collective: "str | Demand | Callable[[int], Demand]", chunks: int | None) -> None:
    """Refuse a collective whose search would not fit into memory; say how many chunks would fit.

    Demands that are made by other code are not checked: they are in memory already.
    """
    if not isinstance(collective, str) or collective_name(collective) not in COLLECTIVES_BY_NAME:
        return
    each = transfers_of(topology, collective) * _TRANSFER_BYTES * (1.0 if chunks in (None, 1) else _MORE_CHUNKS)
    needed, available = _BASE_BYTES + each * (chunks or 1), available_bytes()
    if needed <= available:
        return
    fit = int((available - _BASE_BYTES) // each)
    hint = "use fewer GPUs" if fit < 1 else f"use at most {counted(fit, 'chunk')} per block"
    many = "" if chunks is None else f" with {chunks} chunks per block"
    raise DemandError(
        f"{collective} on {topology.num_gpus} GPUs{many} takes about {format_bytes(int(needed))} of memory, "
        f"{format_bytes(int(available))} are available; {hint}, or set {VARIABLE}"
    )


def most_deliveries(topology: Topology, demand: Demand) -> int:
    """The (chunk, destination) pairs of the largest demand whose search fits into memory, at least those of `demand`.

    `demand` has one chunk per block.
    """
    deliveries = len(demand.destination_rank)
    is_copied = not demand.is_unicast or demand.reduces
    hops = _per_delivery(topology) if is_copied else _mean_hops(topology)
    per_delivery = _TRANSFER_BYTES * _MORE_CHUNKS * hops * (2 if demand.reduces and not demand.is_unicast else 1)
    return max(int(max(available_bytes() - _BASE_BYTES, 0.0) / per_delivery), deliveries)


class MemoryWatch:
    """Says when the memory of this process has grown to its limit, so that the search stops and keeps its best."""

    def __init__(self) -> None:
        self.limit_bytes = available_bytes() if os.environ.get(VARIABLE) else _resident() + available_bytes()
        self.checked_s = 0.0
        self.exceeded = False

    def __call__(self) -> bool:
        """Whether the limit is exceeded; the memory is measured a few times a second."""
        now = time.monotonic()
        if not self.exceeded and now - self.checked_s > _CHECK_EVERY_S:
            self.checked_s = now
            self.exceeded = _resident() > self.limit_bytes
        return self.exceeded

    def notes(self, fewer_chunks: bool) -> dict[str, object]:
        """What the result says about memory: nothing, unless the search had fewer chunks or stopped because of it."""
        most = format_bytes(int(self.limit_bytes))
        if self.exceeded:
            return {"memory": f"the search stopped at {most}, all that is available"}
        return {"memory": f"fewer chunks, to fit into {most}"} if fewer_chunks else {}


def _mean_hops(topology: Topology) -> float:
    """The mean number of transfers on a path between two GPUs, from a sample of GPUs."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import dijkstra

    count = len(topology.nodes)
    cost = np.where(topology.stores[topology.link_dst], 1.0, 1e-6)  # a route through switches is one transfer
    graph = csr_matrix((cost, (topology.link_src, topology.link_dst)), (count, count))
    sample = np.unique(np.linspace(0, topology.num_gpus - 1, _SAMPLE).astype(np.int64))
    distance = dijkstra(graph, indices=sample)[:, : topology.num_gpus]
    reached = distance[np.isfinite(distance) & (distance > 0)]
    return float(np.ceil(reached - 0.5).mean()) if len(reached) else 1.0


def _per_delivery(topology: Topology) -> float:
    """The transfers for each delivery of data that all GPUs receive, or that is reduced from all."""
    return _COPIED if np.any(topology.copies & ~topology.stores) else 1.0


def _resident() -> float:
    """The memory of this process in bytes."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return float(int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)


def _address_space() -> float | None:
    """What the limit of the process (`ulimit -v`) leaves of its address space; None without a limit."""
    limit, statm = resource.getrlimit(resource.RLIMIT_AS)[0], Path("/proc/self/statm")
    if limit == resource.RLIM_INFINITY or not statm.exists():
        return None
    used = int(statm.read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return max(float(limit - used), 0.0)


def _meminfo() -> float | None:
    """Available memory of the computer."""
    info = Path("/proc/meminfo")
    if info.exists():
        for row in info.read_text(encoding="ascii").splitlines():
            if row.startswith("MemAvailable:"):
                return float(int(row.split()[1]) * 1024)
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError):
        return None


def _container() -> float | None:
    """Memory that the container (cgroup) has left; None without a limit."""
    folder = Path("/sys/fs/cgroup")
    version_1 = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")
    for limit, used in (("memory.max", "memory.current"), version_1):
        try:
            most, now = ((folder / name).read_text(encoding="ascii").strip() for name in (limit, used))
            return max(float(int(most) - int(now)), 0.0)
        except (OSError, ValueError):
            continue
    return None
