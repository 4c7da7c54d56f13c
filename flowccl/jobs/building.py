"""Catalogs for the calls that are worth it, and only for those."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from flowccl.catalog.build import COLLECTIVES, BuildOptions, build_catalog
from flowccl.catalog.engine import TaskEngine
from flowccl.errors import FlowcclError
from flowccl.files import make_folder
from flowccl.jobs.audit import Audit
from flowccl.jobs.placing import only_gpus
from flowccl.jobs.rows import AuditRow
from flowccl.topology.topology import Topology

_STEPS = 40  # counted work of each synthesis, as `flowccl catalog build` does by default


@dataclass(frozen=True, slots=True)
class BuiltPlan:
    """A catalog for a row, or the reason why there is none; `serves` are the groups that can use it."""

    folder: str
    collective: str
    size_bytes: int
    serves: tuple[tuple[int, ...], ...]
    error: str = ""


def neutral(topology: Topology) -> Topology:
    """Return the machine with nodes and hosts named by their place: equal for groups that are alike."""
    hosts = {host: f"host{at}" for at, host in enumerate(dict.fromkeys(node.host for node in topology.nodes)) if host}
    nodes = [
        replace(node, name=f"{node.kind}{at}", host=hosts.get(node.host, "")) for at, node in enumerate(topology.nodes)
    ]
    return replace(topology, name=f"{topology.num_gpus} gpus", nodes=tuple(nodes))


def build_worthwhile(
    audit: Audit,
    folder: Path,
    engine: TaskEngine,
    sms: int | None = None,
    on_row: Callable[[int, int], None] = lambda done, total: None,
) -> list[BuiltPlan]:
    """Build one catalog for each collective and size whose plan is worth it; groups that are alike share it."""
    tasks: dict[tuple[str, int, str], tuple[Topology, list[AuditRow]]] = {}
    for row in audit.worthwhile:
        if row.kind.collective in COLLECTIVES:
            machine = neutral(only_gpus(audit.topology, row.gpus))
            key = (row.kind.collective, row.kind.size_bytes, machine.fingerprint)
            tasks.setdefault(key, (machine, []))[1].append(row)
    make_folder(folder)
    built = []
    for number, ((collective, size, _), (machine, rows)) in enumerate(tasks.items()):
        on_row(number, len(tasks))
        place = folder / f"{collective}-{size}-{machine.num_gpus}gpus-{rows[0].kind.group[0]}"
        kind = rows[0].kind
        options = BuildOptions(
            collectives=(collective,),
            low_bytes=kind.least_bytes,
            high_bytes=kind.most_bytes,
            runtime=audit.runtime,
            steps=_STEPS,
            sms=sms,
            use_library=False,  # measured times decide, not the library's model
        )
        error = ""
        try:
            build_catalog(machine, place, options, engine)
        except FlowcclError as found:
            error = str(found)
        built.append(BuiltPlan(str(place), collective, size, tuple(row.kind.group for row in rows), error))
    return built
