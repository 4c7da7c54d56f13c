"""What PyTorch's traces have in common: process groups, and the parameters of `record_param_comms`."""

from typing import Any

from flowccl.jobs.calls import UNKNOWN, CallsBuilder, Group
from flowccl.jobs.names import buffer_bytes, bytes_of_type, collective_of
from flowccl.jobs.values import integers, proportional, whole

Groups = dict[str, Group]
NO_CALLS = ("", "wait", "init", "end", "coalesced")
"""Names in `record_param_comms` that are no calls."""


def groups_of(config: Any, world: int = 0) -> Groups:
    """Return the process groups in a `pg_config` list by name; the group of all ranks has an empty list of ranks."""
    rows = config if isinstance(config, list) else []
    found: Groups = {}
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("pg_name"), str):
            continue
        ranks = integers(row.get("ranks"))
        size = whole(row.get("pg_size", row.get("group_size")), 0) or len(ranks or ())
        if not ranks and size and (size == world or not world):
            ranks = tuple(range(size))
        if ranks and len(set(ranks)) == len(ranks) and min(ranks) >= 0:
            found[row["pg_name"]] = Group(len(ranks), ranks)
        elif size > 1:
            found[row["pg_name"]] = Group(size, None, row["pg_name"])
    return found


def add_param_comms(
    table: CallsBuilder, facts: dict[str, Any], groups: Groups, rank: int, start_ns: int, duration_ns: int
) -> None:
    """Add the call that `record_param_comms` or a kernel of NCCL describes in its arguments."""
    word = facts.get("Collective name")
    collective = collective_of(word) if isinstance(word, str) else None
    if collective is None:
        if not isinstance(word, str):
            table.skipped["the name of the collective is missing"] += 1
        elif word not in NO_CALLS:
            table.skipped[f"unknown collective {word[:30]!r}"] += 1
        return
    dtype = str(facts.get("dtype", ""))
    element = bytes_of_type(dtype)
    counts = whole(facts.get("In msg nelems")), whole(facts.get("Out msg nelems"))
    if collective != "barrier" and (element is None or max(counts) < 0):
        table.skipped["the element type or the element count is missing"] += 1
        return
    group = _group(facts, groups)
    if group is None:
        table.skipped["the process group is not described"] += 1
        return
    if group.size < 2:
        table.skipped["a group of one rank moves nothing"] += 1
        return
    in_bytes, out_bytes = (max(count, 0) * (element or 1) for count in counts)
    root = UNKNOWN
    if collective == "send":
        group = _pair(word, facts, group, rank) or group
    elif collective in ("broadcast", "reduce", "gather", "scatter"):
        root = _member(group, whole(facts.get("Root rank", facts.get("Root"))))
    sent = proportional(in_bytes, integers(facts.get("In split size")) or ())
    collective = alltoall_of(collective, sent, facts.get("In split size"), group.size)
    table.add(
        collective,
        0 if collective == "barrier" else buffer_bytes(collective, in_bytes, out_bytes, group.size),
        table.group(group),
        start_ns=start_ns,
        duration_ns=duration_ns,
        rank=rank,
        sequence=UNKNOWN if collective == "send" else whole(facts.get("Seq")),
        root=root,
        splits=sent if collective == "alltoallv" and len(sent) == group.size else (),
        dtype=dtype,
    )


def alltoall_of(collective: str, sent: tuple[int, ...], splits: Any, ranks: int) -> str:
    """Whether an alltoall is even: PyTorch records one without splits as `all_to_allv` too, with empty splits."""
    if collective not in ("alltoall", "alltoallv"):
        return collective
    if len(sent) == ranks:
        return "alltoallv"
    return "alltoall" if integers(splits) == () else collective


def _group(facts: dict[str, Any], groups: Groups) -> Group | None:
    """The group by its name, by its ranks, or at least by its size."""
    name = str(facts.get("Process Group Name", ""))
    if name in groups:
        return groups[name]
    ranks = integers(facts.get("Process Group Ranks"))
    if ranks and len(set(ranks)) == len(ranks) and min(ranks) >= 0:
        return Group(len(ranks), ranks)
    size = whole(facts.get("Group size"), 0)
    return Group(size, None, name) if 0 < size < 1 << 20 else None


def _member(group: Group, place: int) -> int:
    """The rank of the job at a place of a group."""
    if group.ranks is None or not 0 <= place < group.size:
        return -1
    return group.ranks[place]


def _pair(word: Any, facts: dict[str, Any], group: Group, rank: int) -> Group | None:
    """The two ranks of a send or a receive, from the sender to the receiver."""
    receives = str(word).lower().startswith(("recv", "irecv"))
    peer = _member(group, whole(facts.get("Src Rank" if receives else "Dst Rank")))
    if rank < 0 or peer < 0 or peer == rank:
        return None
    return Group(2, (peer, rank) if receives else (rank, peer))
