"""Reading and writing sketch JSON: flowccl's format (docs/sketch.md) and, for reading, TACCL's."""

from pathlib import Path
from typing import Any

from flowccl.errors import FileError, InputError
from flowccl.files import read_json
from flowccl.papers.taccl.sketch import Pair, Sketch, SwitchSketch, check_sketch
from flowccl.topology.fields import check_keys, show, text_field
from flowccl.topology.importers.json_fields import whole
from flowccl.topology.topology import Topology

FORMAT = "flowccl-sketch"
VERSION = 1
MAX_FILE_BYTES = 16_000_000
_PLAN = ("between_hosts", "closed", "senders", "switches", "symmetry", "chunks", "reach")
_KEYS = ("$schema", "format", "version", "name", *_PLAN)
_SWITCH = ("gpus", "inclination", "most")
_MAX_CHUNKS = 1024


def load_sketch(path: str | Path, topology: Topology) -> Sketch:
    """Return the sketch in a file of flowccl or of TACCL, checked against the machine."""
    value = read_json(path, MAX_FILE_BYTES)
    try:
        if not isinstance(value, dict):
            raise FileError(f"must be an object, got {show(value)}")
        sketch = _of_taccl(value, topology) if "intranode_sketch" in value else sketch_from_json(value)
        check_sketch(sketch, topology)
    except InputError as error:
        raise FileError(f"{path}: {error}") from None
    return sketch


def sketch_from_json(value: dict[str, Any]) -> Sketch:
    """Return the sketch in a JSON value of flowccl's format."""
    for key, expected in (("format", FORMAT), ("version", VERSION)):
        if value.get(key) != expected:
            got = f", got {show(value[key])}" if key in value else ""
            raise FileError(
                f'is neither a TACCL sketch nor a flowccl sketch: write "{key}": {show(expected)} at the top{got}'
            )
    check_keys(value, "", _KEYS, {})
    between = value.get("between_hosts")
    return Sketch(
        name=text_field(value["name"], "", "name") if value.get("name") else "",
        between_hosts=None if between is None else _pairs(between, "between_hosts"),
        closed=_pairs(value.get("closed", []), "closed"),
        senders=_ranks(value.get("senders", []), "senders"),
        switches=tuple(_switch(entry, f"switches[{n}]") for n, entry in enumerate(_list(value, "switches"))),
        rotations=_pairs(value.get("symmetry", []), "symmetry"),
        chunks=whole(value.get("chunks", 1), "chunks", 1, _MAX_CHUNKS),
        reach=value.get("reach", "shortest"),
    )


def _list(value: dict[str, Any], key: str) -> list[Any]:
    entries = value.get(key, [])
    if not isinstance(entries, list):
        raise FileError(f"{key}: must be a list, got {show(entries)}")
    return entries


def _switch(entry: Any, place: str) -> SwitchSketch:
    check_keys(entry, place, _SWITCH, {"gpus": "[0, 1, 2, 3]"})
    most = entry.get("most")
    try:
        return SwitchSketch(
            gpus=_ranks(entry["gpus"], f"{place}.gpus"),
            inclination=entry.get("inclination", "none"),
            most=None if most is None else whole(most, f"{place}.most", 1, 1_000_000),
        )
    except InputError as error:
        raise FileError(str(error) if str(error).startswith(place) else f"{place}: {error}") from None


def _ranks(value: Any, place: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise FileError(f"{place}: must be a list of ranks, got {show(value)}")
    return tuple(whole(rank, f"{place}[{n}]", 0, 1_000_000) for n, rank in enumerate(value))


def _pairs(value: Any, place: str) -> tuple[Pair, ...]:
    if not isinstance(value, list):
        raise FileError(f"{place}: must be a list of pairs, got {show(value)}")
    result = []
    for n, entry in enumerate(value):
        pair = _ranks(entry, f"{place}[{n}]")
        if len(pair) != 2:
            raise FileError(f"{place}[{n}]: must be two numbers, got {show(entry)}")
        result.append((pair[0], pair[1]))
    return tuple(result)


# -- TACCL's format ---------------------------------------------------------------------------------------------------


def _of_taccl(value: dict[str, Any], topology: Topology) -> Sketch:
    """Return the sketch in TACCL's format, whose ranks are within a host; the machine gives the GPUs per host."""
    hosts = whole(value.get("nnodes"), "nnodes", 1, 100_000)
    gpus = topology.num_gpus
    if gpus % hosts:
        raise FileError(f"nnodes: {topology.name} has {gpus} gpus, which cannot be divided into {hosts} equal hosts")
    keys = ("intranode_sketch", "internode_sketch", "hyperparameters")
    inside, between, settings = (object_of(value, key) for key in keys)
    return Sketch(
        name="TACCL",
        between_hosts=_taccl_connections(between, topology, hosts) if hosts > 1 else None,
        senders=_taccl_senders(between, gpus, hosts) if hosts > 1 else (),
        switches=_taccl_switches(inside, gpus, hosts),
        rotations=_pairs(value.get("symmetry_offsets", []), "symmetry_offsets"),
        chunks=whole(settings.get("input_chunkup", 1), "hyperparameters.input_chunkup", 1, _MAX_CHUNKS),
    )


def object_of(value: dict[str, Any], key: str) -> dict[str, Any]:
    """Return the object under a key; empty if there is none."""
    found = value.get(key, {})
    if not isinstance(found, dict):
        raise FileError(f"{key}: must be an object, got {show(found)}")
    return found


def host_connections(given: Any, size: int, where: str = "") -> list[Pair]:
    """Return the pairs (sender, receiver) of two hosts of this size: named pairs, equal ranks, or all."""
    if given == "fully-connected":
        return [(a, b) for a in range(size) for b in range(size)]
    if given == "direct-map":
        return [(rank, rank) for rank in range(size)]
    ends_of = _by_rank(given, f"{where}internode_sketch.internode_conn", size)
    return [(a, b) for a, ends in ends_of.items() for b in ends]


def _taccl_connections(between: dict[str, Any], topology: Topology, hosts: int) -> tuple[Pair, ...] | None:
    """Return the connections of every pair of hosts; None for all of the machine."""
    size, given = topology.num_gpus // hosts, between.get("internode_conn")
    if given == "fully-connected":
        return None
    pairs = sorted(host_connections(given, size))
    return tuple((h * size + a, k * size + b) for h in range(hosts) for k in range(hosts) if h != k for a, b in pairs)


def _taccl_senders(between: dict[str, Any], gpus: int, hosts: int) -> tuple[int, ...]:
    if "gpus_to_sender_rev_map" not in between:
        return ()
    size, where = gpus // hosts, "internode_sketch.gpus_to_sender_rev_map"
    owners = _by_rank(between["gpus_to_sender_rev_map"], where, size)
    sender = {rank: by for by, ranks in owners.items() for rank in ranks}
    missing = [rank for rank in range(size) if rank not in sender]
    if missing:
        raise FileError(f"{where}: has no sender for gpu {missing[0]}")
    return tuple(rank // size * size + sender[rank % size] for rank in range(gpus))


def _taccl_switches(inside: dict[str, Any], gpus: int, hosts: int) -> tuple[SwitchSketch, ...]:
    size, groups = gpus // hosts, _list(inside, "switches")
    how = _list(inside, "switch_hyperedge_strategy")
    result = []
    for host in range(hosts):
        for n, group in enumerate(groups):
            ranks = _ranks(group, f"intranode_sketch.switches[{n}]")
            for rank in ranks:
                if rank >= size:
                    raise FileError(
                        f"intranode_sketch.switches[{n}]: there is no gpu {rank}; a host has 0 to {size - 1}"
                    )
            inclination: Any = how[min(n, len(how) - 1)] if how else "none"
            result.append(SwitchSketch(gpus=tuple(host * size + rank for rank in ranks), inclination=inclination))
    return tuple(result)


def _by_rank(given: Any, where: str, size: int) -> dict[int, tuple[int, ...]]:
    """Return {0: (1,)} from {"0": [1]}; ranks are within a host."""
    if not isinstance(given, dict) or not given:
        raise FileError(f'{where}: must be "fully-connected", "direct-map" or an object such as {{"0": [1]}}')
    result = {}
    for key, ranks in given.items():
        if not (key.isascii() and key.isdigit()):
            raise FileError(f"{where}: {show(key)} is not the rank of a gpu")
        for rank in (int(key[:9]), *_ranks(ranks, f"{where}.{key}")):
            if rank >= size:
                raise FileError(f"{where}: there is no gpu {rank}; a host has 0 to {size - 1}")
        result[int(key)] = _ranks(ranks, f"{where}.{key}")
    return result
