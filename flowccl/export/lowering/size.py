"""The size of an MSCCL++ program, estimated from the messages of its schedule before anything is lowered."""

import numpy as np

from flowccl.errors import InputError
from flowccl.memory import VARIABLE, available_bytes
from flowccl.runtimes.execution import Execution
from flowccl.schedule.messages import MEMORY, NIC, messages_of
from flowccl.schedule.schedule import Schedule
from flowccl.units import format_bytes

_BASE_BYTES = 150e6  # compiled loops and what they need
_OPERATION_BYTES = 2000.0  # at the peak; measured: 0.7 to 1.8 KB in programs of 100,000 to 3,000,000 operations


def program_size(schedule: Schedule, execution: Execution) -> int:
    """Return about how many operations the program of a schedule has that was made for MSCCL++, on all GPUs.

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
    return int(execution.width * each + 6 * over_nic)


def check_size(schedule: Schedule, execution: Execution) -> None:
    """Refuse a schedule whose program would not fit into memory."""
    operations, available = program_size(schedule, execution), available_bytes()
    needed = int(_BASE_BYTES + operations * _OPERATION_BYTES)  # for lowering, reading and proving it
    if needed > available:
        raise InputError(
            f"mscclpp: the program of this schedule has about {operations:,} operations, which take about "
            f"{format_bytes(needed)} of memory to lower and prove, {format_bytes(int(available))} are "
            f"available; synthesize with fewer --chunks or a smaller --sms, or set {VARIABLE}"
        )
