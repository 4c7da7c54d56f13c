"""Lower bounds: known values with their witness, and no exhaustive search on a tiny machine beats them."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowccl.bounds.lower_bound import bounds, lower_bound
from flowccl.demand.collectives import collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.methods.greedy import GreedySearch
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.builders import full, line, ring, star
from flowccl.topology.machines import machine
from flowccl.topology.topology import Limit, Node, Topology
from flowccl.verifier.verify import verify
from tests.cases import CASES, gpus, link, send
from tests.exhaustive import TooManyError, best_finish_ps
from tests.strategies import demands, topologies

KB = 1000
US = 1_000_000  # picoseconds

KNOWN = {
    "one link": (
        line(2, bandwidth_GBps=10, latency_us=0.5),
        collective("broadcast", 2, 10 * KB),
        "cut",
        1.5,
        "10 KB must cross into gpu1, 10 GB/s (1 link): 0 us to get there, 1 us to cross, 0.5 us to reach gpu1",
    ),
    "two links into each GPU of a ring": (
        ring(4, bandwidth_GBps=10, latency_us=0.5),
        collective("allgather", 4, 40 * KB),
        "cut",
        2.0,
        "30 KB must cross into gpu0, 20 GB/s (2 links): 0 us to get there, 1.5 us to cross, 0.5 us to reach gpu0",
    ),
    "the end of a line": (
        line(4, bandwidth_GBps=10, latency_us=0.5),
        collective("gather", 4, 40 * KB),
        "cut",
        3.5,
        "30 KB must cross into gpu0, 10 GB/s (1 link): 0 us to get there, 3 us to cross, 0.5 us to reach gpu0",
    ),
    "far away and small": (
        line(5, bandwidth_GBps=1000, latency_us=0.5),
        send((1, 0, (4,)), gpus=5),
        "cut",
        2.000001,
        "1 B must cross into gpu4, 1000 GB/s (1 link): 1.5 us to get there, 1e-06 us to cross, 0.5 us to reach gpu4",
    ),
    "a switch that copies": (
        star(4, bandwidth_GBps=10, latency_us=0.5, copies=True),
        collective("allgather", 4, 40 * KB),
        "cut",
        4.0,
        "30 KB must cross into gpu0, 10 GB/s (1 link): 0.5 us to get there, 3 us to cross, 0.5 us to reach gpu0",
    ),
}


@pytest.mark.parametrize(("topology", "demand", "kind", "us", "witness"), KNOWN.values(), ids=KNOWN)
def test_the_best_bound_and_its_witness(topology, demand, kind, us, witness):
    bound = lower_bound(topology, demand)
    assert (bound.kind, bound.us, bound.witness) == (kind, us, witness)


def test_bounds_of_several_kinds():
    found = bounds(line(3, bandwidth_GBps=10, latency_us=0.5), collective("broadcast", 3, 10 * KB))
    best = {kind: max(b.us for b in found if b.kind == kind) for kind in ("distance", "work", "cut")}
    assert best == {"distance": 1.0, "work": 20 * KB / 40_000, "cut": 2.0}
    words = {b.kind: b.witness for b in found}
    assert words["distance"] == "gpu2 needs data of gpu0, 1 us away by latency"
    assert words["work"] == "20 KB (bytes x fewest hops) must cross all links, 40 GB/s together"


def test_two_hosts_and_one_cable_between_them():
    """The obvious cut: half of the data over the NIC, then the path to the farthest GPU."""
    bound = lower_bound(machine("ndv2:2"), collective("allgather", 16, 1_000_000))
    assert bound.us >= 42.6
    assert bound.witness.startswith("500 KB must cross")


def test_links_under_a_limit_form_one_pool():
    limits = (Limit(name="shared", links=(0, 1), bandwidth_GBps=12),)
    topology = Topology("pool", tuple(gpus(3)), (link(0, 2), link(1, 2)), limits)
    bound = lower_bound(topology, send((6 * KB, 0, (2,)), (6 * KB, 1, (2,)), gpus=3))
    assert bound.us == 1.5
    assert "12 KB must cross into gpu2, 12 GB/s (2 links)" in bound.witness


def test_links_in_several_limits_are_counted_once():
    """Link 0 is in both limits: 3 GB/s there and 7 on the other link, not 3 in total."""
    limits = (
        Limit(name="both", links=(0, 1), bandwidth_GBps=10),
        Limit(name="first", links=(0,), bandwidth_GBps=3),
    )
    for order in (limits, limits[::-1]):
        topology = Topology("limits", tuple(gpus(3)), (link(0, 2), link(1, 2)), order)
        bound = lower_bound(topology, send((7 * KB, 1, (2,)), (3 * KB, 0, (2,)), gpus=3))
        assert bound.us == pytest.approx(1.5, abs=1e-5)
        search = GreedySearch(topology, send((3 * KB, 0, (2,)), (7 * KB, 1, (2,)), gpus=3))
        assert search.step()
        assert bound.ps <= search.best.finish_ps


def test_bandwidth_that_changes_counts_at_its_peak():
    topology = Topology("peak", tuple(gpus(2)), (link(0, 1, GBps=5, latency_us=0, changes=((1.0, 20.0), (2.0, 1.0))),))
    assert lower_bound(topology, send((20 * KB, 0, (1,)), gpus=2)).us == 1.0


def test_chunks_do_not_change_the_bound():
    for name in ("allgather", "alltoall", "broadcast", "reduce_scatter"):
        whole, cut = (lower_bound(ring(4), collective(name, 4, 48_000, chunks)) for chunks in (1, 6))
        assert whole == cut


def test_a_reduction_has_the_bound_of_the_reversed_distribution():
    topology = line(4, bandwidth_GBps=10, latency_us=0.5)
    there, back = (lower_bound(topology, collective(name, 4, 40 * KB)) for name in ("broadcast", "reduce"))
    assert there.ps == back.ps == 5_500_000


def test_demands_that_mix_reductions_and_copies_have_a_bound():
    chunks = [
        Chunk(bytes=1000, sources=(0,), destinations=(1, 2)),
        Chunk(bytes=1000, sources=(0, 1), destinations=(2,)),
        Chunk(bytes=1000, sources=(0, 1, 2), destinations=(0, 1, 2)),
    ]
    topology, demand = line(3), Demand.from_chunks("custom", 3, chunks)
    bound = lower_bound(topology, demand)
    for method in ("direct", "tree", "ring", "greedy"):
        schedule = next(load_method(method)(Problem(topology, demand), SearchContext.with_limit(60.0)))
        assert verify(schedule) == []
        assert 0 < bound.ps <= schedule.finish_ps


# -- exhaustive search ------------------------------------------------------------------------------------------------


def tiny_problem(seed: int) -> tuple[Topology, Demand]:
    """Three or four GPUs, possibly a memory or a switch, few links, one or two chunks."""
    rng = random.Random(seed)
    count = rng.choice((3, 3, 4))
    nodes, latency = gpus(count), rng.choice((0.0, 0.5, 2.0))
    extra = rng.choice(("", "", "memory", "switch"))
    if extra:
        nodes.append(Node(name=extra, kind=extra))
    order = rng.sample(range(count), count)
    pairs = list(zip(order, order[1:] + order[:1], strict=True))
    pairs += [(i, count) for i in range(count)] + [(count, i) for i in range(count)] if extra else []
    pairs += [tuple(rng.sample(range(count), 2)) for _ in range(rng.randint(0, 3))]
    links = [
        link(a, b, rng.choice((5.0, 10.0, 20.0)), latency if extra == "switch" else rng.choice((0.0, 0.5, 2.0)))
        for a, b in pairs
    ]
    kind = rng.choice(("broadcast", "scatter", "gather", "allgather" if count == 3 else "broadcast"))
    chunks = 1 if kind == "allgather" or count == 4 else rng.choice((1, 2))
    return Topology(f"tiny{seed}", tuple(nodes), tuple(links)), collective(kind, count, 60 * KB, chunks)


def test_exhaustive_search_finds_the_known_optimum():
    """The search itself, on problems with a known optimum, with a bound that is too weak to help."""
    plain = [
        case
        for case in CASES
        if case.name in {"two GPUs and one link", "memory that copies", "star through a plain switch"}
        or case.name.startswith(("line of three", "ring of four, 1", "cut-through switch"))
    ]
    assert len(plain) == 9
    for case in plain:
        assert best_finish_ps(case.topology, case.demand, 100 * US) == case.best_us * US, case.name


def test_exhaustive_search_never_beats_a_bound_and_greedy_is_near_it():
    """On tiny machines: all bounds <= best of all schedules <= greedy <= 1.5 times that."""
    ratios = []
    for seed in range(40):
        topology, demand = tiny_problem(seed)
        search = GreedySearch(topology, demand)
        for _ in range(20):
            search.step()
        assert verify(search.best) == []
        try:
            best = best_finish_ps(topology, demand, search.best_ps, most_states=20_000)
        except TooManyError:
            continue
        assert max(bound.ps for bound in bounds(topology, demand)) <= best, topology.name
        ratios.append(search.best_ps / best)
    assert len(ratios) >= 36  # the others have too many schedules
    assert max(ratios) <= 1.5
    assert sum(ratio == 1.0 for ratio in ratios) >= 0.8 * len(ratios)


@settings(max_examples=30)
@given(st.data())
def test_no_bound_is_above_any_schedule(data):
    topology = data.draw(topologies(max_gpus=5))
    demand = data.draw(demands(topology.num_gpus, reductions=True))
    schedule = next(
        load_method(data.draw(st.sampled_from(("direct", "tree", "ring"))))(
            Problem(topology, demand), SearchContext.with_limit(60.0)
        )
    )
    for bound in bounds(topology, demand):
        assert bound.ps <= schedule.finish_ps, bound


def test_full_mesh_alltoall_meets_its_bound():
    topology, demand = full(4, bandwidth_GBps=10, latency_us=0.5), collective("alltoall", 4, 40 * KB)
    search = GreedySearch(topology, demand)
    search.step()
    assert search.best.finish_us == lower_bound(topology, demand).us == 1.5


def test_the_spine_counts_although_many_cuts_of_gpus_look_better():
    """Cuts that look alike count once, so that the cut between the leaves is among those with partial reductions."""
    hosts = machine("dgx_h100:4:nvls=false:network=fat-tree:leaf_hosts=2:oversubscription=2")
    bound = lower_bound(hosts, collective("allreduce", 32, 1_000_000))
    assert bound.witness.startswith("1 MB must cross into gpu0 ... gpu15, 400 GB/s (1 link)")
    assert bound.us == pytest.approx(8.9125)


def test_an_overhead_is_hidden_where_a_slower_link_follows():
    """The message holds its first link for 2 + 20 us and the second one for 40 us, from the same time on."""
    nodes = (*gpus(2), Node(name="switch", kind="switch"))
    first, second = replace(link(0, 2, 50.0, 1.0), overhead_us=2.0), link(2, 1, 25.0, 1.0)
    topology = Topology("slower behind", nodes, (first, second))
    demand = collective("broadcast", 2, 1_000_000)
    search = GreedySearch(topology, demand)
    search.step()
    assert lower_bound(topology, demand).us == search.best.finish_us == 42.0


def test_an_overhead_is_hidden_where_a_limit_is_slower():
    """A message holds its link for 0.35 us and 15 KB at 6 GB/s, or for 15 KB at the limit's 5 GB/s, which is longer."""
    there = replace(link(0, 1, 6.0, 0.0), overhead_us=0.35)
    limit = Limit(name="slower", links=(0,), bandwidth_GBps=5.0)
    topology = Topology("limited", gpus(2), (there, link(1, 0, 5.0, 0.0)), (limit,))
    for demand in (send((15 * KB, 0, (1,)), gpus=2), collective("allgather", 2, 30 * KB)):
        schedule = next(load_method("direct")(Problem(topology, demand), SearchContext.with_limit(60.0)))
        assert verify(schedule) == []
        assert lower_bound(topology, demand).us == schedule.finish_us == 3.0


def test_overheads_are_hidden_where_links_share_a_limit():
    """Two messages side by side at 3 GB/s each fill the limit all the time, although their links have an overhead."""
    links = tuple(replace(link(0, 1, 6.0, 0.0), overhead_us=1.0) for _ in range(2))
    limit = Limit(name="shared", links=(0, 1), bandwidth_GBps=6.0)
    topology = Topology("pool", gpus(2), links, (limit,))
    demand = send((15 * KB, 0, (1,)), (15 * KB, 0, (1,)), gpus=2)
    alone = Schedule.from_transfers(topology, demand, [(0, (0,), 0), (1, (1,), 0)])
    schedule = replace(alone, rate_GBps=np.full(2, 3.0))
    assert verify(schedule) == []
    assert lower_bound(topology, demand).us == schedule.finish_us == 5.0
    assert lower_bound(replace(topology, limits=()), demand).us == 3.5
