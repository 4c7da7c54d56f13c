"""The choice between the protocols of MSCCL++ by the estimate: Simple (put and signal) or LL (packets)."""

from collections.abc import Callable

from flowccl.errors import InputError
from flowccl.export.formats.read_mscclpp import parse_mscclpp
from flowccl.export.proof.estimate import estimate_ps
from flowccl.runtimes.machine import on_runtime
from flowccl.runtimes.profiles import PROFILES
from flowccl.schedule.schedule import Schedule


def faster_plan(schedule: Schedule, write: Callable[[str], bytes]) -> bytes:
    """Return the plan of the protocol that the estimate finds faster at the size of the schedule.

    `write` returns the plan of a protocol. Simple serves all schedules; packets are not for ports and switches. A
    schedule that was made for no runtime is timed with the costs of MSCCL++.
    """
    profile = schedule.runtime or PROFILES["mscclpp"]
    machine = on_runtime(schedule.topology, profile, schedule.runtime)
    plans = {"Simple": write("Simple")}
    try:
        plans["LL"] = write("LL")
    except InputError:  # not with packets, or not within the limits
        return plans["Simple"]

    def time_ps(name: str) -> int:
        return estimate_ps(parse_mscclpp(plans[name], name), machine, schedule.demand.size_bytes, profile.costs)

    return plans[min(plans, key=time_ps)]  # of equal ones, the first
