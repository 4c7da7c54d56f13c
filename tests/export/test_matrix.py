"""Every collective on every machine is exported to every target that supports it, and the file is proved."""

import numpy as np
import pytest

from flowccl.errors import InputError
from flowccl.export.proof.estimate import estimate_ps
from flowccl.runtimes.limits import LIMITS
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine
from tests.export.cases import PROVABLE, findings, made, random_schedule, read, schedule_of

COLLECTIVES = (
    "allgather",
    "alltoall",
    "allreduce",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
)
MACHINES = ("dgx1", "ndv2:2", "dgx2:2", "mi250:2", "dgx_a100:2", "torus:4x4")


def prove(name: str, collective: str, target: str, **options: object) -> None:
    schedule = schedule_of(name, collective)
    if collective not in LIMITS[target].collectives:
        with pytest.raises(InputError, match=f"{target} does not support {collective}; it supports allgather"):
            made(schedule, target, **options)
        return
    if target == "mscclpp" and options.get("inplace") and collective == "broadcast":
        with pytest.raises(InputError, match="a broadcast does not run in place; export it without --inplace"):
            made(schedule, target, **options)
        return
    several_hosts = len({node.host for node in schedule.topology.nodes}) > 1
    if target == "mscclpp" and options.get("inplace") and collective == "alltoall" and several_hosts:
        with pytest.raises(InputError, match="an alltoall between hosts does not run in place"):
            made(schedule, target, **options)
        return
    assert findings(made(schedule, target, **options), target) == []


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("target", PROVABLE)
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("name", ["dgx1"])
def test_every_collective_on_one_machine(name: str, collective: str, target: str, inplace: bool) -> None:
    prove(name, collective, target, inplace=inplace)


@pytest.mark.slow
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("target", PROVABLE)
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("name", MACHINES[1:])
def test_every_collective_on_every_machine(name: str, collective: str, target: str, inplace: bool) -> None:
    prove(name, collective, target, inplace=inplace)


@pytest.mark.parametrize("target", PROVABLE)
@pytest.mark.parametrize("collective", ["allgather", "allreduce", "alltoall"])
def test_several_chunks_and_instances(collective: str, target: str) -> None:
    schedule = schedule_of("dgx1", collective, chunks=3)
    for instances in (1, 3) if target != "mscclpp" else (1,):
        assert findings(made(schedule, target, instances=instances), target) == []


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("target", PROVABLE)
def test_a_one_shot_allreduce(target: str, inplace: bool) -> None:
    """Several chunks share their data at the source: none may be reduced into data that another still has to send."""
    for name, size_bytes in (("ring:4", 1_000_000), ("dgx1", 1000)):
        schedule = synthesize(machine(name), "allreduce", size_bytes, method="one-shot", chunks=2, steps=2).schedule
        assert schedule.method == "one-shot"
        assert findings(made(schedule, target, inplace=inplace), target) == []


def random_exports(seeds: range) -> int:
    """Export random schedules with random options; return the number of exports, all of which must be proved."""
    count = 0
    for seed in seeds:
        schedule, root = random_schedule(seed)
        rng = np.random.default_rng(seed)
        for target in PROVABLE:
            if schedule.demand.collective not in LIMITS[target].collectives:
                continue
            protocol = str(rng.choice(LIMITS[target].protocols))
            if target == "mscclpp" and len({node.host for node in schedule.topology.nodes}) > 1:
                protocol = "Simple"  # packets are for one host
            options = {"inplace": bool(rng.random() < 0.5), "instances": int(rng.integers(1, 4)), "protocol": protocol}
            if target == "mscclpp":
                del options["instances"]  # the schedule says how many threadblocks carry a message
            try:
                data = made(schedule, target, **options)
            except InputError as error:  # packets with partial sums are for sizes that are aligned
                known = "is no multiple of" in str(error) or "does not run in place" in str(error)
                if target != "mscclpp" or not known:
                    raise
                continue
            assert findings(data, target, root) == [], (seed, target, options)
            count += 1
    return count


def test_no_false_positive_on_random_schedules() -> None:
    assert random_exports(range(1000, 1012)) >= 30


@pytest.mark.slow
def test_no_false_positive_on_300_random_schedules() -> None:
    assert random_exports(range(100)) >= 300


@pytest.mark.parametrize("name", ["dgx1", pytest.param("ndv2:2", marks=pytest.mark.slow)])
@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
@pytest.mark.parametrize("size_bytes", [1_000_000, 64_000_000])
@pytest.mark.parametrize("chunks", [1, 4])
def test_lowering_loses_little(name: str, collective: str, size_bytes: int, chunks: int) -> None:
    schedule = schedule_of(name, collective, chunks, size_bytes)
    for target in PROVABLE:
        if target == "mscclpp":
            continue  # its programs are timed in the clock of their schedules: test_program.py
        finish_ps = estimate_ps(read(made(schedule, target), target), machine(name), size_bytes)
        assert abs(finish_ps / schedule.finish_ps - 1) < 0.05
