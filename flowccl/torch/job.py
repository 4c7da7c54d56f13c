"""One job: its catalogs, the agreement of its ranks, and the groups that are made with them."""

import atexit
import logging
import os
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any

from flowccl.errors import FlowcclError
from flowccl.run.call_log import CALLS
from flowccl.run.group_backends import GlooCarrier, gloo_carrier, plan_group
from flowccl.run.group_calls import GroupParts
from flowccl.run.mscclpp.plan_facts import read_plan
from flowccl.run.mscclpp.runtime import find_provider
from flowccl.run.mscclpp.tensors import SizedPlan
from flowccl.run.process_group import group_class
from flowccl.run.rank_program import MessageCarrier
from flowccl.run.torch_run import import_torch
from flowccl.torch.agreement import agree, new_keys
from flowccl.torch.catalogs import JobCatalog, JobCatalogs, select
from flowccl.torch.environment import CATALOG, Settings, job_settings
from flowccl.torch.group_alltoall import GroupAllToAll, obstacle
from flowccl.torch.reporting import report

log = logging.getLogger("flowccl.torch")


class TorchJob:
    """The use of catalogs in this process. The ranks agree on the catalogs when the default group is made."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.catalogs: JobCatalogs | None = None
        self.world_ranks = 0
        self.on_gpus = False

    def group(self, group: Any, store: Any, ranks: list[int], timeout: timedelta) -> Any:
        """Return the group that serves the calls of a group of the library; None: the library's group stays."""
        dist = import_torch().distributed
        place = dist.PrefixStore(new_keys(store, group.rank()), store)
        if not ranks:
            self._start(group, place)
        if self.catalogs is None:
            return None
        hosts = hosts_of(ranks or list(range(group.size())))
        fitting, reason = self.catalogs.fitting(hosts)
        parts, problem = GroupParts(group, partial(select, fitting, reason)), ""
        if fitting:
            try:
                parts = self._parts(group, place, fitting, timeout)
            except (FlowcclError, RuntimeError, OSError) as error:
                problem = str(error).splitlines()[0]
            verdict = agree(dist.PrefixStore("ready", place), group.rank(), group.size(), "ready", problem)
            if verdict.value is None:
                if verdict.is_speaker:
                    CALLS.note(f"a group of {group.size()} ranks uses the library: {verdict.reason}")
                parts = GroupParts(group, partial(select, (), verdict.reason))
        elif not ranks:
            self._say(group, f"the default group uses the library: {reason}")
        made = group_class()(parts)
        if parts.carriers:
            made.alltoallv = self._alltoallv(group, fitting[0], parts, dist.PrefixStore("alltoallv", place))
        return made

    def _alltoallv(self, group: Any, catalog: JobCatalog, parts: GroupParts, store: Any) -> Any:
        """Return what serves alltoalls with split sizes, or None: the library, on all ranks."""
        carrier, rank, size = parts.carriers.get("cpu"), int(group.rank()), int(group.size())
        if not isinstance(carrier, GlooCarrier):
            return None
        topology = catalog.topology
        verdict = agree(store, rank, size, "planned", obstacle(topology))
        if verdict.value is not None:
            return GroupAllToAll(topology, carrier, rank, size)
        if verdict.is_speaker:
            CALLS.note(f"alltoalls with split sizes use the library: {verdict.reason}", logging.INFO)
        return None

    def _start(self, group: Any, store: Any) -> None:
        """Read the catalogs and agree on them with all ranks, when the default group is made."""
        self.catalogs, self.world_ranks = None, int(group.size())
        found, problem, on_gpus = None, "", False
        try:
            found = JobCatalogs.load(self.settings)
            on_gpus = _has_mscclpp(found)
        except (FlowcclError, OSError) as error:
            problem = str(error)
        value = "" if found is None else f"{found.digest} {'gpu' if on_gpus else 'cpu'}"
        store = import_torch().distributed.PrefixStore("catalogs", store)
        verdict = agree(store, int(group.rank()), self.world_ranks, value, problem)
        CALLS.speaks = group.rank() == 0
        if verdict.value is None:
            if verdict.is_speaker:
                CALLS.note(f"no plans are used, the library serves all calls: {verdict.reason}")
            return
        self.catalogs, self.on_gpus = found, on_gpus
        _report_at_exit()
        for folder in self.settings.catalogs:
            self._say(group, f"{CATALOG}: {folder}", logging.INFO)

    def _say(self, group: Any, text: str, level: int = logging.WARNING) -> None:
        if group.rank() == 0:
            CALLS.note(text, level)

    def _parts(self, group: Any, store: Any, catalogs: list[JobCatalog], timeout: timedelta) -> GroupParts:
        """Connect the ranks of a group for the plans of catalogs."""
        dist = import_torch().distributed
        rank, size = int(group.rank()), int(group.size())
        devices = {device.type for device in group._device_types}
        carriers: dict[str, MessageCarrier] = {}
        if "cpu" in devices:
            carriers["cpu"] = gloo_carrier(dist.PrefixStore("messages", store), rank, size, timeout)
        plans = None
        if "cuda" in devices and self.on_gpus:
            sized = [plan for one in catalogs for plan in self._sized(one)]
            plans = plan_group(dist.PrefixStore("mscclpp", store), rank, size, sized)
        return GroupParts(group, partial(select, catalogs, ""), carriers=carriers, plans=plans)

    def _sized(self, one: JobCatalog) -> list[SizedPlan]:
        """Return the plans for MSCCL++ of a catalog.

        Packets need the same number of calls on all processes, so plans with them are used only if no group of some
        processes can have plans.
        """
        all_world = self.catalogs is not None and all(c.ranks == self.world_ranks for c in self.catalogs.catalogs)
        for plan in one.version.selector.catalog.plans:
            if plan.name not in one.sized:
                facts = read_plan(one.folder / plan.file)
                if all_world or facts.protocol == "Simple":
                    one.sized[plan.name] = SizedPlan(facts, plan.size_bytes)
        return list(one.sized.values())


def _has_mscclpp(catalogs: JobCatalogs) -> bool:
    """Whether plans can run on GPUs; if there are GPUs and plans, but no MSCCL++, say so."""
    is_for_gpus = any(one.version.selector.catalog.runtime == "mscclpp" for one in catalogs.catalogs)
    if not import_torch().cuda.is_available() or not is_for_gpus:
        return False
    try:
        find_provider()
    except FlowcclError as error:
        CALLS.note(f"CUDA tensors use the library: {error}")
        return False
    return True


@lru_cache(maxsize=1)
def _report_at_exit() -> None:
    process = os.getpid()

    def tell() -> None:
        if os.getpid() == process and CALLS.speaks and CALLS.rows:
            log.info("%s", report())

    atexit.register(tell)


@lru_cache(maxsize=1)
def current_job() -> TorchJob:
    """Return the job of this process."""
    return TorchJob(job_settings())


def hosts_of(ranks: list[int]) -> list[int]:
    """Return the host of each rank, as torchrun numbers them; all on one host if no launcher says so."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "0") or "0")
    return [rank // local if local else 0 for rank in ranks]
