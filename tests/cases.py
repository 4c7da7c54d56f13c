"""Small problems whose best schedule is known by pencil. Every method meets them.

Unless a case says otherwise, links have 10 GB/s and 0.5 us, so that 10 KB take 1 us to send. `best_us` is the finish of
the best schedule with the chunks as given; `floor_us` what no schedule beats with any chunking, where `lower_bound`
must find it. `greedy_us` is what greedy reaches where that is not the best, and "nothing" where it finds none.
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
    """A machine, a demand, and the numbers by pencil."""

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
    """A demand of chunks (bytes, source, destinations)."""
    rows = [Chunk(bytes=size, sources=(src,), destinations=wanted) for size, src, wanted in chunks]
    return Demand.from_chunks("custom", gpus, rows)


def two_gpus() -> Case:
    machine = Topology("two", tuple(gpus(2)), (link(0, 1), link(1, 0)))
    return Case(
        "two GPUs and one link", machine, collective("broadcast", 2, 10 * KB), 1.5, "1 us to send, 0.5 us away", 1.5
    )


def line_of_three(chunks: int) -> Case:
    """Thesis figure 2.1: the last chunk leaves the second GPU when the first link is done."""
    return Case(
        f"line of three, {chunks} chunks",
        line(3, bandwidth_GBps=10, latency_us=0.5),
        collective("broadcast", 3, 40 * KB, chunks),
        (chunks + 1) * 4 / chunks + 1,
        "(k + 1) x z / k / b, and two latencies",
        5.0,
    )


def ring_of_four(chunks: int) -> Case:
    return Case(
        f"ring of four, {chunks} chunks",
        ring(4, bandwidth_GBps=10, latency_us=0.5),
        collective("allgather", 4, 40 * KB, chunks),
        {1: 3.0, 2: 2.0}[chunks],
        "the opposite block comes over two hops; cut in two it comes from both sides, and 30 KB over two links is best",
        2.0,
    )


LATE_COPIES_US = 2.666667
"""What leaves gpu0 up to T - 2 us others can still pass on; the rest it must send three times, up to T - 1 us:
10 KB = a + b, a <= 10 GB/s (T - 2 us), a + 3 b <= 10 GB/s (T - 1 us), so T is at least 8/3 us. A sum is the reverse."""


def star_of_four(copies: bool) -> Case:
    return Case(
        f"star through a {'multicast' if copies else 'plain'} switch",
        star(4, bandwidth_GBps=10, latency_us=0.5, copies=copies),
        collective("broadcast", 4, 10 * KB),
        2.0 if copies else 4.0,
        "all at once" if copies else "one after the other; who has it from 2 us on is no faster than the third send",
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
        "cut-through: the slowest link, 2 us, and 1 us of latency; store-and-forward: 1 us and then 2 us",
        3.0,
    )


def two_switches(crossing: str, best_us: float) -> Case:
    switches = [Node(name=f"switch{i}", kind="switch", crossing=crossing) for i in range(2)]
    machine = Topology("hops", (*gpus(2), *switches), (link(0, 2), link(2, 3, GBps=5), link(3, 1)))
    why = "three latencies, and the slowest of three links or all of them in turn"
    return Case(f"two {crossing} switches in a row", machine, send((10 * KB, 0, (1,)), gpus=2), best_us, why, 3.5)


def shared_limit(GBps: float, best_us: float, bound_us: float) -> Case:
    limits = (Limit(name="shared", links=(0, 1), bandwidth_GBps=GBps),)
    machine = Topology("shared", tuple(gpus(3)), (link(0, 2), link(1, 2)), limits)
    return Case(
        f"a limit of {GBps:g} over two links of 10",
        machine,
        send((10 * KB, 0, (2,)), (10 * KB, 1, (2,)), gpus=3),
        best_us,
        "a transfer runs at full speed or waits, so two fit side by side only in 20",
        bound_us,
    )


def limit_on_one_route() -> Case:
    nodes = (*gpus(2), Node(name="switch", kind="switch"))
    limits = (Limit(name="both", links=(0, 1), bandwidth_GBps=10),)
    machine = Topology("both", nodes, (link(0, 2), link(2, 1)), limits)
    why = "both links at once share the limit: 5 GB/s, 2 us, and 1 us of latency"
    return Case("one route that meets a limit twice", machine, send((10 * KB, 0, (1,)), gpus=2), 3.0, why)


def memory_star(count: int, limit_GBps: float | None = None) -> Topology:
    """GPUs that only a host memory joins."""
    nodes = (*gpus(count), Node(name="memory", kind="memory"))
    links = [link(a, b) for i in range(count) for a, b in ((i, count), (count, i))]
    limits = (
        [] if limit_GBps is None else [Limit(name="memory", links=tuple(range(2 * count)), bandwidth_GBps=limit_GBps)]
    )
    return Topology("memory star", nodes, tuple(links), tuple(limits))


def memory_used() -> Case:
    """Thesis figure 2.2: two steps, not the four of a memory that nobody sees."""
    why = "one write, then all read at once: twice 1.5 us"
    return Case("memory that copies", memory_star(3), collective("broadcast", 3, 10 * KB), 3.0, why, 2.0)


def memory_bandwidth(GBps: float, best_us: float) -> Case:
    """Thesis figure 2.3, with the memory as a memory: x = 10 on each link, y over all of them."""
    why = "one write, then three reads, as many at a time as the memory bandwidth allows"
    demand = collective("broadcast", 4, 10 * KB)
    return Case(f"memory bandwidth of {GBps:g}", memory_star(4, GBps), demand, best_us, why)


def memory_not_mandatory() -> Case:
    """Thesis figure 2.7: the memory is there, and nobody needs it."""
    nodes = (*gpus(2), Node(name="memory", kind="memory"))
    ports = (Limit(name="ports of gpu0", links=(0, 1), bandwidth_GBps=10),)
    machine = Topology("not mandatory", nodes, (link(0, 1), link(0, 2), link(2, 1)), ports)
    why = "straight to gpu1; half of the port to the memory would take twice as long"
    return Case("memory that nobody needs", machine, collective("broadcast", 2, 10 * KB), 1.5, why, 1.5)


def slower_later() -> Case:
    machine = Topology("slower", tuple(gpus(2)), (link(0, 1, latency_us=0, changes=((0.5, 5.0),)),))
    why = "10 GB/s until 0.5 us, then 5: within a hold the slowest counts, so 2 us"
    return Case("bandwidth that falls", machine, send((10 * KB, 0, (1,)), gpus=2), 2.0, why, 1.0)


def faster_later() -> Case:
    machine = Topology("faster", tuple(gpus(2)), (link(0, 1, GBps=5, latency_us=0, changes=((0.5, 10.0),)),))
    why = "to wait 0.5 us for 10 GB/s is better than to start at once with 5; greedy never waits"
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
    why = "a chunk takes room from its first byte in to its last byte out"
    return Case(f"relay with room for {buffer_bytes} bytes", machine, demand, best_us, why, 2.0, greedy_us)


def reduce_on_a_line() -> Case:
    machine = line(3, bandwidth_GBps=10, latency_us=0.5)
    return Case(
        "reduce on a line of three", machine, collective("reduce", 3, 10 * KB), 3.0, "a broadcast, backwards", 2.0
    )


def reduce_in_a_switch(reduces: bool) -> Case:
    return Case(
        f"reduce through a switch that {'adds' if reduces else 'only forwards'}",
        star(4, bandwidth_GBps=10, latency_us=0.5, reduces=reduces),
        collective("reduce", 4, 10 * KB),
        2.0 if reduces else 4.0,
        "all at once" if reduces else "one after the other into gpu0",
        2.0 if reduces else LATE_COPIES_US,
    )


def allreduce_of_two() -> Case:
    machine = line(2, bandwidth_GBps=10, latency_us=0.5)
    why = "each adds up half, 1 us, and sends it back, 1 us"
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
