"""Resharding of real state dicts: layouts from DTensors, and plans that write target tensors in place.

>>> source, target = layout(trainer.state_dict()), layout(engine.state_dict())      # on all ranks of the group
>>> plan = flowccl.reshard(machine("dgx_h100:3"), source, target).plan              # once; save_plan, load_plan
>>> reshard(trainer.state_dict(), engine.state_dict(), plan)                        # in every step of the job
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from flowccl.errors import InputError
from flowccl.resharding.copying import rank_streams
from flowccl.resharding.layout import Layout, Mesh, Placement, TensorLayout
from flowccl.resharding.layout_files import placement_from_text
from flowccl.resharding.plan import ReshardPlan
from flowccl.resharding.reference import local_shape
from flowccl.resharding.running import Exchange, RankRun
from flowccl.resharding.steps import StepTable, step_table
from flowccl.run.torch_run import import_torch
from flowccl.torch.strided import check_strided
from flowccl.wording import counted

State = Mapping[str, Any]
_NOT_CARRIED = {"gloo": "cuda", "nccl": "cpu"}  # the kind of tensors that a backend does not send


def layout(state: State, group: Any = None, name: str = "") -> Layout:
    """Return the layout of a state dict of DTensors and tensors.

    All ranks of the group call it; a rank without tensors passes {}. Where torch.distributed is not initialized, the
    state dict is that of rank 0 alone. A plain tensor is whole on every rank that has it. Ranks are those of the group.
    """
    torch = import_torch()
    rows: dict[str, tuple[Any, ...]] = {}
    problem = None
    try:
        rows = {key: _row(torch, key, value, group) for key, value in flattened(state).items()}
    except InputError as error:
        problem = str(error)
    every = [(rows, problem)]
    if torch.distributed.is_initialized():
        every = every * torch.distributed.get_world_size(group)
        torch.distributed.all_gather_object(every, (rows, problem), group=group)
    for rank, (_, found) in enumerate(every):
        if found is not None:
            raise InputError(f"rank {rank}: {found}")
    return Layout(tuple(_merged([rows for rows, _ in every])), name)


def reshard(source: State, target: State, plan: ReshardPlan, group: Any = None) -> None:
    """Move the tensors of `source` to those of `target`, which are written in place, as the plan says.

    All ranks of the group call it; a rank that has no source tensors, or no target tensors, passes {}. The ranks first
    compare their tensors with the layouts of the plan; where one differs, all of them raise the same InputError. Any
    backend with point-to-point messages will do: gloo for CPU tensors, NCCL for CUDA tensors.
    """
    torch = import_torch()
    dist = torch.distributed
    if not dist.is_initialized():
        raise InputError("reshard needs torch.distributed: call init_process_group first")
    have: State = {}
    want: State = {}
    try:
        have, want = flattened(source), flattened(target)
        problem = _problem(torch, plan, have, want, group)
    except Exception as error:  # all ranks must hear of it: the others would wait for this one
        problem = str(error) or type(error).__name__
    kind = _agree(dist, group, problem, _key(plan), _kind(have, want))
    if (backend := str(dist.get_backend(group))) in _NOT_CARRIED and _NOT_CARRIED[backend] == kind:
        raise InputError(f"{backend} sends no tensors on {kind}; use a group with gloo for cpu, and NCCL for cuda")
    run_rank(plan, have, want, group, kind)


def run_rank(plan: ReshardPlan, have: State, want: State, group: Any = None, kind: str = "cpu") -> None:
    """Run this rank of a plan on its tensors, or on their bytes, without comparing them with the layouts.

    A rank without tensors keeps messages on a device of this `kind`, cpu or cuda.
    """
    torch = import_torch()
    dist = torch.distributed
    rank, table = dist.get_rank(group), _table(plan)
    given = [*have.values(), *want.values()]
    device = _local(given[0]).device if given else torch.device(kind)
    memory = torch.empty(table.memory_bytes(rank), dtype=torch.uint8, device=device)
    with torch.no_grad():
        sources, targets = _ByteViews(torch, have), _ByteViews(torch, want)
        streams = [
            rank_streams(plan.traffic, rank, side, views.of) if views.tensors else None
            for side, views in (("source", sources), ("target", targets))
        ]
        RankRun(plan, table, rank, streams[0], streams[1], memory).run(_exchange(dist, group))
        targets.write_back()


def flattened(state: State, prefix: str = "") -> dict[str, Any]:
    """Return the tensors of a state dict by name; names inside nested dicts are joined by dots."""
    torch = import_torch()
    found: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, Mapping):
            found |= flattened(value, f"{prefix}{key}.")
        elif isinstance(value, torch.Tensor):
            found[f"{prefix}{key}"] = value
        else:
            raise InputError(f"{prefix}{key} is of type {type(value).__name__}; only tensors move, so leave it out")
    return found


# -- layouts ----------------------------------------------------------------------------------------------------------


def _row(torch: Any, name: str, tensor: Any, group: Any) -> tuple[Any, ...]:
    """What a rank knows of a tensor: shape, dtype, bytes of an element, and mesh and placements of a DTensor."""
    facts = (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.element_size())
    if not hasattr(tensor, "device_mesh"):
        return (*facts, None, None)
    ranks = tensor.device_mesh.mesh.flatten().tolist()
    if group is not None:
        ranks = [torch.distributed.get_group_rank(group, rank) for rank in ranks]
    shape = tuple(tensor.device_mesh.mesh.shape)
    placements = tuple(_placement(name, one, tensor.ndim) for one in tensor.placements)
    check_strided(name, tensor)
    return (*facts, (shape, tuple(ranks)), placements)


def _placement(name: str, placement: Any, ndim: int) -> str:
    if placement.is_replicate():
        return "Replicate"
    if placement.is_partial():
        raise InputError(f"tensor {name}: is {placement}, a partial reduction; redistribute it before")
    dim = placement.dim + ndim if placement.dim < 0 else placement.dim
    split = getattr(placement, "split_factor", 1)
    return f"Shard({dim})" if split == 1 else f"StridedShard({dim}, {split})"


def _merged(every: list[dict[str, tuple[Any, ...]]]) -> list[TensorLayout]:
    """The tensors of all ranks."""
    first: dict[str, tuple[int, tuple[Any, ...]]] = {}
    ranks: dict[str, list[int]] = {}
    meshes: dict[Any, Mesh] = {}
    for rank, rows in enumerate(every):
        for name, row in rows.items():
            before, known = first.setdefault(name, (rank, row))
            ranks.setdefault(name, []).append(rank)
            if row != known:
                raise InputError(
                    f"tensor {name}: rank {before} has {_words(known)}, rank {rank} has {_words(row)}; they must agree"
                )
    result = []
    for name, (_, (shape, dtype, size, mesh, texts)) in first.items():
        key = mesh or ((len(ranks[name]),), tuple(ranks[name]))
        placements = tuple(placement_from_text(text, name) for text in texts) if mesh else (Placement(),)
        result.append(TensorLayout(name, shape, size, dtype, meshes.setdefault(key, Mesh(*key)), placements))
    return result


def _words(row: tuple[Any, ...]) -> str:
    shape, dtype, _, mesh, placements = row
    placed = f" on mesh {mesh} as {', '.join(placements)}" if mesh else ""
    return f"{dtype} {list(shape)}{placed}"


# -- before a run -----------------------------------------------------------------------------------------------------


def _problem(torch: Any, plan: ReshardPlan, have: State, want: State, group: Any) -> str | None:
    """Why the tensors of this rank do not fit the plan; None if they do."""
    rank, size = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    if size != plan.ranks:
        return f"the plan is for {counted(plan.ranks, 'rank')}, but the group has {size}"
    for what, planned, given in (("source", plan.source, have), ("target", plan.target, want)):
        for tensor in planned.tensors:
            if rank in tensor.ranks and (found := _difference(torch, tensor, given, rank, group)):
                return f"{what} tensor {tensor.name}: {found}"
        allowed = plan.partial and what == "source"
        for name in given:
            if not allowed and (name not in planned.by_name or rank not in planned.by_name[name].ranks):
                return f"{what} tensor {name}: the plan has no such tensor on rank {rank}"
    devices = sorted({str(_local(tensor).device) for tensor in (*have.values(), *want.values())})
    return f"its tensors are on {' and '.join(devices)}; move them to one device" if len(devices) > 1 else None


def _difference(torch: Any, tensor: TensorLayout, given: State, rank: int, group: Any) -> str | None:
    """How a tensor of this rank differs from the plan."""
    if tensor.name not in given:
        return f"rank {rank} does not have it"
    found = given[tensor.name]
    dtype = str(found.dtype).removeprefix("torch.")
    if found.element_size() != tensor.element_bytes or (tensor.dtype and tensor.dtype != dtype):
        planned = tensor.dtype or f"{tensor.element_bytes} bytes per element"
        return f"is {dtype}, and {planned} in the plan; cast it before, since a plan only moves bytes"
    row = _row(torch, tensor.name, found, group)
    if row[3] is not None and tensor.mesh is not None:
        planned_row = (tensor.shape, row[1], row[2], (tensor.mesh.shape, tensor.mesh.ranks), row[4])
        texts = tuple(str(one) for one in tensor.placements)
        if row[:4] != planned_row[:4] or row[4] != texts:
            return f"is {_words(row)}, and {_words((*planned_row[:4], texts))} in the plan"
    local, expected = _local(found), local_shape(tensor, rank)
    if tensor.mesh is None:
        fits = local.numel() * local.element_size() == expected[0]
    else:
        fits = tuple(local.shape) == expected
    return None if fits else f"rank {rank} has {list(local.shape)} of it, and {list(expected)} in the plan"


def _kind(have: State, want: State) -> str | None:
    """The kind of device of a rank's tensors: cpu or cuda; None if it has no tensors."""
    given = [*have.values(), *want.values()]
    return str(_local(given[0]).device.type) if given else None


def _agree(dist: Any, group: Any, problem: str | None, key: str, kind: str | None) -> str:
    """Return the kind of device of all ranks; raise the same error on all where one has a problem or another plan."""
    every: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(every, (problem, key, kind), group=group)
    for number, (found, other, _) in enumerate(every):
        if found is not None:
            raise InputError(f"rank {number} does not fit the plan: {found}")
        if other != every[0][1]:
            raise InputError(f"rank {number} has another plan than rank 0: {other}, not {every[0][1]}")
    kinds = {one: number for number, (_, _, one) in reversed([*enumerate(every)]) if one is not None}
    if len(kinds) > 1:
        words = " and ".join(f"those of rank {number} on {one}" for one, number in sorted(kinds.items()))
        raise InputError(f"all tensors must be on the same kind of device, but {words}")
    return str(next(iter(kinds)))


@lru_cache(maxsize=16)
def _table(plan: ReshardPlan) -> StepTable:
    return step_table(plan)


@lru_cache(maxsize=16)
def _key(plan: ReshardPlan) -> str:
    """What ranks compare: the fingerprints of the layouts, and a hash of the schedule and its chunks."""
    import hashlib

    schedule, digest = plan.schedule, hashlib.sha256()
    columns = (schedule.chunk, schedule.route, schedule.start_ps, schedule.routes.link, plan.cls, plan.begin, plan.end)
    for column in (*columns, plan.stage):
        digest.update(column.tobytes())
    return f"{plan.fingerprint}-{digest.hexdigest()[:12]}-{plan.slices}"


# -- a run ------------------------------------------------------------------------------------------------------------


def _local(tensor: Any) -> Any:
    """The part of a tensor on this rank."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


@dataclass(eq=False)
class _ByteViews:
    """The tensors of a rank as bytes; one that is not contiguous is copied, and written back at the end."""

    torch: Any
    tensors: State

    def __post_init__(self) -> None:
        self.views: dict[str, Any] = {}
        self.copies: list[tuple[Any, Any]] = []

    def of(self, name: str) -> Any:
        """The bytes of a tensor, whose last dimension counts bytes."""
        if name not in self.views:
            local = _local(self.tensors[name]).detach()
            whole = local if local.is_contiguous() else local.contiguous()
            if whole is not local:
                self.copies.append((local, whole))
            self.views[name] = (whole.reshape(1) if whole.ndim == 0 else whole).view(self.torch.uint8)
        return self.views[name]

    def write_back(self) -> None:
        """Copy the bytes of tensors that are not contiguous back to them."""
        for local, whole in self.copies:
            local.copy_(whole)


def _exchange(dist: Any, group: Any) -> Exchange:
    """Send and receive all messages of a step in one `batch_isend_irecv`; there is one for each pair of ranks."""

    def peer(rank: int) -> int:
        return rank if group is None else int(dist.get_global_rank(group, rank))

    def exchange(sends: Any, receives: Any) -> None:
        ops = [dist.P2POp(dist.irecv, buffer, peer(rank), group) for rank, buffer in receives]
        ops += [dist.P2POp(dist.isend, buffer, peer(rank), group) for rank, buffer in sends]
        for work in dist.batch_isend_irecv(ops):
            work.wait()

    return exchange
