"""PyTorch execution traces and Chakra host traces (JSON): which calls a rank made, of which sizes, in which groups.

They have no times. Beside profiler traces of the same ranks, only their process groups are used.
"""

import json
import re
from pathlib import Path
from typing import Any

from flowccl.jobs.calls import Calls, CallsBuilder, Group
from flowccl.jobs.names import buffer_bytes, bytes_of_type, collective_of
from flowccl.jobs.text import DAMAGED, JsonArray
from flowccl.jobs.torch_names import NO_CALLS, Groups, alltoall_of, groups_of
from flowccl.jobs.values import elements, integers, proportional, whole

FORMAT = "execution trace"
_GROUPS = "## process_group:init ##"
_RANK = re.compile(r"(\d+)\D*$")
_TENSOR = re.compile(r"Tensor\((?:nullptr )?\(?([\w:.]+)")


def recognized(start: bytes, name: str) -> bool:
    """Whether a file looks like this format."""
    return b'"nodes"' in start and (b'"schema"' in start or b'"ctrl_deps"' in start)


def read(path: Path) -> Calls:
    """Return the calls of one rank; the rank is the number at the end of the file's name."""
    table = CallsBuilder(str(path), FORMAT)
    groups: Groups = {}
    found = _RANK.search(path.name.removesuffix(".gz").removesuffix(".json"))
    rank = int(found[1]) if found and len(found[1]) < 8 else -1
    recorded: list[dict[str, Any]] = []
    operations: list[dict[str, Any]] = []
    for node in JsonArray(path, "nodes", table.skipped):
        name = node.get("name")
        if not isinstance(name, str):
            table.skipped[f"{DAMAGED}: a node without a name"] += 1
        elif name == _GROUPS:
            described = _described(node)
            groups |= described
            if not described:
                table.skipped[f"{DAMAGED}: the list of process groups"] += 1
        elif name == "record_param_comms":
            recorded.append(_kept(node))
        elif name.startswith("c10d::"):
            operations.append(_kept(node))
    for node in recorded:
        _add_recorded(table, node, groups, rank)
    for node in operations if not recorded else ():
        _add_operation(table, node, groups, rank)
    return table.done(groups=groups)


def _kept(node: dict[str, Any]) -> dict[str, Any]:
    return {key: node.get(key) for key in ("name", "inputs", "attrs")}


def _described(node: dict[str, Any]) -> Groups:
    inputs = node.get("inputs")
    values = inputs.get("values") if isinstance(inputs, dict) else inputs
    try:
        return groups_of(json.loads(values[0]))  # type: ignore[index]
    except (ValueError, TypeError, IndexError, KeyError, RecursionError):
        return {}


def _attributes(node: dict[str, Any]) -> dict[str, Any]:
    rows = node.get("attrs")
    return {str(row.get("name")): row.get("value") for row in rows if isinstance(row, dict)} if rows else {}


def _tensors(node: dict[str, Any]) -> tuple[list[Any], list[int], str]:
    """The values of the inputs, the elements of each tensor or list of tensors, and the element type."""
    inputs = node.get("inputs")
    if not isinstance(inputs, dict):
        return [], [], ""
    values, shapes, kinds = (inputs.get(key) for key in ("values", "shapes", "types"))
    rows = [row if isinstance(row, list) else [] for row in (values, shapes, kinds)]
    counts, dtype = [], ""
    for shape, kind in zip(rows[1], rows[2], strict=False):
        found = _TENSOR.search(str(kind))
        if found and shape:
            counts.append(elements(shape))
            dtype = dtype or found[1]
    return rows[0], counts, dtype


def _add_recorded(table: CallsBuilder, node: dict[str, Any], groups: Groups, rank: int) -> None:
    """A node `record_param_comms`: the attributes of newer schemas name everything."""
    facts = _attributes(node)
    word = str(facts.get("collective_name", ""))
    collective = collective_of(word)
    if collective is None:
        if "collective_name" not in facts:
            table.skipped["the name of the collective is missing"] += 1
        elif word not in NO_CALLS:
            table.skipped[f"unknown collective {word[:30]!r}"] += 1
        return
    element = bytes_of_type(str(facts.get("dtype", "")))
    counts = [whole(facts.get(key)) for key in ("in_msg_nelems", "out_msg_nelems")]
    name, size = str(facts.get("pg_name", "")), whole(facts.get("pg_size", facts.get("group_size")), 0)
    group = groups.get(name) or (Group(size, None, name) if size > 0 else None)
    if group is None or element is None or max(counts) < 0:
        table.skipped["the group, the element type or the element count is missing"] += 1
        return
    in_bytes, out_bytes = (max(count, 0) * element for count in counts)
    sent = proportional(in_bytes, integers(facts.get("in_split_size")) or ())
    collective = alltoall_of(collective, sent, facts.get("in_split_size"), group.size)
    _put(table, collective, in_bytes, out_bytes, group, rank, sent, str(facts.get("dtype", "")))


def _add_operation(table: CallsBuilder, node: dict[str, Any], groups: Groups, rank: int) -> None:
    """An operation of c10d, as jobs on gloo have it: the group is not named."""
    collective = collective_of(str(node["name"]).rstrip("_"))
    if collective is None:
        return
    values, counts, dtype = _tensors(node)
    element = bytes_of_type(dtype)
    if (not counts or min(counts) < 0 or element is None) and collective != "barrier":
        table.skipped["the sizes or types of the tensors are missing"] += 1
        return
    two = len(counts) > 1
    out_bytes, in_bytes = (counts + counts if not two else counts)[:2] if counts else (0, 0)
    out_bytes, in_bytes = out_bytes * (element or 1), in_bytes * (element or 1)
    lists = [found for value in values if isinstance(value, list) and (found := integers(value))]
    sent = proportional(in_bytes, lists[-1]) if collective == "alltoall" and len(lists) >= 2 else ()
    small, large = sorted((in_bytes, out_bytes))
    ranks = len(sent) or (large // small if collective in ("allgather", "reduce_scatter") and small else 0)
    fitting = [group for group in groups.values() if group.size == ranks] if ranks else list(groups.values())
    if len(fitting) > 1:
        table.notes.append("the operations do not name their group: the first one of fitting size is taken")
    group = fitting[0] if fitting else Group(ranks, None, "")
    collective = "alltoallv" if collective == "alltoall" and len(sent) == group.size else collective
    _put(table, collective, in_bytes, out_bytes, group, rank, sent, dtype)


def _put(
    table: CallsBuilder,
    collective: str,
    in_bytes: int,
    out_bytes: int,
    group: Group,
    rank: int,
    sent: tuple[int, ...],
    dtype: str,
) -> None:
    if group.size == 1:
        table.skipped["a group of one rank moves nothing"] += 1
        return
    size = 0 if collective == "barrier" else buffer_bytes(collective, in_bytes, out_bytes, max(group.size, 1))
    splits = sent if collective == "alltoallv" else ()
    table.add(collective, size, table.group(group), rank=rank, splits=splits, dtype=dtype)
