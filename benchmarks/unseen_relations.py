"""Relations between completion times that hold on every machine, checked on drawn machines."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from benchmarks.unseen_machines import Drawn
from flowccl.errors import FlowcclError
from flowccl.synthesis import synthesize
from flowccl.topology.topology import Topology

_SIZE = 16_000_000
_COLLECTIVES = ("allgather", "reduce_scatter", "alltoall", "allreduce")
_STRICT, _LOOSE = 0.005, 0.01  # by which relations of a search, and of two searches, may be broken
_KINDS = {"scaling": _STRICT, "concatenation": _STRICT, "mirror": _STRICT}


def check_relations(machines: Sequence[Drawn], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Check relations on as many machines as were asked for: a row for each, with what it is broken by."""
    rows = []
    for one in machines[: options.relations]:
        for kind, collective, later_us, most_us in _pairs(one, options):
            by = later_us / most_us - 1
            rows.append({"seed": one.seed, "relation": kind, "collective": collective, "by": by})
            print(f"{one.seed:>5} {kind:<16} {collective:<14} {later_us:10.6g} {most_us:10.6g} {by:8.2%}", flush=True)
    return rows


def _pairs(one: Drawn, options: argparse.Namespace) -> Iterator[tuple[str, str, float, float]]:
    """Relations of a machine: name, collective, a time, and what it is at most."""
    topology, random = one.topology, Random(one.seed)
    found = {name: _finish_us(topology, name, _SIZE, options) for name in _COLLECTIVES}
    yield "scaling", "allreduce", _finish_us(topology, "allreduce", 4 * _SIZE, options), 4 * found["allreduce"]
    yield "concatenation", "allreduce", found["allreduce"], found["reduce_scatter"] + found["allgather"]
    back = _finish_us(topology.reversed, "allgather", _SIZE, options)
    yield "mirror", "reduce_scatter", max(found["reduce_scatter"], back), min(found["reduce_scatter"], back)
    collective = random.choice(_COLLECTIVES)
    other = _finish_us(shuffled(topology, random), collective, _SIZE, options)
    yield "order of nodes", collective, max(other, found[collective]), min(other, found[collective])
    faster = _finish_us(with_a_faster_link(topology, random), collective, _SIZE, options)
    yield "faster link", collective, faster, found[collective]


def _finish_us(topology: Topology, collective: str, size_bytes: int, options: argparse.Namespace) -> float:
    try:
        result = synthesize(
            topology, collective, size_bytes, time_limit_s=options.time_limit, runtime=options.runtime, sms=options.sms
        )
    except FlowcclError:
        return float("nan")
    return result.schedule.finish_us


def shuffled(topology: Topology, random: Random) -> Topology:
    """The same machine with its GPUs and its switches in another order; links stay where they are."""
    gpus, nodes = topology.num_gpus, len(topology.nodes)
    order = random.sample(range(gpus), gpus) + random.sample(range(gpus, nodes), nodes - gpus)
    place = np.argsort(order).tolist()
    links = tuple(replace(link, src=place[link.src], dst=place[link.dst]) for link in topology.links)
    return replace(topology, nodes=tuple(topology.nodes[i] for i in order), links=links)


def with_a_faster_link(topology: Topology, random: Random) -> Topology:
    """The machine with twice the bandwidth of one link."""
    links = list(topology.links)
    at = random.randrange(len(links))
    links[at] = replace(links[at], bandwidth_GBps=2 * links[at].bandwidth_GBps)
    return replace(topology, links=tuple(links))


def relations_table(rows: Sequence[dict[str, Any]]) -> str:
    """For each relation, how many checks are broken, and by how much at most."""
    lines = [f"{'relation':<16} checks  broken by more than     largest"]
    for kind in dict.fromkeys(row["relation"] for row in rows):
        by = np.array([row["by"] for row in rows if row["relation"] == kind])
        by = by[np.isfinite(by)]
        allowed = _KINDS.get(kind, _LOOSE)
        if len(by):
            lines.append(f"{kind:<16} {len(by):>6}  {allowed:.1%}: {(by > allowed).sum():>4}          {by.max():10.2%}")
    return "\n".join(lines)
