"""`flowccl run PLAN --on gloo`: one process per rank, data of known values, every byte compared."""

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flowccl.errors import FlowcclError
from flowccl.files import read_json, write_json
from flowccl.resharding.plan import ReshardPlan
from flowccl.resharding.plan_files import load_plan, save_plan
from flowccl.resharding.reference import rank_values
from flowccl.run.backends import Backend
from flowccl.run.launch import run_processes
from flowccl.run.torch_run import import_torch
from flowccl.torch.resharding import run_rank

_WARM_UP = 1024


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """What one rank reports: bytes of its targets, wrong ones, seconds, memory beside its tensors.

    Pages of program files are not counted: the system maps the code of PyTorch when it first runs, a few megabytes
    once in the life of a process, and all processes share them.
    """

    rank: int
    bytes: int
    wrong: int
    seconds: float
    memory_bytes: int


def run_on_gloo(plan: ReshardPlan) -> list[RankOutcome]:
    """Run a plan in one gloo process per rank of its machine; return what each rank reports."""
    with tempfile.TemporaryDirectory(prefix="flowccl-run-") as name:
        folder = Path(name)
        save_plan(plan, folder / "plan.json")
        failure = run_processes("gloo", plan.ranks, "flowccl.torch.resharding_run:run_job", folder)
        if failure:
            raise FlowcclError(f"gloo: {failure}")
        return [RankOutcome(**read_json(folder / f"rank-{rank}.json", 10_000)) for rank in range(plan.ranks)]


def run_job(backend: Backend, folder: Path) -> None:
    """One process: its tensors, the run, and the comparison."""
    torch, rank = import_torch(), backend.process
    plan = load_plan(folder / "plan.json")
    have = {name: torch.from_numpy(found) for name, found in _values(plan, rank, "source").items()}
    right = _values(plan, rank, "target")
    want = {name: torch.from_numpy(~found) for name, found in right.items()}
    torch.distributed.all_reduce(torch.ones(_WARM_UP))  # connects the ranks before time and memory are measured
    _reset_peak()
    before, files, began = _memory_bytes("VmRSS"), _memory_bytes("RssFile"), time.monotonic()
    run_rank(plan, have, want)
    seconds, code = time.monotonic() - began, _memory_bytes("RssFile") - files  # code that ran for the first time
    used = _memory_bytes("VmHWM") - before - max(code, 0)
    wrong = sum(int((want[name].numpy() != found).sum()) for name, found in right.items())
    outcome = RankOutcome(rank, sum(found.size for found in right.values()), wrong, seconds, max(used, 0))
    write_json(folder / f"rank-{rank}.json", asdict(outcome))
    backend.barrier()


def _values(plan: ReshardPlan, rank: int, side: str) -> dict[str, Any]:
    layout = plan.source if side == "source" else plan.target
    return rank_values(layout, rank)


def _reset_peak() -> None:
    """Reset the peak of this process's memory, where the system can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _memory_bytes(field: str) -> int:
    """Memory of this process: VmRSS now, RssFile of files, VmHWM at its peak; 0 where unknown."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), 0)
