"""Measured times of plans, kept beside the predicted ones."""

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path

from flowccl.catalog.files import load_catalog, save_catalog
from flowccl.catalog.model import Catalog
from flowccl.errors import InputError


def record_measured(folder: str | Path, times_us: Mapping[str, float]) -> Catalog:
    """Write the measured times of plans, each at the size that the plan was made for, into catalog.json.

    Return the new catalog. Rules and files stay as they are; times of other plans stay too.
    """
    catalog = load_catalog(folder)
    for name, time_us in times_us.items():
        catalog.plan(name)  # refuses a plan that is not there
        if not (isfinite(time_us) and time_us > 0):
            raise InputError(f"plan {name}: a measured time must be above 0 us, got {time_us:g}")
    plans = tuple(replace(plan, measured_us=times_us.get(plan.name, plan.measured_us)) for plan in catalog.plans)
    new = replace(catalog, plans=plans)
    save_catalog(new, Path(folder))
    return new
