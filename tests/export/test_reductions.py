"""Reductions of several messages at once: one operation, proved, with the time of the schedule."""

import json
from dataclasses import replace

import numpy as np
import pytest

from flowccl.demand.collectives import collective
from flowccl.export.formats.read_mscclpp import parse_mscclpp
from flowccl.export.lowering.balance import balanced
from flowccl.export.program import lower_program
from flowccl.export.proof.interpreter import interpret
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.runtimes.execution import Execution
from flowccl.runtimes.profiles import PROFILES
from flowccl.schedule.files import schedule_from_json, schedule_to_json
from flowccl.schedule.generation.engine import Engine
from flowccl.schedule.generation.looping import repeated
from flowccl.schedule.messages import messages_of
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.builders import full
from flowccl.verifier.verify import verify

MSCCLPP = PROFILES["mscclpp"]


def planned(gpus: int, size_bytes: int, GBps: float = 50.0) -> Schedule:
    """A reduce_scatter in which every GPU sends its contribution to each other one directly."""
    problem = Problem(full(gpus, bandwidth_GBps=GBps), collective("reduce_scatter", gpus, size_bytes, 1))
    return next(load_method("direct")(problem, SearchContext.with_limit(60.0)))


def sources(data: bytes, name: str) -> set[int]:
    """The numbers of sources of all operations with a name, also of those in pipelines."""
    blocks = [block for gpu in json.loads(data)["gpus"] for block in gpu["threadblocks"]]
    listed = [inner for block in blocks for op in block["ops"] for inner in (op, *op.get("ops", ()))]
    return {len(op["src_buff"]) for op in listed if op["name"] == name}


@pytest.mark.parametrize(("protocol", "name"), [("Simple", "re"), ("LL", "repkt")])
@pytest.mark.parametrize("inplace", [False, True])
def test_what_arrives_together_is_one_operation(protocol: str, name: str, inplace: bool) -> None:
    schedule = Engine(planned(4, 1 << 18), Execution(MSCCLPP, 16, 2, protocol=protocol)).run()
    assert schedule is not None
    assert verify(schedule) == []
    program = lower_program(schedule, inplace=inplace)
    assert program.findings == ()
    assert program.program_ps == schedule.finish_ps
    assert sources(program.data, name) == {4}  # the GPU's own data and three arrivals


@pytest.mark.parametrize("receivers", [1, 2])
def test_what_is_reduced_together_stays_so_in_other_groups(receivers: int) -> None:
    """With a group for each arrival, a program was 27 % later than its schedule."""
    schedule = Engine(planned(4, 1 << 18), Execution(MSCCLPP, 16, 2, receivers=receivers)).run()
    assert schedule is not None
    assert schedule.costs is not None
    spread = balanced(schedule, messages_of(schedule, schedule.costs.is_proxied), schedule.execution, 0)
    assert not np.array_equal(spread.issuer, schedule.issuer)
    assert verify(spread) == []
    assert spread.finish_ps == schedule.finish_ps
    assert lower_program(spread).program_ps == schedule.finish_ps


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("width", [1, 2])
def test_groups_that_reduce_together_take_a_part_of_the_time(width: int, inplace: bool) -> None:
    plan = planned(4, 1 << 20)
    alone = Engine(plan, Execution(MSCCLPP, 24, width)).run()
    schedule = Engine(plan, Execution(MSCCLPP, 24, width, receivers=4)).run()
    assert alone is not None
    assert schedule is not None
    assert schedule.costs is not None
    assert alone.costs is not None
    assert max(schedule.costs.work_ps) == pytest.approx(max(alone.costs.work_ps) / 4, rel=1e-3)
    assert schedule.finish_ps < alone.finish_ps
    assert verify(schedule) == []
    program = lower_program(schedule, inplace=inplace)
    assert program.findings == ()
    assert program.program_ps == schedule.finish_ps
    assert schedule_from_json(schedule_to_json(schedule)).execution == schedule.execution
    shifted = replace(schedule, receiver=np.where(schedule.receiver >= 0, schedule.receiver + 1, -1).astype(np.int32))
    assert "is not the first of 4" in str(verify(shifted)[0])


def test_groups_that_reduce_together_do_nothing_else_meanwhile() -> None:
    schedule = Engine(planned(4, 1 << 20), Execution(MSCCLPP, 24, receivers=4)).run()
    assert schedule is not None
    work = int(np.argmax(schedule.receiver >= 0))
    node = schedule.shape.end_node[schedule.shape.end_ptr[schedule.route[work]]]
    sends = np.flatnonzero(schedule.shape.root_node[schedule.shape.root_ptr[schedule.route]] == node)
    send, issuer = int(sends[np.argmax(schedule.start_ps[sends])]), schedule.issuer.copy()
    issuer[send] = schedule.receiver[work] + 3
    start = schedule.start_ps.copy()
    start[send] = schedule.work_from_ps[work]
    found = verify(replace(schedule, issuer=issuer, start_ps=start))
    assert any(f"group {issuer[send]} of" in str(one) for one in found)


def test_more_than_an_operation_can_read_are_several_operations() -> None:
    schedule = Engine(planned(12, 12 << 14), Execution(MSCCLPP, 64)).run()
    assert schedule is not None
    program = lower_program(schedule)
    assert program.findings == ()
    assert max(sources(program.data, "re")) == 10
    name = b'"name":"re","src_buff":['
    damaged = parse_mscclpp(program.data.replace(name, name + b'{"type":"i","index":0,"size":1},'), "damaged")
    assert any("sources of an operation: 11" in str(finding) for finding in interpret(damaged))


@pytest.mark.parametrize(("GBps", "count"), [(10.0, 4), (15.0, 3), (50.0, 2)])
def test_repeated_operations_reduce_as_much_at_once_as_keeps_up_with_the_links(GBps: float, count: int) -> None:
    """A reduction of one message takes 1 / 24.8, and each further one 0.49 of that."""
    schedule = repeated(planned(4, 4 << 20, GBps), MSCCLPP, 32, 4)
    assert schedule is not None
    assert verify(schedule) == []
    program = lower_program(schedule)
    assert program.findings == ()
    assert program.program_ps == schedule.finish_ps
    assert max(sources(program.data, "re")) == count
