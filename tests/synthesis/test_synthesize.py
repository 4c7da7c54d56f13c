"""`synthesize` takes what a user would write: a machine's name or file, and a size with its unit."""

import pytest

from flowccl import machine, synthesize
from flowccl.errors import InputError
from flowccl.topology.files import save_topology


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
