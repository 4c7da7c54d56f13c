"""Importer of TACCL's profile of a topology, alone (one host) or with a sketch (several hosts and their links).

Its times are for one chunk: `alpha` and `beta` of a link, with beta = us per MB x MB of the chunk, all multiplied by an
arbitrary factor (TACCL's INPUT_GUIDE). The chunk size is in the name ("NDv2_1MB"), where KB is 1/1024 MB. The links of
a host are defined in TACCL's code, selected by the number of betas; a "custom" profile has matrices.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowccl.errors import FileError, InputError
from flowccl.papers.taccl.sketch_files import host_connections, object_of
from flowccl.topology.builders import gpu_nodes
from flowccl.topology.fields import show
from flowccl.topology.hardware import dgx1
from flowccl.topology.importers.imported import Imported, ImportOptions, Nic
from flowccl.topology.importers.json_fields import not_negative, positive, read_object, whole
from flowccl.topology.topology import Limit, Link, Node, Topology
from flowccl.units import format_GBps

_MB = {"KB": 1 / 1024, "MB": 1.0, "GB": 1024.0}  # in MB of 10^6 bytes, as in TE-CCL's reading of TACCL's 46 us/MB


@dataclass
class _Profile:
    """The numbers of a profile, in flowccl's units."""

    path: Path
    name: str
    gpus: int
    nics: int
    megabytes: float
    scale: float
    alpha_us: float

    def GBps(self, beta: float) -> float:
        """Return the bandwidth of a link that takes `beta` for a chunk."""
        return self.megabytes / (beta / self.scale) * 1000  # MB/us is TB/s

    def us(self, alpha: float) -> float:
        """Return the latency in microseconds, rounded to the precision of the profile."""
        return round(alpha / self.scale, 6)


def read_taccl(path: Path, options: ImportOptions) -> Imported:
    """Return the machine of a profile; with a sketch, the hosts and links that the sketch describes."""
    data = read_object(path)
    if "intranode_sketch" in data:
        raise InputError(
            f"{path}: is a TACCL sketch, not a machine; give the profile, and this file as --sketch {path}"
        )
    notes: list[str] = []
    profile = _profile(path, data, options, notes)
    links, switch = _host_links(profile, data, notes)
    sketch = None if options.sketch is None else read_object(options.sketch)
    hosts = 1
    if sketch is not None:
        hosts = whole(sketch.get("nnodes"), f"{options.sketch}: nnodes", 1, 1000)
    nodes = list(gpu_nodes(profile.gpus * hosts, profile.gpus))
    every: list[Link] = []
    for h in range(hosts):
        if switch:
            nodes.append(Node(name=f"nvswitch{h}", kind="switch", host=f"host{h}"))
        place = [h * profile.gpus + i for i in range(profile.gpus)] + [profile.gpus * hosts + h]
        every += [Link(src=place[a], dst=place[b], bandwidth_GBps=GBps, latency_us=us) for a, b, GBps, us in links]
    limits: list[Limit] = []
    if sketch is not None and hosts > 1:
        between = object_of(sketch, "internode_sketch")
        pairs = host_connections(between.get("internode_conn"), profile.gpus, f"{options.sketch}: ")
        _link_hosts(profile, data, pairs, hosts, every, limits)
        notes.append(f"{hosts} hosts, linked as in the sketch; links that share a NIC share its bandwidth")
    if options.overheads:
        every = [_with_overhead(link, nodes, switch) for link in every]
        notes.append("alphas are overheads per message, as in TACCL's cost model: chunks sent together pay one alpha")
    else:
        notes.append("alphas are latencies; --overheads makes them overheads per message, as in TACCL's cost model")
    name = profile.name if hosts == 1 else f"{profile.name} x{hosts}"
    nics = _nics(profile, data) if sketch is None else ()
    return Imported(Topology(name, tuple(nodes), tuple(every), tuple(limits)), tuple(notes), nics)


def _with_overhead(link: Link, nodes: list[Node], switch: bool) -> Link:
    """Return the link with its latency as overhead. Overheads on both sides of a switch overlap, so each gets both."""
    half = switch and "switch" in (nodes[link.src].kind, nodes[link.dst].kind)
    return replace(link, latency_us=0.0, overhead_us=link.latency_us * (2 if half else 1))


def _profile(path: Path, data: dict[str, Any], options: ImportOptions, notes: list[str]) -> _Profile:
    for key in ("name", "gpus_per_node", "alpha"):
        if key not in data:
            raise FileError(f'{path}: "{key}" is missing; is this a TACCL topology file?')
    name = str(data["name"])[:100]
    gpus = whole(data["gpus_per_node"], f"{path}: gpus_per_node", 2, 1000)
    alpha = not_negative(data["alpha"], f"{path}: alpha")
    size = re.search(r"([0-9.]+)\s*(KB|MB|GB)$", name)
    try:
        megabytes = float(size[1]) * _MB[size[2]] if size else 1.0
    except ValueError:
        megabytes = 0.0
    if megabytes <= 0:
        raise FileError(f"{path}: name must end in the chunk size, as in NDv2_1MB, got {show(data['name'])}")
    scale = options.scale
    if scale is None:
        scale = 1.0
        while alpha / scale >= 3 and scale < 1e6:
            scale *= 10
        notes.append(f"the time unit is {1 / scale:g} us, guessed from alpha = {alpha:g}; --scale overrides it")
    shown = f"{size[1]} {size[2]}" if size else "1 MB"
    notes.append(f"betas are for chunks of {shown}, {'as in the name' if size else 'because the name has no size'}")
    nics = whole(data.get("nics_per_node", gpus), f"{path}: nics_per_node", 1, 1000)
    return _Profile(path, name, gpus, nics, megabytes, positive(scale, "--scale"), alpha / scale)


def _host_links(
    profile: _Profile, data: dict[str, Any], notes: list[str]
) -> tuple[list[tuple[int, int, float, float]], bool]:
    """Return the links of one host as (src, dst, GB/s, us), and whether node `gpus` is a switch."""
    if "links" in data or "betas" in data:
        return _matrix_links(profile, data), False
    betas = data.get("node_betas_list")
    where = f"{profile.path}: node_betas_list"
    if not isinstance(betas, list) or len(betas) not in (1, 2):
        raise FileError(f"{where}: must be a list of one beta (a switch) or two (NDv2), got {show(betas)}")
    GBps = [profile.GBps(positive(beta, where)) for beta in betas]
    alpha = profile.us(profile.alpha_us * profile.scale)
    if len(betas) == 2:
        if profile.gpus != 8:
            raise FileError(f"{where}: two betas are for the 8 GPUs of NDv2, but gpus_per_node is {profile.gpus}")
        notes.append("two betas: the links of NDv2, as in TACCL's code; the first beta is for double NVLinks")
        fast = max(link.bandwidth_GBps for link in dgx1().links)
        return [(k.src, k.dst, GBps[0 if k.bandwidth_GBps == fast else 1], alpha) for k in dgx1().links], False
    notes.append(
        f"one beta: a plain switch with {format_GBps(GBps[0])} per GPU and direction; half of alpha on each side"
    )
    switch, links = profile.gpus, []
    for rank in range(profile.gpus):
        links += [(rank, switch, GBps[0], alpha / 2), (switch, rank, GBps[0], alpha / 2)]
    return links, True


def _matrix_links(profile: _Profile, data: dict[str, Any]) -> list[tuple[int, int, float, float]]:
    """Return the links of a custom profile; row = destination, column = source, as in TACCL."""
    rows: dict[str, Any] = {}
    for key in ("links", "betas"):
        matrix: Any = data.get(key)
        square = isinstance(matrix, list) and len(matrix) == profile.gpus
        if not square or not all(isinstance(row, list) and len(row) == profile.gpus for row in matrix):
            raise FileError(f"{profile.path}: {key} must be {profile.gpus} rows of {profile.gpus} numbers")
        rows[key] = matrix
    result = []
    for dst in range(profile.gpus):
        for src in range(profile.gpus):
            count = rows["links"][dst][src]
            where = f"[{dst}][{src}]"
            if whole(count, f"{profile.path}: links{where}", 0, 1000) and src != dst:
                beta = positive(rows["betas"][dst][src], f"{profile.path}: betas{where}")
                result.append((src, dst, count * profile.GBps(beta), profile.us(profile.alpha_us * profile.scale)))
    return result


# -- between hosts ----------------------------------------------------------------------------------------------------


def _remote(profile: _Profile, data: dict[str, Any]) -> tuple[float, float]:
    """Return bandwidth and latency of a link between hosts."""
    beta = positive(data.get("remote_beta"), f"{profile.path}: remote_beta")
    return profile.GBps(beta), profile.us(not_negative(data.get("remote_alpha"), f"{profile.path}: remote_alpha"))


def _nics(profile: _Profile, data: dict[str, Any]) -> tuple[Nic, ...]:
    """Return the NICs; consecutive ranks share a NIC."""
    if "remote_beta" not in data:
        return ()
    GBps, us = _remote(profile, data)
    count = min(profile.nics, profile.gpus)
    gpus_of_nic = [tuple(g for g in range(profile.gpus) if g * count // profile.gpus == n) for n in range(count)]
    return tuple(Nic(name=f"nic{n}", gpus=s, bandwidth_GBps=GBps, latency_us=us) for n, s in enumerate(gpus_of_nic))


def _link_hosts(
    profile: _Profile,
    data: dict[str, Any],
    pairs: list[tuple[int, int]],
    hosts: int,
    links: list[Link],
    limits: list[Limit],
) -> None:
    """Add links between all hosts; the senders of a host are distributed over its NICs, and so are the receivers."""
    GBps, us = _remote(profile, data)
    order = {side: {g: n for n, g in enumerate(sorted({p[side] for p in pairs}))} for side in (0, 1)}
    through: dict[str, list[int]] = {}
    for a in range(hosts):
        for b in range(hosts):
            for pair in pairs if a != b else ():
                ends = (a * profile.gpus + pair[0], b * profile.gpus + pair[1])
                for side, host, word in ((0, a, "out"), (1, b, "in")):
                    nic = order[side][pair[side]] * profile.nics // max(len(order[side]), profile.nics)
                    through.setdefault(f"nic{nic}.{host} {word}", []).append(len(links))
                links.append(Link(src=ends[0], dst=ends[1], bandwidth_GBps=GBps, latency_us=us))
    limits += [Limit(name=n, links=tuple(m), bandwidth_GBps=GBps) for n, m in through.items() if len(m) > 1]
