"""Registers the plans of a catalog with MSCCL++ and chooses among them; needs the package mscclpp and a GPU.

    import flowccl_plans
    flowccl_plans.register()  # before torch.distributed.init_process_group("nccl") with the library of MSCCL++

Calls that no plan serves run the fallback of MSCCL++: built-in kernels on one host, else NCCL if MSCCLPP_NCCL_LIB_PATH
names its library.
"""

import json
import os
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
_FILE = FOLDER / "plans.json"
TABLE: list[dict[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8")) if _FILE.exists() else []
"""One row per plan: collective, ranks, ranks_per_host, low and high (both included) in bytes, alignment, name, file."""


def choose(table: list[dict[str, Any]], collective: str, size_bytes: int, ranks: int) -> str | None:
    """Return the name of the plan of a call; None: the fallback. `size_bytes` is that of the whole buffer."""
    for row in table:
        if row["collective"] == collective and row["ranks"] == ranks and row["low"] <= size_bytes <= row["high"]:
            return row["name"] if size_bytes % row["alignment"] == 0 else None
    return None


def selector(algorithms: Any, request: Any) -> Any:
    """The selector of MSCCL++: the algorithm of a request, or None for the fallback."""
    whole = request.world_size if request.collective == "allgather" else 1  # its message size is that of one rank
    name = choose(TABLE, request.collective, request.message_size * whole, request.world_size)
    return None if name is None else algorithms[request.collective].get(name)


def register() -> None:
    """Register all plans and the selector; the rank is that of the environment variable RANK."""
    import mscclpp

    builder = mscclpp.ext.AlgorithmCollectionBuilder()
    rank = int(os.environ["RANK"])
    for row in TABLE:
        plan = mscclpp.ExecutionPlan(str(FOLDER / row["file"]), rank)
        constraint = mscclpp.Algorithm.Constraint(row["ranks"], row["ranks_per_host"])
        builder.add_algorithm_builder(mscclpp.Algorithm(id=row["name"], execution_plan=plan, constraint=constraint))
    builder.set_algorithm_selector(selector)
