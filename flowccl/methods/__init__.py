"""How to move it: one file per method, and the table of them.

Methods know demands with one source per chunk; `reduction` turns the others into those. Importing a method may take
half a second (numba), so the table imports them on first use.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from flowccl.demand.collectives import allgather
from flowccl.demand.demand import Demand
from flowccl.methods.adding import with_adding
from flowccl.methods.clock import Clock
from flowccl.methods.crowd import with_crowds
from flowccl.methods.method import Method
from flowccl.methods.reduction import summed_apart, with_reductions
from flowccl.methods.setups import with_setups
from flowccl.schedule.relist import relist
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Link, Node, Topology

CLASSICS = ("ring", "recursive-doubling", "direct", "tree")
ON_EPOCHS = ("milp", "lp", "astar")
"""Methods on a grid of epochs: they take the number of chunks as it is given, 1 by default."""
BY_FLOWS = ("mirrored", "trees", "fluid")
"""Methods that start from a fluid optimum: of their schedules the loss by whole chunks and by the pipeline is told."""
KNOWS_SETUPS = ("taccl", "taccl-quick")
"""Methods that decide what travels together; for all others the setups are in the bandwidth."""


def _greedy(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.greedy import greedy

    return greedy(topology, demand, clock)


def _routed(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.routed import routed

    return routed(topology, demand, clock)


def _woven(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.woven import woven

    return woven(topology, demand, clock)


def _folded(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.woven import folded

    return folded(topology, demand, clock)


def _milp(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.teccl.milp import milp

    return milp(topology, demand, clock)


def _lp(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.teccl.lp import lp

    return lp(topology, demand, clock)


def _lp_quick(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.teccl.lp import lp_quick

    return lp_quick(topology, demand, clock)


def _astar(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.teccl.astar import astar

    return astar(topology, demand, clock)


def _taccl(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.taccl.stages import taccl

    return taccl(topology, demand, clock)


def _taccl_quick(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.taccl.stages import taccl_quick

    return taccl_quick(topology, demand, clock)


def _mirrored(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.mirrored import mirrored

    return mirrored(topology, demand, clock)


def _trees(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.trees import trees

    return trees(topology, demand, clock)


def _fluid(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.fluid.method import fluid

    return fluid(topology, demand, clock)


def _exchange(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.exchange import exchange

    return exchange(topology, demand, clock)


def _paired(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.paired import paired

    return paired(topology, demand, clock)


def _entwined(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.entwined import entwined

    return entwined(topology, demand, clock)


def _in_switch(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.in_switch import in_switch

    return in_switch(topology, demand, clock)


def _classic(name: str) -> Method:
    def run(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
        from flowccl.methods import classics

        yield classics.CLASSICS[name](topology, demand)

    return run


_TABLE: dict[str, Method] = {
    "greedy": with_reductions(_greedy),
    "routed": with_reductions(_routed),
    "woven": with_reductions(_woven),
    "folded": with_reductions(_folded),
    "milp": with_reductions(_milp),
    "lp": with_reductions(_lp),
    "lp-quick": _lp_quick,
    "astar": with_reductions(_astar),
    "greedy-weighted": with_reductions(_greedy, by_bandwidth=True),
    "routed-weighted": with_reductions(_routed, by_bandwidth=True),
    "mirrored": with_reductions(_mirrored),
    "trees": with_reductions(_trees),
    "fluid": with_reductions(_fluid),
    "taccl": _taccl,
    "paired": _paired,
    "entwined": _entwined,
    "taccl-quick": _taccl_quick,
    "exchange": _exchange,
    "apart": summed_apart(_greedy),
    "in-switch": _in_switch,
    **{name: with_reductions(_classic(name)) for name in CLASSICS},
}


def _made_for_all(name: str, method: Method) -> Method:
    """The method, made to take groups, late data, setups and gpus that take time to add up."""
    able = with_crowds(method, name, knows_late=name == "greedy", knows_groups=name not in CLASSICS)
    return with_adding(able if name in KNOWS_SETUPS else with_setups(able), name)


METHODS: dict[str, Method] = {name: _made_for_all(name, method) for name, method in _TABLE.items()}
"""Name on the command line -> method."""


def warm_up(names: Iterable[str]) -> None:
    """Load the compiled loops of these methods, so that no clock pays for it; a new installation compiles them once.

    Runs each on two GPUs. Loading takes half a second, compiling about a minute.
    """
    ends = (Node(name="a"), Node(name="b"))
    pair = [Link(src=0, dst=1, bandwidth_GBps=1.0), Link(src=1, dst=0, bandwidth_GBps=1.0)]
    topology = Topology("warm-up", ends, tuple(pair))
    demand = allgather(2, 8)
    wanted = set(names)
    wanted |= {"greedy", "routed"} if wanted & set(ON_EPOCHS) else set()
    wanted |= {"woven"} if wanted & {"folded", "entwined"} else set()
    for name in wanted & {"greedy", "routed", "woven", *KNOWS_SETUPS, *BY_FLOWS}:
        clock = Clock(1.0)
        for _ in range(2):  # woven builds and improves, then goes on from what was found
            for found in filter(None, islice(METHODS[name](topology, demand, clock), 2)):
                relist(found)  # as cuts of sums do
                clock.tell(found)
            clock.settle()
