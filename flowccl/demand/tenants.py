"""Tenants: several demands, each with a weight and a start time, that share a machine (TE-CCL section 5)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flowccl.arrays import pointers
from flowccl.demand.collectives import ROOTED, collective_name
from flowccl.demand.demand import Demand
from flowccl.demand.files import demand_from_json, load_demand
from flowccl.demand.groups import group_collective, parse_ranks
from flowccl.demand.share import Share, check_tenant_chunks
from flowccl.errors import DemandError, InputError
from flowccl.files import read_json
from flowccl.topology.fields import check_keys, show
from flowccl.units import parse_bytes, parse_us, us_to_ps

_KEYS = ("name", "collective", "size", "group", "relay", "root", "demand", "weight", "start")


@dataclass(frozen=True)
class Tenant:
    """One of several demands, with its weight (the cost per microsecond of its completion time) and its start time."""

    name: str
    demand: Demand
    weight: float = 1.0
    start_ps: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise DemandError(f"tenant {self.name}: weight must be > 0, got {self.weight:g}")
        if self.start_ps < 0:
            raise DemandError(f"tenant {self.name}: start must be >= 0, got {self.start_ps / 1e6:g} us")

    @property
    def share(self) -> Share:
        """The entry of this tenant in the shared demand."""
        return Share(self.name, self.weight, len(self.demand), self.demand.group, self.demand.relays)

    @property
    def alone(self) -> Demand:
        """The demand of this tenant alone, with data available from its start time on."""
        return replace(self.demand, ready_ps=self.demand.available_ps + self.start_ps)


def combined_demand(tenants: Sequence[Tenant]) -> Demand:
    """Return one demand with the chunks of all tenants in order; their data is available from their start times on."""
    if not tenants:
        raise DemandError("tenants: give at least one tenant")
    demands = [tenant.demand for tenant in tenants]
    if len({demand.num_gpus for demand in demands}) > 1:
        raise DemandError(
            f"tenants: all must be for the same number of gpus, got {[demand.num_gpus for demand in demands]} gpus"
        )
    ready = [tenant.alone.available_ps for tenant in tenants]
    return Demand(
        "custom",
        demands[0].num_gpus,
        sum(demand.size_bytes for demand in demands),
        np.concatenate([demand.chunk_bytes for demand in demands]),
        _concatenated([demand.source_ptr for demand in demands]),
        np.concatenate([demand.source_rank for demand in demands]),
        _concatenated([demand.destination_ptr for demand in demands]),
        np.concatenate([demand.destination_rank for demand in demands]),
        ready_ps=np.concatenate(ready),
        tenants=tuple(tenant.share for tenant in tenants),
    )


def _concatenated(parts: list[Any]) -> Any:
    return pointers(np.concatenate([np.diff(part) for part in parts]))


def load_tenants(path: str | Path, num_gpus: int, chunks: int = 1) -> list[Tenant]:
    """Return the tenants in a JSON file, a list of objects; see docs/collectives.md."""
    rows = read_json(path, 100_000_000)
    if not isinstance(rows, list) or not rows:
        raise DemandError(f"{path}: must be a list of one or more tenants, got {show(rows)}")
    try:
        tenants = [_tenant(row, number, num_gpus, chunks, Path(path).parent) for number, row in enumerate(rows)]
        check_tenant_chunks([tenant.share for tenant in tenants])
        return tenants
    except InputError as error:
        raise DemandError(f"{path}: {error}") from None


def _tenant(row: Any, number: int, num_gpus: int, chunks: int, folder: Path) -> Tenant:
    place = f"[{number}]"
    check_keys(row, place, _KEYS, {})
    name = row.get("name", f"tenant{number}")
    if not isinstance(name, str) or not name:
        raise DemandError(f"{place}.name: must be a non-empty string, got {show(name)}")
    weight = row.get("weight", 1)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not weight > 0:
        raise DemandError(f"{place}.weight: must be > 0, got {show(weight)}")
    start_ps = us_to_ps(parse_us(row.get("start", 0), f"{place}.start"))
    return Tenant(name, _demand(row, place, num_gpus, chunks, folder), float(weight), start_ps)


def _demand(row: dict[str, Any], place: str, num_gpus: int, chunks: int, folder: Path) -> Demand:
    """Return the demand of a tenant: from a file, inline, or a collective with a size and optionally a group."""
    if ("demand" in row) == ("collective" in row):
        raise DemandError(f"{place}: has no chunks; give either a collective with a size, or a demand")
    if "demand" in row:
        given = row["demand"]
        found = load_demand(folder / given) if isinstance(given, str) else demand_from_json(given, f"{place}.demand")
        if found.num_gpus > num_gpus:
            raise DemandError(f"{place}.demand: is for {found.num_gpus} gpus, the machine has {num_gpus}")
        return replace(found, num_gpus=num_gpus)
    if "size" not in row:
        raise DemandError(f'{place}: size is missing; add for example "size": "1MB"')
    known, size_bytes = collective_name(row["collective"]), parse_bytes(row["size"])
    group = _group(row.get("group", "all"), place, num_gpus)
    root = row.get("root") if known in ROOTED else None
    relays = _relays(row.get("relay", "all"), group, place, num_gpus)
    return group_collective(known, size_bytes, group, num_gpus, chunks=chunks, root=root, relays=relays)


def _relays(value: Any, group: tuple[int, ...], place: str, num_gpus: int) -> tuple[int, ...] | None:
    """Return the ranks outside the group that may forward chunks: None for all, () for none."""
    if value in ("all", "none"):
        return None if value == "all" else ()
    if not isinstance(value, str):
        raise DemandError(f'{place}.relay: must be all, none or ranks such as "8-15", got {show(value)}')
    return tuple(rank for rank in parse_ranks(value, num_gpus, f"{place}.relay") if rank not in group)


def _group(value: Any, place: str, num_gpus: int) -> tuple[int, ...]:
    if value == "all":
        return tuple(range(num_gpus))
    if isinstance(value, str):
        return parse_ranks(value, num_gpus, f"{place}.group")
    if not isinstance(value, list) or not all(type(rank) is int for rank in value):
        raise DemandError(f'{place}.group: must be ranks such as "0-7" or [0, 1], got {show(value)}')
    return tuple(value)
