"""Selection at run time: the schedule of each call of a process group, the same on all ranks."""

import logging
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowccl.adaptive.size_class import Share
from flowccl.catalog.files import FILE, load_catalog, load_plan_schedule, sha256_of
from flowccl.catalog.model import Call
from flowccl.catalog.selection import Choice, Selector
from flowccl.errors import InputError
from flowccl.files import read_bytes
from flowccl.schedule.schedule import Schedule

log = logging.getLogger("flowccl.torch")
_MAX_FILE_BYTES = 50_000_000
_NONE = "none"
_DIGITS = 12  # of a SHA-256, as a number that a float holds exactly


@dataclass(frozen=True)
class CatalogVersion:
    """A catalog in memory: the hash of catalog.json, its rules, and the schedules of its plans."""

    digest: str
    selector: Selector
    schedules: dict[str, Schedule]
    inplace: bool

    @classmethod
    def load(cls, folder: Path) -> "CatalogVersion":
        """Read a catalog and all its schedules; raise InputError if a file is missing or damaged."""
        digest = sha256_of(read_bytes(folder / FILE, _MAX_FILE_BYTES))
        catalog = load_catalog(folder)
        schedules = {plan.name: load_plan_schedule(folder, plan, catalog.machine.ranks) for plan in catalog.plans}
        return cls(digest, Selector(catalog), schedules, any(rule.inplace for rule in catalog.rules))


class PlanChooser:
    """Chooses the schedules of a group's calls by a catalog.

    All files are read and checked at the start. The ranks compare the hash of the catalog through `store` (with `set`
    and `get`, as torch.distributed has it); if one of them could not read it or has another one, all use the library,
    since ranks that choose differently would wait for each other for ever. `uses` counts the calls by collective and
    plan, and the first use of each is logged.

    Once in `reload_every` calls (0: never) the ranks look for a new version of the catalog. When all of them have read
    the same one, all take it over at this call.
    """

    def __init__(
        self, folder: str | Path, store: Any, rank: int, size: int, share: Share | None = None, reload_every: int = 0
    ) -> None:
        self.folder, self.rank, self.size = Path(folder), rank, size
        self.share, self.reload_every = share, reload_every
        self.uses: Counter[str] = Counter()
        self.calls = 0
        self.version, self.problem = self._load()
        self._stamp = self._stamp_of()
        digest = _NONE if self.version is None else self.version.digest
        store.set(f"catalog-{rank}", digest)
        others = [bytes(store.get(f"catalog-{other}")).decode() for other in range(size)]
        if not self.problem and len({*others}) > 1:
            different = next(other for other in range(size) if others[other] != digest)
            self.problem = f"rank {different} has another catalog, or none"
        if self.problem:
            self.version = None
            log.warning("flowccl: rank %d: no catalog: %s", rank, self.problem)

    def _load(self) -> tuple[CatalogVersion | None, str]:
        try:
            return CatalogVersion.load(self.folder), ""
        except InputError as error:
            return None, str(error)

    def _stamp_of(self) -> tuple[int, int]:
        """What changes when catalog.json is written."""
        try:
            facts = (self.folder / FILE).stat()
        except OSError:
            return (0, 0)
        return facts.st_mtime_ns, facts.st_ino

    def __call__(self, collective: str, size_bytes: int) -> Schedule | None:
        """Return the schedule of a call; None: the library."""
        self.count_call()
        choice = self.selected(collective, size_bytes)
        return self.counted(collective, None if choice.plan is None else choice.plan.name, choice.reason)

    def selected(self, collective: str, size_bytes: int) -> Choice:
        """Return what the rules choose for a call."""
        if self.version is None:
            return Choice(None, self.problem)
        return self.version.selector.select(Call(collective, size_bytes, self.size, self.version.inplace))

    def counted(self, collective: str, plan: str | None, reason: str) -> Schedule | None:
        """Count a use of a plan (None: the library), log the first one, and return its schedule."""
        key = f"{collective}: {plan or 'library'}"
        if not self.uses[key] and self.rank == 0:
            log.info("flowccl: %s (%s)", key, reason)
        self.uses[key] += 1
        return None if plan is None or self.version is None else self.version.schedules[plan]

    def count_call(self) -> bool:
        """Count a call; return whether a new version of the catalog was taken over before it."""
        self.calls += 1
        if not self.reload_every or self.share is None or self.calls % self.reload_every:
            return False
        found, stamp = self.version, self._stamp_of()
        if stamp != self._stamp:
            found = self._load()[0] or found  # files that are still being written are read again the next time
        number = 0.0 if found is None else float(int(found.digest[:_DIGITS], 16))
        highest, lowest = self.share([number, -number])
        if found is None or found is self.version or highest != -lowest:
            return False
        self.version, self.problem, self._stamp = found, "", stamp
        self.uses.clear()
        if self.rank == 0:
            log.info("flowccl: a new version of the catalog from call %d on: %s", self.calls, found.digest[:_DIGITS])
        return True
