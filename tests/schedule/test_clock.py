"""The clock of runtimes, by hand: two GPUs, and every cost of the profile of MSCCL++ where it occurs."""

from dataclasses import replace

import numpy as np
import pytest

from flowccl.demand.demand import Chunk, Demand
from flowccl.runtimes.execution import Execution
from flowccl.runtimes.profiles import PROFILES
from flowccl.schedule.generation.engine import Engine
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Link, Node, Topology
from flowccl.verifier.verify import verify

MSCCLPP = PROFILES["mscclpp"]
US = 1_000_000  # picoseconds


def pair(GBps: float, latency_us: float, *, hosts: int = 1) -> Topology:
    """Two GPUs with a link in each direction, in one host or in two."""
    nodes = tuple(Node(name=f"gpu{i}", host=f"host{i % hosts}") for i in range(2))
    links = tuple(Link(src=i, dst=1 - i, bandwidth_GBps=GBps, latency_us=latency_us) for i in range(2))
    return Topology("pair", nodes, links)


def sent(topology: Topology, *sizes: int, execution: Execution, reduce: bool = False) -> Schedule:
    """GPU 0 sends chunks of these sizes to GPU 1, each in a message of its own; or GPU 1 reduces them."""
    chunks = [Chunk(bytes=size, sources=(0, 1) if reduce else (0,), destinations=(1,)) for size in sizes]
    demand = Demand.from_chunks("custom", 2, chunks)
    rows = [(chunk, [0], chunk * 1000 * US, reduce) for chunk in range(len(sizes))]
    timed = Engine(Schedule.from_transfers(topology, demand, rows), execution).run()
    assert timed is not None
    assert verify(timed) == []
    return timed


@pytest.mark.parametrize(
    ("width", "flow_us"),
    [
        (1, 10.0),  # 341,000 B at the 34.1 GB/s of a threadblock
        (2, 5.0),  # at the 68.2 GB/s of two
        (4, 3.41),  # four would move 136.4 GB/s, but the link has 100 GB/s
    ],
)
def test_two_gpus_and_one_link(width: int, flow_us: float):
    """0.6 us overhead, the bytes, 0.7 us latency, 0.5 us signal."""
    timed = sent(pair(100, 0.7), 341_000, execution=Execution(MSCCLPP, 8, width))
    assert timed.finish_us == pytest.approx(0.6 + flow_us + 0.7 + 0.5, abs=1e-6)


def test_packets_carry_half_and_need_no_signal():
    """193,000 B at 19.3 GB/s are 10 us; they are read at 20.1 GB/s: 9.60199 us. 0.6 + 10 + 0.7 + 9.60199 us."""
    timed = sent(pair(100, 0.7), 193_000, execution=Execution(MSCCLPP, 1, protocol="LL"))
    assert timed.finish_us == pytest.approx(20.901991, abs=2e-6)
    assert timed.costs is not None
    assert timed.costs.wire_bytes.tolist() == [386_000]


def test_packets_on_a_slow_link():
    """A link of 10 GB/s carries 5 GB/s of data as packets: 50,000 B take 10 us, and 2.487563 us to be read."""
    timed = sent(pair(10, 0.7), 50_000, execution=Execution(MSCCLPP, 1, protocol="LL"))
    assert timed.finish_us == pytest.approx(0.6 + 10 + 0.7 + 2.487563, abs=2e-6)


def test_a_reduction_occupies_a_group_of_the_receiver():
    """248,000 B are reduced at 24.8 GB/s: 10 us after 0.6 + 2.48 + 0.7 + 0.5 us on a link of 100 GB/s with width 4 ...

    Four threadblocks reduce at 99.2 GB/s: 2.5 us.
    """
    timed = sent(pair(100, 0.7), 248_000, execution=Execution(MSCCLPP, 4, 4), reduce=True)
    assert timed.finish_us == pytest.approx(0.6 + 2.48 + 0.7 + 0.5 + 2.5, abs=1e-5)
    assert timed.receiver.tolist() == [0]


def test_one_group_carries_one_message_after_the_other():
    """A link of 200 GB/s has space for both, but the only threadblock has not: 0.6 + 10 us each, then 0.7 + 0.5 us."""
    timed = sent(pair(200, 0.7), 341_000, 341_000, execution=Execution(MSCCLPP, 1))
    assert timed.finish_us == pytest.approx(2 * 10.6 + 1.2, abs=1e-6)
    both = sent(pair(200, 0.7), 341_000, 341_000, execution=Execution(MSCCLPP, 2))
    assert both.finish_us == pytest.approx(10.6 + 1.2, abs=1e-6)
    assert sorted(both.issuer.tolist()) == [0, 1]


def test_the_proxy_posts_messages_one_after_the_other():
    """5,000 B at 50 GB/s are 0.1 us. The second is posted from 2 to 4 us: 4 + 0.1 + 1.3 latency + 0.35 us signal."""
    timed = sent(pair(50, 1.3, hosts=2), 5_000, 5_000, execution=Execution(MSCCLPP, 2, posters=1))
    assert timed.start_ps.tolist() == [0, 2 * US]
    assert timed.issuer.tolist() == [-1, -1]
    assert timed.finish_us == pytest.approx(5.75, abs=1e-6)


def test_the_proxy_posts_while_the_message_before_is_on_the_wire():
    """500,000 B are 10 us: the first flows from 2 to 12 us, the second, posted from 10 us on, from 12 to 22 us."""
    timed = sent(pair(50, 1.3, hosts=2), 500_000, 500_000, execution=Execution(MSCCLPP, 2, posters=1))
    assert timed.start_ps.tolist() == [0, 10 * US]
    assert timed.finish_us == pytest.approx(22 + 1.65, abs=1e-6)


@pytest.mark.parametrize(("model", "proxy_us"), [("A100", 3.6), ("H200", 2.0), ("MI300X", 1.1)])
def test_the_proxy_depends_on_the_gpu(model: str, proxy_us: float):
    machine = pair(50, 1.3, hosts=2)
    machine = replace(machine, nodes=tuple(replace(node, model=model) for node in machine.nodes))
    timed = sent(machine, 5_000, execution=Execution(MSCCLPP, 2, posters=1))
    assert timed.finish_us == pytest.approx(proxy_us + 0.1 + 1.3 + 0.35, abs=1e-6)


def test_verify_finds_two_messages_in_one_group_and_in_one_proxy():
    group = sent(pair(200, 0.7), 341_000, 341_000, execution=Execution(MSCCLPP, 2))
    clash = verify(replace(group, issuer=np.zeros(2, dtype=np.int32)))
    assert [violation.kind for violation in clash] == ["threadblocks"]
    assert clash[0].message == ("group 0 of gpu0 works on transfer 0 until 10.6 us, but transfer 1 begins at 0 us")
    proxy = sent(pair(50, 1.3, hosts=2), 5_000, 5_000, execution=Execution(MSCCLPP, 2, posters=1))
    clash = verify(replace(proxy, start_ps=np.array([0, US])))
    assert [violation.message for violation in clash] == [
        "the proxy of gpu0 works on transfer 0 until 2 us, but transfer 1 begins at 1 us"
    ]


# -- several messages in one reduction ---------------------------------------------------------------------------------


def star(peers: int) -> Topology:
    """GPUs with a link of their own to GPU 0, which has a link back to the first of them."""
    nodes = tuple(Node(name=f"gpu{i}") for i in range(peers + 1))
    links = tuple(Link(src=i, dst=0, bandwidth_GBps=100, latency_us=0.7) for i in range(1, peers + 1))
    return Topology("star", nodes, (*links, Link(src=0, dst=1, bandwidth_GBps=100, latency_us=0.7)))


def reduced(peers: int, protocol: str = "Simple") -> Schedule:
    """GPU 0 reduces a chunk of all GPUs, which send it at the same time."""
    ranks = tuple(range(peers + 1))
    demand = Demand.from_chunks("custom", peers + 1, [Chunk(bytes=248_000, sources=ranks, destinations=(0,))])
    rows = [(0, [peer], 0, True) for peer in range(peers)]
    execution = Execution(MSCCLPP, 16, protocol=protocol)
    timed = Engine(Schedule.from_transfers(star(peers), demand, rows), execution).run()
    assert timed is not None
    return timed


def test_what_is_there_is_reduced_in_one_operation():
    """Three arrivals: 4 chunks are read and one is written, where a reduction of one arrival moves 3 in 10 us."""
    timed = reduced(3)
    assert verify(timed) == []
    assert len(set(timed.work_from_ps.tolist())) == len(set(timed.receiver.tolist())) == 1
    assert timed.finish_us == pytest.approx(0.6 + 248 / 34.1 + 1.2 + 10 * 1.98, abs=1e-5)


def test_packets_are_reduced_in_one_operation():
    """Three arrivals of packets: two more than one, each with two of the three chunks that are moved for one."""
    timed = reduced(3, protocol="LL")
    assert verify(timed) == []
    assert timed.finish_us == pytest.approx(0.6 + 248 / 19.3 + 0.7 + 248 / 20.1 * (1 + 2 * 2 / 3), abs=1e-5)


def test_one_operation_reduces_at_most_nine_messages():
    timed = reduced(10)
    assert verify(timed) == []
    _, count = np.unique(timed.work_from_ps, return_counts=True)
    assert sorted(count.tolist()) == [1, 9]
    same = replace(timed, work_from_ps=np.full(10, timed.work_from_ps.max()))
    assert "gpu0 reduces 10 transfers into chunk 0 at once, mscclpp at most 9" in str(verify(same)[0])


def test_verify_finds_what_is_reduced_before_it_is_there():
    timed = reduced(3)
    early = replace(timed, work_from_ps=timed.work_from_ps - US)
    assert {violation.kind for violation in verify(early)} == {"threadblocks", "reduce"}


def test_verify_finds_two_operations_at_the_same_time():
    """Messages of the same time and group are one operation only if they are reduced into the same chunk."""
    demand = Demand.from_chunks("custom", 3, [Chunk(bytes=248_000, sources=(0, k), destinations=(0,)) for k in (1, 2)])
    rows = [(chunk, [chunk], 0, True) for chunk in range(2)]
    timed = Engine(Schedule.from_transfers(star(2), demand, rows), Execution(MSCCLPP, 16)).run()
    assert timed is not None
    assert len(set(timed.receiver.tolist())) == 2
    wrong = replace(timed, receiver=np.zeros(2, dtype=np.int32))
    assert [violation.kind for violation in verify(wrong)] == ["threadblocks"]
