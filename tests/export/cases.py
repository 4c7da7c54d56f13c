"""Schedules to export, hand-written and random, and helpers that write and read their files."""

import json
from functools import cache

import numpy as np

from flowccl.demand.collectives import COLLECTIVES_BY_NAME, ROOTED
from flowccl.demand.demand import Demand
from flowccl.export import TARGETS, ExportOptions
from flowccl.export.formats.read_mscclpp import parse_mscclpp
from flowccl.export.formats.read_xml import parse_xml
from flowccl.export.proof.interpreter import interpret
from flowccl.export.proof.program import Finding, RuntimeProgram
from flowccl.schedule.schedule import Schedule
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine
from flowccl.topology.topology import Link, Node, Topology

PROVABLE = ("msccl", "executor", "rccl", "mscclpp")


@cache
def schedule_of(name: str, collective: str, chunks: int = 1, size_bytes: int = 1_000_000, steps: int = 3) -> Schedule:
    result = synthesize(
        machine(name), collective, size_bytes, method="greedy", chunks=chunks, steps=steps, time_limit_s=30
    )
    return result.schedule


def made(schedule: Schedule, target: str, **options: object) -> bytes:
    if target == "mscclpp":
        options.setdefault("protocol", "Simple")
    return TARGETS[target](schedule, ExportOptions(**options))[0]  # type: ignore[arg-type]


def read(data: bytes, target: str, root: int = 0) -> RuntimeProgram:
    program = parse_mscclpp(data, "plan.json") if target == "mscclpp" else parse_xml(data, "algo.xml", target)
    program.root = root
    return program


def findings(data: bytes, target: str, root: int = 0) -> list[Finding]:
    return interpret(read(data, target, root))


def kinds(data: bytes, target: str) -> set[str]:
    return {finding.kind for finding in findings(data, target)}


def plan_value(schedule: Schedule, **options: object) -> dict:
    return json.loads(made(schedule, "mscclpp", **options))


def random_machine(rng: np.random.Generator) -> Topology:
    """Up to 7 GPUs on one or two hosts: a bidirectional ring, random links, and sometimes a switch for all."""
    gpus = int(rng.integers(2, 8))
    hosts = int(rng.integers(1, 3))
    nodes = [Node(name=f"gpu{i}", host=f"host{i * hosts // gpus}") for i in range(gpus)]
    pairs = {(i, (i + 1) % gpus) for i in range(gpus)} | {((i + 1) % gpus, i) for i in range(gpus)}
    pairs |= {(int(a), int(b)) for a, b in rng.integers(0, gpus, (gpus, 2)) if a != b}
    if rng.random() < 0.3:
        nodes.append(Node(name="switch", kind="switch", copies=bool(rng.random() < 0.5)))
        pairs |= {(i, gpus) for i in range(gpus)} | {(gpus, i) for i in range(gpus)}
    speeds = rng.choice([12.5, 25.0, 50.0], len(pairs))
    delays = rng.choice([0.0, 0.7, 1.3], len(pairs))
    links = [
        Link(src=a, dst=b, bandwidth_GBps=speed, latency_us=delay)
        for (a, b), speed, delay in zip(sorted(pairs), speeds.tolist(), delays.tolist(), strict=True)
    ]
    return Topology("random", tuple(nodes), tuple(links))


def random_schedule(seed: int) -> tuple[Schedule, int]:
    """Return a schedule of a random collective on a random machine, and its root."""
    rng = np.random.default_rng(seed)
    topology = random_machine(rng)
    collective = str(rng.choice(sorted(COLLECTIVES_BY_NAME)))
    root = int(rng.integers(topology.num_gpus)) if collective in ROOTED else 0
    result = synthesize(
        topology,
        collective,
        int(rng.choice([1_000, 30_000, 1_000_000])),
        method="greedy",
        chunks=int(rng.integers(1, 6)),
        root=root,
        steps=1,
        seed=seed,
        time_limit_s=30,
    )
    return result.schedule, root


def ring(gpus: int) -> Topology:
    return machine(f"ring:{gpus}")


def exchange(gpus: int = 4) -> Schedule:
    """An allreduce by recursive doubling: in each round, pairs exchange their partial sums of a chunk."""
    topology = machine(f"full:{gpus}:latency=0us:bandwidth=25GB/s")
    demand: Demand = COLLECTIVES_BY_NAME["allreduce"](gpus, 1000 * gpus)
    link = {(one.src, one.dst): k for k, one in enumerate(topology.links)}
    busy = 1000 * 1000 // 25
    rows, start, distance = [], 0, 1
    while distance < gpus:
        for chunk in range(len(demand)):
            rows += [(chunk, [link[r, r ^ distance]], start, True) for r in range(gpus)]
            start += busy
        distance *= 2
    return Schedule.from_transfers(topology, demand, rows)
