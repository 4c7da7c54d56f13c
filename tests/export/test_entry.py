"""One-sided writes never happen before the target has entered the call, or to data that the previous call reads."""

import copy
import json
import re

import pytest

from flowccl.export.lowering.plan import make_plan
from flowccl.runtimes.limits import LIMITS
from tests.export.cases import findings, plan_value, schedule_of


def kinds_of_steps(collective: str, size_bytes: int) -> set[str]:
    plan = make_plan(schedule_of("dgx1", collective, 1, size_bytes), LIMITS["mscclpp"])
    return {step.kind for gpu in plan.gpus for block in gpu.blocks for step in block.steps}


@pytest.mark.parametrize("collective", ["allgather", "allreduce", "alltoall", "reduce_scatter"])
def test_small_sizes_send_before_the_receiver_is_ready(collective: str) -> None:
    """Saving the latency of a signal is worth a copy if the schedule takes microseconds, but not if it takes longer."""
    assert {"release", "await-release"} <= kinds_of_steps(collective, 1_000_000)
    assert not {"release", "await-release"} & kinds_of_steps(collective, 64_000_000)
    assert {"ready", "await-ready"} <= kinds_of_steps(collective, 64_000_000)


def test_write_to_the_output_of_a_gpu_that_has_not_entered() -> None:
    plan = plan_value(schedule_of("dgx1", "allgather", 1, 64_000_000))
    assert findings(json.dumps(plan).encode(), "mscclpp") == []
    wrong = copy.deepcopy(plan)
    for gpu in wrong["gpus"]:
        for block in gpu["threadblocks"]:
            if block["ops"][0]["name"] in ("signal", "wait"):
                del block["ops"][0]
    found = findings(json.dumps(wrong).encode(), "mscclpp")
    assert {finding.kind for finding in found} == {"entry"}
    assert re.search(r"\(put\): writes o\[\d\] of gpu \d, which may not have entered the call yet", found[0].message)


def test_scratch_that_the_previous_call_may_still_read() -> None:
    plan = plan_value(schedule_of("full:2:latency=1us:bandwidth=25GB/s", "allgather", 1, 2000))
    names = [[op["name"] for op in block["ops"]] for block in plan["gpus"][0]["threadblocks"]]
    assert ["put", "nop", "signal", "wait"] in names  # sends without waiting; waits at the end for the release
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            ops = block["ops"]
            last = max(
                (k for k, op in enumerate(ops) if op["name"] in ("signal", "wait") and op is ops[-1]), default=None
            )
            if last is not None and any(op["name"] in ("put", "sem_acquire") for op in ops):
                del ops[last]
    found = findings(json.dumps(plan).encode(), "mscclpp")
    assert {finding.kind for finding in found} == {"entry"}
    assert re.search(
        r"writes s\[0\] of gpu \d before that gpu has entered the call, and does not wait for gpu", found[0].message
    )
