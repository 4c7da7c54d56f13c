"""Hierarchical collectives: between hosts along rails, inside hosts over their own links, chunks pipelined.

A rail joins the GPUs with the same index in every host; on it, the GPU of a host is the gateway of the chunks that the
rail carries. A chunk for many GPUs goes from its source along the rail to the gateway of each other host, which
forwards it inside the host. Run backwards, this is a reduce-scatter. A chunk for one GPU of another host goes first to
the GPU of its own host on the destination's rail (NCCL's PXN). An allreduce is reduced to the gateways inside the
hosts, exchanged between the gateways, and spread inside the hosts (BlueConnect); or a reduce-scatter and an allgather.
"""

from collections.abc import Iterator

from flowccl.adapters.reduction import with_reductions
from flowccl.errors import DemandError
from flowccl.methods.baselines import Send, lay_out
from flowccl.methods.staged_exchange import SerialPlacement
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.neighbours import neighbours
from flowccl.verifier.verify import verify

_MOST_PLACED = 60_000  # transfers that are placed one by one

Hosts = list[list[int]]


def hierarchical(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """For an allreduce the exchange between gateways; then, as for all other demands, the schedule along rails."""
    hosts = problem.hosts
    if hosts is None:
        name = problem.topology.name
        raise DemandError(f"method hierarchical needs several hosts with several GPUs each; {name} has one level")
    if problem.allreduce_ranks == list(range(problem.topology.num_gpus)):
        yield _exchanged(problem, hosts)
    yield from with_reductions(_along_rails)(problem, context)


def _along_rails(problem: Problem, context: SearchContext) -> Iterator[Schedule | None]:
    """The one schedule of a demand without reductions."""
    hosts = problem.hosts
    assert hosts is not None
    yield lay_out(problem.topology, problem.demand, list(_sends(problem, hosts)), "hierarchical")


def _sends(problem: Problem, hosts: Hosts) -> Iterator[Send]:
    """Sends as (step, chunk, source rank, destination rank); those between hosts come first on every link."""
    demand = problem.demand
    place = {rank: (host, index) for host, ranks in enumerate(hosts) for index, rank in enumerate(ranks)}
    for chunk in range(len(demand)):
        source, wanted = int(demand.source[chunk]), demand.destinations(chunk).tolist()
        home, index = place[source]
        if len(wanted) == 1:
            yield from _to_one(chunk, source, wanted[0], hosts, place)
            continue
        for turn in range(1, len(hosts) + 1):
            host = (home + turn) % len(hosts)
            members = [rank for rank in wanted if place[rank][0] == host]
            gateway = source if host == home else hosts[host][index % len(hosts[host])]
            if gateway != source and members:
                yield turn, chunk, source, gateway
            for rank in _after(gateway, hosts[host]):
                if rank in members:
                    yield len(hosts) + turn, chunk, gateway, rank


def _after(gateway: int, members: list[int]) -> list[int]:
    """The other GPUs of a host, beginning after the gateway, so that gateways do not all send to one GPU first."""
    at = members.index(gateway)
    return members[at + 1 :] + members[:at]


def _to_one(chunk: int, source: int, rank: int, hosts: Hosts, place: dict[int, tuple[int, int]]) -> Iterator[Send]:
    """A chunk for one destination: inside its own host to the rail of the destination, then along that rail."""
    (home, own), (host, index) = place[source], place[rank]
    turn = (host - home) % len(hosts) * len(hosts[home]) + (index - own) % len(hosts[home])
    gateway = source if host == home else hosts[home][index % len(hosts[home])]
    if gateway != source:
        yield 2 * turn, chunk, source, gateway
    yield 2 * turn + 1, chunk, gateway, rank


def _exchanged(problem: Problem, hosts: Hosts) -> Schedule | None:
    """An allreduce by an exchange between gateways; None where a link is missing or there are too many transfers."""
    topology, demand = problem.topology, problem.demand
    near = neighbours(topology, 1)
    rails = len(hosts[0])
    gateways = [[ranks[rail % len(ranks)] for ranks in hosts] for rail in range(rails)]
    inside = [(a, b) for ranks in hosts for a in ranks for b in ranks if a != b]
    linked = set(zip(near.src.tolist(), near.end.tolist(), strict=True))
    between = [(a, b) for ends in gateways for a in ends for b in ends if a != b]
    if topology.has_extra_constraints or topology.has_reduce_rate or not linked.issuperset([*inside, *between]):
        return None
    if len(demand) * (2 * demand.num_gpus + len(hosts) ** 2) > _MOST_PLACED:
        return None
    exchange = _Exchange(SerialPlacement(topology, demand, near), hosts, gateways, demand.pieces)
    exchange.reduce_inside()
    exchange.exchange_between()
    exchange.spread_inside()
    schedule = exchange.placement.schedule("hierarchical")
    return None if verify(schedule) else schedule


class _Exchange:
    """The three phases of an allreduce, placed one after the other; each chunk goes on as soon as it is reduced."""

    def __init__(self, placement: SerialPlacement, hosts: Hosts, gateways: Hosts, pieces: int) -> None:
        self.placement, self.hosts, self.gateways = placement, hosts, gateways
        chunks = range(len(placement.demand))
        self.rail = [chunk // pieces % len(gateways) for chunk in chunks]
        self.by_piece = sorted(chunks, key=lambda chunk: (chunk % pieces, chunk))
        self.ready = {(chunk, gateway): 0 for chunk in chunks for gateway in gateways[self.rail[chunk]]}
        self.reduced: dict[tuple[int, int], int] = {}

    def reduce_inside(self) -> None:
        """Every GPU sends its contributions to the gateways of its host, beginning with the one after itself."""
        for chunk, gateway, rank in self._inside(self.by_piece):
            _, arrival = self.placement.place_transfer(chunk, rank, gateway, True, 0)
            self.ready[chunk, gateway] = max(self.ready[chunk, gateway], arrival)

    def exchange_between(self) -> None:
        """Every gateway sends the contribution of its host to the other gateways of its rail."""
        self.reduced = dict(self.ready)
        for chunk, gateway in sorted(self.ready, key=lambda key: (self.ready[key], key)):
            for other in _after(gateway, self.gateways[self.rail[chunk]]):
                _, arrival = self.placement.place_transfer(chunk, gateway, other, True, self.ready[chunk, gateway])
                self.reduced[chunk, other] = max(self.reduced[chunk, other], arrival)

    def spread_inside(self) -> None:
        """Every gateway sends the result to the other GPUs of its host."""
        latest: dict[int, int] = {}
        for (chunk, _), at in self.reduced.items():
            latest[chunk] = max(latest.get(chunk, 0), at)
        for chunk, gateway, rank in self._inside(sorted(latest, key=lambda chunk: (latest[chunk], chunk))):
            self.placement.place_transfer(chunk, gateway, rank, False, self.reduced[chunk, gateway])

    def _inside(self, chunks: list[int]) -> Iterator[tuple[int, int, int]]:
        """(chunk, gateway, other GPU of its host): few chunks at a time, to or from different GPUs in turn."""
        group = len(self.gateways)
        for first in range(0, len(chunks), group):
            for turn in range(max(map(len, self.hosts)) - 1):
                for chunk in chunks[first : first + group]:
                    for gateway, ranks in zip(self.gateways[self.rail[chunk]], self.hosts, strict=True):
                        others = _after(gateway, ranks)
                        if turn < len(others):
                            yield chunk, gateway, others[turn]
