"""One-sided writes never happen before the target has entered the call, or to data that the previous call reads."""

import copy
import json
import re

from tests.export.cases import findings, plan_value, schedule_of


def test_write_to_the_output_of_a_gpu_that_has_not_entered() -> None:
    plan = plan_value(schedule_of("dgx1", "allgather", 1, 64_000_000))
    assert findings(json.dumps(plan).encode(), "mscclpp") == []
    wrong = copy.deepcopy(plan)
    for gpu in wrong["gpus"]:
        for block in gpu["threadblocks"]:
            enters = ("signal", "wait", "nop") if any(op["name"] == "put" for op in block["ops"]) else ("signal",)
            while block["ops"][0]["name"] in enters:
                del block["ops"][0]
    found = findings(json.dumps(wrong).encode(), "mscclpp")
    assert {finding.kind for finding in found} == {"entry"}
    assert re.search(r"\(put\): writes o\[\d\] of gpu \d, which may not have entered the call yet", found[0].message)


def test_packets_that_the_previous_call_may_still_read() -> None:
    plan = plan_value(schedule_of("full:2:latency=1us:bandwidth=25GB/s", "allgather", 1, 2048), protocol="LL")
    assert findings(json.dumps(plan).encode(), "mscclpp") == []
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            block["ops"] = [op for op in block["ops"] if not op.get("leaves")]
    found = findings(json.dumps(plan).encode(), "mscclpp")
    assert {finding.kind for finding in found} == {"entry"}
    assert re.search(
        r"writes p\[0\] of gpu \d before that gpu has entered the call, and does not wait for gpu", found[0].message
    )
