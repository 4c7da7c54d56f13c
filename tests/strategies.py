"""Hypothesis strategies for machines and demands, shared by all tests."""

from hypothesis import strategies as st

from flowccl.demand.collectives import collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.topology.topology import Limit, Link, Node, Topology

bandwidths = st.sampled_from((5.0, 12.5, 25.0, 50.0, 100.0)) | st.floats(0.1, 1000.0)
latencies = st.sampled_from((0.0, 0.35, 0.7, 1.3)) | st.floats(0.0, 10.0)

SWITCHES = (  # plain, multicast, multicast that also reduces, store-and-forward with and without copies
    {},
    {"copies": True},
    {"copies": True, "reduces": True},
    {"crossing": "store-and-forward"},
    {"crossing": "store-and-forward", "copies": True},
)


@st.composite
def topologies(
    draw: st.DrawFn,
    *,
    min_gpus: int = 2,
    max_gpus: int = 6,
    max_switches: int = 3,
    memory: bool = True,
    limits: bool = True,
    changes: bool = True,
    buffers: bool = False,
    overheads: bool = False,
) -> Topology:
    """A small random machine in which every GPU can reach every other GPU.

    It may have parallel links, links between any two nodes, dead ends and isolated nodes. Arguments that are False
    disable a feature. Buffers are disabled by default because a small buffer may make a demand impossible.
    """
    nodes = _nodes(draw, draw(st.integers(min_gpus, max_gpus)), draw(st.integers(0, max_switches)), memory, buffers)
    change = _changes() if changes else st.just(())
    overhead = latencies if overheads and draw(st.booleans()) else st.just(0.0)
    links = [
        Link(
            src=a,
            dst=b,
            bandwidth_GBps=draw(bandwidths),
            latency_us=draw(latencies),
            changes=draw(change),
            overhead_us=draw(overhead),
        )
        for a, b in draw(st.permutations(_pairs(draw, nodes)))
    ]
    shared = _limits(draw, len(links)) if limits else []
    return Topology("random", tuple(nodes), tuple(links), tuple(shared))


def _nodes(draw: st.DrawFn, gpus: int, switches: int, memory: bool, buffers: bool) -> list[Node]:
    hosts = draw(st.sampled_from((0, 1, 2)))
    buffer = st.none() | st.integers(0, 10**9) if buffers else st.none()

    def host(position: int) -> str:
        return f"host{position % hosts}" if hosts else ""

    nodes = [Node(name=f"gpu{i}", host=host(i), buffer_bytes=draw(buffer)) for i in range(gpus)]
    for i in range(switches):
        nodes.append(Node(name=f"switch{i}", kind="switch", host=host(i), **draw(st.sampled_from(SWITCHES))))
    if memory and draw(st.booleans()):
        nodes.append(Node(name="memory0", kind="memory", host=host(0), buffer_bytes=draw(buffer)))
    return nodes


def _pairs(draw: st.DrawFn, nodes: list[Node]) -> list[tuple[int, int]]:
    """Ends of the links: a cycle through all GPUs, direct or via switches; a link to and from each memory; others."""
    gpus = [i for i, node in enumerate(nodes) if node.kind == "gpu"]
    switches = [i for i, node in enumerate(nodes) if node.kind == "switch"]
    cycle = draw(st.permutations(gpus))
    pairs: dict[tuple[int, int], None] = {}
    for a, b in zip(cycle, cycle[1:] + cycle[:1], strict=True):
        through = draw(st.sampled_from([None, *switches]))
        pairs |= dict.fromkeys([(a, b)] if through is None else [(a, through), (through, b)])
    for memory in (i for i, node in enumerate(nodes) if node.kind == "memory"):
        into, out = draw(st.sampled_from(gpus + switches)), draw(st.sampled_from(gpus + switches))
        pairs |= {(into, memory): None, (memory, out): None}
    node = st.integers(0, len(nodes) - 1)
    more = st.tuples(node, node).filter(lambda pair: pair[0] != pair[1])
    return [*pairs, *draw(st.lists(more, max_size=2 * len(nodes)))]


@st.composite
def _changes(draw: st.DrawFn) -> tuple[tuple[float, float], ...]:
    if draw(st.integers(0, 3)):  # most links have a constant bandwidth
        return ()
    times = draw(st.sets(st.integers(1, 1000), min_size=1, max_size=3))
    return tuple((time / 10, draw(bandwidths)) for time in sorted(times))


def _limits(draw: st.DrawFn, links: int) -> list[Limit]:
    sets = draw(st.lists(st.lists(st.integers(0, links - 1), min_size=1, max_size=6, unique=True), max_size=2))
    return [
        Limit(name=f"limit{i}", links=tuple(members), bandwidth_GBps=draw(bandwidths)) for i, members in enumerate(sets)
    ]


DISTRIBUTIONS = ("allgather", "alltoall", "broadcast", "scatter", "gather")
REDUCTIONS = ("reduce", "reduce_scatter", "allreduce")


@st.composite
def demands(draw: st.DrawFn, num_gpus: int, *, reductions: bool = False, max_chunks: int = 3) -> Demand:
    """A small random demand: a named collective, or chunks of random sizes, sources and destinations."""
    kind = draw(st.sampled_from((*DISTRIBUTIONS, "custom", *(REDUCTIONS if reductions else ()))))
    if kind == "custom":
        chunks = draw(st.lists(_chunks(num_gpus, reductions), min_size=1, max_size=6))
        return Demand.from_chunks("custom", num_gpus, chunks)
    size = draw(st.sampled_from((1000, 60_000, 1_000_003, 64_000_000)))
    root = draw(st.integers(0, num_gpus - 1)) if kind in ("broadcast", "scatter", "gather", "reduce") else 0
    return collective(kind, num_gpus, size, draw(st.integers(1, max_chunks)), root)


@st.composite
def _chunks(draw: st.DrawFn, num_gpus: int, reductions: bool) -> Chunk:
    ranks = st.lists(st.integers(0, num_gpus - 1), min_size=1, max_size=num_gpus, unique=True)
    sources = tuple(draw(ranks)) if reductions else (draw(st.integers(0, num_gpus - 1)),)
    wanted = draw(ranks.filter(lambda ends: tuple(ends) != sources))
    if len(sources) == 1:
        wanted = [rank for rank in wanted if rank != sources[0]]
    return Chunk(bytes=draw(st.integers(1, 10**6)), sources=sources, destinations=tuple(wanted))
