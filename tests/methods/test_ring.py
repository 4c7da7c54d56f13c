"""Ring: the fluid optimum where every GPU has one port, and where auto tries it."""

import pytest

from benchmarks.unseen_machines import draw
from flowccl.demand.collectives import collective
from flowccl.methods.registry import info_of, load_method
from flowccl.methods.suitability import suits_ring
from flowccl.problem import Problem
from flowccl.schedule.schedule import Schedule
from flowccl.search.context import SearchContext
from flowccl.topology.builders import star
from flowccl.topology.topology import Topology
from flowccl.verifier.verify import verify


def best(topology: Topology, name: str, size: int, chunks: int) -> Schedule:
    problem = Problem(topology, collective(name, topology.num_gpus, size, chunks))
    steps = load_method("ring")(problem, SearchContext.with_limit(60.0))
    found = [one for _, one in zip(range(4), steps, strict=False) if one is not None]
    assert all(verify(one) == [] for one in found)
    return min(found, key=lambda one: one.finish_ps)


@pytest.mark.parametrize("name", ["allgather", "reduce_scatter"])
def test_ports_are_always_busy(name: str) -> None:
    """Five blocks of 10 us into every GPU, and 1 us of latency: what any schedule takes at least."""
    found = best(star(6, bandwidth_GBps=10, latency_us=0.5), name, 600_000, 8)
    assert found.finish_us == pytest.approx(51, abs=1e-3)


def test_an_allreduce_on_a_dragonfly_with_two_slow_links_is_close_to_the_bound() -> None:
    """30 GPUs with ports of 12.5 GB/s send and receive 58 blocks of 33.3 KB: 154.7 us."""
    found = best(draw(331).topology, "allreduce", 10**6, 4)
    assert found.finish_us <= 154.7 * 1.02


def test_auto_tries_it_where_all_data_goes_around() -> None:
    topology = star(6)
    assert info_of("ring").in_auto is suits_ring
    wanted = {"allgather": True, "reduce_scatter": True, "allreduce": True, "alltoall": False, "broadcast": True}
    for name, suits in wanted.items():
        assert suits_ring(Problem(topology, collective(name, 6, 6000))) is suits
