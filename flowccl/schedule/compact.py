"""Schedules in compact form: the transfers of GPU 0's data, and a group that moves them to all sources.

For machines that look the same from every GPU: 40,000 GPUs need the schedule of one. `check/compact.py` proves it in
this form; `expanded` writes it out, where that is small enough.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from flowccl.demand.collectives import broadcast, collective, scatter
from flowccl.demand.demand import Demand
from flowccl.demand.files import check_header
from flowccl.errors import InputError, ScheduleError
from flowccl.files import read_json, write_json
from flowccl.schedule.files import MAX_FILE_BYTES, schedule_from_json, schedule_to_json
from flowccl.schedule.schedule import Schedule
from flowccl.topology.fields import check_keys, show
from flowccl.topology.routes import Routes
from flowccl.topology.symmetry.regular_groups import Regular, turned_group
from flowccl.topology.topology import Topology

FORMAT = "flowccl-compact-schedule"
VERSION = 1
COMPACT = ("allgather", "alltoall")
_MOST_WRITTEN_OUT = 20_000_000  # transfers; some 4 GB while they are judged
_KEYS = ("format", "version", "collective", "size_bytes", "inside", "order", "schedule")


@dataclass(frozen=True, eq=False)
class CompactSchedule:
    """The schedule `one` of GPU 0's data, which `group` moves to every GPU's; together the `collective`."""

    collective: str
    size_bytes: int
    one: Schedule
    group: Regular

    @property
    def topology(self) -> Topology:
        """The machine."""
        return self.one.topology

    @property
    def pieces(self) -> int:
        """Chunks of each block."""
        return self.one.demand.pieces

    @property
    def finish_us(self) -> float:
        """The last arrival: for every source the same."""
        return self.one.finish_us

    def __len__(self) -> int:
        """Transfers of all sources."""
        return len(self.one) * len(self.group)

    @cached_property
    def demand_of_one(self) -> Demand:
        """What GPU 0 must send: its block to all, or a block to each; blocks as large as the largest."""
        count = len(self.group)
        block = -(-self.size_bytes // count)
        if self.collective == "allgather":
            return broadcast(count, block, self.pieces)
        return scatter(count, block * count, self.pieces)

    def expanded(self) -> Schedule:
        """The schedule of all sources, written out; ScheduleError where that is too large."""
        if len(self) > _MOST_WRITTEN_OUT:
            raise ScheduleError(f"{len(self)} transfers are too many to write out; {_MOST_WRITTEN_OUT} at most")
        one, group, count, pieces = self.one, self.group, len(self.group), self.pieces
        element = np.arange(count, dtype=np.int32)
        parts = [
            group.moved_links(np.array(one.routes.links(r))[None, :], element[:, None]) for r in range(len(one.routes))
        ]
        size = np.concatenate([np.full(count, part.shape[1]) for part in parts])
        routes = Routes(
            np.concatenate(([0], np.cumsum(size))).astype(np.int64), np.concatenate([part.ravel() for part in parts])
        )
        source = element.astype(np.int64)[:, None]
        chunk = source * pieces + one.chunk[None, :]
        if self.collective == "alltoall":
            to = group.image(one.chunk[None, :] // pieces + 1, source)
            chunk = (source * (count - 1) + to - (to > source)) * pieces + one.chunk[None, :] % pieces
        route = one.route[None, :].astype(np.int64) * count + source
        return Schedule(
            self.topology,
            collective(self.collective, count, self.size_bytes, pieces),
            routes,
            chunk.ravel().astype(np.int32),
            route.ravel().astype(np.int32),
            np.broadcast_to(one.start_ps[None, :], route.shape).ravel(),
            np.zeros(route.size, dtype=np.bool_),
            one.method,
        )


def save_compact(compact: CompactSchedule, path: str | Path) -> None:
    """Write it as JSON with its machine; compressed where the name ends in .gz."""
    head = {"format": FORMAT, "version": VERSION, "collective": compact.collective, "size_bytes": compact.size_bytes}
    turns = {"inside": list(compact.group.inside), "order": list(compact.group.order)}
    write_json(path, head | turns | {"schedule": schedule_to_json(compact.one)})


def load_compact(path: str | Path, topology: Topology | None = None) -> CompactSchedule:
    """The compact schedule in a JSON file; refused where it was made for another machine than this."""
    value, name = read_json(path, MAX_FILE_BYTES), str(path)
    try:
        check_header(value, FORMAT, VERSION)
        check_keys(value, "", _KEYS, dict.fromkeys(_KEYS[2:], "..."))
        if value["collective"] not in COMPACT:
            raise ScheduleError(f"collective: must be {' or '.join(COMPACT)}, got {show(value['collective'])}")
        size, inside, order = (_whole(value[key], key) for key in ("size_bytes", "inside", "order"))
        one = schedule_from_json(value["schedule"], "schedule", topology)
        group = turned_group(one.topology, tuple(inside), tuple(order))
    except InputError as error:
        raise ScheduleError(f"{name}: {error}") from None
    if group is None:
        raise ScheduleError(f"{name}: inside, order: these turns of ranks do not leave {one.topology.name} unchanged")
    return CompactSchedule(value["collective"], size[0], one, group)


def _whole(value: Any, key: str) -> list[int]:
    """Positive whole numbers, one or a list."""
    numbers = value if isinstance(value, list) else [value]
    if not numbers or any(type(number) is not int or number < 1 for number in numbers):
        raise ScheduleError(f"{key}: must be whole and positive, got {show(value)}")
    return numbers
