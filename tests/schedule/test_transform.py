"""Transforms of schedules: valid schedules stay valid, and transfers do not get later."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flowccl.demand.collectives import collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.errors import ScheduleError
from flowccl.methods.greedy import GreedySearch
from flowccl.methods.rates.sequence import in_sequence
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.schedule.generation.serial import generate_serial, sequence, within_limits
from flowccl.schedule.schedule import Schedule
from flowccl.schedule.transform import concatenate, left_shift, prune, reverse, subdivide
from flowccl.search.context import SearchContext
from flowccl.topology.builders import line, ring, star
from flowccl.topology.topology import Limit, Link, Node, Topology
from flowccl.verifier.verify import verify
from tests.cases import gpus, link, memory_star, send
from tests.strategies import demands, topologies

US = 1_000_000  # picoseconds
KB = 1000


def rows(schedule: Schedule) -> list[tuple]:
    """Transfers as (chunk, links, start_ps), in order of time."""
    found = [
        (int(c), schedule.routes.links(int(r)), int(start))
        for c, r, start in zip(schedule.chunk, schedule.route, schedule.start_ps, strict=True)
    ]
    return sorted(found, key=lambda row: (row[2], row[0], row[1]))


def greedy(topology: Topology, demand: Demand) -> Schedule:
    search = GreedySearch(topology, demand)
    assert search.step()
    return search.best


def by(method: str, topology: Topology, demand: Demand) -> Schedule:
    found = load_method(method)(Problem(topology, demand), SearchContext.with_limit(60.0))
    return next((schedule for schedule in islice(found, 3) if schedule is not None), None)


@st.composite
def spread_out(draw: st.DrawFn, **options: bool) -> Schedule:
    """A valid schedule with idle times: one transfer after the other, with random waits. No links that change."""
    topology = draw(topologies(max_gpus=4, max_switches=2, changes=False, **options))
    demand = draw(demands(topology.num_gpus, reductions=True, max_chunks=2))
    some = load_method(draw(st.sampled_from(("direct", "tree", "ring"))))(
        Problem(topology, demand), SearchContext.with_limit(60.0)
    )
    found = next((schedule for schedule in some if schedule is not None), None)
    assume(found is not None)  # with limits, other times may break an exchange
    schedule = replace(found, rate_GBps=np.zeros(0))
    order = sequence(schedule)
    takes = np.zeros(len(schedule), dtype=np.int64)
    timing = schedule.timing
    np.maximum.at(takes, timing.hop_transfer, timing.hop_to_ps + topology.link_latency_ps[timing.hop_link])
    takes -= schedule.start_ps
    start, at = np.zeros(len(schedule), dtype=np.int64), 0
    for i in order.tolist():
        start[i] = at + draw(st.sampled_from((0, 0, 1, US)))
        at = start[i] + int(takes[i])
    return replace(schedule, start_ps=start)


# -- prune ------------------------------------------------------------------------------------------------------------


def test_prune_removes_unneeded_transfers():
    topology = ring(4, bandwidth_GBps=10, latency_us=0)  # links 2i: i -> i + 1, 2i + 1: back
    demand = send((10 * KB, 0, (2,)), gpus=4)
    needed = [(0, (0,), 0), (0, (2,), US)]
    useless = [(0, (7,), 0), (0, (5,), US + 1), (0, (1,), 2 * US)]  # to 3, from there to 2 but later, and back to 0
    schedule = Schedule.from_transfers(topology, demand, [*needed, *useless])
    assert verify(schedule) == []
    assert rows(prune(schedule)) == needed
    assert prune(prune(schedule)) == prune(schedule)


def test_prune_removes_unneeded_branches():
    topology = star(4, bandwidth_GBps=10, latency_us=0, copies=True)  # links 2i: gpu i -> switch, 2i + 1: back
    schedule = Schedule.from_transfers(topology, send((10 * KB, 0, (2,)), gpus=4), [(0, (0, 3, 5, 7), 0)])
    pruned = prune(schedule)
    assert rows(pruned) == [(0, (0, 5), 0)]
    assert verify(pruned) == []


def test_prune_keeps_reductions_as_they_are():
    schedule = by("ring", ring(4), collective("allreduce", 4, 40 * KB))
    assert prune(schedule) == schedule


def test_prune_keeps_a_branch_that_slows_the_others_down_to_a_limit():
    """Without the slow branch the multicast would run at 10 GB/s, with another transfer at 10 under a limit of 15."""
    nodes = (*gpus(4), Node(name="switch", kind="switch", copies=True))
    links = (link(0, 4), link(4, 1), link(4, 2, GBps=5), link(3, 1))
    topology = Topology("slow branch", nodes, links, (Limit(name="in", links=(1, 3), bandwidth_GBps=15),))
    demand = send((10 * KB, 0, (1,)), (10 * KB, 3, (1,)), gpus=4)
    schedule = Schedule.from_transfers(topology, demand, [(0, (0, 1, 2), 0), (1, (3,), 0)])
    assert verify(schedule) == []
    assert verify(prune(schedule)) == []
    assert prune(schedule).finish_ps == schedule.finish_ps


def test_prune_keeps_one_delivery_per_send_of_a_node_that_cannot_copy():
    nodes = (*gpus(3), Node(name="memory", kind="memory", copies=False))
    topology = Topology("no copies", nodes, memory_star(3).links)
    twice = [(0, (0,), 0), (0, (0,), US), (0, (3,), 2 * US), (0, (5,), 3 * US)]
    schedule = Schedule.from_transfers(topology, send((10 * KB, 0, (1, 2)), gpus=3), twice)
    assert verify(schedule) == []
    assert rows(prune(schedule)) == twice
    once = replace(schedule, demand=send((10 * KB, 0, (1,)), gpus=3))
    assert rows(prune(once)) == [twice[0], twice[2]]


@settings(max_examples=60)
@given(st.data())
def test_prune_keeps_schedules_valid_and_is_never_later(data):
    schedule = data.draw(spread_out())
    again = data.draw(st.lists(st.integers(0, len(schedule) - 1), max_size=3))
    late = schedule.finish_ps + np.cumsum([0] + [schedule.finish_ps] * len(again))[1:]
    more = replace(
        schedule,
        chunk=np.concatenate((schedule.chunk, schedule.chunk[again])),
        route=np.concatenate((schedule.route, schedule.route[again])),
        start_ps=np.concatenate((schedule.start_ps, late.astype(np.int64))),
        reduce=np.concatenate((schedule.reduce, schedule.reduce[again])),
    )
    pruned = prune(more)
    if not schedule.demand.reduces:
        assert verify(pruned) == []
        assert pruned.finish_ps <= schedule.finish_ps
        assert len(pruned) <= len(schedule)
    assert len(pruned) <= len(more)


# -- left-shift -------------------------------------------------------------------------------------------------------


def test_left_shift_starts_every_transfer_as_early_as_possible():
    topology = line(3, bandwidth_GBps=10, latency_us=0.5)
    demand = collective("broadcast", 3, 20 * KB, 2)
    late = [(0, (0,), 5 * US), (1, (0,), 8 * US), (0, (2,), 20 * US), (1, (2,), 40 * US)]
    schedule = left_shift(Schedule.from_transfers(topology, demand, late))
    assert rows(schedule) == [(0, (0,), 0), (1, (0,), US), (0, (2,), 3 * US // 2), (1, (2,), 5 * US // 2)]


def test_left_shift_keeps_the_order_on_a_link_even_if_another_is_better():
    topology = line(2, bandwidth_GBps=10, latency_us=0)
    demand = send((10 * KB, 0, (1,)), (20 * KB, 0, (1,)), gpus=2)
    schedule = left_shift(Schedule.from_transfers(topology, demand, [(1, (0,), US), (0, (0,), 4 * US)]))
    assert rows(schedule) == [(1, (0,), 0), (0, (0,), 2 * US)]


def test_left_shift_keeps_the_order_in_a_full_buffer():
    nodes = (Node(name="gpu0"), Node(name="gpu1", buffer_bytes=10 * KB), Node(name="gpu2"))
    topology = Topology("relay", nodes, (link(0, 1, latency_us=0), link(1, 2, latency_us=0)))
    demand = send((10 * KB, 0, (2,)), (10 * KB, 0, (2,)), gpus=3)
    late = [(0, (0,), US), (0, (1,), 3 * US), (1, (0,), 5 * US), (1, (1,), 8 * US)]
    schedule = left_shift(Schedule.from_transfers(topology, demand, late))
    assert verify(schedule) == []
    assert rows(schedule) == [(0, (0,), 0), (0, (1,), US), (1, (0,), 2 * US), (1, (1,), 3 * US)]


def test_left_shift_keeps_the_order_of_reducing_and_storing_at_a_node():
    """gpu0 stores the data of gpu1, then reduces that of gpu2; at equal arrivals the first row would come first."""
    topology = Topology("order", tuple(gpus(3)), (link(2, 0), link(1, 0, GBps=5)))
    demand = Demand.from_chunks("custom", 3, [Chunk(bytes=10 * KB, sources=(1, 2), destinations=(0,))])
    transfers = [(0, (0,), 3 * US, True), (0, (1,), US, False)]
    schedule = Schedule.from_transfers(topology, demand, transfers)
    assert verify(schedule) == []
    early = left_shift(schedule)
    assert verify(early) == []
    assert early.start_ps.tolist() == [US + 1, 0]


@settings(max_examples=80)
@given(spread_out(buffers=False))
def test_left_shift_is_valid_never_later_and_idempotent(schedule):
    assert verify(schedule) == []
    early = left_shift(schedule)
    assert verify(early) == []
    assert np.all(early.start_ps <= schedule.start_ps)
    assert np.array_equal(left_shift(early).start_ps, early.start_ps)


@settings(max_examples=80)
@given(st.data())
def test_left_shift_keeps_buffers_within_their_limits(data):
    """Buffers that are just large enough for a schedule with idle times."""
    schedule = data.draw(spread_out())
    sizes = st.none() | st.sampled_from((1000, 20_000, 10**6, 10**8))
    nodes = [replace(n, buffer_bytes=data.draw(sizes) if n.stores else None) for n in schedule.topology.nodes]
    tight = replace(schedule, topology=replace(schedule.topology, nodes=tuple(nodes)))
    assume(not verify(tight))
    assert verify(left_shift(tight)) == []


def test_left_shift_leaves_schedules_on_changing_links_unchanged():
    topology = Topology("change", tuple(gpus(2)), (link(0, 1, changes=((5.0, 5.0),)),))
    schedule = Schedule.from_transfers(topology, send((10 * KB, 0, (1,)), gpus=2), [(0, (0,), 9 * US)])
    assert left_shift(schedule) == schedule


# -- subdivide --------------------------------------------------------------------------------------------------------


def test_smaller_chunks_are_forwarded_as_soon_as_they_arrive():
    """20 KB over two links of 10 GB/s: 4 us as one chunk, 3 us as two, 2.5 us as four."""
    topology = line(3, bandwidth_GBps=10, latency_us=0)
    whole = greedy(topology, collective("broadcast", 3, 20 * KB))
    assert whole.finish_ps == 4 * US
    for times, finish_ps in ((2, 3 * US), (4, 5 * US // 2)):
        cut = subdivide(whole, collective("broadcast", 3, 20 * KB, times))
        assert cut.finish_ps == finish_ps
        assert verify(cut) == []


def test_subdivide_returns_none_if_it_is_impossible():
    topology = line(3, bandwidth_GBps=10, latency_us=0)
    whole = greedy(topology, collective("broadcast", 3, 20 * KB))
    two = collective("broadcast", 3, 20 * KB, 2)
    assert subdivide(whole, two) is not None
    assert subdivide(whole, collective("broadcast", 3, 20 * KB, 2, 1)) is None  # from another source
    assert subdivide(whole, collective("allgather", 3, 20 * KB, 2)) is None
    assert subdivide(replace(whole, message=np.zeros(len(whole), dtype=np.int32)), two) is None
    changing = replace(topology.links[0], changes=((1.0, 5.0),))
    slower = replace(topology, links=(changing, *topology.links[1:]))
    assert subdivide(replace(whole, topology=slower), two) is None


@settings(max_examples=150)
@given(st.data())
def test_subdivided_schedules_are_valid_and_hardly_later(data):
    """Later only by bytes and picoseconds that do not divide evenly."""
    topology = data.draw(topologies(max_gpus=4, changes=False, buffers=True))
    kind = data.draw(st.sampled_from(("allgather", "alltoall", "broadcast", "allreduce")))
    size, chunks = data.draw(st.sampled_from((144_000, 100_003))), data.draw(st.integers(1, 2))
    schedule = by("greedy", topology, collective(kind, topology.num_gpus, size, chunks))
    assume(schedule is not None)  # buffers may be too small
    cut = subdivide(schedule, collective(kind, topology.num_gpus, size, chunks * data.draw(st.integers(2, 5))))
    assume(cut is not None)
    assert verify(cut) == []
    assert cut.finish_ps <= schedule.finish_ps * 1.01


# -- reverse ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", [ring(4), line(4), star(4), star(4, copies=True)], ids=lambda t: t.name)
def test_a_reversed_allgather_is_a_reduce_scatter(topology):
    there = greedy(topology.reversed, collective("allgather", 4, 40 * KB, 2))
    back = reverse(there, collective("reduce_scatter", 4, 40 * KB, 2), reduce=True)
    assert back.topology == topology
    assert verify(back) == []
    assert back.finish_ps == there.finish_ps


@settings(max_examples=60)
@given(st.data())
def test_reversed_twice_is_valid_and_has_the_same_finish(data):
    topology = data.draw(topologies(max_gpus=4, changes=False, limits=False))
    demand = data.draw(demands(topology.num_gpus, max_chunks=2))
    schedule = by(data.draw(st.sampled_from(("direct", "tree", "ring"))), topology, demand)
    sources = [demand.chunk(c) for c in range(len(demand))]
    reductions = [Chunk(bytes=c.bytes, sources=(*c.destinations, *c.sources), destinations=c.sources) for c in sources]
    back = reverse(schedule, Demand.from_chunks("custom", demand.num_gpus, reductions), reduce=True)
    assert verify(back) == []
    assert back.finish_ps == schedule.finish_ps
    again = reverse(back, demand, reduce=False)
    assert again.topology == topology
    assert verify(again) == []
    assert again.finish_ps == schedule.finish_ps
    assert np.array_equal(again.start_ps, schedule.start_ps - schedule.start_ps.min())


def test_a_reversed_schedule_satisfies_a_limit_on_links_with_two_latencies():
    """Reversed, both links of the limit would be busy at the same time: their latencies no longer separate them."""
    links = (link(0, 2, latency_us=0), link(1, 2, latency_us=5))
    limits = (Limit(name="shared", links=(0, 1), bandwidth_GBps=10),)
    topology = Topology("latencies", tuple(gpus(3)), links, limits)
    demand = send((10 * KB, 0, (2,)), (10 * KB, 1, (2,)), gpus=3)
    schedule = Schedule.from_transfers(topology, demand, [(0, (0,), 5 * US), (1, (1,), 0)])
    assert verify(schedule) == []
    back = reverse(schedule, send((10 * KB, 2, (0,)), (10 * KB, 2, (1,)), gpus=3), reduce=False)
    assert verify(back) == []


def test_a_schedule_on_changing_links_can_be_reversed():
    changing = replace(line(3, bandwidth_GBps=10, latency_us=0.5), name="changing")
    links = [replace(k, changes=((2.0, 5.0), (4.0, 20.0))) for k in changing.links]
    topology = replace(changing, links=tuple(links))
    schedule = by("direct", topology.reversed, collective("broadcast", 3, 40 * KB, 4))
    back = reverse(schedule, collective("reduce", 3, 40 * KB, 4), reduce=True)
    assert verify(schedule) == []
    assert verify(back) == []


def test_a_multicast_through_a_store_and_forward_switch_can_be_reversed():
    """One branch crosses a store-and-forward switch, the other has a long latency."""
    nodes = (
        *gpus(3),
        Node(name="copies", kind="switch", copies=True),
        Node(name="stores", kind="switch", crossing="store-and-forward"),
    )
    links = (link(0, 3), link(3, 1, latency_us=100), link(3, 4), link(4, 2))
    topology = Topology("branches", nodes, links)
    for order in ((0, 1, 2, 3), (0, 2, 3, 1)):
        schedule = Schedule.from_transfers(topology, send((10 * KB, 0, (1, 2)), gpus=3), [(0, order, 0)])
        assert verify(schedule) == []
        back = reverse(schedule, collective("reduce", 3, 10 * KB), reduce=True)
        assert verify(back) == []
        assert back.finish_ps <= schedule.finish_ps + 2 * US  # the first transfer may start after time zero


def test_reverse_needs_the_same_chunks():
    schedule = greedy(ring(4), collective("allgather", 4, 40 * KB))
    with pytest.raises(ScheduleError, match="must have the same chunks in the same order"):
        reverse(schedule, collective("reduce_scatter", 4, 48 * KB), reduce=True)


# -- concatenate ------------------------------------------------------------------------------------------------------


def halves(topology: Topology, size_bytes: int) -> tuple[Schedule, Schedule, Demand]:
    """An allreduce as a reduce_scatter and an allgather."""
    count = topology.num_gpus
    scattered = by("greedy", topology, collective("reduce_scatter", count, size_bytes))
    gathered = by("greedy", topology, collective("allgather", count, size_bytes))
    return scattered, gathered, collective("allreduce", count, size_bytes)


@pytest.mark.parametrize("topology", [ring(4), line(5), star(4), memory_star(3)], ids=lambda t: t.name)
def test_allreduce_from_halves_is_valid_and_no_later_than_with_a_barrier(topology):
    if topology.name == "memory star":  # greedy finds no reduction there
        count = topology.num_gpus
        first = by("direct", topology, collective("reduce_scatter", count, 60 * KB))
        second = by("direct", topology, collective("allgather", count, 60 * KB))
        demand = collective("allreduce", count, 60 * KB)
    else:
        first, second, demand = halves(topology, 60 * KB)
    both = concatenate(first, second, demand)
    assert verify(both) == []
    assert max(first.finish_ps, second.finish_ps) <= both.finish_ps <= first.finish_ps + second.finish_ps


def test_concatenate_does_not_wait_for_all_of_the_first_half():
    """Two blocks on two pairs of GPUs: the one that has finished continues."""
    topology = Topology("pairs", tuple(gpus(4)), tuple(link(a, b) for a, b in ((0, 1), (1, 0), (2, 3), (3, 2))))
    chunks = [(10 * KB, (0, 1)), (30 * KB, (2, 3))]
    whole = Demand.from_chunks("custom", 4, [Chunk(bytes=z, sources=r, destinations=r) for z, r in chunks])
    (first, _), (second, _) = whole.halves
    parts = [by("direct", topology, part) for part in (first, second)]
    both = concatenate(*parts, whole)
    assert verify(both) == []
    assert sorted(both.start_ps.tolist()) == [0, 0, 3 * US // 2, 7 * US // 2]


@pytest.mark.parametrize("join", [concatenate, in_sequence])
def test_of_equal_chunks_the_one_that_arrives_first_goes_on_first(join):
    """Two GPUs; a block is two chunks of 1 us each, and the latency is 1 us.

    The reduction sends the second chunk of each block first. That arrives after 2 us, when the link back is free too:
    the four us of transmission and one latency are all that the allreduce takes.
    """
    topology = Topology("pair", tuple(gpus(2)), (link(0, 1, latency_us=1.0), link(1, 0, latency_us=1.0)))
    demand = collective("allreduce", 2, 40 * KB, 2)
    (reduction, _), (distribution, _) = demand.halves
    rows = [(0, (1,), US, True), (1, (1,), 0, True), (2, (0,), US, True), (3, (0,), 0, True)]
    first = Schedule.from_transfers(topology, reduction, rows)
    rows = [(0, (0,), 0), (1, (0,), US), (2, (1,), 0), (3, (1,), US)]
    second = Schedule.from_transfers(topology, distribution, rows)
    both = join(first, second, demand)
    assert verify(both) == []
    assert both.finish_us == 5


def test_a_schedule_follows_another_on_each_link_of_a_route():
    """A switch 1 us from both GPUs: its second link is free for the next chunk 1 us after the first one."""
    topology = star(2, bandwidth_GBps=10, latency_us=1.0)
    names = {(one.src, one.dst): i for i, one in enumerate(topology.links)}
    route = (names[0, 2], names[2, 1])
    demand = Demand.from_chunks("custom", 2, [Chunk(bytes=10 * KB, sources=(0,), destinations=(1,))] * 2)
    parts = [Schedule.from_transfers(topology, demand, [(i, route, 0)]) for i in range(2)]
    both = in_sequence(*parts, demand)
    assert sorted(both.start_ps.tolist()) == [0, US]


def test_concatenate_recomputes_times_on_changing_links():
    """The second half is made for time zero, when the links are fast; later they are slow."""
    links = [replace(k, changes=((3.0, 2.0),)) for k in ring(4, bandwidth_GBps=10, latency_us=0.5).links]
    topology = Topology("changing ring", tuple(gpus(4)), tuple(links))
    first = by("direct", topology, collective("reduce_scatter", 4, 40 * KB))
    second = by("direct", topology, collective("allgather", 4, 40 * KB))
    both = concatenate(first, second, collective("allreduce", 4, 40 * KB))
    assert verify(both) == []


def test_concatenate_rejects_other_machines_and_chunks():
    first, second, demand = halves(ring(4), 40 * KB)
    other, _, small = halves(ring(4), 8 * KB)
    with pytest.raises(ScheduleError, match="ring:4 and line:4 are different machines"):
        concatenate(first, greedy(line(4), collective("allgather", 4, 40 * KB)), demand)
    with pytest.raises(ScheduleError, match="both schedules must have the chunks of the demand"):
        concatenate(other, second, demand)
    with pytest.raises(ScheduleError, match="both schedules must have the chunks of the demand"):
        concatenate(first, second, small)


@settings(max_examples=40)
@given(st.data())
def test_random_allreduces_from_halves_are_valid(data):
    topology = data.draw(topologies(max_gpus=4))
    demand = collective("allreduce", topology.num_gpus, 60_000, data.draw(st.integers(1, 2)))
    schedule = by(data.draw(st.sampled_from(("direct", "tree", "ring"))), topology, demand)
    assert verify(schedule) == []


# -- generate_serial --------------------------------------------------------------------------------------------------


@settings(max_examples=80)
@given(st.data())
def test_generate_serial_makes_valid_schedules(data):
    """On the machine itself, and on a machine whose links change."""
    schedule = data.draw(spread_out())
    assert verify(generate_serial(schedule, sequence(schedule))) == []
    links = [
        replace(k, changes=((1.0, data.draw(st.sampled_from((0.5, 5.0, 500.0)))),)) for k in schedule.topology.links
    ]
    changing = replace(schedule, topology=replace(schedule.topology, links=tuple(links)))
    assert verify(generate_serial(changing, sequence(schedule))) == []


@settings(max_examples=40)
@given(st.data())
def test_schedules_made_without_limits_fit_into_them(data):
    """The engine takes limits on links with other latencies, and lets transfers share them."""
    schedule = data.draw(spread_out())
    links = range(len(schedule.topology.links))
    shared = data.draw(st.lists(st.sampled_from(links), min_size=1, max_size=4, unique=True))
    limit = Limit(name="shared", links=tuple(shared), bandwidth_GBps=data.draw(st.sampled_from((2.0, 15.0))))
    limited = replace(schedule.topology, limits=(limit,))
    assert verify(within_limits(schedule, limited)) == []


def test_generate_serial_fills_idle_times():
    topology = Topology(
        "gap", tuple(gpus(3)), (Link(src=0, dst=1, bandwidth_GBps=10), Link(src=1, dst=2, bandwidth_GBps=10))
    )
    demand = send((10 * KB, 0, (2,)), (10 * KB, 1, (2,)), gpus=3)
    late = Schedule.from_transfers(topology, demand, [(0, (0,), 0), (0, (1,), US), (1, (1,), 2 * US)])
    assert generate_serial(late, sequence(late)).start_ps.tolist() == [0, US, 0]
