"""How a runtime carries out a schedule: the width of the groups of threadblocks."""

from flowccl.demand.collectives import collective
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.runtimes.profiles import PROFILES
from flowccl.schedule.generation.carrying import Carrier, carried_out
from flowccl.search.context import SearchContext
from flowccl.topology.machines import machine
from flowccl.topology.topology import Link, Node, Topology


def width_of(block_bytes: int, sms: int = 16) -> int:
    """The width of an allgather between two GPUs with links of 100 GB/s, which three threadblocks of 34.1 fill."""
    nodes = tuple(Node(name=f"gpu{i}") for i in range(2))
    pair = Topology("pair", nodes, tuple(Link(src=i, dst=1 - i, bandwidth_GBps=100) for i in range(2)))
    problem = Problem(pair, collective("allgather", 2, 2 * block_bytes))
    schedule = next(filter(None, load_method("direct")(problem, SearchContext.with_limit(60.0))))
    execution = carried_out(schedule, PROFILES["mscclpp"], sms).execution
    assert execution is not None
    return execution.width


def test_groups_are_as_wide_as_the_units_of_16_bytes_allow():
    assert width_of(16 << 12) == 4
    assert width_of(16 * 15_625) == 5
    assert width_of(16 * 3**8) == 3
    assert width_of(16 * 3_907) == 1  # a prime number
    assert width_of(16 * 15_625, sms=4) == 1
    assert width_of(16 * 103, sms=132) == 1  # 103 threadblocks, of which each moves 16 bytes, are no wide group


def test_a_schedule_with_more_messages_gets_narrower_groups_than_the_one_before():
    """Groups that are as wide as the best ones so far have too few threadblocks for the messages of this one."""
    known: dict = {}
    for name, width in (("full:2:bandwidth=100", 4), ("full:32:bandwidth=100", 1)):
        topology = machine(name)
        problem = Problem(topology, collective("allgather", topology.num_gpus, 64 << 20))
        schedule = next(filter(None, load_method("direct")(problem, SearchContext.with_limit(60.0))))
        found = Carrier(PROFILES["mscclpp"], topology, sms=4, known=known)(schedule)
        assert found is not None
        assert found.execution is not None
        assert found.execution.width == width
        known = {key: variant for key, variant in known.items() if key == ("", 0)}  # as if it were another method


def test_the_same_schedule_is_carried_out_with_each_number_of_threadblocks():
    topology = machine("full:4:bandwidth=100")
    problem = Problem(topology, collective("allgather", 4, 4 << 20))
    schedule = next(filter(None, load_method("direct")(problem, SearchContext.with_limit(60.0))))
    for sms in (64, 4, 16):
        execution = carried_out(schedule, PROFILES["mscclpp"], sms).execution
        assert execution is not None
        assert execution.sms == sms
