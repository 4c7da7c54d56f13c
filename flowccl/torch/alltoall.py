"""Alltoall with split sizes on torch tensors, planned for a machine in every call.

>>> exchange = PlannedAllToAll(machine("dgx_h100:4"))              # once, on every rank
>>> exchange.all_to_all_single(output, tensor, output_splits, input_splits)

Every call exchanges the split sizes, so that all ranks know the whole byte matrix, plans it, and runs the plan as
stages of point-to-point messages over any torch.distributed backend (gloo on the CPU, NCCL on GPUs). All ranks compute
the same plan. The exchange carries a hash of what the plan depends on: ranks that disagree raise an error instead of
waiting for each other.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flowccl.errors import InputError
from flowccl.moe.plan import Plan, PlanTable
from flowccl.moe.planner import Planner
from flowccl.run.torch_run import import_torch
from flowccl.topology.topology import Topology
from flowccl.version import VERSION

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CallStatistics:
    """What the last call took: exchange of the split sizes, planning, and all of it, in microseconds.

    `sent` are the bytes that this rank sent, by stage and receiver.
    """

    exchange_us: float
    plan_us: float
    total_us: float
    sent: dict[tuple[int, int], int]


class AllToAllMessages(Protocol):
    """What carries the messages of one process group; ranks are those of the group."""

    rank: int
    size: int

    def gather(self, local: Any) -> list[Any]:
        """Return the tensors of all ranks, which have equal sizes."""

    def send(self, tensor: Any, peer: int, tag: int) -> Any:
        """Send a tensor of bytes; return its work."""

    def receive(self, tensor: Any, peer: int, tag: int) -> Any:
        """Receive a tensor of bytes; return its work."""


class DistributedMessages:
    """Messages by the functions of torch.distributed, over any backend."""

    def __init__(self, group: Any = None) -> None:
        self._distributed, self._group = import_torch().distributed, group
        self.rank: int = self._distributed.get_rank(group)
        self.size: int = self._distributed.get_world_size(group)

    def gather(self, local: Any) -> list[Any]:
        """Return the tensors of all ranks, which have equal sizes."""
        parts = [local.new_empty(local.shape) for _ in range(self.size)]
        self._distributed.all_gather(parts, local, group=self._group)
        return parts

    def send(self, tensor: Any, peer: int, tag: int) -> Any:
        """Send a tensor of bytes; return its work."""
        return self._distributed.isend(tensor, self._global(peer), self._group, tag)

    def receive(self, tensor: Any, peer: int, tag: int) -> Any:
        """Receive a tensor of bytes; return its work."""
        return self._distributed.irecv(tensor, self._global(peer), self._group, tag)

    def _global(self, rank: int) -> int:
        return rank if self._group is None else int(self._distributed.get_global_rank(self._group, rank))


class PlannedAllToAll:
    """Alltoall with split sizes in a process group whose rank r is GPU r of a machine."""

    def __init__(
        self, topology: Topology, group: Any = None, *, runtime: str = "ideal", messages: AllToAllMessages | None = None
    ) -> None:
        self._messages = DistributedMessages(group) if messages is None else messages
        self.rank, self.size = self._messages.rank, self._messages.size
        if topology.num_gpus != self.size:
            raise InputError(f"the group has {self.size} ranks, the machine {topology.name} {topology.num_gpus} gpus")
        self._planner = Planner(topology, runtime=runtime)
        self._identity = f"{VERSION} {self._planner.topology.fingerprint} {runtime}"
        self.plan: Plan | None = None
        self.statistics: CallStatistics | None = None

    def all_to_all_single(
        self,
        output: Any,
        tensor: Any,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
    ) -> None:
        """Send the parts of `tensor` along its first dimension to all ranks, part d to rank d, into their `output`.

        Without split sizes the parts are equal. Sizes may be zero and may change with every call.
        """
        begun = perf_counter()
        row = _row_elements(tensor)
        given = self._splits(tensor, input_split_sizes, "input_split_sizes")
        wanted = self._splits(output, output_split_sizes, "output_split_sizes")
        if tensor.dtype != output.dtype or (tensor.numel() and output.numel() and row != _row_elements(output)):
            raise InputError("all_to_all_single: input and output must have the same type and the same row shape")
        width = tensor.element_size() * (row if tensor.numel() else _row_elements(output))
        matrix = self._exchange(given * width, wanted * width, str(tensor.dtype), tensor.device)
        exchanged = perf_counter()
        self.plan = self._planner.plan(matrix)
        table = self.plan.table
        planned = perf_counter()
        flat = tensor.contiguous().view(-1)
        into = output if output.is_contiguous() else output.contiguous()
        sent = self._run(table, matrix, _as_bytes(flat), _as_bytes(into.view(-1)))
        if into.data_ptr() != output.data_ptr():
            output.copy_(into)
        times = (exchanged - begun, planned - exchanged, perf_counter() - begun)
        self.statistics = CallStatistics(1e6 * times[0], 1e6 * times[1], 1e6 * times[2], sent)

    def all_to_all(self, outputs: Sequence[Any], tensors: Sequence[Any]) -> None:
        """Send `tensors[d]` to rank d, into its `outputs` of this rank; the tensors may have different sizes."""
        torch = import_torch()
        if len(outputs) != self.size or len(tensors) != self.size:
            raise InputError(f"all_to_all: needs {self.size} input and output tensors, one per rank")
        output = outputs[0].new_empty(sum(one.numel() for one in outputs))
        splits = [[one.numel() for one in side] for side in (outputs, tensors)]
        self.all_to_all_single(output, torch.cat([one.reshape(-1) for one in tensors]), *splits)
        for one, part in zip(outputs, output.split(splits[0]), strict=True):
            one.copy_(part.view_as(one))

    # -- implementation ---------------------------------------------------------------------------------------------

    def _splits(self, tensor: Any, sizes: Sequence[int] | None, name: str) -> Ints:
        rows = len(tensor) if tensor.dim() else 0
        if sizes is None or not len(sizes):
            if rows % self.size:
                raise InputError(f"all_to_all_single: {rows} rows cannot be divided among {self.size} ranks evenly")
            return np.full(self.size, rows // self.size, dtype=np.int64)
        given = np.asarray(sizes, dtype=np.int64)
        if len(given) != self.size or given.min() < 0 or given.sum() != rows:
            raise InputError(
                f"all_to_all_single: {name} must be {self.size} sizes that sum up to {rows} rows, got {list(sizes)}"
            )
        return given

    def _exchange(self, given: Ints, wanted: Ints, dtype: str, device: Any) -> Ints:
        """The byte matrix, from the split sizes of all ranks; raises InputError on all ranks where they disagree."""
        torch = import_torch()
        state = f"{self._identity} {dtype} {'' if self.plan is None else _plan_hash(self.plan)}"
        mark = int.from_bytes(hashlib.sha256(state.encode()).digest()[:7], "big")
        local = torch.tensor([mark, *given.tolist(), *wanted.tolist()], dtype=torch.int64, device=device)
        rows = torch.stack(self._messages.gather(local)).cpu().numpy()
        other = np.flatnonzero(rows[:, 0] != rows[0, 0])
        if len(other):
            raise InputError(
                f"all_to_all_single: rank {other[0]} and rank 0 differ in the type of the data, the machine, flowccl's "
                "version, or their calls so far"
            )
        matrix, wanted_by = rows[:, 1 : self.size + 1], rows[:, self.size + 1 :]
        if (matrix != wanted_by.T).any():
            s, d = np.argwhere(matrix != wanted_by.T)[0]
            raise InputError(
                f"all_to_all_single: rank {s} sends {matrix[s, d]} bytes to rank {d}, which expects {wanted_by[d, s]}"
            )
        return np.ascontiguousarray(matrix)

    def _run(self, table: PlanTable, matrix: Ints, given: Any, output: Any) -> dict[tuple[int, int], int]:
        """Run the plan's messages of this rank, stage by stage; return the bytes sent by stage and receiver."""
        me, plan = self.rank, self.plan
        assert plan is not None
        reads = np.concatenate(([0], np.cumsum(matrix[me])))
        writes = np.concatenate(([0], np.cumsum(matrix[:, me])))
        output[writes[me] : writes[me + 1]].copy_(given[reads[me] : reads[me + 1]])
        destination = plan.blocks.to.astype(np.int64)
        relayed: dict[tuple[int, int], Any] = {}
        sent: dict[tuple[int, int], int] = {}
        local = np.flatnonzero((table.source == me) | (table.destination == me))
        stage_of = table.stage[local]
        for stage in np.unique(stage_of).tolist():
            rows = local[stage_of == stage]
            works, arrivals = [], []
            for message in np.unique(table.message[rows]).tolist():
                part = rows[table.message[rows] == message]
                pieces = [
                    (int(table.owner[k]), int(table.block[k]), int(table.offset[k]), int(table.bytes[k])) for k in part
                ]
                total = sum(piece[3] for piece in pieces)
                if table.source[part[0]] == me:
                    views = []
                    for owner, block, offset, size in pieces:
                        if owner == me:
                            first = int(reads[destination[block]]) + offset
                            views.append(given[first : first + size])
                        else:
                            views.append(relayed.pop((block, offset)))
                    buffer = views[0] if len(views) == 1 else import_torch().cat(views)
                    peer = int(table.destination[part[0]])
                    sent[stage, peer] = sent.get((stage, peer), 0) + total
                    works.append((peer, self._messages.send(buffer, peer, message), buffer))
                else:
                    buffer, peer = output.new_empty(total), int(table.source[part[0]])
                    works.append((peer, self._messages.receive(buffer, peer, message), buffer))
                    arrivals.append((buffer, pieces))
            self._wait(stage, works)
            for buffer, pieces in arrivals:
                at = 0
                for owner, block, offset, size in pieces:
                    data = buffer[at : at + size]
                    at += size
                    if destination[block] == me:
                        first = int(writes[owner]) + offset
                        output[first : first + size].copy_(data)
                    else:
                        relayed[block, offset] = data
        return sent

    def _wait(self, stage: int, works: list[tuple[int, Any, Any]]) -> None:
        for peer, work, _ in works:
            try:
                work.wait()
            except RuntimeError as error:
                reason = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
                raise RuntimeError(
                    f"all_to_all_single: rank {self.rank} lost rank {peer} in stage {stage}: {reason}"
                ) from error


def _row_elements(tensor: Any) -> int:
    """The elements of one entry along the first dimension."""
    return int(tensor[0].numel()) if tensor.dim() and len(tensor) else 1


def _as_bytes(flat: Any) -> Any:
    return flat.view(import_torch().uint8) if flat.numel() else flat.new_empty(0, dtype=import_torch().uint8)


def _plan_hash(plan: Plan) -> str:
    """A hash of the messages of a plan."""
    digest = hashlib.sha256(plan.messages.bytes.tobytes())
    digest.update(plan.messages.pair.tobytes())
    digest.update(plan.messages.hop_start_ps.tobytes())
    return digest.hexdigest()[:16]
