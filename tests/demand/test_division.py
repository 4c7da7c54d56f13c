"""Chunks of a demand, divided into smaller ones."""

import numpy as np
import pytest

from flowccl.demand.demand import Chunk, Demand
from flowccl.demand.division import divided
from flowccl.errors import DemandError


def _demand() -> Demand:
    chunks = [
        Chunk(bytes=7, sources=(0,), destinations=(1, 2)),
        Chunk(bytes=10, sources=(1, 2), destinations=(0,)),
    ]
    return Demand.from_chunks("custom", 3, chunks)


def test_pieces_follow_each_other_and_keep_their_ranks():
    fine = divided(_demand(), 3)
    assert fine.chunk_bytes.tolist() == [3, 2, 2, 4, 3, 3]
    assert fine.pieces == 3
    assert [fine.sources(c).tolist() for c in range(6)] == [[0]] * 3 + [[1, 2]] * 3
    assert [fine.destinations(c).tolist() for c in range(6)] == [[1, 2]] * 3 + [[0]] * 3
    assert fine.size_bytes == _demand().size_bytes


def test_one_piece_is_the_demand_itself():
    demand = _demand()
    assert divided(demand, 1) is demand


def test_ready_times_stay_with_their_data():
    from dataclasses import replace

    demand = replace(_demand(), ready_ps=np.array([5, 6, 7]))
    assert divided(demand, 2).ready_ps.tolist() == [5, 5, 6, 7, 6, 7]


def test_a_chunk_with_fewer_bytes_is_not_divided():
    with pytest.raises(DemandError, match="a chunk of 7 bytes cannot be divided into 8"):
        divided(_demand(), 8)
