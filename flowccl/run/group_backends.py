"""The parts of a process group: the backends of torch inside it, and plans of MSCCL++ on GPUs."""

import atexit
import platform
import shutil
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from flowccl.export.exporting import ExportOptions, make
from flowccl.run.mscclpp.plan_facts import PlanFacts, read_plan
from flowccl.run.mscclpp.run_plans import named_plan, root_of
from flowccl.run.mscclpp.tensors import PlanGroup, SizedPlan
from flowccl.run.torch_run import import_torch
from flowccl.runtimes.limits import MSCCLPP_LIMITS
from flowccl.schedule.schedule import Schedule

MAKERS = {"gloo": "ProcessGroupGloo", "nccl": "ProcessGroupNCCL"}


def inner_group(dist: Any, name: str, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Return a process group of a backend of torch."""
    maker = getattr(dist, MAKERS[name])
    return maker(store, rank, size, timeout) if name == "gloo" else maker(store, rank, size)


def gpu_parts(
    store: Any,
    rank: int,
    size: int,
    timeout: timedelta,
    schedules: Sequence[Schedule],
    plans: Sequence[PlanFacts],
    gloo: Any,
) -> list[Any]:
    """Return the plans of a group on GPUs, and the backend for all else: NCCL, or gloo where ranks share a GPU."""
    torch = import_torch()
    store.set(f"gpu-{rank}", f"{platform.node()} {torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}")
    places = {bytes(store.get(f"gpu-{other}")) for other in range(size)}
    has_nccl = len(places) == size and hasattr(torch.distributed, MAKERS["nccl"])
    inner = inner_group(torch.distributed, "nccl", store, rank, size, timeout) if has_nccl else gloo
    made = [SizedPlan(facts) for facts in plans] + [
        plan for schedule in schedules if schedule.demand.num_gpus == size for plan in plans_of_schedule(schedule)
    ]

    def share(given: bytes | None) -> bytes:
        if given is not None:
            store.set("unique-id", given)
        return bytes(store.get("unique-id"))

    return [PlanGroup(rank, size, share, made) if made and size > 1 else None, inner]


def plans_of_schedule(schedule: Schedule) -> list[SizedPlan]:
    """Return the plan of a schedule for in-place calls, in a temporary folder that lasts as long as the process."""
    if schedule.demand.collective not in MSCCLPP_LIMITS.collectives:
        return []
    folder = Path(tempfile.mkdtemp(prefix="flowccl-torch-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "plan.json"
    path.write_bytes(make(schedule, "mscclpp", ExportOptions(inplace=True))[0])
    named_plan(path, f"flowccl-{len(_PLANS)}")
    _PLANS.append(path)
    return [SizedPlan(read_plan(path, root_of(schedule)), schedule.demand.size_bytes)]


_PLANS: list[Path] = []


def largest_of(inner: Any) -> Callable[[list[float]], list[float]]:
    """Return a function that gives all ranks the largest of their numbers, by one collective of a backend."""
    torch = import_torch()

    def share(numbers: list[float]) -> list[float]:
        shared = torch.tensor(numbers, dtype=torch.float64)
        options = torch.distributed.AllreduceOptions()
        options.reduceOp = torch.distributed.ReduceOp.MAX
        inner.allreduce([shared], options).wait()
        return [float(number) for number in shared]

    return share
