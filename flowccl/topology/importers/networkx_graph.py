"""Importer of networkx graphs in JSON, written with `json.dump(networkx.node_link_data(graph), file)`.

Nodes may have `kind` (gpu, switch, memory; gpu by default), `host`, `stores`, `copies`, `reduces`, `crossing`; links
have `bandwidth` (GB/s, or text with a unit) and may have `latency` (microseconds, or text). networkx is not required.
"""

from pathlib import Path
from typing import Any

from flowccl.errors import FileError, InputError
from flowccl.topology.fields import show
from flowccl.topology.files import FORMAT, VERSION, topology_from_json
from flowccl.topology.importers.imported import Imported, ImportOptions
from flowccl.topology.importers.json_fields import read_object

_BANDWIDTH = ("bandwidth", "bandwidth_GBps", "capacity")
_LATENCY = ("latency", "latency_us")
_NODE_KEYS = ("kind", "host", "stores", "copies", "reduces", "crossing", "buffer")


def read_networkx(path: Path, _options: ImportOptions) -> Imported:
    """Return the machine in node-link data."""
    data = read_object(path)
    links = data.get("edges", data.get("links"))
    if not isinstance(data.get("nodes"), list) or not isinstance(links, list):
        raise FileError(f'{path}: must have "nodes" and "edges" (or "links"); write it with networkx.node_link_data')
    notes: list[str] = []
    directed = data.get("directed", False) is True
    if not directed:
        notes.append(
            "the graph is undirected: every edge is two links, one per direction, each with the full bandwidth"
        )
    nodes = [_node(path, n, entry) for n, entry in enumerate(data["nodes"])]
    if not any("kind" in node for node in nodes):
        notes.append("no node has a kind: all nodes are GPUs, in file order")
    if not any(key in entry for entry in links if isinstance(entry, dict) for key in _LATENCY):
        notes.append("no link has a latency: all latencies are 0")
    value = {
        "format": FORMAT,
        "version": VERSION,
        "name": _graph_name(data) or path.name.split(".")[0],
        "nodes": nodes,
        "links": [_link(path, n, entry, not directed) for n, entry in enumerate(links)],
    }
    notes.append("bandwidths without a unit are in GB/s, latencies in microseconds")
    return Imported(topology_from_json(value, str(path)), tuple(notes))


def _graph_name(data: dict[str, Any]) -> str:
    graph = data.get("graph")
    name = graph.get("name") if isinstance(graph, dict) else None
    return name if isinstance(name, str) else ""


def _node(path: Path, position: int, entry: Any) -> dict[str, Any]:
    if not isinstance(entry, dict) or "id" not in entry:
        raise FileError(f'{path}: nodes[{position}]: must be an object with "id", got {show(entry)}')
    return {"name": _name(entry["id"])} | {key: entry[key] for key in _NODE_KEYS if key in entry}


def _link(path: Path, position: int, entry: Any, both: bool) -> dict[str, Any]:
    where = f"{path}: edges[{position}]"
    if not isinstance(entry, dict) or "source" not in entry or "target" not in entry:
        raise FileError(f'{where}: must be an object with "source" and "target", got {show(entry)}')
    src, dst = _name(entry["source"]), _name(entry["target"])
    bandwidth = next((entry[key] for key in _BANDWIDTH if key in entry), None)
    if bandwidth is None:
        raise InputError(f'{where} ({src} -> {dst}): has no bandwidth; write for example "bandwidth": 25')
    latency = next((entry[key] for key in _LATENCY if key in entry), 0.0)
    return {"src": src, "dst": dst, "bandwidth": bandwidth, "latency": latency, "both": both}


def _name(identity: Any) -> str:
    """Return the node name of an identifier: 3 -> "gpu3"; strings are unchanged; tuples (grids) are joined by "-"."""
    if isinstance(identity, list):
        return "-".join(str(part) for part in identity)
    return f"gpu{identity}" if type(identity) is int else str(identity)
