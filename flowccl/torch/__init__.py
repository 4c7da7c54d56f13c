"""Collectives on torch tensors that run flowccl's schedules, over any torch.distributed backend.

>>> import flowccl.torch
>>> flowccl.torch.all_reduce(tensor, schedule)                      # over the default group
>>> flowccl.torch.init_process_group(["allreduce.json"])            # or one line for a whole program, including DDP

On the CPU, every message is a send and a receive of the backend, so real data moves as in the schedule; this is not
fast. On CUDA GPUs, the backend "flowccl" runs the schedules as plans of MSCCL++, on streams. torch is an extra:
pip install flowccl[torch].
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from flowccl.catalog.adaptive_choice import AdaptiveChooser
from flowccl.catalog.run_time import PlanChooser
from flowccl.errors import InputError
from flowccl.run.torch_run import batch_exchange, import_torch, runner_of
from flowccl.schedule.files import load_schedule
from flowccl.schedule.schedule import Schedule
from flowccl.torch.resharding import layout, reshard

__all__ = [
    "alarms",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "counts",
    "init_process_group",
    "layout",
    "reduce_scatter",
    "register_backend",
    "reshard",
    "save_selection",
]


def all_gather(output: Any, tensor: Any, schedule: Schedule, group: Any = None) -> None:
    """Concatenate the tensors of all ranks in rank order into `output`, on every rank."""
    _run("allgather", schedule, output.numel(), tensor, output, group)


def all_reduce(tensor: Any, schedule: Schedule, group: Any = None) -> None:
    """Reduce the tensors of all ranks to their sum, in `tensor` on every rank."""
    _run("allreduce", schedule, tensor.numel(), tensor, tensor, group)


def reduce_scatter(output: Any, tensor: Any, schedule: Schedule, group: Any = None) -> None:
    """Reduce the tensors of all ranks; `output` of rank r gets block r of the sum."""
    _run("reduce_scatter", schedule, tensor.numel(), tensor, output, group)


def all_to_all(output: Any, tensor: Any, schedule: Schedule, group: Any = None) -> None:
    """Exchange blocks: block s of `output` on rank r gets block r of the tensor of rank s."""
    _run("alltoall", schedule, tensor.numel(), tensor, output, group)


def broadcast(tensor: Any, schedule: Schedule, group: Any = None) -> None:
    """Copy the tensor of the schedule's root to `tensor` on every rank."""
    _run("broadcast", schedule, tensor.numel(), tensor, tensor, group)


def register_backend(
    schedules: Iterable[Schedule | str | Path] = (),
    inner: str = "auto",
    catalog: str | Path | None = None,
    selection: str = "rules",
    state: str | Path | None = None,
    reload_every: int = 0,
) -> None:
    """Register the backend "flowccl" for `init_process_group`; collectives run these schedules (or schedule files).

    If several schedules are for a collective, the one for the nearest size runs. Collectives without a schedule,
    point-to-point messages and other groups use an inner backend; each collective for which it does is logged once.
    With "auto", CPU tensors use gloo, which also carries the schedules' messages, and CUDA tensors use MSCCL++ plans of
    the schedules (plan files are also allowed), and else NCCL, or gloo where ranks share a GPU. With "gloo" or "nccl",
    that backend carries the messages of all tensors.

    `catalog` is a folder of `flowccl catalog build`: its rules choose the schedules of CPU tensors by collective, size
    and ranks, and calls that no plan serves use the inner backend. The ranks compare their catalogs when a group is
    made; where they differ or cannot be read, all ranks use the inner backend, and a warning says why. Once in
    `reload_every` calls (0: never), a new version of the catalog is taken over by all ranks at the same call.

    With `selection="adaptive"`, the times of the calls are measured and decide between plans and the inner backend (see
    docs/catalog.md); `state` is a file of `save_selection`, with which the selection goes on.
    """
    from flowccl.run.mscclpp.plan_facts import is_plan, read_plan
    from flowccl.run.process_group import register

    made: list[Schedule] = []
    plans = []
    for item in schedules:
        if isinstance(item, Schedule):
            made.append(item)
        elif is_plan(item):
            plans.append(read_plan(item))
        else:
            made.append(load_schedule(item))
    if selection not in ("rules", "adaptive"):
        raise InputError(f"selection must be rules or adaptive, got {selection!r}")
    if selection == "adaptive" and catalog is None:
        raise InputError("selection='adaptive' needs a catalog: give its folder")
    chooser = None if catalog is None else partial(_chooser, catalog, selection, state, reload_every)
    register(made, inner, plans, chooser)


def _chooser(
    folder: str | Path,
    selection: str,
    state: str | Path | None,
    reload_every: int,
    store: Any,
    rank: int,
    size: int,
    share: Callable[[list[float]], list[float]],
) -> PlanChooser | AdaptiveChooser:
    chosen = PlanChooser(folder, store, rank, size, share, reload_every)
    return chosen if selection == "rules" else AdaptiveChooser(chosen, share, state)


def init_process_group(
    schedules: Iterable[Schedule | str | Path] = (),
    inner: str = "auto",
    catalog: str | Path | None = None,
    selection: str = "rules",
    state: str | Path | None = None,
    reload_every: int = 0,
    **options: Any,
) -> None:
    """Call `torch.distributed.init_process_group` with the backend "flowccl", after registering it."""
    register_backend(schedules, inner, catalog, selection, state, reload_every)
    import_torch().distributed.init_process_group("flowccl", **options)


def counts(group: Any = None) -> dict[str, dict[str, int]]:
    """Return how many times each collective ran by a schedule ("scheduled") and by the inner backend ("inner").

    On GPUs, "plans" has those that ran by plans of MSCCL++. With a catalog, "catalog" has the calls of each plan.
    """
    from flowccl.run.process_group import counts_of

    return counts_of(import_torch().distributed.group.WORLD if group is None else group)


def alarms(group: Any = None) -> list[str]:
    """Return the drift that the adaptive selection has found, one sentence each."""
    return list(_adaptive(group).alarms)


def save_selection(path: str | Path, group: Any = None) -> None:
    """Write what the adaptive selection has learnt, for `state` of a later job; one rank is enough."""
    _adaptive(group).save(path)


def _adaptive(group: Any) -> AdaptiveChooser:
    from flowccl.run.process_group import selection_of

    found = selection_of(import_torch().distributed.group.WORLD if group is None else group)
    if not isinstance(found, AdaptiveChooser):
        raise InputError("this group selects by rules; use selection='adaptive'")
    return found


def _run(collective: str, schedule: Schedule, count: int, given: Any, output: Any, group: Any) -> None:
    dist = import_torch().distributed
    if schedule.demand.collective != collective:
        raise InputError(f"the schedule is for {schedule.demand.collective}, not for {collective}")
    ranks, size = schedule.demand.num_gpus, dist.get_world_size(group)
    if size != ranks:
        raise InputError(f"the schedule is for {ranks} ranks, but the group has {size}")
    if given.dtype != output.dtype:
        raise InputError(f"{collective}: input is {given.dtype}, output is {output.dtype}; they must be equal")
    flat = given.contiguous().view(-1)
    into = flat if output is given else output if output.is_contiguous() else output.contiguous()
    runner_of(schedule).run(dist.get_rank(group), count, (flat, into.view(-1)), batch_exchange(group))
    if into.data_ptr() != output.data_ptr():
        output.copy_(into.view_as(output))
