"""Reading and writing topology JSON, and `read_machine` for the name or the file of a machine. See docs/topology.md."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from flowccl.errors import FileError, InputError, TopologyError
from flowccl.files import read_json, write_json
from flowccl.topology.fields import (
    buffer_field,
    check_keys,
    entry_count,
    flag_field,
    numbered,
    quantity_field,
    show,
    text_field,
)
from flowccl.topology.machines import MACHINES, machine, nearest
from flowccl.topology.topology import Limit, Link, LinkKind, Node, Topology
from flowccl.units import parse_GBps, parse_us, us_to_ps

FORMAT = "flowccl-topology"
VERSION = 1
MAX_NODES = 1_000_000
MAX_LINKS = 10_000_000
MAX_FILE_BYTES = 256_000_000

_TOP = ("format", "version", "name", "nodes", "links", "limits", "$schema")
_NODE = ("name", "kind", "host", "stores", "copies", "reduces", "crossing", "buffer", "reduce", "model", "count")
_LINK = ("src", "dst", "bandwidth", "latency", "overhead", "both", "changes", "kind", "name", "count")
_CHANGE = ("at", "bandwidth")
_LIMIT = ("name", "bandwidth", "links")


def read_machine(text: str) -> Topology:
    """Return the machine with a name such as "ndv2:2", or the machine that a JSON file describes.

    Text that ends in .json or .json.gz is a file. Otherwise text that starts with the name of a machine is a name, so
    "ring:8:bandwidth=50GB/s" is a name. Otherwise a path with a separator or the path of an existing file is a file.
    """
    head = text.strip().split(":")[0]
    separators = [separator for separator in (os.sep, os.altsep) if separator]
    if head not in MACHINES and os.path.isdir(text):
        raise FileError(f"{text}: is a folder; give a topology file or the name of a machine such as ndv2:2")
    if text.endswith((".json", ".json.gz")):
        return load_topology(text)
    if head not in MACHINES and (any(separator in head for separator in separators) or os.path.isfile(text)):
        return load_topology(text)
    return machine(text)


def load_topology(path: str | Path) -> Topology:
    """Return the machine that a topology JSON file (.json, or .json.gz compressed) describes."""
    return topology_from_json(read_json(path, MAX_FILE_BYTES), str(path))


def save_topology(topology: Topology, path: str | Path) -> None:
    """Write a machine as topology JSON; compressed if the name ends in .gz. Loading it returns an equal machine."""
    write_json(path, topology_to_json(topology), indent=1)


# -- writing ----------------------------------------------------------------------------------------------------------


def topology_to_json(topology: Topology) -> dict[str, Any]:
    """Return a machine as a JSON value: one entry per node and link, numbers in GB/s and microseconds."""
    names = [node.name for node in topology.nodes]
    parallel: dict[tuple[int, int], int] = {}
    for link in topology.links if topology.limits else ():
        parallel[link.src, link.dst] = parallel.get((link.src, link.dst), 0) + 1

    def member(position: int) -> int | list[str]:
        link = topology.links[position]
        return [names[link.src], names[link.dst]] if parallel[link.src, link.dst] == 1 else int(position)

    return {
        "format": FORMAT,
        "version": VERSION,
        "name": topology.name,
        "nodes": [_node_to_json(node) for node in topology.nodes],
        "links": [_link_to_json(link, names) for link in topology.links],
        "limits": [
            {
                "name": limit.name,
                "bandwidth": float(limit.bandwidth_GBps),
                "links": [member(position) for position in limit.links],
            }
            for limit in topology.limits
        ],
    }


def _node_to_json(node: Node) -> dict[str, Any]:
    usual = Node(name=node.name, kind=node.kind)
    result: dict[str, Any] = {"name": node.name, "kind": node.kind}
    for key in ("host", "stores", "copies", "reduces", "crossing", "model"):
        if getattr(node, key) != getattr(usual, key):
            result[key] = getattr(node, key)
    if node.buffer_bytes is not None:
        result["buffer"] = int(node.buffer_bytes)
    if node.reduce_GBps is not None:
        result["reduce"] = float(node.reduce_GBps)
    return result


def _link_to_json(link: Link, names: list[str]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "src": names[link.src],
        "dst": names[link.dst],
        "bandwidth": float(link.bandwidth_GBps),
        "latency": float(link.latency_us),
    }
    if link.overhead_us:
        result["overhead"] = float(link.overhead_us)
    if link.kind:
        result["kind"] = link.kind
    if link.changes:
        result["changes"] = [{"at": float(at), "bandwidth": float(bandwidth)} for at, bandwidth in link.changes]
    return result


# -- reading ----------------------------------------------------------------------------------------------------------


def topology_from_json(value: Any, name: str) -> Topology:
    """Return the machine that a JSON value describes; error messages start with `name`, the source of the value."""
    try:
        _check_top(value)
        nodes = _read_nodes(value["nodes"])
        index = {node.name: position for position, node in enumerate(nodes)}
        links, made = _read_links(value["links"], index)
        limits = _read_limits(value.get("limits", []), index, links, made)
        return Topology(text_field(value["name"], "", "name"), tuple(nodes), tuple(links), tuple(limits))
    except InputError as error:
        raise TopologyError(f"{name}: {error}") from None


def _check_top(value: Any) -> None:
    if not isinstance(value, dict):
        raise TopologyError(f'must be an object {{"format": "{FORMAT}", "version": {VERSION}, ...}}, got {show(value)}')
    for key, expected in (("format", FORMAT), ("version", VERSION)):
        found = value.get(key)
        if type(found) is not type(expected) or found != expected:
            got = f", got {show(found)}" if key in value else ""
            raise TopologyError(f'write "{key}": {show(expected)} at the top{got}')
    check_keys(value, "", _TOP, {"name": '"my machine"', "nodes": '["gpu0", "gpu1"]', "links": "[]"})
    for key in ("nodes", "links", "limits"):
        if not isinstance(value.get(key, []), list):
            raise TopologyError(f"{key} must be a list, got {show(value[key])}")


def _read_nodes(entries: list[Any]) -> list[Node]:
    """Return all nodes, GPUs first, otherwise in file order."""
    nodes: list[Node] = []
    entry_of: dict[str, int] = {}
    for position, entry in enumerate(entries):
        place = f"nodes[{position}]"
        fields = {"name": entry} if isinstance(entry, str) else entry
        check_keys(fields, place, _NODE, {"name": '"gpu0"'})
        count = entry_count(
            fields, place, ("name",), MAX_NODES - len(nodes), f"a machine has at most {MAX_NODES:,} nodes"
        )
        for number in range(count or 1):
            node = _read_node(fields, place, None if count is None else str(number))
            if node.name in entry_of:
                taken = f"{show(node.name)} is already the name of nodes[{entry_of[node.name]}]"
                raise TopologyError(f"{place}: {taken}; names must differ")
            entry_of[node.name] = position
            nodes.append(node)
    if not any(node.kind == "gpu" for node in nodes):
        raise TopologyError("nodes: a machine needs at least one gpu")
    return sorted(nodes, key=lambda node: node.kind != "gpu")


def _read_node(fields: dict[str, Any], place: str, number: str | None) -> Node:
    given: dict[str, Any] = {}
    for key in ("name", "kind", "host", "crossing", "model"):
        if key in fields:
            given[key] = text_field(fields[key], place, key)
    for key in ("stores", "copies", "reduces"):
        if key in fields:
            given[key] = flag_field(fields[key], place, key)
    if number is not None:
        given |= {key: numbered(given[key], number, place, key) for key in ("name", "host") if key in given}
    if "buffer" in fields:
        given["buffer_bytes"] = buffer_field(fields["buffer"], place)
    if "reduce" in fields:
        given["reduce_GBps"] = quantity_field(parse_GBps, fields["reduce"], place, "reduce")
    try:
        return Node(**given)
    except TopologyError as error:
        raise TopologyError(f"{place}: {error}") from None


def _read_links(entries: list[Any], index: dict[str, int]) -> tuple[list[Link], dict[int | str, range]]:
    """Return all links in file order, and the links that each entry defines, by its position and by its name."""
    links: list[Link] = []
    made: dict[int | str, range] = {}
    for position, entry in enumerate(entries):
        place = f"links[{position}]"
        check_keys(entry, place, _LINK, {"src": '"gpu0"', "dst": '"gpu1"'})
        src, dst = (text_field(entry[key], place, key) for key in ("src", "dst"))
        place = f"{place} ({src:.60} -> {dst:.60})"
        both = flag_field(entry.get("both", False), place, "both")
        most = (MAX_LINKS - len(links)) // (2 if both else 1)
        count = entry_count(entry, place, ("src", "dst"), most, f"a machine has at most {MAX_LINKS:,} links")
        rates = _read_rates(entry, place)
        first = len(links)
        for number in range(count or 1):
            ends = (src, dst) if count is None else tuple(end.replace("{}", str(number)) for end in (src, dst))
            a, b = (_find_node(end, place, index) for end in ends)
            if a == b:
                raise TopologyError(f"{place}: a link must connect two different nodes, got {show(ends[0])} twice")
            links += [Link(src=a, dst=b, **rates)] + ([Link(src=b, dst=a, **rates)] if both else [])
        made[position] = range(first, len(links))
        if "name" in entry:
            name = text_field(entry["name"], place, "name")
            if name in made:
                raise TopologyError(f"{place}: {show(name)} is already the name of a link; names must differ")
            made[name] = made[position]
    return links, made


def _read_rates(entry: dict[str, Any], place: str) -> dict[str, Any]:
    """Return bandwidth, latency, overhead, changes and kind of a link, as keyword arguments."""
    check_keys(entry, place, _LINK, {"bandwidth": '"25GB/s"'})
    bandwidth = quantity_field(parse_GBps, entry["bandwidth"], place, "bandwidth")
    latency, overhead = (quantity_field(parse_us, entry.get(key, 0.0), place, key) for key in ("latency", "overhead"))
    entries = entry.get("changes", [])
    if not isinstance(entries, list):
        raise TopologyError(f"{place}: changes must be a list, got {show(entries)}")
    changes: list[tuple[float, float]] = []
    for position, change in enumerate(entries):
        where = f"{place}: changes[{position}]"
        check_keys(change, where, _CHANGE, {"at": '"10us"', "bandwidth": '"5GB/s"'})
        at = quantity_field(parse_us, change["at"], where, "at")
        before = changes[-1][0] if changes else 0.0
        if us_to_ps(at) <= us_to_ps(before):
            raise TopologyError(f"{where}: times must be above 0 and increase, got {at:g} us after {before:g} us")
        changes.append((at, quantity_field(parse_GBps, change["bandwidth"], where, "bandwidth")))
    rates = {"bandwidth_GBps": bandwidth, "latency_us": latency, "overhead_us": overhead, "changes": tuple(changes)}
    return rates | ({"kind": _read_kind(entry["kind"], place)} if "kind" in entry else {})


def _read_kind(value: Any, place: str) -> str:
    kind = text_field(value, place, "kind")
    if kind not in get_args(LinkKind):
        raise TopologyError(f"{place}: kind must be nvlink, pcie or nic, got {show(value)}")
    return kind


def _read_limits(
    entries: list[Any], index: dict[str, int], links: list[Link], made: dict[int | str, range]
) -> list[Limit]:
    between: dict[tuple[int, int], list[int]] = {}
    for position, link in enumerate(links if entries else ()):
        between.setdefault((link.src, link.dst), []).append(position)
    limits: dict[str, Limit] = {}
    remaining = MAX_LINKS
    for position, entry in enumerate(entries):
        place = f"limits[{position}]"
        check_keys(entry, place, _LIMIT, {"name": '"pcie0"', "bandwidth": '"32GB/s"', "links": '[["gpu0", "gpu1"]]'})
        name = text_field(entry["name"], place, "name")
        if name in limits:
            raise TopologyError(f"{place}: {show(name)} is already the name of a limit; names must differ")
        place = f"{place} ({name:.60})"
        if not isinstance(entry["links"], list) or not entry["links"]:
            raise TopologyError(f"{place}: links must be a list of at least one link, got {show(entry['links'])}")
        members: dict[int, None] = {}
        for number, item in enumerate(entry["links"]):
            for member in _read_members(item, f"{place}: links[{number}]", index, between, made):
                if member in members:
                    raise TopologyError(f"{place}: links[{number}]: names a link that is already part of this limit")
                members[member] = None
        remaining -= len(members)
        if remaining < 0:
            raise TopologyError(f"{place}: limits may name at most {MAX_LINKS:,} links in total")
        bandwidth = quantity_field(parse_GBps, entry["bandwidth"], place, "bandwidth")
        limits[name] = Limit(name=name, links=tuple(members), bandwidth_GBps=bandwidth)
    return list(limits.values())


def _read_members(
    item: Any,
    place: str,
    index: dict[str, int],
    between: dict[tuple[int, int], list[int]],
    made: dict[int | str, range],
) -> Sequence[int]:
    """Return the indices of the links that one item of a limit refers to."""
    if isinstance(item, list) and len(item) == 2:
        a, b = (_find_node(text_field(end, place, "a node"), place, index) for end in item)
        if (a, b) not in between:
            raise TopologyError(f"{place}: there is no link from {show(item[0])} to {show(item[1])}")
        return between[a, b]
    if type(item) not in (int, str):
        form = 'must be ["src", "dst"], the name of a link, or its position in links'
        raise TopologyError(f"{place}: {form}, got {show(item)}")
    if item not in made:
        near = nearest(item, (key for key in made if isinstance(key, str))) if isinstance(item, str) else ""
        what = f"named {show(item)}" if isinstance(item, str) else f"at position {show(item)}"
        raise TopologyError(f"{place}: there is no link {what}{near}")
    return made[item]


def _find_node(name: str, place: str, index: dict[str, int]) -> int:
    if name not in index:
        raise TopologyError(f"{place}: there is no node {show(name)}{nearest(name, index)}")
    return index[name]
