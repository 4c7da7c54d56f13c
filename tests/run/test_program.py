"""Messages between processes: no order of processes deadlocks, and results are those of the reference."""

import queue
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from flowccl.demand.collectives import collective
from flowccl.errors import InputError, NothingFoundError
from flowccl.run.element_layout import make_layout
from flowccl.run.program import MessageProgram, make_program
from flowccl.run.rank_program import BatchCarrier, rank_program
from flowccl.run.reference import execute
from flowccl.run.values import Inputs, find_dtype
from flowccl.schedule.schedule import Schedule
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine
from flowccl.topology.topology import Link, Node, Topology
from tests.strategies import topologies


def run_in_threads(program: MessageProgram, count: int) -> None:
    """Run every process as a thread; all must complete with the outputs of the reference."""
    layout = make_layout(program.schedule.demand, count)
    inputs = Inputs(layout, find_dtype("float32"))
    ranks = program.schedule.demand.num_gpus
    given = [inputs.of(rank).astype(np.float32) for rank in range(ranks)]
    outputs = [np.full(size, -1, dtype=np.float32) for size in layout.output_count]
    boxes: dict[tuple[int, int, int], queue.Queue[Any]] = {
        (m.src_process, m.dst_process, m.tag): queue.Queue() for m in program.messages
    }
    none = np.zeros(0, dtype=np.float32)
    failed: list[BaseException] = []

    def run(process: int) -> None:
        def exchange(sends: Any, receives: Any) -> None:
            for peer, tag, array in sends:
                boxes[process, peer, tag].put(array.copy())
            for peer, tag, array in receives:
                array[:] = boxes[peer, process, tag].get(timeout=20)

        buffers = (given[process], outputs[process]) if process < ranks else (none, none)
        try:
            carrier = BatchCarrier(exchange)
            rank_program(program, layout, process).run(*buffers, carrier, 0, lambda n: np.empty(n, dtype=np.float32))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(process,)) for process in range(program.processes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    for mine, wanted in zip(outputs, execute(program.schedule, given, count), strict=True):
        assert np.array_equal(mine, wanted)
    for rank in range(ranks):
        assert np.array_equal(outputs[rank], inputs.expected(rank).astype(np.float32))


@pytest.mark.parametrize("name", ["allgather", "allreduce", "reduce_scatter", "alltoall", "broadcast"])
@pytest.mark.parametrize("count", [1, 100])
def test_processes_match_the_definition(name: str, count: int) -> None:
    run_in_threads(
        make_program(synthesize(machine("ndv2:2"), name, 1_000_000, chunks=2, steps=1, method="greedy").schedule), count
    )


@given(data=st.data())
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_machines_with_switches_and_memories(data: st.DataObject) -> None:
    topology = data.draw(topologies(max_gpus=5))
    name = data.draw(st.sampled_from(["allgather", "alltoall", "reduce", "reduce_scatter", "allreduce"]))
    try:
        chunks = data.draw(st.integers(1, 2))
        schedule = synthesize(topology, name, 10_000, chunks=chunks, method="greedy", steps=1).schedule
    except NothingFoundError:
        reject()
    processes = schedule.demand.num_gpus + data.draw(st.integers(0, 2))
    run_in_threads(make_program(schedule, processes), data.draw(st.integers(1, 30)))


def test_both_ends_list_the_messages_of_a_pair_in_the_same_order() -> None:
    """NCCL ignores tags and matches the messages of a batch by order."""
    program = make_program(
        synthesize(machine("dgx1"), "allreduce", 1_000_000, chunks=2, steps=2, method="greedy").schedule
    )
    sent: dict[tuple[int, int], list[tuple[int, int]]] = {}
    got: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for levels in program.levels:
        for level in levels:
            for m in (step for step in level.steps if hasattr(step, "tag")):
                sent.setdefault((m.src, m.dst), []).append((m.level, m.tag))
            for m in level.receives:
                got.setdefault((m.src, m.dst), []).append((m.level, m.tag))
    assert sent == got


def memory_schedule() -> Schedule:
    nodes = (Node(name="gpu0"), Node(name="gpu1"), Node(name="memory0", kind="memory"))
    links = (Link(src=0, dst=2, bandwidth_GBps=1), Link(src=2, dst=1, bandwidth_GBps=1))
    demand = collective("broadcast", 2, 1000)
    return Schedule.from_transfers(Topology("pair", nodes, links), demand, [(0, [0], 0), (0, [1], 10**9)])


def test_a_memory_is_simulated_by_a_rank_or_an_additional_process() -> None:
    program = make_program(memory_schedule())
    assert program.describe_stand_ins() == ["memory0 is simulated by rank 0"]
    run_in_threads(program, 5)
    spare = make_program(memory_schedule(), 3)
    assert spare.describe_stand_ins() == ["memory0 is simulated by rank 2"]
    run_in_threads(spare, 5)


def test_too_few_processes_are_refused() -> None:
    with pytest.raises(InputError, match="the schedule is for 2 ranks, but there are 1 processes"):
        make_program(memory_schedule(), 1)
