"""Alltoalls with split sizes of a process group on the CPU, planned in every call: `GroupMethods.alltoallv`."""

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flowccl.errors import FlowcclError
from flowccl.run.call_log import CALLS
from flowccl.run.group_backends import GlooCarrier
from flowccl.run.group_calls import GroupCalls
from flowccl.run.rank_program import MOST_MESSAGES
from flowccl.topology.topology import Topology

if TYPE_CHECKING:
    from flowccl.torch.alltoall import PlannedAllToAll

REASON = "planned from the split sizes of each call"


class GroupMessages:
    """Messages over the gloo connections that a group has for its plans; `first_tag` is that of the call."""

    def __init__(self, backend: Any, rank: int, size: int) -> None:
        self.backend, self.rank, self.size = backend, rank, size
        self.first_tag = 0

    def gather(self, local: Any) -> list[Any]:
        """Return the tensors of all ranks, which have equal sizes."""
        parts = [local.new_empty(local.shape) for _ in range(self.size)]
        self.backend.allgather([parts], [local]).wait()
        return parts

    def send(self, tensor: Any, peer: int, tag: int) -> Any:
        """Send a tensor of bytes; return its work."""
        return self.backend.send([tensor], peer, self.first_tag + tag)

    def receive(self, tensor: Any, peer: int, tag: int) -> Any:
        """Receive a tensor of bytes; return its work."""
        return self.backend.recv([tensor], peer, self.first_tag + tag)


class GroupAllToAll:
    """Serves the alltoalls with split sizes of a group; their order is that of all calls of the group.

    The first call loads the planner, and compiles it where flowccl has not planned before.
    """

    def __init__(self, topology: Topology, carrier: GlooCarrier, rank: int, size: int) -> None:
        self.messages = GroupMessages(carrier.backend, rank, size)
        self.topology = topology
        self.planned: PlannedAllToAll | None = None

    def __call__(
        self,
        group: GroupCalls,
        output: Any,
        tensor: Any,
        splits: tuple[list[int], list[int]],
        opts: Any,
        after: Callable[[], None] | None = None,
    ) -> Any:
        """Return the work of a call, or None: the library serves tensors on GPUs."""
        if not (tensor.is_cpu and output.is_cpu):
            return None
        row = CALLS.row("alltoallv", group.my_size, "cpu", "plan of the call", True, REASON)

        def run(number: int) -> None:
            if self.planned is None:
                from flowccl.torch.alltoall import PlannedAllToAll

                self.planned = PlannedAllToAll(self.topology, messages=self.messages)
            self.messages.first_tag = number * MOST_MESSAGES
            self.planned.all_to_all_single(output, tensor, *splits)
            if after is not None:
                after()

        return group.run_function(run, row, tensor.numel() * tensor.element_size(), [output], opts)


def obstacle(topology: Topology) -> str:
    """What keeps alltoalls from being planned on a machine, in words; empty: nothing."""
    for name in ("numba", "scipy"):
        if importlib.util.find_spec(name) is None:
            return f"{name} is not installed, which plans alltoalls"
    from flowccl.moe.layout import layout_of

    try:
        layout_of(topology)
    except FlowcclError as error:
        return str(error).splitlines()[0]
    return ""
