"""Symmetric schedules for a runtime: the schedule of GPU 0's data, its images, and the program of all of them."""

from dataclasses import replace

import numpy as np
import pytest

from flowccl.demand.collectives import collective
from flowccl.errors import DemandError
from flowccl.export.program import lower_program
from flowccl.methods.symmetric.on_runtimes import symmetric_on_runtime
from flowccl.problem import Problem
from flowccl.runtimes.machine import used_by
from flowccl.runtimes.profiles import PROFILES
from flowccl.schedule.generation.carrying import Carrier
from flowccl.schedule.generation.engine import Engine
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine
from flowccl.verifier.verify import verify

MSCCLPP = PROFILES["mscclpp"]


def first(name: str, what: str, pieces: int = 1, sms: int = 64) -> Schedule:
    topology = used_by(machine(name), MSCCLPP)
    demand = collective(what, topology.num_gpus, 1 << 22, pieces)
    found = symmetric_on_runtime(
        Problem(topology, demand), SearchContext.with_limit(60.0), Carrier(MSCCLPP, topology, sms)
    )
    made = next(found)
    assert made is not None
    return made


@pytest.mark.parametrize("what", ["allgather", "reduce_scatter", "allreduce", "alltoall"])
@pytest.mark.parametrize("name", ["rail:2x4", "dgx_h100:2"])
def test_all_images_are_valid_and_their_program_takes_as_long(name: str, what: str) -> None:
    made = first(name, what, 2)
    assert verify(made) == []
    assert made.execution is not None
    program = lower_program(made)
    assert program.findings == ()
    assert program.program_ps == pytest.approx(made.finish_ps, rel=0.02)


def test_every_gpu_does_the_same_at_the_same_time() -> None:
    made = first("dgx_h100:2", "allreduce")
    sender = made.shape.root_node[made.shape.root_ptr[made.route]]
    rows = [sorted(zip(made.start_ps[sender == g], made.issuer[sender == g], strict=True)) for g in range(16)]
    assert all(row == rows[0] for row in rows)


def test_all_gpus_together_need_no_more_time_than_one_with_orbits() -> None:
    """The engine on all messages, in the same order, finds no conflicts between the images."""
    made = first("rail:2x4", "allreduce", 2)
    again = Engine(made, made.execution).run()
    assert again is not None
    assert again.finish_ps <= made.finish_ps * 1.02


def test_a_tree_in_which_few_hear_from_one_gpu_reduces_earlier_where_hosts_are_many() -> None:
    """One threadblock that reduces what all other hosts send into one chunk would be slower than the link.

    Blocks are of 3907 units of 16 bytes, a prime number, so no more threadblocks can work on them.
    """
    topology = used_by(machine("dgx_h100:16"), MSCCLPP)
    problem = Problem(topology, collective("allreduce", 128, 128 * 16 * 3907))
    steps = symmetric_on_runtime(problem, SearchContext.with_limit(60.0), Carrier(MSCCLPP, topology, 132))
    star, tree = next(steps), next(steps)
    assert star is not None
    assert tree is not None
    assert tree.finish_ps < star.finish_ps


def test_several_groups_reduce_large_chunks_together_so_that_nics_begin_early() -> None:
    """One threadblock takes 32 us for what seven GPUs send it, and the NICs of the host wait for that."""
    topology = used_by(machine("dgx_h100:8"), MSCCLPP)
    problem = Problem(topology, collective("allreduce", 64, 64_000_000, 5))
    made = next(symmetric_on_runtime(problem, SearchContext.with_limit(60.0), Carrier(MSCCLPP, topology, 132)))
    assert made is not None
    assert made.execution is not None
    assert made.execution.receivers > 1
    assert made.finish_us < 1.1 * 284.95


def test_a_machine_that_does_not_look_the_same_is_refused() -> None:
    topology = used_by(machine("rail:2x4"), MSCCLPP)
    links = tuple(replace(link, bandwidth_GBps=1.0) if n == 0 else link for n, link in enumerate(topology.links))
    uneven = replace(topology, links=links)
    problem = Problem(uneven, collective("allgather", 8, 1 << 20))
    with pytest.raises(DemandError, match="looks the same"):
        next(symmetric_on_runtime(problem, SearchContext.with_limit(60.0), Carrier(MSCCLPP, uneven, 64)))


def test_synthesis_for_a_runtime_carries_it_out() -> None:
    found = synthesize("dgx_h100:2", "allgather", 1 << 22, method="symmetric", runtime="mscclpp", steps=2)
    assert found.schedule.method == "symmetric"
    assert found.lowered is not None
    assert np.all(found.schedule.issuer >= -1)
