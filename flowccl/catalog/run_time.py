"""Selection at run time: the schedule of each call of a process group, the same on all ranks."""

import logging
from collections import Counter
from pathlib import Path
from typing import Any

from flowccl.catalog.files import FILE, load_catalog, load_plan_schedule, sha256_of
from flowccl.catalog.model import Call
from flowccl.catalog.selection import Selector
from flowccl.errors import InputError
from flowccl.files import read_bytes
from flowccl.schedule.schedule import Schedule

log = logging.getLogger("flowccl.torch")
_MAX_FILE_BYTES = 50_000_000
_NONE = "none"


class PlanChooser:
    """Chooses the schedules of a group's calls by a catalog.

    All files are read and checked at the start. The ranks compare the hash of the catalog through `store` (with `set`
    and `get`, as torch.distributed has it); if one of them could not read it or has another one, all use the library,
    since ranks that choose differently would wait for each other for ever. `uses` counts the calls by collective and
    plan, and the first use of each is logged.
    """

    def __init__(self, folder: str | Path, store: Any, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.uses: Counter[str] = Counter()
        self.selector: Selector | None = None
        self.schedules: dict[str, Schedule] = {}
        self.inplace = False
        self.problem = self._load(Path(folder))
        digest = _NONE if self.problem else sha256_of(read_bytes(Path(folder) / FILE, _MAX_FILE_BYTES))
        store.set(f"catalog-{rank}", digest)
        others = [bytes(store.get(f"catalog-{other}")).decode() for other in range(size)]
        if not self.problem and len({*others}) > 1:
            different = next(other for other in range(size) if others[other] != digest)
            self.problem = f"rank {different} has another catalog, or none"
        if self.problem:
            self.selector = None
            log.warning("flowccl: rank %d: no catalog: %s", rank, self.problem)

    def _load(self, folder: Path) -> str:
        """Read the catalog and all its schedules; return what is wrong, or nothing."""
        try:
            catalog = load_catalog(folder)
            for plan in catalog.plans:
                self.schedules[plan.name] = load_plan_schedule(folder, plan, catalog.machine.ranks)
        except InputError as error:
            return str(error)
        self.selector = Selector(catalog)
        self.inplace = any(rule.inplace for rule in catalog.rules)
        return ""

    def __call__(self, collective: str, size_bytes: int) -> Schedule | None:
        """Return the schedule of a call; None: the library."""
        if self.selector is None:
            self._count(collective, "library", self.problem)
            return None
        choice = self.selector.select(Call(collective, size_bytes, self.size, self.inplace))
        if choice.plan is None:
            self._count(collective, "library", choice.reason)
            return None
        self._count(collective, choice.plan.name, choice.reason)
        return self.schedules[choice.plan.name]

    def _count(self, collective: str, name: str, reason: str) -> None:
        key = f"{collective}: {name}"
        if not self.uses[key] and self.rank == 0:
            log.info("flowccl: %s (%s)", key, reason)
        self.uses[key] += 1
