"""`synthesize` takes what a user would write: a machine's name or file, and a size with its unit."""

from dataclasses import replace

import pytest

from flowccl import machine, synthesize
from flowccl.errors import InputError
from flowccl.synthesis.options import SearchOptions
from flowccl.synthesis.prepare import prepare
from flowccl.topology.files import save_topology
from flowccl.verifier.verify import verify


def test_a_name_a_file_and_a_machine_give_the_same(tmp_path):
    save_topology(machine("ring:4"), tmp_path / "four.json")
    found = [
        synthesize(given, "allgather", size, steps=1, chunks=1).schedule.finish_ps
        for given, size in ((machine("ring:4"), 1_000_000), ("ring:4", "1MB"), (str(tmp_path / "four.json"), "1000KB"))
    ]
    assert found[0] == found[1] == found[2]


def test_what_cannot_be_read_is_named():
    with pytest.raises(InputError, match="there is no machine"):
        synthesize("rings", "allgather", "1MB")
    with pytest.raises(InputError, match="cannot read 'much'"):
        synthesize("ring:4", "allgather", "much")


@pytest.mark.parametrize("name", ["reduce_scatter", "reduce"])
def test_a_reduction_is_the_distribution_of_the_reversed_machine_backwards(name):
    """A machine on which the two differ: one link is slow, in one direction only."""
    topology = machine("ring:6")
    links = (replace(topology.links[0], bandwidth_GBps=10.0), *topology.links[1:])
    topology = replace(topology, links=links)
    forward = {"reduce_scatter": "allgather", "reduce": "broadcast"}[name]
    assert not prepare(topology, name, 1_000_000, SearchOptions()).searched.demand.reduces
    found = synthesize(topology, name, "1MB", steps=40)
    other = synthesize(topology.reversed, forward, "1MB", steps=40)
    assert verify(found.schedule) == []
    assert found.schedule.demand.collective == name
    assert found.schedule.topology == topology
    assert found.schedule.finish_ps == other.schedule.finish_ps
    assert [one.finish_us for one in found.trace] == [one.finish_us for one in other.trace]
    assert all(verify(one) == [] for one in found.found)
