"""The options of a synthesis: an object, or keywords with the same names."""

import pytest

from flowccl import SearchOptions, machine, synthesize
from flowccl.errors import InputError


def test_a_keyword_counts_instead_of_the_option():
    options = SearchOptions(method="ring", chunks=2, steps=1)
    both = [synthesize(machine("ring:4"), "allgather", 4096, options, **more) for more in ({}, {"chunks": 1})]
    assert [(one.schedule.method, one.schedule.demand.pieces) for one in both] == [("ring", 2), ("ring", 1)]


def test_an_unknown_keyword_and_a_time_limit_of_zero_are_refused():
    with pytest.raises(TypeError, match="chunk_count"):
        synthesize(machine("ring:4"), "allgather", 4096, chunk_count=2)
    with pytest.raises(InputError, match="the time limit must be above 0 seconds, got 0"):
        synthesize(machine("ring:4"), "allgather", 4096, time_limit_s=0)
