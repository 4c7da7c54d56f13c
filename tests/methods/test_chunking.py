"""Which searches get time."""

from collections.abc import Iterator

from flowccl.demand.collectives import collective
from flowccl.demand.demand import Demand
from flowccl.methods import METHODS
from flowccl.methods.chunking import Chunking
from flowccl.methods.clock import Clock
from flowccl.schedule.schedule import Schedule
from flowccl.topology.files import read_machine
from flowccl.topology.topology import Topology


def test_methods_that_go_on_from_others_are_asked_where_those_are_best() -> None:
    """On the ladder the improver finds nothing and leaves it at once; behind it, it is asked at the best counts."""
    topology, asked = read_machine("ring:4"), []

    def improver(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
        asked.append(demand.pieces)
        while True:
            yield None

    methods = {"greedy": METHODS["greedy"], "woven": improver}
    run = Chunking(topology, lambda count: collective("broadcast", 4, 10**6, count), methods, Clock(60.0, steps=60))
    last = list(run.run())[-1]
    assert (asked[0], len(asked)) == (1, 4)
    assert last.demand.pieces in asked[1:]


def test_woven_says_what_it_goes_on_from() -> None:
    topology, demand, clock = read_machine("ring:4"), collective("allgather", 4, 4000), Clock(60.0)
    other = next(METHODS["greedy"](topology, demand, clock))
    assert other is not None
    clock.told[topology, demand] = other
    found = next(METHODS["woven"](topology, demand, clock))
    assert found is not None
    assert found.finish_ps <= other.finish_ps
