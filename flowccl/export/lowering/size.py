"""The size of an MSCCL++ program, estimated from the messages of its schedule before anything is lowered."""

from dataclasses import dataclass

import numpy as np

from flowccl.errors import InputError
from flowccl.memory import VARIABLE, available_bytes
from flowccl.runtimes.execution import Execution
from flowccl.schedule.messages import MEMORY, NIC, messages_of
from flowccl.schedule.schedule import Schedule
from flowccl.units import format_bytes

_BASE_BYTES = 150e6  # compiled loops and what they need
_OPERATION_BYTES = 2000.0  # at the peak; measured: 0.7 to 1.8 KB in programs of 100,000 to 3,000,000 operations
_OPERATION_S = 15e-6  # measured: 4 us to lower one and write it, and 8 us to read, time and prove it


@dataclass(frozen=True, slots=True)
class ProgramSize:
    """About how many operations a program has, on all GPUs together, and what making it takes."""

    operations: int

    @property
    def memory_bytes(self) -> float:
        """Memory for lowering, reading and proving it."""
        return _BASE_BYTES + self.operations * _OPERATION_BYTES

    @property
    def seconds(self) -> float:
        """Time for lowering, reading, timing and proving it, on one core, after all loops are compiled."""
        return self.operations * _OPERATION_S


def program_size(schedule: Schedule, execution: Execution) -> ProgramSize:
    """Return the size of the program of a schedule that was made for MSCCL++.

    Each threadblock of a group puts its part of a message, has a barrier and signals; one waits at the other end. Work
    on what arrives takes a wait, a barrier and a release more. A message over a NIC takes three operations at each end.
    Measured: 0.8 to 1.3 of the operations of 12 programs.
    """
    assert schedule.costs is not None
    messages = messages_of(schedule, schedule.costs.is_proxied)
    kind, first = messages.kind, messages.first
    inside, over_nic = np.count_nonzero(kind == MEMORY), np.count_nonzero(kind == NIC)
    works = execution.receivers * np.count_nonzero(schedule.receiver[first] >= 0)
    packs = np.count_nonzero((kind == NIC) & (schedule.issuer[first] >= 0))
    ends = int(np.diff(messages.end_ptr)[kind > NIC].sum())
    switched = len(messages) - inside - over_nic
    each = 5 * inside if execution.packets else 6 * inside + 4 * works + 3 * packs + 3 * switched + ends // 2
    return ProgramSize(int(execution.width * each + 6 * over_nic))


def check_size(schedule: Schedule, execution: Execution) -> None:
    """Refuse a schedule whose program would not fit into memory."""
    size, available = program_size(schedule, execution), available_bytes()
    if size.memory_bytes > available:
        raise InputError(
            f"mscclpp: the program of this schedule has about {size.operations:,} operations, which take about "
            f"{format_bytes(int(size.memory_bytes))} of memory to lower and prove, {format_bytes(int(available))} are "
            f"available; synthesize with fewer --chunks or a smaller --sms, or set {VARIABLE}"
        )
