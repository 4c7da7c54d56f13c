"""Read and write plans as JSON; docs/reshard.md describes the format.

A plan file contains both layouts with their fingerprints, the schedule with its machine, and the bytes of each chunk.
Commands that read a schedule also read the schedule of a plan.
"""

from pathlib import Path
from typing import Any

from flowccl.demand.files import check_header, int_column, int_value
from flowccl.errors import InputError, ScheduleError
from flowccl.files import read_json, write_json
from flowccl.resharding.layout import Layout
from flowccl.resharding.layout_files import layout_from_json, layout_to_json
from flowccl.resharding.plan import ReshardPlan, check_plan
from flowccl.schedule.files import PLAN_FORMAT, schedule_from_json, schedule_to_json
from flowccl.topology.fields import check_keys, flag_field, text_field
from flowccl.topology.topology import Topology

VERSION = 1
_MAX_FILE_BYTES = 2_000_000_000  # uncompressed
_NEEDED = dict.fromkeys(("source", "target", "chunks", "schedule"), "{}")
_KEYS = ("format", "version", "source_fingerprint", "target_fingerprint", "slices", "partial", *_NEEDED)
_COLUMNS = ("class", "begin", "end", "stage")


def save_plan(plan: ReshardPlan, path: str | Path) -> None:
    """Write a plan as JSON; compressed if the name ends in .gz."""
    write_json(path, plan_to_json(plan))


def load_plan(path: str | Path, topology: Topology | None = None) -> ReshardPlan:
    """Return the plan in a JSON file; raise ScheduleError if it was made for another machine, or was changed."""
    return plan_from_json(read_json(path, _MAX_FILE_BYTES), str(path), topology)


def plan_to_json(plan: ReshardPlan) -> dict[str, Any]:
    """Return a plan as a JSON value."""
    columns = zip(_COLUMNS, (plan.cls, plan.begin, plan.end, plan.stage), strict=True)
    return {
        "format": PLAN_FORMAT,
        "version": VERSION,
        "source_fingerprint": plan.source.fingerprint,
        "target_fingerprint": plan.target.fingerprint,
        "slices": plan.slices,
        "partial": plan.partial,
        "source": layout_to_json(plan.source),
        "target": layout_to_json(plan.target),
        "chunks": {name: column.tolist() for name, column in columns},
        "schedule": schedule_to_json(plan.schedule),
    }


def plan_from_json(value: Any, name: str = "plan", topology: Topology | None = None) -> ReshardPlan:
    """Return the plan in a JSON value; `name` is the file name for error messages."""
    try:
        check_header(value, PLAN_FORMAT, VERSION)
        check_keys(value, "", _KEYS, _NEEDED)
        source, target = _layout(value, "source"), _layout(value, "target")
        schedule = schedule_from_json(value["schedule"], "schedule", topology)
        check_keys(value["chunks"], "chunks", _COLUMNS, dict.fromkeys(_COLUMNS, "[0]"))
        cls, begin, end, stage = (int_column(value["chunks"][key], f"chunks.{key}", 0, 2**60) for key in _COLUMNS)
        slices = int_value(value, "slices", 1, 2**20, default=1)
        partial = flag_field(value.get("partial", False), "plan", "partial")
        plan = ReshardPlan(source, target, schedule, cls, begin, end, stage, slices, partial)
        check_plan(plan)
        return plan
    except InputError as error:
        raise ScheduleError(f"{name}: {error}") from None


def _layout(value: dict[str, Any], key: str) -> Layout:
    layout = layout_from_json(value[key], key)
    stored = value.get(f"{key}_fingerprint")
    if stored is not None and text_field(stored, "", f"{key}_fingerprint") != layout.fingerprint:
        raise ScheduleError(
            f"{key}_fingerprint: is {stored}, but the {key} layout in the file has {layout.fingerprint}; it was "
            "changed after the plan was made"
        )
    return layout
