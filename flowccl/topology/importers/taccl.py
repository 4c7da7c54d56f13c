"""TACCL's profile of a topology, alone (one host) or with a sketch (several hosts, and how they are linked).

Its times are for one chunk: `alpha` and `beta` of a link, beta = us per MB x the chunk's MB, all multiplied by any
factor the author liked (TACCL's INPUT_GUIDE). The chunk's size is in the name ("NDv2_1MB"), KB is 1/1024 MB there.
The links of a host are not in the file but in TACCL's code: by the number of betas, or matrices for "custom".
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowccl.errors import FileError, InputError
from flowccl.topology.builders import gpu_nodes
from flowccl.topology.fields import show
from flowccl.topology.hardware import dgx1
from flowccl.topology.importers.imported import Imported, ImportOptions, Nic
from flowccl.topology.importers.json_fields import not_negative, positive, read_object, whole
from flowccl.topology.topology import Limit, Link, Node, Topology
from flowccl.units import format_GBps

_MB = {"KB": 1 / 1024, "MB": 1.0, "GB": 1024.0}  # in MB of 10^6 bytes, as TE-CCL reads TACCL's 46 us/MB


@dataclass
class _Profile:
    """A file's numbers, in our units."""

    path: Path
    name: str
    gpus: int
    nics: int
    megabytes: float
    scale: float
    alpha_us: float

    def GBps(self, beta: float) -> float:
        """Bandwidth of a link that takes `beta` for a chunk."""
        return self.megabytes / (beta / self.scale) * 1000  # MB/us is TB/s

    def us(self, alpha: float) -> float:
        """Latency in microseconds; the profile's decimals are all there is."""
        return round(alpha / self.scale, 6)


def read_taccl(path: Path, options: ImportOptions) -> Imported:
    """The machine of a profile; with a sketch, the hosts and links it asks for."""
    data = read_object(path)
    if "intranode_sketch" in data:
        raise InputError(f"{path}: is TACCL's sketch, not a machine; give the profile, and this one as --sketch {path}")
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
        pairs = _connections(profile, sketch, options.sketch)
        _join(profile, data, pairs, hosts, every, limits)
        notes.append(f"{hosts} hosts, linked as the sketch says; links that share a NIC share its bandwidth")
    if options.overheads:
        every = [_held(link, nodes, switch) for link in every]
        notes.append("alphas hold the links, as in TACCL's cost model: chunks sent together pay one")
    else:
        notes.append("alphas are latencies, which hold no link; --setups holds it, as in TACCL's cost model")
    name = profile.name if hosts == 1 else f"{profile.name} x{hosts}"
    nics = _nics(profile, data) if sketch is None else ()
    return Imported(Topology(name, tuple(nodes), tuple(every), tuple(limits)), tuple(notes), nics)


def _held(link: Link, nodes: list[Node], switch: bool) -> Link:
    """The link with its latency as a setup; through a switch both sides pass at once, so each has the whole of it."""
    half = switch and "switch" in (nodes[link.src].kind, nodes[link.dst].kind)
    return replace(link, latency_us=0.0, overhead_us=link.latency_us * (2 if half else 1))


def _profile(path: Path, data: dict[str, Any], options: ImportOptions, notes: list[str]) -> _Profile:
    for key in ("name", "gpus_per_node", "alpha"):
        if key not in data:
            raise FileError(f'{path}: "{key}" is missing; is it a topology file of TACCL?')
    name = str(data["name"])[:100]
    gpus = whole(data["gpus_per_node"], f"{path}: gpus_per_node", 2, 1000)
    alpha = not_negative(data["alpha"], f"{path}: alpha")
    size = re.search(r"([0-9.]+)\s*(KB|MB|GB)$", name)
    try:
        megabytes = float(size[1]) * _MB[size[2]] if size else 1.0
    except ValueError:
        megabytes = 0.0
    if megabytes <= 0:
        raise FileError(f"{path}: name must end in the chunk's size, as in NDv2_1MB, got {show(data['name'])}")
    scale = options.scale
    if scale is None:
        scale = 1.0
        while alpha / scale >= 3 and scale < 1e6:
            scale *= 10
        notes.append(f"times count as {1 / scale:g} us, guessed from alpha = {alpha:g}; --scale says it otherwise")
    shown = f"{size[1]} {size[2]}" if size else "1 MB"
    notes.append(f"betas are for chunks of {shown}, {'as in the name' if size else 'for the name says no size'}")
    nics = whole(data.get("nics_per_node", gpus), f"{path}: nics_per_node", 1, 1000)
    return _Profile(path, name, gpus, nics, megabytes, positive(scale, "--scale"), alpha / scale)


def _host_links(
    profile: _Profile, data: dict[str, Any], notes: list[str]
) -> tuple[list[tuple[int, int, float, float]], bool]:
    """Links of one host as (src, dst, GB/s, us), and whether node `gpus` is a switch."""
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
            raise FileError(f"{where}: two betas are for NDv2's 8 GPUs, gpus_per_node is {profile.gpus}")
        notes.append("two betas: NDv2's links, as in TACCL's code; the first for double NVLinks")
        fast = max(link.bandwidth_GBps for link in dgx1().links)
        return [(k.src, k.dst, GBps[0 if k.bandwidth_GBps == fast else 1], alpha) for k in dgx1().links], False
    notes.append(f"one beta: a plain switch with {format_GBps(GBps[0])} per GPU each way; half of alpha on each side")
    switch, links = profile.gpus, []
    for rank in range(profile.gpus):
        links += [(rank, switch, GBps[0], alpha / 2), (switch, rank, GBps[0], alpha / 2)]
    return links, True


def _matrix_links(profile: _Profile, data: dict[str, Any]) -> list[tuple[int, int, float, float]]:
    """Links of a custom profile; row = destination, column = source, as TACCL reads its matrices."""
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
    """Bandwidth and latency of a link between hosts."""
    beta = positive(data.get("remote_beta"), f"{profile.path}: remote_beta")
    return profile.GBps(beta), profile.us(not_negative(data.get("remote_alpha"), f"{profile.path}: remote_alpha"))


def _nics(profile: _Profile, data: dict[str, Any]) -> tuple[Nic, ...]:
    """NICs, each for the GPUs next to it in rank order."""
    if "remote_beta" not in data:
        return ()
    GBps, us = _remote(profile, data)
    count = min(profile.nics, profile.gpus)
    shares = [tuple(g for g in range(profile.gpus) if g * count // profile.gpus == n) for n in range(count)]
    return tuple(Nic(name=f"nic{n}", gpus=s, bandwidth_GBps=GBps, latency_us=us) for n, s in enumerate(shares))


def _connections(profile: _Profile, sketch: dict[str, Any], path: Path | None) -> list[tuple[int, int]]:
    """Which GPU sends to which GPU of another host."""
    where = f"{path}: internode_sketch.internode_conn"
    inter = sketch.get("internode_sketch")
    given = inter.get("internode_conn") if isinstance(inter, dict) else None
    every = range(profile.gpus)
    if given == "fully-connected":
        return [(a, b) for a in every for b in every]
    if given == "direct-map":
        return [(a, a) for a in every]
    if not isinstance(given, dict) or not given:
        raise FileError(f'{where}: must be "fully-connected", "direct-map" or an object such as {{"0": [1]}}')
    pairs = []
    for sender, receivers in given.items():
        if not sender.isascii() or not sender.isdigit() or not isinstance(receivers, list):
            raise FileError(f'{where}: must name GPUs, as in {{"0": [1]}}')
        source = whole(int(sender[:9]), where, 0, profile.gpus - 1)
        pairs += [(source, whole(receiver, where, 0, profile.gpus - 1)) for receiver in receivers]
    return pairs


def _join(
    profile: _Profile,
    data: dict[str, Any],
    pairs: list[tuple[int, int]],
    hosts: int,
    links: list[Link],
    limits: list[Limit],
) -> None:
    """Links between all hosts; the senders of a host take turns on its NICs, and so do the receivers."""
    GBps, us = _remote(profile, data)
    order = {way: {g: n for n, g in enumerate(sorted({p[way] for p in pairs}))} for way in (0, 1)}
    through: dict[str, list[int]] = {}
    for a in range(hosts):
        for b in range(hosts):
            for pair in pairs if a != b else ():
                ends = (a * profile.gpus + pair[0], b * profile.gpus + pair[1])
                for way, host, word in ((0, a, "out"), (1, b, "in")):
                    nic = order[way][pair[way]] * profile.nics // max(len(order[way]), profile.nics)
                    through.setdefault(f"nic{nic}.{host} {word}", []).append(len(links))
                links.append(Link(src=ends[0], dst=ends[1], bandwidth_GBps=GBps, latency_us=us))
    limits += [Limit(name=n, links=tuple(m), bandwidth_GBps=GBps) for n, m in through.items() if len(m) > 1]
