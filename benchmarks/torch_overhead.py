"""flowccl's own code between a call of torch.distributed and its first send: `python -m benchmarks.torch_overhead`.

One process calls a group of 8 ranks whose messages go nowhere, so only flowccl's code and torch's front end run. The
time is measured from the call of the group's method, where flowccl takes over, to the first message that is sent, with
the plan in the cache. Nothing is copied in between. Calls with much data still take longer, probably since the sums of
the call before have put other data into the processor's caches: small calls after other work on as much data, which are
measured for comparison, take longer, too.
`python -m pytest -s tests/gpu/test_torch_job.py -k soon` prints the times on a GPU.
"""

import sys
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from flowccl import machine, synthesize
from flowccl.run.group_calls import GroupParts, Selected
from flowccl.run.process_group import group_class

RANKS = 8
CALLS = 2000
CASES = (
    ("allreduce", 4_000, 0),
    ("allgather", 64_000, 0),
    ("reduce_scatter", 64_000, 0),
    ("allreduce", 4_000_000, 0),
    ("allreduce", 4_000, 4_000_000),
)
"""(collective, bytes of the call, bytes of other work before each call)."""


class Nowhere:
    """A carrier that drops all messages and notes when the first one of a call is sent."""

    def __init__(self) -> None:
        self.first = 0.0

    def begin(self) -> None:
        """Start a level."""

    def post_send(self, tensor: Any, peer: int, tag: int) -> None:
        """Note the first send."""
        if not self.first:
            self.first = perf_counter()

    def post_receive(self, tensor: Any, peer: int, tag: int) -> None:
        """Receive nothing."""

    def wait(self) -> None:
        """Nothing is in flight."""


def library(ranks: int) -> Any:
    """A group of the library with 8 ranks in one process: the fake backend of torch's own tests."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    return dist.group.WORLD


def measure(group: Any, carrier: Nowhere, collective: str, size: int, other_work: int) -> list[float]:
    """Return the times between call and first send in microseconds, after some calls that fill the caches."""
    whole, part, other = torch.zeros(size // 4), torch.zeros(size // 4 // RANKS), torch.zeros(other_work // 4)
    opts = {"allreduce": dist.AllreduceOptions, "allgather": dist.distributed_c10d.AllgatherOptions}.get(
        collective, dist.ReduceScatterOptions
    )()
    opts.asyncOp = False
    call = {
        "allreduce": lambda: group.allreduce([whole], opts),
        "allgather": lambda: group._allgather_base(whole, part, opts),
        "reduce_scatter": lambda: group._reduce_scatter_base(part, whole, opts),
    }[collective]
    times = []
    for number in range(CALLS + 20):
        carrier.first = 0.0
        if other_work:
            other.add_(1)
        begun = perf_counter()
        call()
        if number >= 20:
            times.append(1e6 * (carrier.first - begun))
    return times


def main() -> None:
    torch.set_num_threads(1)
    inner, carrier = library(RANKS), Nowhere()
    topology = machine(f"full:{RANKS}")
    schedules = {
        name: synthesize(topology, name, 64_000, chunks=1, steps=1, method="greedy").schedule
        for name in {name for name, *_ in CASES}
    }

    def select(collective: str, size: int, root: int) -> Selected:
        return Selected(schedules[collective], "benchmark", "the only plan")

    group = group_class()(GroupParts(inner, select, carriers={"cpu": carrier}))
    print("between the call and the first send, one process, plan in the cache")
    for collective, size, other_work in CASES:
        times = measure(group, carrier, collective, size, other_work)
        ninety, after = quantiles(times, n=10)[-1], f"   after work on {other_work:,} B" if other_work else ""
        print(f"{collective:15} {size:10,} B   median {median(times):6.1f} us   90 % within {ninety:6.1f} us{after}")


if __name__ == "__main__":
    sys.exit(main())
