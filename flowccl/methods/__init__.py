"""How to move it: one file per method, and the table of them.

Methods know demands with one source per chunk; `reduction` turns the others into those. Importing a method may take
half a second (numba), so the table imports them on first use.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from flowccl.adapters.groups import with_crowds
from flowccl.adapters.message_overheads import with_message_overheads
from flowccl.adapters.reduce_rate import with_reduce_rate
from flowccl.adapters.reduction import reduced_per_destination, with_reductions
from flowccl.demand.collectives import allgather
from flowccl.demand.demand import Demand
from flowccl.methods.clock import Clock
from flowccl.methods.method import Method
from flowccl.schedule.generation.list_scheduling import relist
from flowccl.schedule.schedule import Schedule
from flowccl.topology.topology import Link, Node, Topology

BASELINES = ("ring", "recursive-doubling", "direct", "tree")
ON_EPOCHS = ("milp", "lp", "astar")
"""Methods on a grid of epochs: they take the number of chunks as it is given, 1 by default."""
BY_FLOWS = ("symmetric", "trees", "fluid")
"""Methods that start from a fluid optimum: of their schedules the loss by whole chunks and by the pipeline is told."""
KNOWS_SETUPS = ("taccl", "taccl-quick")
"""Methods that decide what travels together; for all others the setups are in the bandwidth."""


def _greedy(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.greedy import greedy

    return greedy(topology, demand, clock)


def _reroute(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.reroute import reroute

    return reroute(topology, demand, clock)


def _lns(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.lns import lns

    return lns(topology, demand, clock)


def _lns_quotient(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.lns import lns_quotient

    return lns_quotient(topology, demand, clock)


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


def _symmetric(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.symmetric import symmetric

    return symmetric(topology, demand, clock)


def _trees(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.trees import trees

    return trees(topology, demand, clock)


def _fluid(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.fluid.method import fluid

    return fluid(topology, demand, clock)


def _staged_exchange(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.staged_exchange import staged_exchange

    return staged_exchange(topology, demand, clock)


def _joint_trees(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.joint_trees import joint_trees

    return joint_trees(topology, demand, clock)


def _phase_insertion(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.phase_insertion import phase_insertion

    return phase_insertion(topology, demand, clock)


def _in_network(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
    from flowccl.methods.in_network import in_network

    return in_network(topology, demand, clock)


def _baseline(name: str) -> Method:
    def run(topology: Topology, demand: Demand, clock: Clock) -> Iterator[Schedule | None]:
        from flowccl.methods import baselines

        yield baselines.BASELINES[name](topology, demand)

    return run


_TABLE: dict[str, Method] = {
    "greedy": with_reductions(_greedy),
    "reroute": with_reductions(_reroute),
    "lns": with_reductions(_lns),
    "lns-quotient": with_reductions(_lns_quotient),
    "milp": with_reductions(_milp),
    "lp": with_reductions(_lp),
    "lp-quick": _lp_quick,
    "astar": with_reductions(_astar),
    "greedy-weighted": with_reductions(_greedy, by_bandwidth=True),
    "reroute-weighted": with_reductions(_reroute, by_bandwidth=True),
    "symmetric": with_reductions(_symmetric),
    "trees": with_reductions(_trees),
    "fluid": with_reductions(_fluid),
    "taccl": _taccl,
    "joint-trees": _joint_trees,
    "phase-insertion": _phase_insertion,
    "taccl-quick": _taccl_quick,
    "staged-exchange": _staged_exchange,
    "one-shot": reduced_per_destination(_greedy),
    "in-network": _in_network,
    **{name: with_reductions(_baseline(name)) for name in BASELINES},
}


def _made_for_all(name: str, method: Method) -> Method:
    """The method, made to take groups, late data, setups and gpus that take time to add up."""
    able = with_crowds(method, name, knows_late=name == "greedy", knows_groups=name not in BASELINES)
    return with_reduce_rate(able if name in KNOWS_SETUPS else with_message_overheads(able), name)


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
    wanted |= {"greedy", "reroute"} if wanted & set(ON_EPOCHS) else set()
    wanted |= {"lns"} if wanted & {"lns-quotient", "phase-insertion"} else set()
    for name in wanted & {"greedy", "reroute", "lns", *KNOWS_SETUPS, *BY_FLOWS}:
        clock = Clock(1.0)
        for _ in range(2):  # woven builds and improves, then goes on from what was found
            for found in filter(None, islice(METHODS[name](topology, demand, clock), 2)):
                relist(found)  # as cuts of sums do
                clock.tell(found)
            clock.generate_serial()
