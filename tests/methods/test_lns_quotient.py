"""Method lns on quotients: the plan for one chunk of each orbit expands to a valid schedule of all chunks."""

from itertools import islice

import numpy as np
import pytest

from flowccl.demand.collectives import collective
from flowccl.demand.demand import Chunk, Demand
from flowccl.methods.lns.quotient import Quotient
from flowccl.methods.registry import load_method
from flowccl.problem import Problem
from flowccl.search.context import SearchContext
from flowccl.topology.machines import machine
from flowccl.topology.symmetry.free_groups import free_groups
from flowccl.verifier.verify import verify


@pytest.mark.parametrize("what", ["allgather", "alltoall", "reduce_scatter"])
@pytest.mark.parametrize(
    "name", ["ring:5", "dgx1", "ndv2:2", "dragonfly:2:2:1", "mi250:1", "dgx_a100:2", "hypercube:3"]
)
def test_schedules_are_valid(name, what):
    topology = machine(name)
    demand = collective(what, topology.num_gpus, 3 * 64_000, 3)
    found = [
        s
        for s in islice(load_method("lns")(Problem(topology, demand), SearchContext.with_limit(60.0)), 6)
        if s is not None
    ]
    assert found
    assert all(verify(schedule) == [] for schedule in found)
    assert [s.finish_ps for s in found] == sorted({s.finish_ps for s in found}, reverse=True)


def test_all_links_of_an_orbit_carry_the_same_number_of_chunks():
    topology = machine("torus:4x4")
    demand = collective("allgather", 16, 16_000_000, 1)
    found = [
        s
        for s in islice(load_method("lns")(Problem(topology, demand), SearchContext.with_limit(60.0)), 3)
        if s is not None
    ][-1]
    assert found.method == "lns"
    use = np.bincount(found.routes.link[found.routes.ptr[found.route]], minlength=len(topology.links))
    orbits = [group.link_orbits for group in free_groups(topology)]
    assert any(len(set(zip(orbit.tolist(), use.tolist(), strict=True))) == orbit.max() + 1 for orbit in orbits)


def test_a_dragonfly_with_40_gpus_is_within_20_percent_of_the_lower_bound_after_a_few_steps():
    """The GPU links must be busy nearly all the time, in both directions; lns on all links stays at 25 %."""
    topology = machine("dragonfly:4:2:1")
    demand = collective("allgather", 40, 1_000_000, 1)
    found = [
        s
        for s in islice(load_method("lns")(Problem(topology, demand), SearchContext.with_limit(60.0)), 10)
        if s is not None
    ]
    assert found[-1].finish_us < 40.4 * 1.2


def test_images_of_chunks_have_the_images_of_their_gpus():
    topology = machine("hypercube:3")
    demand = collective("alltoall", 8, 800, 2)
    for group in free_groups(topology):
        quotient = Quotient.of(group, demand)
        assert quotient is not None
        assert len(quotient.chunks) * len(group) == len(demand)
        for nodes, image in zip(group.nodes, quotient.image, strict=True):
            assert np.array_equal(demand.source[image], nodes[demand.source])
            assert np.array_equal(demand.destination_rank[image], nodes[demand.destination_rank])


@pytest.mark.parametrize(
    ("topology", "demand"),
    [
        (machine("line:3"), collective("allgather", 3, 300, 1)),  # its reflection fixes the GPU in the middle
        (machine("ring:4"), collective("broadcast", 4, 400, 1)),
        (machine("ring:4"), Demand.from_chunks("custom", 4, [Chunk(bytes=8, sources=(0,), destinations=(1,))])),
    ],
)
def test_without_a_symmetry_of_machine_and_demand_there_is_no_quotient(topology, demand):
    assert all(Quotient.of(group, demand) is None for group in free_groups(topology))
    assert next(load_method("lns")(Problem(topology, demand), SearchContext.with_limit(60.0))) is not None
