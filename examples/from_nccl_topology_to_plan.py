"""From NCCL's description of a host to a proved execution plan for MSCCL++.

Get the XML of your own host by running any NCCL program with NCCL_TOPO_DUMP_FILE=topology.xml, then run

    python examples/from_nccl_topology_to_plan.py topology.xml allreduce-plan.json
"""

import sys
from pathlib import Path

from flowccl import synthesize
from flowccl.export import ExportOptions, check, export
from flowccl.topology.importers import import_machine

SAMPLE = Path(__file__).parent / "data" / "nccl-topology.xml"  # eight V100 with direct NVLinks


def main(xml: str | Path = SAMPLE, plan: str | Path = "out/allreduce-plan.json") -> None:
    imported = import_machine(xml, "nccl-topo")
    print(imported.topology)
    for note in imported.notes:
        print("assumed:", note)

    result = synthesize(imported.topology, "allreduce", 1 << 20, method="greedy", chunks=2, steps=5)
    print(f"{result.schedule.finish_us:.2f} us, lower bound {result.bound.us:.2f} us")

    Path(plan).parent.mkdir(parents=True, exist_ok=True)
    export(result.schedule, "mscclpp", plan, ExportOptions(inplace=True))  # proves the plan before writing it
    program, findings = check(plan, "mscclpp")  # proves it again from the file alone
    assert findings == []
    print(f"{plan}: {program.collective} of {program.num_gpus} GPUs, proved")


if __name__ == "__main__":
    main(*sys.argv[1:])
