"""Small problems with known optimal schedules, used to test every method.

Unless a case says otherwise, links have 10 GB/s and 0.5 us, so sending 10 KB takes 1 us. `best_us` is the optimal
completion time for the given chunks. `bound_us` is the lower bound for any number of chunks, if `lower_bound` must find
it. `greedy_us` is the completion time of greedy if it is not optimal, or "nothing" if greedy finds no schedule.
"""

from dataclasses import dataclass
from typing import Literal

from flowccl.demand.collectives import collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.topology.builders import line, ring, star
from flowccl.topology.topology import Limit, Link, Node, Topology

KB = 1000


@dataclass(frozen=True)
class Case:
    """A machine, a demand, and the expected completion times."""

    name: str
    topology: Topology
    demand: Demand
    best_us: float
    why: str
    bound_us: float | None = None
    greedy_us: float | Literal["nothing"] | None = None

    def __str__(self) -> str:
        return self.name


def gpus(count: int, **fields: object) -> list[Node]:
    return [Node(name=f"gpu{i}", **fields) for i in range(count)]


def link(src: int, dst: int, GBps: float = 10, latency_us: float = 0.5, changes: tuple = ()) -> Link:
    return Link(src=src, dst=dst, bandwidth_GBps=GBps, latency_us=latency_us, changes=changes)


def send(*chunks: tuple[int, int, tuple[int, ...]], gpus: int) -> Demand:
    """Return a demand with chunks (bytes, source, destinations)."""
    rows = [Chunk(bytes=size, sources=(src,), destinations=wanted) for size, src, wanted in chunks]
    return Demand.from_chunks("custom", gpus, rows)


def two_gpus() -> Case:
    machine = Topology("two", tuple(gpus(2)), (link(0, 1), link(1, 0)))
    return Case(
        "two GPUs and one link", machine, collective("broadcast", 2, 10 * KB), 1.5, "1 us to send, 0.5 us latency", 1.5
    )


def line_of_three(chunks: int) -> Case:
    """Thesis figure 2.1: the second GPU starts to send the last chunk when the first link has sent it."""
    return Case(
        f"line of three, {chunks} chunks",
        line(3, bandwidth_GBps=10, latency_us=0.5),
        collective("broadcast", 3, 40 * KB, chunks),
        (chunks + 1) * 4 / chunks + 1,
        "(k + 1) x z / k / b plus two latencies",
        5.0,
    )


def ring_of_four(chunks: int) -> Case:
    return Case(
        f"ring of four, {chunks} chunks",
        ring(4, bandwidth_GBps=10, latency_us=0.5),
        collective("allgather", 4, 40 * KB, chunks),
        {1: 3.0, 2: 2.0}[chunks],
        "the opposite block takes two hops; two chunks of it use both sides, and 30 KB over two links is optimal",
        2.0,
    )


LATE_COPIES_US = 2.666667
"""The data a that leaves gpu0 until T - 2 us can be forwarded; gpu0 must send the rest b three times until T - 1 us:
10 KB = a + b, a <= 10 GB/s (T - 2 us), a + 3 b <= 10 GB/s (T - 1 us), so T >= 8/3 us. A reduction is the reverse."""


def star_of_four(copies: bool) -> Case:
    return Case(
        f"star through a {'multicast' if copies else 'plain'} switch",
        star(4, bandwidth_GBps=10, latency_us=0.5, copies=copies),
        collective("broadcast", 4, 10 * KB),
        2.0 if copies else 4.0,
        "all in parallel"
        if copies
        else "one after the other; a GPU that forwards from 2 us on is not faster than the third send",
        2.0 if copies else LATE_COPIES_US,
    )


def through_a_switch(crossing: str, chunks: int, best_us: float) -> Case:
    nodes = (*gpus(2), Node(name="switch", kind="switch", crossing=crossing))
    machine = Topology(crossing, nodes, (link(0, 2), link(2, 1, GBps=5)))
    rows = [(10 * KB // chunks, 0, (1,))] * chunks
    return Case(
        f"{crossing} switch, {chunks} chunks",
        machine,
        send(*rows, gpus=2),
        best_us,
        "cut-through: 2 us on the slowest link plus 1 us of latency; store-and-forward: 1 us and then 2 us",
        3.0,
    )


def two_switches(crossing: str, best_us: float) -> Case:
    switches = [Node(name=f"switch{i}", kind="switch", crossing=crossing) for i in range(2)]
    machine = Topology("hops", (*gpus(2), *switches), (link(0, 2), link(2, 3, GBps=5), link(3, 1)))
    why = "three latencies, plus the slowest of three links or all three in sequence"
    return Case(f"two {crossing} switches in a row", machine, send((10 * KB, 0, (1,)), gpus=2), best_us, why, 3.5)


def shared_limit(GBps: float, best_us: float, bound_us: float) -> Case:
    limits = (Limit(name="shared", links=(0, 1), bandwidth_GBps=GBps),)
    machine = Topology("shared", tuple(gpus(3)), (link(0, 2), link(1, 2)), limits)
    return Case(
        f"a limit of {GBps:g} over two links of 10",
        machine,
        send((10 * KB, 0, (2,)), (10 * KB, 1, (2,)), gpus=3),
        best_us,
        "a transfer runs at full speed or waits, so two run in parallel only with a limit of 20",
        bound_us,
    )


def limit_on_one_route() -> Case:
    nodes = (*gpus(2), Node(name="switch", kind="switch"))
    limits = (Limit(name="both", links=(0, 1), bandwidth_GBps=10),)
    machine = Topology("both", nodes, (link(0, 2), link(2, 1)), limits)
    why = "both links share the limit: 2 us at 5 GB/s, plus 1 us of latency"
    return Case("one route that meets a limit twice", machine, send((10 * KB, 0, (1,)), gpus=2), 3.0, why)


def memory_star(count: int, limit_GBps: float | None = None) -> Topology:
    """Return GPUs that are connected only through a host memory."""
    nodes = (*gpus(count), Node(name="memory", kind="memory"))
    links = [link(a, b) for i in range(count) for a, b in ((i, count), (count, i))]
    limits = (
        [] if limit_GBps is None else [Limit(name="memory", links=tuple(range(2 * count)), bandwidth_GBps=limit_GBps)]
    )
    return Topology("memory star", nodes, tuple(links), tuple(limits))


def memory_used() -> Case:
    """Thesis figure 2.2: two steps, instead of four if the memory is not modelled."""
    why = "one write, then parallel reads: twice 1.5 us"
    return Case("memory that copies", memory_star(3), collective("broadcast", 3, 10 * KB), 3.0, why, 2.0)


def memory_bandwidth(GBps: float, best_us: float) -> Case:
    """Thesis figure 2.3, with the memory as a node: x = 10 on each link, y over all links."""
    why = "one write, then three reads, as many in parallel as the memory bandwidth allows"
    demand = collective("broadcast", 4, 10 * KB)
    return Case(f"memory bandwidth of {GBps:g}", memory_star(4, GBps), demand, best_us, why)


def memory_not_mandatory() -> Case:
    """Thesis figure 2.7: there is a memory, but the optimal schedule does not use it."""
    nodes = (*gpus(2), Node(name="memory", kind="memory"))
    ports = (Limit(name="ports of gpu0", links=(0, 1), bandwidth_GBps=10),)
    machine = Topology("not mandatory", nodes, (link(0, 1), link(0, 2), link(2, 1)), ports)
    why = "directly to gpu1; sending half through the memory would take twice as long"
    return Case("memory that is not needed", machine, collective("broadcast", 2, 10 * KB), 1.5, why, 1.5)


def slower_later() -> Case:
    machine = Topology("slower", tuple(gpus(2)), (link(0, 1, latency_us=0, changes=((0.5, 5.0),)),))
    why = "10 GB/s until 0.5 us, then 5: a transfer runs at the lowest rate of its busy time, so 2 us"
    return Case("bandwidth that falls", machine, send((10 * KB, 0, (1,)), gpus=2), 2.0, why, 1.0)


def faster_later() -> Case:
    machine = Topology("faster", tuple(gpus(2)), (link(0, 1, GBps=5, latency_us=0, changes=((0.5, 10.0),)),))
    why = "waiting 0.5 us for 10 GB/s is better than starting immediately with 5; greedy never waits"
    return Case("bandwidth that rises", machine, send((10 * KB, 0, (1,)), gpus=2), 1.5, why, 1.0, greedy_us=2.0)


def dip() -> Case:
    changes = ((1.0, 1.0), (2.0, 10.0))
    machine = Topology("dip", tuple(gpus(2)), (link(0, 1, latency_us=0, changes=changes),))
    why = "one chunk before the dip to 1 GB/s, one after it; greedy starts the second in the dip"
    demand = send((10 * KB, 0, (1,)), (10 * KB, 0, (1,)), gpus=2)
    return Case("bandwidth that dips", machine, demand, 3.0, why, 2.0, greedy_us=11.0)


def relay(buffer_bytes: int, best_us: float, greedy_us: float | Literal["nothing"] | None = None) -> Case:
    nodes = gpus(3)
    nodes[1] = Node(name="gpu1", buffer_bytes=buffer_bytes)
    machine = Topology("relay", tuple(nodes), (link(0, 1, latency_us=0), link(1, 2, latency_us=0)))
    demand = send((10 * KB, 0, (2,)), (10 * KB, 0, (2,)), gpus=3)
    why = "a chunk occupies the buffer from its first byte in to its last byte out"
    return Case(f"relay with a buffer of {buffer_bytes} bytes", machine, demand, best_us, why, 2.0, greedy_us)


def reduce_on_a_line() -> Case:
    machine = line(3, bandwidth_GBps=10, latency_us=0.5)
    return Case(
        "reduce on a line of three", machine, collective("reduce", 3, 10 * KB), 3.0, "a reversed broadcast", 2.0
    )


def reduce_in_a_switch(reduces: bool) -> Case:
    return Case(
        f"reduce through a switch that {'reduces' if reduces else 'only forwards'}",
        star(4, bandwidth_GBps=10, latency_us=0.5, reduces=reduces),
        collective("reduce", 4, 10 * KB),
        2.0 if reduces else 4.0,
        "all in parallel" if reduces else "one after the other into gpu0",
        2.0 if reduces else LATE_COPIES_US,
    )


def allreduce_of_two() -> Case:
    machine = line(2, bandwidth_GBps=10, latency_us=0.5)
    why = "each GPU reduces half, 1 us, and sends it back, 1 us"
    return Case("allreduce of two GPUs", machine, collective("allreduce", 2, 10 * KB), 2.0, why)


CASES = [
    two_gpus(),
    *(line_of_three(chunks) for chunks in (1, 2, 4)),
    *(ring_of_four(chunks) for chunks in (1, 2)),
    star_of_four(copies=False),
    star_of_four(copies=True),
    through_a_switch("cut-through", 1, 3.0),
    through_a_switch("cut-through", 2, 3.0),
    through_a_switch("store-and-forward", 1, 4.0),
    through_a_switch("store-and-forward", 2, 3.5),
    two_switches("cut-through", 3.5),
    two_switches("store-and-forward", 5.5),
    shared_limit(10, 2.5, 2.5),
    shared_limit(15, 2.5, 1.833334),
    shared_limit(20, 1.5, 1.5),
    limit_on_one_route(),
    memory_used(),
    memory_bandwidth(20, 4.0),
    memory_bandwidth(30, 3.0),
    memory_not_mandatory(),
    slower_later(),
    faster_later(),
    dip(),
    relay(20 * KB, 3.0),
    relay(10 * KB, 4.0, greedy_us="nothing"),
    reduce_on_a_line(),
    reduce_in_a_switch(False),
    reduce_in_a_switch(True),
    allreduce_of_two(),
]
