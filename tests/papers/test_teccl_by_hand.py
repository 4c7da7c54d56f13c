"""The examples of TE-CCL's figures 2 and 4, and its options, on machines whose optima are easy to derive."""

from dataclasses import replace

import pytest

from flowccl.errors import DemandError, InputError
from tests.papers.teccl_cases import MB, demand_of, machine_of, run

SECOND = 1_000_000  # us


def epochs(method, topology, demand, **options):
    return run(method, topology, demand, epoch="1s", **options)[1]["epochs"]


# Figure 2a: a chunk for three destinations behind one relay.
COPY = machine_of("s h a b c", "s h", "h a", "h b", "h c")


def test_copy_at_the_relay_takes_two_epochs():
    demand = demand_of(COPY, ("s", "a b c"))
    assert epochs("milp", COPY, demand) == 2  # s -> h, then h -> a, b, c in parallel
    assert epochs("milp", COPY, demand, copy=False) == 4  # three times s -> h, and the last one more hop
    assert epochs("lp", COPY, demand, copy=False) == 4
    assert epochs("astar", COPY, demand) == 2


# Figure 2b: two chunks reach the relay together, and one must wait.
QUEUE = machine_of("s t h d", "s h", "t h", "h d")


def test_one_of_two_chunks_waits_at_the_relay():
    schedule, notes = run("milp", QUEUE, demand_of(QUEUE, ("s", "d"), ("t", "d")), epoch="1s")
    assert notes["epochs"] == 3
    assert schedule.finish_us == pytest.approx(3 * SECOND)
    assert notes["epochs_bound"] == 3


def test_latency_counts_in_epochs_and_in_real_time():
    topology = machine_of("s t h d", "s h 1 0.5", "t h 1 0.5", "h d 1 0.5")
    schedule, notes = run("milp", topology, demand_of(topology, ("s", "d"), ("t", "d")), epoch="1s")
    assert notes["epochs"] == 5  # each hop takes two epochs; the second chunk starts one later
    assert notes["grid_finish_us"] == pytest.approx(5 * SECOND)
    assert schedule.finish_us == pytest.approx(4 * SECOND)  # 1.5 to h, 1 waiting, 1.5 to d


def test_latency_below_the_threshold_is_ignored_on_the_grid_only():
    topology = machine_of("s h d", "s h 1 0.05", "h d 1 0.05")
    schedule, notes = run("milp", topology, demand_of(topology, ("s", "d")), epoch="1s", latency_threshold=0.1)
    assert (notes["epochs"], notes["epoch_us"]) == (2, SECOND)
    assert schedule.finish_us == pytest.approx(2.1 * SECOND)


# Figure 2c: three sources, one relay: the completion time is the same with and without buffers.
BUFFER = machine_of("s t u h d", "s h", "t h", "u h", "h d")


@pytest.mark.parametrize("buffers", [True, False])
@pytest.mark.parametrize("method", ["milp", "lp"])
def test_buffers_do_not_change_the_completion_time(method, buffers):
    demand = demand_of(BUFFER, ("s", "d"), ("t", "d"), ("u", "d"))
    assert epochs(method, BUFFER, demand, buffers=buffers) == 4


# Figure 4: two relays to one destination; halves of a chunk must not be counted twice.
HALVES = machine_of("s a b d", "s a", "s b", "a d", "b d")


def test_half_chunks_are_distinguished():
    whole, notes = run("milp", HALVES, demand_of(HALVES, ("s", "a b d")), epoch="1s")
    assert notes["epochs"] == 2
    assert whole.finish_us == pytest.approx(2 * SECOND)
    two = demand_of(HALVES, ("s", "a b d"), ("s", "a b d"), size=MB // 2)
    half, notes = run("milp", HALVES, two, epoch="0.5s")
    # The second half leaves s in the second epoch, so d has both only if each relay forwarded a different half.
    assert notes["epochs"] == 2
    assert half.finish_us == pytest.approx(1 * SECOND)


# Links slower than an epoch (appendix F), and faster ones.
def test_a_slow_link_is_busy_for_several_epochs():
    topology = machine_of("s h d", "s h 2", "h d 0.5")
    demand = demand_of(topology, ("s", "d"), ("s", "d"))
    assert epochs("milp", topology, demand) == 1 + 2 + 2
    fast, notes = run("milp", topology, demand, epoch="fast")
    assert notes["epoch_us"] == SECOND / 2
    assert notes["epochs"] == 1 + 4 + 4
    slow, notes = run("milp", topology, demand, epoch="slow")
    assert (notes["epoch_us"], notes["epochs"]) == (2 * SECOND, 3)
    assert slow.finish_us == fast.finish_us == pytest.approx(4.5 * SECOND)


def test_rates_split_a_chunk_over_two_paths():
    topology = machine_of("s a b d", "s a", "s b", "a d", "b d")
    schedule, notes = run("lp", topology, demand_of(topology, ("s", "d")), epoch="0.5s", warm_start=False)
    assert notes["epochs"] == 2
    assert schedule.finish_us == pytest.approx(1 * SECOND)  # half a chunk on each path; a whole chunk takes 2 s
    assert schedule.demand.pieces == 2


def test_bandwidth_that_changes_is_refused():
    topology = machine_of("s d", "s d")
    slower = replace(topology, links=(replace(topology.links[0], changes=((1e6, 0.0005),)),))
    for method in ("milp", "lp", "astar"):
        with pytest.raises(
            DemandError, match=f"method {method} does not support changing bandwidth; use greedy or auto"
        ):
            run(method, slower, demand_of(topology, ("s", "d")))


# Switches.
def star(**switch):
    topology = machine_of("a b c x", "a x", "b x", "c x", "x a", "x b", "x c")
    node = replace(topology.nodes[3], kind="switch", stores=None, copies=None, reduces=None)
    return replace(topology, nodes=(*topology.nodes[:3], replace(node, stores=False, reduces=False, **switch)))


def test_switches_copy_only_if_they_can():
    plain, copying = star(copies=False), star(copies=True)
    chunk = ("a", "b c")
    assert epochs("milp", copying, demand_of(copying, chunk)) == 1
    assert epochs("milp", plain, demand_of(plain, chunk)) == 2
    assert epochs("milp", plain, demand_of(plain, chunk), hyper_edges=True) == 2
    assert epochs("astar", plain, demand_of(plain, chunk)) == 2


def test_store_and_forward_switches_take_both_hops():
    slow = star(copies=False, crossing="store-and-forward")
    assert epochs("milp", slow, demand_of(slow, ("a", "b"))) == 2
    assert epochs("lp", slow, demand_of(slow, ("a", "b"))) == 2


def test_hyper_edges_share_the_links_of_the_switch():
    plain = star(copies=False)
    demand = demand_of(plain, ("a", "b"), ("c", "b"), ("a", "c"))
    for hyper in (True, False):
        assert epochs("milp", plain, demand, hyper_edges=hyper, warm_start=False) == 2


# Limited buffers (appendix B).
def test_limited_buffers():
    from flowccl.topology.variants import with_buffers

    topology = machine_of("s t h d", "s h 2", "t h 2", "h d")
    demand = demand_of(topology, ("s", "d"), ("s", "d"), ("t", "d"))
    assert epochs("milp", topology, demand) == 4
    large_buffers = with_buffers(topology, 2 * MB)
    assert epochs("milp", large_buffers, demand) == 4
    _, notes = run("milp", with_buffers(topology, MB), demand, epoch="1s", warm_start=False)
    assert notes["epochs"] == 6  # one at a time: in and out again
    with pytest.raises(InputError, match="too small"):
        run("milp", with_buffers(topology, MB // 2), demand, epoch="1s")
