"""Checking a catalog: everything that is wrong with the files of a folder."""

from dataclasses import dataclass
from pathlib import Path

from flowccl.catalog.files import load_catalog, load_machine, load_plan_file, load_plan_schedule
from flowccl.catalog.model import Catalog, CatalogPlan, holes
from flowccl.errors import InputError
from flowccl.topology.topology import Topology
from flowccl.verifier.verify import verify


@dataclass(frozen=True, slots=True)
class CatalogFindings:
    """The catalog, None where it cannot be read, and a sentence for everything that is wrong."""

    catalog: Catalog | None
    findings: tuple[str, ...]


def check_catalog(folder: str | Path, topology: Topology | None = None) -> CatalogFindings:
    """Return everything that is wrong with a catalog; `topology` is the machine on which it is to be used."""
    try:
        catalog = load_catalog(folder)
    except InputError as error:
        return CatalogFindings(None, (str(error),))
    found = holes(catalog)
    try:
        load_machine(folder, catalog)
    except InputError as error:
        found.append(str(error))
    if topology is not None and topology.fingerprint != catalog.machine.fingerprint:
        found.append(
            f"the catalog is for {catalog.machine.name} with fingerprint {catalog.machine.fingerprint}, "
            f"not for {topology.name} with fingerprint {topology.fingerprint}"
        )
    for plan in catalog.plans:
        found += _check_plan(Path(folder), catalog, plan)
    return CatalogFindings(catalog, tuple(found))


def _check_plan(folder: Path, catalog: Catalog, plan: CatalogPlan) -> list[str]:
    found = []
    if not any(rule.plan == plan.name for rule in catalog.rules):
        found.append(f"plan {plan.name}: no rule uses it")
    try:
        load_plan_file(folder, plan)
        schedule = load_plan_schedule(folder, plan, catalog.machine.ranks)
    except InputError as error:
        return [*found, str(error)]
    found += [f"plan {plan.name}: {violation}" for violation in verify(schedule)[:1]]
    return found
