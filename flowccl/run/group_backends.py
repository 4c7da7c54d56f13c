"""The parts of a process group: the library's backends, what carries messages, and plans of MSCCL++ on GPUs."""

import atexit
import platform
import shutil
import tempfile
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from flowccl.errors import InputError
from flowccl.run.mscclpp.plan_facts import read_plan
from flowccl.run.mscclpp.tensors import PlanGroup, SizedPlan
from flowccl.run.rank_program import MessageCarrier
from flowccl.run.torch_run import as_bytes, import_torch
from flowccl.runtimes.limits import MSCCLPP_LIMITS
from flowccl.schedule.schedule import Schedule

MAKERS = {"gloo": "ProcessGroupGloo", "nccl": "ProcessGroupNCCL"}


def backend_of(name: str, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Return a backend of torch."""
    dist = import_torch().distributed
    if not hasattr(dist, MAKERS[name]):
        raise InputError(f"this torch has no {name}; choose another inner backend")
    maker = getattr(dist, MAKERS[name])
    return maker(store, rank, size, timeout) if name == "gloo" else maker(store, rank, size)


def library_group(store: Any, rank: int, size: int, timeout: timedelta, backends: dict[str, str]) -> Any:
    """Return a process group of torch with a backend for each type of device, for example {"cpu": "gloo"}."""
    torch = import_torch()
    dist = torch.distributed
    group = dist.ProcessGroup(store, rank, size)
    made = {
        name: backend_of(name, dist.PrefixStore(f"{name}/", store), rank, size, timeout)
        for name in dict.fromkeys(backends.values())
    }
    default = "nccl" if "nccl" in made else "gloo"
    group._set_default_backend(getattr(dist.ProcessGroup.BackendType, default.upper()))
    for device, name in backends.items():
        group._register_backend(torch.device(device), getattr(dist.ProcessGroup.BackendType, name.upper()), made[name])
    return group


def usual_backends(store: Any, rank: int, size: int) -> dict[str, str]:
    """Return gloo for the CPU and, where there are GPUs, NCCL for them, or gloo where ranks share a GPU."""
    torch = import_torch()
    if not torch.cuda.is_available():
        return {"cpu": "gloo"}
    place = f"{platform.node()} {torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
    store.set(f"gpu-{rank}", place)
    places = {bytes(store.get(f"gpu-{other}")) for other in range(size)}
    has_nccl = len(places) == size and hasattr(torch.distributed, MAKERS["nccl"])
    return {"cpu": "gloo", "cuda": "nccl" if has_nccl else "gloo"}


class GlooCarrier:
    """Messages over gloo, each with its tag."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.works: list[Any] = []

    def begin(self) -> None:
        """Start a level."""
        self.works = []

    def post_send(self, tensor: Any, peer: int, tag: int) -> None:
        """Send a tensor to a rank."""
        self.works.append(self.backend.send([tensor], peer, tag))

    def post_receive(self, tensor: Any, peer: int, tag: int) -> None:
        """Receive a tensor from a rank."""
        self.works.append(self.backend.recv([tensor], peer, tag))

    def wait(self) -> None:
        """Wait for all messages of the level."""
        for work in self.works:
            work.wait()


class NcclCarrier(GlooCarrier):
    """Messages over NCCL, grouped by level: ungrouped, NCCL would run them one by one."""

    def begin(self) -> None:
        """Start a level."""
        super().begin()
        self.backend._start_coalescing()

    def post_send(self, tensor: Any, peer: int, tag: int) -> None:
        """Send a tensor to a rank; NCCL does not know all types."""
        self.backend.send([as_bytes(tensor)], peer, tag)

    def post_receive(self, tensor: Any, peer: int, tag: int) -> None:
        """Receive a tensor from a rank."""
        self.backend.recv([as_bytes(tensor)], peer, tag)

    def wait(self) -> None:
        """Make the current stream wait for all messages of the level."""
        self.backend._end_coalescing().wait()


def gloo_carrier(store: Any, rank: int, size: int, timeout: timedelta) -> MessageCarrier:
    """Return a carrier with connections of its own: no message of the program can match one of a plan."""
    return GlooCarrier(backend_of("gloo", store, rank, size, timeout))


def plan_group(store: Any, rank: int, size: int, plans: Sequence[SizedPlan]) -> PlanGroup | None:
    """Return the MSCCL++ plans of a group on GPUs; None if it has none."""
    if not plans or size < 2:
        return None

    def share(given: bytes | None) -> bytes:
        if given is not None:
            store.set("unique-id", given)
        return bytes(store.get("unique-id"))

    return PlanGroup(rank, size, share, plans)


def plans_of_schedule(schedule: Schedule) -> list[SizedPlan]:
    """Return the plan of a schedule for in-place calls, in a temporary folder that lasts as long as the process."""
    from flowccl.export.exporting import ExportOptions, make
    from flowccl.run.mscclpp.run_plans import named_plan, root_of

    if schedule.demand.collective not in MSCCLPP_LIMITS.collectives or schedule.demand.collective == "alltoallv":
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
