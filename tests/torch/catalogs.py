"""Small catalogs for the tests: one plan for each collective, for all sizes."""

import hashlib
import json
from pathlib import Path

from flowccl import machine, save_schedule, synthesize
from flowccl.catalog.files import alignment_of, save_catalog
from flowccl.catalog.model import BuildSettings, ByteRange, Catalog, CatalogPlan, MachineId, Rule
from flowccl.topology.files import save_topology

COLLECTIVES = ("allreduce", "allgather", "reduce_scatter", "alltoall")
LARGEST = 1 << 40


def small_catalog(folder: Path, name: str, low: int = 1, collectives: tuple[str, ...] = COLLECTIVES) -> Path:
    """Write a catalog for a machine whose plans serve all sizes from `low` bytes on."""
    folder.mkdir(parents=True)
    topology = machine(name)
    save_topology(topology, folder / "machine.json")
    plans, rules = [], []
    for collective in collectives:
        schedule = synthesize(topology, collective, 64_000, chunks=1, steps=1, method="greedy").schedule
        plan = f"{collective}-plan"
        save_schedule(schedule, folder / f"{plan}.json")
        (folder / f"{plan}.txt").write_text(json.dumps({"plan": plan}))
        shas = [hashlib.sha256((folder / f"{plan}.{end}").read_bytes()).hexdigest() for end in ("txt", "json")]
        plans.append(
            CatalogPlan(
                plan,
                collective,
                64_000,
                1,
                alignment_of(schedule),
                "none",
                f"{plan}.txt",
                shas[0],
                f"{plan}.json",
                shas[1],
                schedule.finish_us,
                1.0,
            )
        )
        sizes = ByteRange(low, LARGEST)
        ranks = topology.num_gpus
        rules.append(Rule(collective, ranks, ranks, False, sizes, topology.fingerprint, plan, "the only plan"))
    made = MachineId(topology.name, topology.fingerprint, topology.num_gpus, topology.num_gpus)
    settings = BuildSettings(low, LARGEST, 1, 0, 0.01)
    save_catalog(Catalog(made, "ideal", settings, tuple(plans), tuple(rules)), folder)
    return folder


if __name__ == "__main__":
    import sys

    small_catalog(Path(sys.argv[1]), sys.argv[2])
