"""The demand for command-line options: groups, relays, late GPUs and byte matrices."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from flowccl.demand.collectives import ROOTED, alltoallv, collective, collective_name
from flowccl.demand.demand import Demand
from flowccl.demand.groups import group_collective, in_group, parse_ranks, with_late
from flowccl.demand.matrix import load_matrix
from flowccl.errors import DemandError, InputError
from flowccl.topology.topology import Topology
from flowccl.units import parse_us, us_to_ps

RequestedDemand = str | Demand | Callable[[int], Demand]


def requested_demand(
    topology: Topology,
    base: str | Demand,
    size_bytes: int | None,
    *,
    root: int = 0,
    group: str | None = None,
    relay: str | None = None,
    late: Sequence[str] = (),
    matrix: str | None = None,
) -> RequestedDemand:
    """Return `base` if no option is given; otherwise a Demand, or a function from the number of chunks to a Demand."""
    named = collective_name(base) if isinstance(base, str) else ""
    if (named == "alltoallv") != (matrix is not None):
        raise InputError("alltoallv and --matrix must be used together: alltoallv --matrix bytes.csv")
    gpus = topology.num_gpus
    ranks = None if group is None else parse_ranks(group, gpus, "--group")
    relays = _relays(relay, ranks, gpus)
    late_ps = dict(_late(text, topology) for text in late)
    if matrix is not None and size_bytes is not None:
        raise InputError("--matrix gives the bytes of each pair; omit --size")
    if ranks is None and not late_ps and matrix is None:
        return base
    if isinstance(base, Demand):
        demand = base if ranks is None else _given_in_group(base, ranks, gpus, relays)
        return with_late(demand, late_ps) if late_ps else demand
    rows = None if matrix is None else load_matrix(matrix)
    if rows is None and size_bytes is None:
        raise InputError(f"{named} needs a size, for example 1MB")

    def with_chunks(count: int) -> Demand:
        if rows is not None:
            demand = alltoallv(rows, count)
            demand = demand if ranks is None else in_group(demand, ranks, gpus, relays)
        elif ranks is not None:
            start = (root if root in ranks else ranks[0]) if named in ROOTED and root == 0 else root
            chosen = start if named in ROOTED else None
            demand = group_collective(named, size_bytes or 0, ranks, gpus, chunks=count, root=chosen, relays=relays)
        else:
            demand = collective(named, gpus, size_bytes or 0, count, root)
        return with_late(demand, late_ps) if late_ps else demand

    return with_chunks


def _given_in_group(demand: Demand, ranks: tuple[int, ...], gpus: int, relays: tuple[int, ...] | None) -> Demand:
    """Return a demand from a file, restricted to a group; its ranks are those of the group or of the machine."""
    if demand.num_gpus == len(ranks) and demand.group is None:
        return in_group(demand, ranks, gpus, relays)
    return replace(demand, group=ranks, relays=relays)


def _relays(text: str | None, ranks: tuple[int, ...] | None, gpus: int) -> tuple[int, ...] | None:
    if text is None:
        return None
    if ranks is None:
        raise InputError("--relay requires --group, which selects the GPUs that take part")
    if text in ("all", "none"):
        return None if text == "all" else ()
    return parse_ranks(text, gpus, "--relay")


def _late(text: str, topology: Topology) -> tuple[int, int]:
    """Return the rank and the delay in "gpu3=20us" or "3=20us"."""
    name, mark, delay = text.partition("=")
    if not mark:
        raise InputError(f"--late {text}: write for example gpu3=20us")
    place = int(name) if name.isdecimal() else topology.index.get(name, -1)
    if not 0 <= place < topology.num_gpus:
        raise DemandError(f"--late {text}: {name} is not a gpu of {topology.name}; write gpu0 or 0, for example")
    return place, us_to_ps(parse_us(delay, f"--late {name}"))
