"""Reading and writing demand JSON; docs/demand.md describes the format.

A named collective is stored by its parameters. Any other demand is stored by its chunks: as a list of chunks (easy to
write) or as columns (the form that flowccl writes).
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flowccl.arrays import pointers
from flowccl.demand.collectives import COLLECTIVES_BY_NAME, MAX_BYTES, ROOTED, alltoallv, collective, collective_name
from flowccl.demand.demand import Chunk, Demand
from flowccl.demand.groups import in_group
from flowccl.demand.share import Share
from flowccl.errors import DemandError, InputError
from flowccl.files import read_json, write_json
from flowccl.topology.fields import check_keys, flag_field, show, text_field
from flowccl.units import parse_bytes, parse_us, us_to_ps

FORMAT = "flowccl-demand"
VERSION = 1
MAX_FILE_BYTES = 2_000_000_000  # uncompressed
MAX_GPUS = 2**20
MAX_LISTED = 2**24  # sources and destinations in a list of chunks

_COMMON = ("$schema", "format", "version", "collective", "gpus", "group", "relays", "reduce", "tenants")
_FORMS = {  # form of the chunks: keys that it allows
    "chunks": ("size_bytes", "pieces", "chunks"),
    "columns": ("size_bytes", "pieces", "columns"),
    "matrix_bytes": ("pieces", "matrix_bytes"),
    "": ("size_bytes", "pieces", "root"),
}
_CHUNK_KEYS = ("bytes", "source", "sources", "destination", "destinations", "reduce", "ready")
_TENANT_KEYS = ("name", "weight", "chunks", "group", "relays")
_COLUMN_KEYS = ("bytes", "source_count", "source_rank", "source_ready_ps", "destination_count", "destination_rank")


def load_demand(path: str | Path) -> Demand:
    """Return the demand in a JSON file (.json or .json.gz)."""
    return demand_from_json(read_json(path, MAX_FILE_BYTES), str(path))


def save_demand(demand: Demand, path: str | Path) -> None:
    """Write a demand as JSON; compressed if the name ends in .gz."""
    write_json(path, demand_to_json(demand))


def demand_to_json(demand: Demand) -> dict[str, Any]:
    """Return a demand as a JSON value: a named collective by its parameters, any other demand by columns."""
    head: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "collective": collective_name(demand.collective),
        "gpus": int(demand.num_gpus),
        "size_bytes": int(demand.size_bytes),
        "pieces": int(demand.pieces),
    }
    for key, ranks in (("group", demand.group), ("relays", demand.relays)):
        if ranks is not None:
            head[key] = list(ranks)
    if demand.tenants:
        head["tenants"] = [_share_to_json(share) for share in demand.tenants]
    root = root_if_named(demand)
    if root is not None:
        return head | ({"root": root} if demand.collective in ROOTED else {})
    columns: dict[str, list[int]] = {"bytes": demand.chunk_bytes.tolist()}
    for end, ptr, rank in (
        ("source", demand.source_ptr, demand.source_rank),
        ("destination", demand.destination_ptr, demand.destination_rank),
    ):
        counts = np.diff(ptr)
        if np.any(counts != 1):
            columns[f"{end}_count"] = counts.tolist()
        columns[f"{end}_rank"] = rank.tolist()
    if demand.ready_ps is not None:
        columns["source_ready_ps"] = demand.ready_ps.tolist()
    return head | {"columns": columns}


def root_if_named(demand: Demand, *, one_shot: bool = False) -> int | None:
    """Return the root (0 if there is none) for which the named collective equals this demand, or None.

    With `one_shot`, an allreduce may also have a chunk for each destination.
    """
    if demand.collective not in COLLECTIVES_BY_NAME:
        return None
    root = 0
    if demand.collective in ROOTED:
        ends = demand.source_rank if demand.collective in ("broadcast", "scatter") else demand.destination_rank
        root = int(ends[0])
    try:
        named = collective(demand.collective, demand.num_gpus, demand.size_bytes, demand.pieces, root)
    except DemandError:  # the named collective does not allow this size or number of pieces
        return None
    uses_blocks = one_shot and demand.collective == "allreduce" and named.per_destination == demand
    return root if uses_blocks or named == demand else None


def demand_from_json(value: Any, name: str = "demand") -> Demand:
    """Return the demand in a JSON value; error messages start with `name`, the file name."""
    try:
        check_header(value, FORMAT, VERSION)
        forms = [form for form in _FORMS if form in value] or [""]
        if len(forms) > 1:
            raise DemandError(f"give only one of {' and '.join(forms)}")
        check_keys(value, "", (*_COMMON, *_FORMS[forms[0]]), {"gpus": "8"})
        gpus, pieces = int_value(value, "gpus", 1, MAX_GPUS), int_value(value, "pieces", default=1)
        group, relays = (_rank_list(value, key, gpus) for key in ("group", "relays"))
        may_reduce = flag_field(value["reduce"], "", "reduce") if "reduce" in value else True
        if group is not None and forms[0] in ("", "matrix_bytes"):  # their ranks are those within the group
            demand = in_group(_READERS[forms[0]](_for_group(value, group), len(group), pieces), group, gpus, relays)
        else:
            demand = replace(_READERS[forms[0]](value, gpus, pieces), group=group, relays=relays)
        if demand.reduces and not may_reduce:
            chunk = int(np.argmax(np.diff(demand.source_ptr) > 1))
            raise DemandError(f"reduce is false, but {demand.collective} reduces: chunk {chunk} has several sources")
        tenants = tuple(_share(row, f"tenants[{i}]", gpus) for i, row in enumerate(_list(value, "tenants")))
        return replace(demand, tenants=tenants) if tenants else demand
    except InputError as error:
        raise DemandError(f"{name}: {error}") from None


def _share_to_json(share: Share) -> dict[str, Any]:
    row: dict[str, Any] = {"name": share.name, "weight": share.weight, "chunks": share.chunks}
    for key, ranks in (("group", share.group), ("relays", share.relays)):
        if ranks is not None:
            row[key] = list(ranks)
    return row


def _share(row: Any, place: str, gpus: int) -> Share:
    """Return a tenant of a demand: its name, its weight and its number of chunks."""
    check_keys(row, place, _TENANT_KEYS, {"name": '"train"', "chunks": "8"})
    name, weight = text_field(row["name"], place, "name"), row.get("weight", 1)
    if type(weight) not in (int, float) or not 0 < weight < float("inf"):
        raise DemandError(f"{place}.weight: must be > 0, got {show(weight)}")
    chunks = int_value(row, "chunks", 1, place=f"{place}.")
    return Share(name, float(weight), chunks, *(_rank_list(row, key, gpus) for key in ("group", "relays")))


def _list(value: dict[str, Any], key: str) -> list[Any]:
    found = value.get(key, [])
    if not isinstance(found, list):
        raise DemandError(f"{key}: must be a list, got {show(found)}")
    return found


def _rank_list(value: dict[str, Any], key: str, gpus: int) -> tuple[int, ...] | None:
    return tuple(int_column(value[key], key, 0, gpus - 1).tolist()) if key in value else None


def _for_group(value: dict[str, Any], group: tuple[int, ...]) -> dict[str, Any]:
    """Return the value with the root, a GPU of the machine, converted to its rank in the group."""
    if "root" not in value:
        return value
    if value["root"] not in group:
        raise DemandError(f"root: {show(value['root'])} is not in the group")
    return value | {"root": group.index(value["root"])}


def _from_name(value: dict[str, Any], gpus: int, pieces: int) -> Demand:
    """Return a named collective from its parameters."""
    known = collective_name(value.get("collective", "custom"))
    if known not in COLLECTIVES_BY_NAME:
        raise DemandError(f"{known} needs {'chunks' if known == 'custom' else 'matrix_bytes or chunks'}")
    check_keys(value, "", tuple(value), {"size_bytes": '"1MB"'})
    size_bytes, root = _bytes(value["size_bytes"], "size_bytes"), int_value(value, "root", 0, default=0)
    return collective(known, gpus, size_bytes, pieces, root)


def _from_matrix(value: dict[str, Any], gpus: int, pieces: int) -> Demand:
    """Return an alltoallv from the bytes of every pair."""
    rows, known = value["matrix_bytes"], collective_name(value.get("collective", "alltoallv"))
    if known != "alltoallv":
        raise DemandError(f"matrix_bytes: requires alltoallv, got {known}")
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise DemandError("matrix_bytes: must be a list of rows")
    if [len(row) for row in rows] != [gpus] * gpus:
        raise DemandError(f"matrix_bytes: must have {gpus} rows of {gpus} entries, one per gpu")
    matrix = [
        [0 if type(entry) is int and entry == 0 else _bytes(entry, f"matrix_bytes[{s}][{d}]") for d, entry in cells]
        for s, cells in enumerate(map(enumerate, rows))
    ]
    return alltoallv(matrix, pieces)


def _from_chunks(value: dict[str, Any], gpus: int, pieces: int) -> Demand:
    """Return a demand from a list of chunks."""
    rows, chunks, entries, ready_ps = value["chunks"], [], 0, []
    if not isinstance(rows, list):
        raise DemandError(f"chunks: must be a list of chunks, got {show(rows)}")
    for number, row in enumerate(rows):
        place = f"chunks[{number}]"
        check_keys(row, place, _CHUNK_KEYS, {"bytes": '"1MB"'})
        sources, destinations = (_ranks(row, end, gpus, place) for end in ("source", "destination"))
        if "reduce" in row and not flag_field(row["reduce"], place, "reduce") and len(sources) > 1:
            message = f"reduce is false, but there are {len(sources)} sources; give one source or omit reduce"
            raise DemandError(f"{place}: {message}")
        if sources == destinations and len(sources) == 1:
            raise DemandError(f"{place}: rank {sources[0]} already has the chunk; give another destination")
        entries += len(sources) + len(destinations)
        if entries > MAX_LISTED:
            raise DemandError(f"{place}: more than {MAX_LISTED} sources and destinations; give columns instead")
        size_bytes = _bytes(row["bytes"], f"{place}.bytes")
        chunks.append(Chunk(bytes=size_bytes, sources=sources, destinations=destinations))
        ready_ps += [us_to_ps(parse_us(row["ready"], f"{place}.ready")) if "ready" in row else 0] * len(sources)
    _check_pieces(len(chunks), pieces)
    size = _bytes(value["size_bytes"], "size_bytes") if "size_bytes" in value else None
    demand = Demand.from_chunks(collective_name(value.get("collective", "custom")), gpus, chunks, size, pieces)
    return replace(demand, ready_ps=np.array(ready_ps, dtype=np.int64))


def _ranks(row: dict[str, Any], key: str, gpus: int, place: str) -> tuple[int, ...]:
    """Return the ranks in "source": 0, "sources": [0, 1] or "sources": "all"; the same for destinations."""
    given = [name for name in (key, f"{key}s") if name in row]
    if len(given) != 1:
        raise DemandError(f"{place}: give either {key} or {key}s")
    ranks, where = row[given[0]], f"{place}.{given[0]}"
    if ranks == "all":
        return tuple(range(gpus))
    if isinstance(ranks, str):
        raise DemandError(f"{where}: {show(ranks)} is not a rank; only gpus, 0 to {gpus - 1}, send and receive data")
    if not isinstance(ranks, list):
        return (int_value(row, given[0], 0, gpus - 1, place=f"{place}."),)
    column = int_column(ranks, where, 0, gpus - 1).tolist()
    if not column:
        raise DemandError(f"{where}: needs at least one rank")
    if len(set(column)) != len(column):
        raise DemandError(f"{where}: names a rank twice")
    return tuple(column)


def _from_columns(value: dict[str, Any], gpus: int, pieces: int) -> Demand:
    """Return a demand from columns, the form that flowccl writes."""
    columns = value["columns"]
    check_keys(value, "", tuple(value), {"size_bytes": '"1MB"'})
    check_keys(columns, "columns", _COLUMN_KEYS, dict.fromkeys(("bytes", "source_rank", "destination_rank"), "[0, 1]"))
    chunk_bytes = int_column(columns["bytes"], "columns.bytes", 1, MAX_BYTES)
    _check_pieces(len(chunk_bytes), pieces)
    source_ptr, source_rank = _grouped(columns, "source", gpus, len(chunk_bytes))
    destination_ptr, destination_rank = _grouped(columns, "destination", gpus, len(chunk_bytes))
    only = np.where(np.diff(source_ptr) == 1, source_rank[source_ptr[:-1]], -1)
    back = np.flatnonzero(np.repeat(only, np.diff(destination_ptr)) == destination_rank)
    if len(back):
        chunk = int(np.searchsorted(destination_ptr, back[0], side="right")) - 1
        raise DemandError(f"columns: rank {only[chunk]} already has chunk {chunk}, so it cannot be its destination")
    known, size_bytes = collective_name(value.get("collective", "custom")), _bytes(value["size_bytes"], "size_bytes")
    demand = Demand(
        known, gpus, size_bytes, chunk_bytes, source_ptr, source_rank, destination_ptr, destination_rank, pieces
    )
    if "source_ready_ps" not in columns:
        return demand
    ready_ps = int_column(columns["source_ready_ps"], "columns.source_ready_ps", 0, 2**60)
    if len(ready_ps) != len(source_rank):
        raise DemandError(f"columns.source_ready_ps: has {len(ready_ps)} entries, source_rank has {len(source_rank)}")
    return replace(demand, ready_ps=ready_ps)


def _grouped(columns: dict[str, Any], end: str, gpus: int, chunks: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return pointers and ranks from a column of ranks and one of counts; without counts, one rank per chunk."""
    ranks = int_column(columns[f"{end}_rank"], f"columns.{end}_rank", 0, gpus - 1).astype(np.int32)
    counts = np.ones(chunks, dtype=np.int64)
    if f"{end}_count" in columns:
        counts = int_column(columns[f"{end}_count"], f"columns.{end}_count", 1, gpus)
    if len(counts) != chunks:
        raise DemandError(f"columns.{end}_count: has {len(counts)} entries, bytes has {chunks}")
    if counts.sum() != len(ranks):
        raise DemandError(f"columns.{end}_rank: has {len(ranks)} entries, must have {counts.sum()}")
    return pointers(counts), ranks


_READERS = {"chunks": _from_chunks, "columns": _from_columns, "matrix_bytes": _from_matrix, "": _from_name}


def _check_pieces(count: int, pieces: int) -> None:
    if count % pieces:
        raise DemandError(f"pieces: {count} chunks cannot form blocks of {pieces} chunks each")


def _bytes(value: Any, where: str) -> int:
    if type(value) is int and 1 <= value <= MAX_BYTES:
        return value  # exact; parse_bytes computes with floats
    try:
        return parse_bytes(value)
    except InputError as error:
        raise DemandError(f"{where}: {error}") from None


# -- shared by the readers of demands and schedules; the caller adds the file name to messages --------------------


def check_header(value: Any, expected: str, *versions: int) -> None:
    """Raise InputError if a JSON value is not an object of this format and of one of these versions."""
    if not isinstance(value, dict):
        raise InputError(f"must be an object with format {expected!r}, got {show(value)}")
    if "format" not in value:
        raise InputError(f'"format" is missing; a file of this kind has "format": "{expected}" at the top')
    if value.get("format") != expected:
        raise InputError(f"format must be {expected!r}, got {show(value.get('format'))}")
    found = value.get("version")
    if type(found) is not int or found not in versions:
        newer = "; the file was written by a newer flowccl" if type(found) is int and found > max(versions) else ""
        raise InputError(f"version must be {' or '.join(map(str, versions))}, got {show(found)}{newer}")


def int_value(
    value: dict[str, Any], key: str, low: int = 1, high: int = 2**31 - 1, default: int | None = None, place: str = ""
) -> int:
    """Return the whole number from `low` to `high` under a key; true and 1.0 are refused."""
    found = value.get(key, default)
    if key not in value and default is None:
        raise InputError(f"{place}{key} is missing")
    if type(found) is not int or not low <= found <= high:
        raise InputError(f"{place}{key}: must be a whole number, {low} to {high}, got {show(found)}")
    return found


def int_column(value: Any, where: str, low: int, high: int) -> NDArray[np.int64]:
    """Return a JSON list of whole numbers from `low` to `high` as an array; true and 1.0 are refused."""
    if not isinstance(value, list):
        raise InputError(f"{where}: must be a list of whole numbers, got {show(value)}")
    whole = set(map(type, value)) <= {int}
    if not whole or (value and not (min(value) >= low and max(value) <= high)):
        at = next(n for n, entry in enumerate(value) if type(entry) is not int or not low <= entry <= high)
        raise InputError(f"{where}[{at}]: must be a whole number, {low} to {high}, got {show(value[at])}")
    return np.array(value, dtype=np.int64)
