"""`flowccl run` for plans between layouts."""

import argparse
import json
import time
from dataclasses import asdict
from typing import Any

from flowccl.commands.parts import check_valid
from flowccl.errors import InputError


def run_reshard(options: argparse.Namespace) -> int:
    """Run a plan on data of known values, compare every byte, and print what was found."""
    from flowccl.memory import available_bytes
    from flowccl.resharding.plan_files import load_plan
    from flowccl.resharding.reference import check_run_size
    from flowccl.resharding.steps import step_table
    from flowccl.units import format_bytes

    given = [flag for flag in ("ranks", "size", "sizes", "iterations") if getattr(options, flag)]
    if given or options.on not in ("numpy", "gloo"):
        what = f"--{given[0]}" if given else f"--on {options.on}"
        raise InputError(f"{what}: a plan between layouts runs --on numpy or gloo, on the tensors of its layouts")
    plan = load_plan(options.file)
    check_valid(plan.schedule, options.file)
    check_run_size(plan.source, plan.target, available_bytes())
    planned = step_table(plan)
    if options.on == "numpy":
        from flowccl.resharding.running import check_on_numpy

        began = time.monotonic()
        wrong, total = check_on_numpy(plan)
        facts: dict[str, Any] = {"bytes": total, "wrong": wrong, "seconds": time.monotonic() - began}
    else:
        from flowccl.run.launch import require_extra

        require_extra("gloo")
        from flowccl.torch.resharding_run import run_on_gloo

        rows = run_on_gloo(plan)
        facts = {
            "bytes": sum(row.bytes for row in rows),
            "wrong": sum(row.wrong for row in rows),
            "seconds": max(row.seconds for row in rows),
            "memory_bytes": max(row.memory_bytes for row in rows),
            "rows": [asdict(row) | {"planned_bytes": planned.memory_bytes(row.rank)} for row in rows],
        }
    if options.json:
        print(json.dumps({"on": options.on, "ranks": plan.ranks, "staging_bytes": planned.staging_bytes} | facts))
    else:
        right = "all right" if not facts["wrong"] else f"{facts['wrong']} wrong"
        print(f"run on {options.on:<10}{plan.ranks} ranks, {planned.steps} steps, {facts['seconds']:.2f} s")
        print(f"targets          {format_bytes(facts['bytes'])}, {right}")
        used = f"; measured {format_bytes(facts['memory_bytes'])}" if "memory_bytes" in facts else ""
        print(f"memory           {format_bytes(planned.staging_bytes)} planned on the rank with most{used}")
    return 1 if facts["wrong"] else 0
