"""What the command line asks for beyond a name and a size: groups, relays, late GPUs, byte matrices."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from flowccl.demand.collectives import ROOTED, alltoallv, collective, collective_name
from flowccl.demand.demand import Demand
from flowccl.demand.groups import group_collective, in_group, parse_ranks, with_late
from flowccl.demand.matrix import load_matrix
from flowccl.errors import DemandError, InputError
from flowccl.topology.topology import Topology
from flowccl.units import parse_us, us_to_ps

Asked = str | Demand | Callable[[int], Demand]


def demand_asked(
    topology: Topology,
    what: str | Demand,
    size_bytes: int | None,
    *,
    root: int = 0,
    group: str | None = None,
    relay: str | None = None,
    late: Sequence[str] = (),
    matrix: str | None = None,
) -> Asked:
    """A name or a Demand as it is, where nothing more is asked for; else a Demand, or one for each number of chunks."""
    named = collective_name(what) if isinstance(what, str) else ""
    if (named == "alltoallv") != (matrix is not None):
        raise InputError("alltoallv and --matrix go together: alltoallv --matrix bytes.csv")
    gpus = topology.num_gpus
    ranks = None if group is None else parse_ranks(group, gpus, "--group")
    relays = _relays(relay, ranks, gpus)
    late_ps = dict(_late(text, topology) for text in late)
    if matrix is not None and size_bytes is not None:
        raise InputError("--matrix says how many bytes each pair has; leave --size out")
    if ranks is None and not late_ps and matrix is None:
        return what
    if isinstance(what, Demand):
        given = what if ranks is None else _given_in_group(what, ranks, gpus, relays)
        return with_late(given, late_ps) if late_ps else given
    rows = None if matrix is None else load_matrix(matrix)
    if rows is None and size_bytes is None:
        raise InputError(f"{named} needs a size, for example 1MB")

    def made(count: int) -> Demand:
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

    return made


def _given_in_group(demand: Demand, ranks: tuple[int, ...], gpus: int, relays: tuple[int, ...] | None) -> Demand:
    """A demand from a file in a group: either for the group's own ranks, or for those of the machine."""
    if demand.num_gpus == len(ranks) and demand.group is None:
        return in_group(demand, ranks, gpus, relays)
    return replace(demand, group=ranks, relays=relays)


def _relays(text: str | None, ranks: tuple[int, ...] | None, gpus: int) -> tuple[int, ...] | None:
    if text is None:
        return None
    if ranks is None:
        raise InputError("--relay: goes with --group, which says who takes part")
    if text in ("all", "none"):
        return None if text == "all" else ()
    return parse_ranks(text, gpus, "--relay")


def _late(text: str, topology: Topology) -> tuple[int, int]:
    """A rank and its delay from "gpu3=20us" or "3=20us"."""
    name, mark, delay = text.partition("=")
    if not mark:
        raise InputError(f"--late {text}: write for example gpu3=20us")
    place = int(name) if name.isdecimal() else topology.index.get(name, -1)
    if not 0 <= place < topology.num_gpus:
        raise DemandError(f"--late {text}: {name} is not a gpu of {topology.name}; they are gpu0 or 0, and so on")
    return place, us_to_ps(parse_us(delay, f"--late {name}"))
