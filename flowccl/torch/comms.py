"""flowccl as a backend of torchcomms: `torchcomms.new_comm("flowccl", torch.device("cpu"), name="main")`.

torchcomms imports this module by its entry point (group torchcomms.backends) and finds the backend registered. Options
of `new_comm` do not reach backends in Python, so ranks and addresses are those of torchrun's variables, and the catalog
is that of FLOWCCL_CATALOG. Written against the interface of torchcomms 0.3 (`TorchCommBackend`).
"""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torchcomms

from flowccl.errors import InputError
from flowccl.run.group_backends import library_group, usual_backends
from flowccl.torch.job import current_job

_TIMEOUT = timedelta(minutes=10)
_DONE = None  # what a method returns for a call that is complete


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise InputError(f"the backend flowccl of torchcomms needs {name}: start the program with torchrun")
    return value


class FlowcclComm(torchcomms.TorchCommBackend):  # type: ignore[misc]  # torchcomms has no types here
    """A communicator whose calls run by the plans of a catalog, or by gloo or NCCL."""

    def __init__(self) -> None:
        super().__init__()
        self.group: Any = None
        self.store: Any = None
        self.name, self.timeout = "", _TIMEOUT

    # -- the communicator ---------------------------------------------------------------------------------------------

    def init(self, device: Any, name: str, options: Any) -> None:
        """Connect all ranks of the job."""
        rank, size = int(_variable("RANK")), int(_variable("WORLD_SIZE"))
        place = _variable("MASTER_ADDR"), int(_variable("MASTER_PORT"))
        store = dist.TCPStore(*place, size, rank == 0, self.timeout, multi_tenant=True)
        self._open(dist.PrefixStore(f"flowccl-comms/{name}", store), rank, size, name, [])

    def _open(self, store: Any, rank: int, size: int, name: str, ranks: list[int]) -> None:
        self.store, self.name = store, name
        library = library_group(store, rank, size, self.timeout, usual_backends(store, rank, size))
        made = current_job().group(library, store, ranks, self.timeout) if os.environ.get("FLOWCCL_CATALOG") else None
        self.group = library if made is None else made

    def split(self, ranks: Sequence[int], name: str, options: Any) -> "FlowcclComm | None":
        """Return the communicator of some ranks; None on the others, which give no ranks."""
        if not ranks:
            return None
        made, members = FlowcclComm(), list(ranks)
        made.timeout = self.timeout
        store = dist.PrefixStore(f"{name}-{'-'.join(map(str, members))}", self.store)
        made._open(store, members.index(self.get_rank()), len(members), name, members)
        return made

    def finalize(self) -> None:
        """End the communicator."""
        if self.group is not None:
            self.group.shutdown()
            self.group = None

    def get_rank(self) -> int:
        """The rank of this process."""
        return int(self.group.rank())

    def get_size(self) -> int:
        """The number of ranks."""
        return int(self.group.size())

    def get_backend_name(self) -> str:
        """The name of the backend."""
        return "flowccl"

    def get_comm_name(self) -> str:
        """The name of the communicator."""
        return self.name

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of groups that are made from now on."""
        self.timeout = timeout

    # -- collectives --------------------------------------------------------------------------------------------------

    def _ended(self, work: Any, async_op: bool) -> Any:
        if async_op:
            return work
        work.wait()
        return _DONE

    def all_reduce(self, tensor: Any, op: Any, async_op: bool) -> Any:
        """Reduce on all ranks."""
        return self._ended(self.group.allreduce([tensor], _options("AllreduceOptions", async_op, op)), async_op)

    def broadcast(self, tensor: Any, root: int, async_op: bool) -> Any:
        """Copy the root's tensor."""
        return self._ended(self.group.broadcast([tensor], _rooted("BroadcastOptions", async_op, root)), async_op)

    def reduce(self, tensor: Any, root: int, op: Any, async_op: bool) -> Any:
        """Reduce on the root."""
        return self._ended(self.group.reduce([tensor], _rooted("ReduceOptions", async_op, root, op)), async_op)

    def all_gather(self, tensor_list: Any, tensor: Any, async_op: bool) -> Any:
        """Gather into a list on all ranks."""
        options = _options("AllgatherOptions", async_op)
        return self._ended(self.group.allgather([tensor_list], [tensor], options), async_op)

    all_gather_v = all_gather

    def all_gather_single(self, output: Any, input: Any, async_op: bool) -> Any:
        """Gather into one tensor on all ranks."""
        return self._ended(self.group._allgather_base(output, input, _options("AllgatherOptions", async_op)), async_op)

    def reduce_scatter(self, output: Any, input_list: Any, op: Any, async_op: bool) -> Any:
        """Reduce a list of blocks; each rank gets its own."""
        options = _options("ReduceScatterOptions", async_op, op)
        return self._ended(self.group.reduce_scatter([output], [input_list], options), async_op)

    reduce_scatter_v = reduce_scatter

    def reduce_scatter_single(self, output: Any, input: Any, op: Any, async_op: bool) -> Any:
        """Reduce one tensor; each rank gets its block."""
        options = _options("ReduceScatterOptions", async_op, op)
        return self._ended(self.group._reduce_scatter_base(output, input, options), async_op)

    def all_to_all_single(self, output: Any, input: Any, async_op: bool) -> Any:
        """Exchange equal blocks."""
        options = _options("AllToAllOptions", async_op)
        return self._ended(self.group.alltoall_base(output, input, [], [], options), async_op)

    def all_to_all_v_single(
        self, output: Any, input: Any, output_splits: Any, input_splits: Any, async_op: bool
    ) -> Any:
        """Exchange blocks of given sizes."""
        options = _options("AllToAllOptions", async_op)
        sizes = list(output_splits), list(input_splits)
        return self._ended(self.group.alltoall_base(output, input, *sizes, options), async_op)

    def all_to_all(self, output_list: Any, input_list: Any, async_op: bool) -> Any:
        """Exchange the tensors of lists."""
        options = _options("AllToAllOptions", async_op)
        outputs, inputs = torch.cat([t.view(-1) for t in output_list]), torch.cat([t.view(-1) for t in input_list])
        sizes = [t.numel() for t in output_list], [t.numel() for t in input_list]
        self.group.alltoall_base(outputs, inputs, *sizes, options).wait()  # gloo has no alltoall of lists
        for part, block in zip(output_list, outputs.split(sizes[0]), strict=True):
            part.copy_(block.view_as(part))
        return _DONE

    def scatter(self, output: Any, input_list: Any, root: int, async_op: bool) -> Any:
        """Send the root's tensors to the ranks."""
        inputs = [input_list] if self.get_rank() == root else []
        return self._ended(self.group.scatter([output], inputs, _rooted("ScatterOptions", async_op, root)), async_op)

    def gather(self, output_list: Any, input: Any, root: int, async_op: bool) -> Any:
        """Gather into a list on the root."""
        outputs = [output_list] if self.get_rank() == root else []
        return self._ended(self.group.gather(outputs, [input], _rooted("GatherOptions", async_op, root)), async_op)

    def barrier(self, async_op: bool) -> Any:
        """Wait for all ranks."""
        return self._ended(self.group.barrier(), async_op)

    def send(self, tensor: Any, dst: int, async_op: bool) -> Any:
        """Send a tensor to a rank."""
        return self._ended(self.group.send([tensor], dst, 0), async_op)

    def recv(self, tensor: Any, src: int, async_op: bool) -> Any:
        """Receive a tensor from a rank."""
        return self._ended(self.group.recv([tensor], src, 0), async_op)


def _options(name: str, async_op: bool, op: Any = None) -> Any:
    """The options of a call for torch.distributed, with the reduction of torchcomms' `op`."""
    made = getattr(dist.distributed_c10d, name)()
    made.asyncOp = async_op
    if op is not None:
        made.reduceOp = getattr(dist.ReduceOp, str(getattr(op.type, "name", op.type)))
    return made


def _rooted(name: str, async_op: bool, root: int, op: Any = None) -> Any:
    made = _options(name, async_op, op)
    made.rootRank = root
    return made


torchcomms.register_backend("flowccl", FlowcclComm)
