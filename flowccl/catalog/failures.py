"""Plans for every single failure: one failure of each orbit of the machine's symmetry is planned, the others mapped."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flowccl.catalog.engine import TaskEngine, TaskFailure
from flowccl.catalog.files import load_plan_schedule
from flowccl.catalog.model import Catalog
from flowccl.catalog.replan import replan
from flowccl.demand.demand import Demand
from flowccl.errors import FileError, InputError
from flowccl.files import json_bytes, make_folder, read_json, write_bytes, write_json
from flowccl.schedule.files import load_schedule, schedule_from_json, schedule_to_json
from flowccl.schedule.schedule import Schedule
from flowccl.topology.faults import with_faults
from flowccl.topology.routes import Routes
from flowccl.topology.symmetry.automorphisms import known_symmetry
from flowccl.topology.topology import Topology
from flowccl.verifier.verify import verify

FORMAT = "flowccl-failures"
VERSION = 1
FOLDER = "failures"
_FILE = "failures.json"
_MAX_FILE_BYTES = 200_000_000
Kind = Literal["links", "nics"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A link that may be lost, in all its directions.

    `fingerprint` is that of the machine without it. `planned` is the failure of its orbit for which plans were made,
    and `nodes` the automorphism that maps that failure to this one. `refused` says why there is no plan.
    """

    name: str
    fingerprint: str
    planned: str
    nodes: tuple[int, ...]
    refused: str = ""


def single_failures(topology: Topology, kind: Kind) -> list[Failure]:
    """Return every failure of one link, or of one NIC, a link of kind nic at a GPU; each orbit has one planned one."""
    symmetry = known_symmetry(topology)
    found: dict[tuple[int, int], Failure] = {}
    for ends in _pairs(topology, kind):
        if ends in found:
            continue
        first = _name(topology, ends)
        reached = {ends: np.arange(len(topology.nodes), dtype=np.int64)}
        todo = [ends]
        for at in todo:
            for generator in symmetry.nodes:
                image = (int(generator[at[0]]), int(generator[at[1]]))
                image = (min(image), max(image))
                if image not in reached:
                    reached[image] = generator[reached[at]].astype(np.int64)
                    todo.append(image)
        for image, nodes in reached.items():
            found[image] = _failure(topology, image, first, tuple(nodes.tolist()))
    return [found[ends] for ends in sorted(found)]


def _failure(topology: Topology, ends: tuple[int, int], planned: str, nodes: tuple[int, ...]) -> Failure:
    name = _name(topology, ends)
    try:
        return Failure(name, with_faults(topology, without=[name]).fingerprint, planned, nodes)
    except InputError as error:
        return Failure(name, "", planned, nodes, str(error))


def _pairs(topology: Topology, kind: Kind) -> list[tuple[int, int]]:
    """The pairs of nodes with a link of this kind between them."""
    found = set()
    for link, what in zip(topology.links, topology.link_kinds, strict=True):
        if kind == "links" or (what == "nic" and min(link.src, link.dst) < topology.num_gpus):
            found.add((min(link.src, link.dst), max(link.src, link.dst)))
    return sorted(found)


def _name(topology: Topology, ends: tuple[int, int]) -> str:
    a, b = (topology.nodes[end].name for end in ends)
    both = {(link.src, link.dst) for link in topology.links} >= {ends, ends[::-1]}
    forward = any((link.src, link.dst) == ends for link in topology.links)
    return f"{a} <-> {b}" if both else f"{a} -> {b}" if forward else f"{b} -> {a}"


def prepare_failures(
    folder: Path,
    catalog: Catalog,
    topology: Topology,
    kind: Kind,
    engine: TaskEngine,
    steps: int,
    on_case: Callable[[int, int], None] = lambda done, total: None,
) -> list[Failure]:
    """Plan every orbit of failures for every plan of the catalog; write the files, the table last."""
    failures = single_failures(topology, kind)
    orbits = list(dict.fromkeys(failure.planned for failure in failures if not failure.refused))
    cases = [(number, name, plan) for number, name in enumerate(orbits) for plan in catalog.plans]
    tasks = [
        (schedule_to_json(load_plan_schedule(folder, plan, catalog.machine.ranks)), name, steps)
        for _, name, plan in cases
    ]
    make_folder(folder / FOLDER)
    rows: list[dict[str, Any]] = []
    for done, (at, outcome) in enumerate(engine.map(replanned, tasks), 1):
        number, name, plan = cases[at]
        row = {"failure": name, "plan": plan.name, "file": f"{plan.name}-{number}.json"}
        if isinstance(outcome, TaskFailure):
            rows.append(row | {"file": None, "reason": outcome.message})
        else:
            write_bytes(folder / FOLDER / str(row["file"]), json_bytes(outcome))
            rows.append(row)
        on_case(done, len(tasks))
    value = {
        "format": FORMAT,
        "version": VERSION,
        "fingerprint": catalog.machine.fingerprint,
        "failures": [
            {name: getattr(failure, name) for name in failure.__slots__ if name != "nodes"}
            | {"nodes": list(failure.nodes)}
            for failure in failures
        ],
        "plans": sorted(rows, key=lambda row: (row["failure"], row["plan"])),
    }
    write_json(folder / FOLDER / _FILE, value)
    return failures


def replanned(schedule: dict[str, Any], name: str, steps: int) -> dict[str, Any]:
    """Return the plan after a failure as a JSON value."""
    return schedule_to_json(replan(schedule_from_json(schedule), without=[name], steps=steps).schedule)


class PreparedFailures:
    """The prepared plans of a catalog, found by the fingerprint of the machine after a failure."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder) / FOLDER
        value = read_json(self.folder / _FILE, _MAX_FILE_BYTES)
        try:
            if value["format"] != FORMAT or value["version"] != VERSION:
                raise ValueError
            rows = [Failure(**{**row, "nodes": tuple(row["nodes"])}) for row in value["failures"]]
            self.files = {(row["failure"], row["plan"]): row["file"] for row in value["plans"]}
        except (KeyError, TypeError, ValueError):
            raise FileError(f"{self.folder / _FILE}: is no table of failures; build the catalog again") from None
        self.by_fingerprint = {failure.fingerprint: failure for failure in rows if not failure.refused}

    def find(self, fingerprint: str) -> Failure | None:
        """Return the failure after which a machine has this fingerprint; None if it was not prepared."""
        return self.by_fingerprint.get(fingerprint)

    def schedule(self, failure: Failure, plan: str) -> Schedule:
        """Return the plan for a failure: that of its orbit, mapped by the automorphism and verified."""
        file = self.files.get((failure.planned, plan))
        if file is None or Path(str(file)).name != file:
            raise FileError(f"{self.folder}: has no plan {plan} for {failure.planned}")
        mapped = map_schedule(load_schedule(self.folder / file), failure)
        violations = verify(mapped)
        if violations:
            raise FileError(f"{self.folder / file}: is invalid for {failure.name}: {violations[0]}")
        return mapped


def map_schedule(schedule: Schedule, failure: Failure) -> Schedule:
    """Return the schedule of a planned failure for another failure of its orbit, on the machine after that one.

    Chunks go to those whose sources and destinations are the images; the machine's links are those of the images.
    """
    nodes = np.array(failure.nodes, dtype=np.int64)
    if sorted(failure.nodes) != list(range(len(schedule.topology.nodes))):
        raise FileError(f"{failure.name}: nodes is no permutation of the machine's nodes")
    topology = _image(schedule.topology, nodes)
    routes = Routes(schedule.routes.ptr, _image_links(schedule.topology, nodes)[schedule.routes.link])
    chunk = _image_chunks(schedule.demand, nodes)[schedule.chunk]
    return replace(schedule, topology=topology, routes=routes, chunk=chunk.astype(np.int32))


def _order(topology: Topology, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The links in the order of their images: by source, then destination, parallel links as they are."""
    src, dst = nodes[topology.link_src], nodes[topology.link_dst]
    return np.lexsort((np.arange(len(src)), dst, src))


def _image_links(topology: Topology, nodes: NDArray[np.int64]) -> NDArray[np.int32]:
    """The number of the image of each link in `_image`."""
    place = np.empty(len(topology.links), dtype=np.int32)
    place[_order(topology, nodes)] = np.arange(len(place), dtype=np.int32)
    return place


def _image(topology: Topology, nodes: NDArray[np.int64]) -> Topology:
    """The image of a machine: same nodes, links between the images of their ends."""
    from dataclasses import replace

    order, place = _order(topology, nodes), _image_links(topology, nodes)
    links = tuple(
        replace(topology.links[k], src=int(nodes[topology.links[k].src]), dst=int(nodes[topology.links[k].dst]))
        for k in order.tolist()
    )
    limits = tuple(replace(limit, links=tuple(sorted(int(place[k]) for k in limit.links))) for limit in topology.limits)
    return Topology(topology.name, topology.nodes, links, limits)


def _image_chunks(demand: Demand, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The image of each chunk: the chunk with the images of its sources and destinations, equal ones in order."""

    def key(chunk: int, image: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        ends = (demand.sources(chunk).tolist(), demand.destinations(chunk).tolist())
        a, b = (tuple(sorted(int(image[rank]) for rank in ranks)) for ranks in ends)
        return a, b

    places: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    same = list(range(len(nodes)))
    for chunk in range(len(demand)):
        places.setdefault(key(chunk, same), []).append(chunk)
    used: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    result = np.empty(len(demand), dtype=np.int64)
    for chunk in range(len(demand)):
        image = key(chunk, nodes.tolist())
        at = used.get(image, 0)
        result[chunk] = places[image][at]
        used[image] = at + 1
    return result
