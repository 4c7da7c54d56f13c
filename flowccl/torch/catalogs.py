"""The catalogs of a job in memory, and what they select for the calls of a group."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flowccl.adaptive.run_time import CatalogVersion
from flowccl.catalog.files import sha256_of
from flowccl.catalog.model import Call
from flowccl.errors import InputError
from flowccl.run.group_calls import Selected
from flowccl.run.mscclpp.tensors import SizedPlan
from flowccl.topology.files import load_topology, read_machine
from flowccl.topology.topology import Topology
from flowccl.torch.environment import ANY_MACHINE, MACHINE, Settings


@dataclass(frozen=True)
class JobCatalog:
    """One catalog: its folder, its contents, and its plans for MSCCL++ by their names."""

    folder: Path
    version: CatalogVersion
    sized: dict[str, SizedPlan] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """The ranks of the catalog's machine."""
        return self.version.selector.catalog.machine.ranks

    @property
    def topology(self) -> Topology:
        """The catalog's machine."""
        return load_topology(self.folder / self.version.selector.catalog.machine.file)

    @property
    def ranks_per_host(self) -> int:
        """The ranks on each host of the catalog's machine; 0: hosts of different sizes."""
        return self.version.selector.catalog.machine.ranks_per_host


@dataclass(frozen=True)
class JobCatalogs:
    """All catalogs of a job; `digest` is the same on ranks that have the same ones."""

    catalogs: tuple[JobCatalog, ...]
    digest: str
    machine: str

    @classmethod
    def load(cls, settings: Settings) -> "JobCatalogs":
        """Read the catalogs; raise InputError if one is missing, damaged or for another machine."""
        found = tuple(JobCatalog(Path(folder), CatalogVersion.load(Path(folder))) for folder in settings.catalogs)
        if settings.machine not in ("", ANY_MACHINE):
            _check_machine(found, settings.machine)
        digests = "".join(one.version.digest for one in found) + settings.machine
        return cls(found, sha256_of(digests.encode()), settings.machine)

    def fitting(self, hosts: Sequence[int]) -> tuple[list[JobCatalog], str]:
        """Return the catalogs for a group, from the host of each of its ranks; if there are none, also the reason."""
        sized = [one for one in self.catalogs if one.ranks == len(hosts)]
        if not sized:
            known = " and ".join(sorted({f"{one.ranks}" for one in self.catalogs}))
            return [], f"the catalog is for {known} ranks, the group has {len(hosts)}"
        if self.machine:
            return sized, ""
        counts = {host: list(hosts).count(host) for host in hosts}
        fits = [one for one in sized if not one.ranks_per_host or {*counts.values()} == {one.ranks_per_host}]
        if fits:
            return fits, ""
        here = " and ".join(map(str, sorted({*counts.values()})))
        wanted = sized[0].ranks_per_host
        return [], (
            f"the catalog is for {wanted} ranks per host, the group has {here}; "
            f"{MACHINE}={ANY_MACHINE} uses it all the same"
        )


def _check_machine(catalogs: Sequence[JobCatalog], name: str) -> None:
    fingerprint = read_machine(name).fingerprint
    for one in catalogs:
        machine = one.version.selector.catalog.machine
        if machine.fingerprint != fingerprint:
            raise InputError(f"{one.folder} is for the machine {machine.name}, which is not {MACHINE}={name}")


def select(catalogs: Sequence[JobCatalog], problem: str, collective: str, size_bytes: int, root: int) -> Selected:
    """Return what serves a call: the plan of the first catalog with a rule for it, or the library with the reason.

    Sizes that are no multiple of a plan's alignment are served too: on the CPU pieces may differ by one element, and
    on GPUs buffers are padded.
    """
    reason = problem
    for one in catalogs:
        if root >= 0:
            return Selected(None, "", f"a catalog has no plans for {collective}, which has a root")
        catalog = one.version.selector.catalog
        choice = one.version.selector.select(Call(collective, size_bytes, catalog.machine.ranks, one.version.inplace))
        plan = choice.plan.name if choice.plan is not None else None if choice.rule is None else choice.rule.plan
        if plan is not None:
            unit = catalog.plan(plan).alignment_bytes
            because = choice.reason if choice.plan is not None else f"as for the next multiple of {unit:,} B"
            return Selected(one.version.schedules[plan], plan, because, one.sized.get(plan))
        reason = choice.reason
    return Selected(None, "", reason)
