"""The backend "flowccl" with schedules or a catalog that the program names: `init_process_group` of flowccl.torch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from flowccl.adaptive.choice import AdaptiveChooser
from flowccl.adaptive.run_time import PlanChooser
from flowccl.errors import InputError
from flowccl.run.group_backends import (
    MAKERS,
    NcclCarrier,
    gloo_carrier,
    largest_of,
    library_group,
    plan_group,
    plans_of_schedule,
    usual_backends,
)
from flowccl.run.group_calls import GroupParts, Selected
from flowccl.run.mscclpp.plan_facts import PlanFacts, is_plan, read_plan
from flowccl.run.mscclpp.tensors import SizedPlan
from flowccl.run.process_group import GroupMethods, counts_of, group_class
from flowccl.run.rank_program import MessageCarrier
from flowccl.run.torch_run import import_torch
from flowccl.schedule.files import load_schedule
from flowccl.schedule.schedule import Schedule

Chooser = PlanChooser | AdaptiveChooser


@dataclass(frozen=True)
class BackendSpec:
    """What the backend "flowccl" runs: schedules and plans, the inner backend, and the catalog with its selection."""

    schedules: tuple[Schedule, ...]
    plans: tuple[PlanFacts, ...]
    inner: str
    catalog: Path | None
    selection: str
    state: Path | None
    reload_every: int

    def __post_init__(self) -> None:
        if self.inner not in ("auto", "gloo", "nccl"):
            raise InputError(f"inner must be auto, gloo or nccl, got {self.inner!r}")
        if self.selection not in ("rules", "adaptive"):
            raise InputError(f"selection must be rules or adaptive, got {self.selection!r}")
        if self.selection == "adaptive" and self.catalog is None:
            raise InputError("selection='adaptive' needs a catalog: give its folder")
        torch = import_torch()
        carrier = "nccl" if self.inner == "nccl" else "gloo"
        if not hasattr(torch.distributed, MAKERS[carrier]):
            raise InputError(f"this torch has no {carrier}; choose another inner backend")
        if self.plans and not (self.inner == "auto" and torch.cuda.is_available()):
            raise InputError(f"{self.plans[0].path} is a plan of MSCCL++, which needs CUDA GPUs and inner='auto'")

    @property
    def devices(self) -> list[str]:
        """The types of devices that the backend serves."""
        on_gpus = self.inner == "auto" and bool(import_torch().cuda.is_available())
        return {"auto": ["cpu", "cuda"] if on_gpus else ["cpu"], "gloo": ["cpu"], "nccl": ["cuda"]}[self.inner]

    def create(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        """Return a process group, as torch.distributed asks for it."""
        torch = import_torch()
        prefix = torch.distributed.PrefixStore
        kinds = {"gloo": {"cpu": "gloo"}, "nccl": {"cuda": "nccl"}}.get(self.inner) or usual_backends(store, rank, size)
        library = library_group(prefix("flowccl", store), rank, size, timeout, kinds)
        carriers: dict[str, MessageCarrier] = {}
        if self.inner == "nccl":
            carriers["cuda"] = NcclCarrier(library._get_backend(torch.device("cuda")))
        else:
            carriers["cpu"] = gloo_carrier(prefix("flowccl-messages", store), rank, size, timeout)
        sized = self._sized(size) if "cuda" in kinds and self.inner == "auto" else []
        plans = plan_group(prefix("flowccl-gpus", store), rank, size, sized)
        chooser = self._chooser(prefix("flowccl-catalog", store), rank, size, library)
        select = Fixed(tuple(s for s in self.schedules if s.demand.num_gpus == size), tuple(sized), chooser)
        finished = chooser.finished if isinstance(chooser, AdaptiveChooser) else None
        parts = GroupParts(library, select, chooser is None, carriers, plans, finished, chooser)
        return group_class()(parts)

    def _sized(self, size: int) -> list[SizedPlan]:
        made = [SizedPlan(facts) for facts in self.plans]
        return made + [plan for s in self.schedules if s.demand.num_gpus == size for plan in plans_of_schedule(s)]

    def _chooser(self, store: Any, rank: int, size: int, library: Any) -> Chooser | None:
        if self.catalog is None:
            return None
        share = largest_of(library)
        chosen = PlanChooser(self.catalog, store, rank, size, share, self.reload_every)
        return chosen if self.selection == "rules" else AdaptiveChooser(chosen, share, self.state)


@dataclass(frozen=True)
class Fixed:
    """Selects by a catalog, if there is one, else the schedule or plan with the nearest size."""

    schedules: Sequence[Schedule]
    plans: Sequence[SizedPlan]
    chooser: Chooser | None

    def __call__(self, collective: str, size_bytes: int, root: int) -> Selected:
        """Return what serves a call."""
        if self.chooser is not None and root < 0:
            return self._chosen(self.chooser, collective, size_bytes)
        fits = [
            schedule
            for schedule in self.schedules
            if schedule.demand.collective == collective and root in (-1, int(schedule.demand.source_rank[0]))
        ]

        def distance(schedule: Schedule) -> float:
            other = schedule.demand.size_bytes
            return float(max(size_bytes / other, other / size_bytes))

        nearest = min(fits, key=distance, default=None)
        if nearest is not None:
            name = f"for {nearest.demand.size_bytes:,} B"
            return Selected(nearest, name, "the schedule with the nearest size", any_plan=True)
        if any(plan.facts.collective == collective for plan in self.plans):
            return Selected(None, "of MSCCL++", "the plan with the nearest size", any_plan=True)
        return Selected(None, "", f"there is no schedule for {collective} on this number of ranks")

    def _chosen(self, chooser: Chooser, collective: str, size_bytes: int) -> Selected:
        schedule = chooser(collective, size_bytes)
        version = (chooser if isinstance(chooser, PlanChooser) else chooser.chooser).version
        if schedule is None or version is None:
            return Selected(None, "", "the catalog")
        name = next((name for name, one in version.schedules.items() if one is schedule), collective)
        return Selected(schedule, name, "the catalog")


def register_backend(
    schedules: Iterable[Schedule | str | Path] = (),
    inner: str = "auto",
    catalog: str | Path | None = None,
    selection: str = "rules",
    state: str | Path | None = None,
    reload_every: int = 0,
) -> None:
    """Register the backend "flowccl" for `init_process_group`; collectives run these schedules (or schedule files).

    If several schedules are for a collective, the one for the nearest size runs. Collectives without a schedule,
    point-to-point messages and other groups use an inner backend; each collective for which it does is logged once.
    With "auto", CPU tensors use gloo, which also carries the schedules' messages, and CUDA tensors use MSCCL++ plans of
    the schedules (plan files are also allowed), and else NCCL, or gloo where ranks share a GPU. With "gloo" or "nccl",
    that backend carries the messages of all tensors.

    `catalog` is a folder of `flowccl catalog build`: its rules choose the schedules of CPU tensors by collective, size
    and ranks, and calls that no plan serves use the inner backend. The ranks compare their catalogs when a group is
    made; where they differ or cannot be read, all ranks use the inner backend, and a warning says why. Once in
    `reload_every` calls (0: never), a new version of the catalog is taken over by all ranks at the same call.

    With `selection="adaptive"`, the times of the calls are measured and decide between plans and the inner backend (see
    docs/catalog.md); `state` is a file of `save_selection`, with which the selection goes on.
    """
    made: list[Schedule] = []
    plans = []
    for item in schedules:
        if isinstance(item, Schedule):
            made.append(item)
        elif is_plan(item):
            plans.append(read_plan(item))
        else:
            made.append(load_schedule(item))
    folder, file = None if catalog is None else Path(catalog), None if state is None else Path(state)
    spec = BackendSpec(tuple(made), tuple(plans), inner, folder, selection, file, reload_every)
    import_torch().distributed.Backend.register_backend("flowccl", spec.create, devices=spec.devices)


def init_process_group(
    schedules: Iterable[Schedule | str | Path] = (),
    inner: str = "auto",
    catalog: str | Path | None = None,
    selection: str = "rules",
    state: str | Path | None = None,
    reload_every: int = 0,
    **options: Any,
) -> None:
    """Call `torch.distributed.init_process_group` with the backend "flowccl", after registering it."""
    register_backend(schedules, inner, catalog, selection, state, reload_every)
    import_torch().distributed.init_process_group("flowccl", **options)


def counts(group: Any = None) -> dict[str, dict[str, int]]:
    """Return how many times each collective ran by a schedule ("scheduled") and by the inner backend ("inner").

    On GPUs, "plans" has those that ran by plans of MSCCL++. With a catalog, "catalog" has the calls of each plan.
    """
    found = import_torch().distributed.group.WORLD if group is None else group
    counts = counts_of(found)
    uses = getattr(found.parts.chooser, "uses", None)
    return counts if uses is None else counts | {"catalog": dict(uses)}


def alarms(group: Any = None) -> list[str]:
    """Return the drift that the adaptive selection has found, one sentence each."""
    return list(_adaptive(group).alarms)


def save_selection(path: str | Path, group: Any = None) -> None:
    """Write what the adaptive selection has learnt, for `state` of a later job; one rank is enough."""
    _adaptive(group).save(path)


def _adaptive(group: Any) -> AdaptiveChooser:
    found = import_torch().distributed.group.WORLD if group is None else group
    chooser = found.parts.chooser if isinstance(found, GroupMethods) else None
    if chooser is None:
        raise InputError('this group does not use the backend "flowccl" with a catalog')
    if not isinstance(chooser, AdaptiveChooser):
        raise InputError("this group selects by rules; use selection='adaptive'")
    return chooser
