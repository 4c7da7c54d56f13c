"""Named collectives: exact tables, exact totals, exact messages."""

import re
import time

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flowccl.demand.collectives import (
    COLLECTIVES_BY_NAME,
    ROOTED,
    allgather,
    allreduce,
    alltoall,
    alltoallv,
    broadcast,
    busbw_factor,
    collective,
    collective_name,
    gather,
    reduce,
    reduce_scatter,
    scatter,
)
from flowccl.demand.demand import COLLECTIVES, Demand
from flowccl.errors import DemandError

NAMES = sorted(COLLECTIVES_BY_NAME)


def table(demand: Demand) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    chunks = [demand.chunk(c) for c in range(len(demand))]
    return [(chunk.bytes, chunk.sources, chunk.destinations) for chunk in chunks]


def test_allgather_sends_every_block_to_all_others() -> None:
    assert table(allgather(3, 6)) == [(2, (0,), (1, 2)), (2, (1,), (0, 2)), (2, (2,), (0, 1))]


def test_allgather_orders_chunks_by_rank_then_piece_and_the_first_are_larger() -> None:
    # 11 bytes on 2 gpus: blocks of 6 and 5, in pieces of 3 + 3 and 3 + 2
    assert table(allgather(2, 11, 2)) == [(3, (0,), (1,)), (3, (0,), (1,)), (3, (1,), (0,)), (2, (1,), (0,))]


def test_alltoall_keeps_the_own_block_and_orders_by_source_destination_piece() -> None:
    assert table(alltoall(3, 7)) == [
        (2, (0,), (1,)),
        (2, (0,), (2,)),
        (3, (1,), (0,)),
        (2, (1,), (2,)),
        (3, (2,), (0,)),
        (2, (2,), (1,)),
    ]
    pieces = alltoall(2, 8, 2)
    assert table(pieces) == [(2, (0,), (1,))] * 2 + [(2, (1,), (0,))] * 2
    assert pieces.pieces == 2


def test_rooted_collectives() -> None:
    assert table(broadcast(3, 5, 2, root=1)) == [(3, (1,), (0, 2)), (2, (1,), (0, 2))]
    assert table(scatter(3, 8, root=1)) == [(3, (1,), (0,)), (2, (1,), (2,))]
    assert table(gather(3, 8, root=2)) == [(3, (0,), (2,)), (3, (1,), (2,))]
    assert table(reduce(3, 8, root=2)) == [(8, (0, 1, 2), (2,))]


def test_reducing_collectives_have_one_block_per_rank() -> None:
    all_ranks = (0, 1, 2)
    assert table(reduce_scatter(3, 7)) == [(3, all_ranks, (0,)), (2, all_ranks, (1,)), (2, all_ranks, (2,))]
    assert table(allreduce(3, 7)) == [(3, all_ranks, all_ranks), (2, all_ranks, all_ranks), (2, all_ranks, all_ranks)]


def test_alltoallv_follows_its_matrix() -> None:
    demand = alltoallv([[9, 5, 0], [0, 0, 0], [3, 2, 0]], chunks=2)
    assert table(demand) == [
        (3, (0,), (1,)),
        (2, (0,), (1,)),
        (3, (2,), (0,)),
        (2, (2,), (1,)),
    ]
    assert demand.size_bytes == 14  # 9 bytes of rank 0 stay and 5 are sent
    assert demand.pieces == 1  # the pairs have 2, 1 and 1 chunks


def test_a_uniform_alltoallv_is_an_alltoall() -> None:
    even, plain = alltoallv(np.full((4, 4), 25), 3), alltoall(4, 100, 3)
    assert table(even) == table(plain)
    assert even.size_bytes == plain.size_bytes == 100


@settings(deadline=None)
@given(
    name=st.sampled_from(NAMES),
    num_gpus=st.integers(2, 9),
    size=st.integers(1, 10_000),
    chunks=st.integers(1, 7),
    data=st.data(),
)
def test_no_byte_is_lost_and_parts_are_nearly_equal(
    name: str, num_gpus: int, size: int, chunks: int, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, num_gpus - 1)) if name in ROOTED else 0
    blocks = 1 if name in ("broadcast", "reduce") else num_gpus
    if size // blocks < chunks:
        with pytest.raises(DemandError, match=r"give at least|at most"):
            collective(name, num_gpus, size, chunks, root)
        return
    demand = collective(name, num_gpus, size, chunks, root)
    whole = np.array([size // blocks + (block < size % blocks) for block in range(blocks)])
    moving = {"alltoall": int(whole.sum()) * (num_gpus - 1)}
    moving |= dict.fromkeys(("scatter", "gather"), int(whole.sum() - whole[root]) if blocks > 1 else 0)
    assert demand.chunk_bytes.sum() == moving.get(name, size)
    assert len(demand) % chunks == 0
    parts = demand.chunk_bytes.reshape(-1, chunks)
    assert np.all(np.diff(parts, axis=1) <= 0)
    assert np.all(parts[:, 0] - parts[:, -1] <= 1)
    assert (demand.collective, demand.num_gpus, demand.size_bytes, demand.pieces) == (name, num_gpus, size, chunks)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("allgather", (1, 8), "allgather: needs at least 2 gpus, got 1"),
        ("allgather", (4, 8, 3), "allgather: 3 chunks do not fit in a block of 2 bytes; at most 2 chunks"),
        ("broadcast", (4, 8, 9), "broadcast: 9 chunks do not fit in a block of 8 bytes; at most 8 chunks"),
        (
            "alltoall",
            (4, 3),
            "alltoall: 3 bytes cannot be cut into 4 blocks, one per gpu; give at least 4 bytes",
        ),
        ("allgather", (4, 0), "allgather: size_bytes must be 1 to 2^60, got 0"),
        ("allgather", (4, 2**61), f"allgather: size_bytes must be 1 to 2^60, got {2**61}"),
        ("allgather", (4, 8, 0), "allgather: chunks must be at least 1, got 0"),
        ("allgather", (4, True), "size_bytes must be a whole number, got True"),
        ("allgather", (2.0, 8), "num_gpus must be a whole number, got 2.0"),
        ("reduce", (4, 8, 1, 4), "reduce: root must be a rank, 0 to 3, got 4"),
        ("reduce", (4, 8, 1, -1), "reduce: root must be a rank, 0 to 3, got -1"),
        ("allgather", (4, 8, 1, 2), "allgather has no root, got root 2"),
        (
            "allreduce",
            (30_000, 10**9),
            "allreduce: 30000 gpus with 1 chunks per block have 1800000000 entries, more than 536870912; "
            "use fewer chunks or gpus",
        ),
        ("allgathr", (4, 8), "unknown collective 'allgathr'; did you mean allgather?"),
        ("alltoallv", (4, 8), "alltoallv needs the bytes of every pair: use alltoallv(matrix_bytes) or a demand file"),
        ("custom", (4, 8), "a custom demand lists its chunks: use Demand.from_chunks or a demand file"),
    ],
)
def test_messages(name: str, arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(DemandError) as caught:
        collective(name, *arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[0, 1, 2], [1, 0, 2]], "the byte matrix must be square, one row per gpu, got shape (2, 3)"),
        ([1, 2], "the byte matrix must be square, one row per gpu, got shape (2,)"),
        ([[0, 1], [1]], "the rows of the byte matrix differ in length; it must be square"),
        ([[0, -1], [1, 0]], "entry [0][1] must be >= 0, got -1"),
        ([[0, 1], [1.5, 0]], "entry [1][0] must be a whole number of bytes, got 1.5"),
        ([[0, "x"], [1, 0]], "entry [0][0] must be a whole number of bytes, got 0"),
        ([[0, 2**70], [1, 0]], f"entry [0][1] is too large, got {2**70}"),
        ([[3, 0], [0, 4]], "all entries off the diagonal are 0; at least one must be positive"),
        ([[5]], "needs at least 2 gpus, got 1"),
    ],
)
def test_bad_matrices(matrix: list[list[int]], message: str) -> None:
    with pytest.raises(DemandError) as caught:
        alltoallv(matrix)
    assert str(caught.value) == f"alltoallv: {message}"


def test_alltoallv_names_the_pair_that_is_too_small() -> None:
    message = "alltoallv: 6 chunks do not fit in the 5 bytes from rank 0 to rank 1; at most 5 chunks"
    with pytest.raises(DemandError, match=re.escape(message)):
        alltoallv([[0, 5], [2, 0]], 6)


def test_small_entries_of_an_alltoallv_are_not_divided_next_to_a_large_one() -> None:
    matrix = np.full((8, 8), 1000)
    matrix[2, 5] = 10_000_000
    demand = alltoallv(matrix, 64)
    assert len(demand) == 8 * 7 - 1 + 64
    assert demand.chunk_bytes.max() == 10_000_000 // 64


@given(st.lists(st.lists(st.integers(0, 2000), min_size=4, max_size=4), min_size=4, max_size=4), st.integers(1, 40))
def test_chunks_of_an_alltoallv_have_the_right_total_and_similar_sizes(rows: list[list[int]], chunks: int) -> None:
    matrix = np.array(rows)
    np.fill_diagonal(matrix, 0)
    assume(matrix.max() >= chunks)
    demand = alltoallv(matrix, chunks)
    found = np.zeros((4, 4), dtype=np.int64)
    np.add.at(found, (demand.source_rank, demand.destination_rank), demand.chunk_bytes)
    assert np.array_equal(found, matrix)
    assert demand.chunk_bytes.min() > 0
    assert demand.chunk_bytes.max() <= 1.5 * matrix.max() / chunks + 1


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("all_gather", "allgather"),
        ("All-Gather", "allgather"),
        ("reduce-scatter", "reduce_scatter"),
        ("reducescatter", "reduce_scatter"),
        ("all-to-all", "alltoall"),
        ("all_to_all_v", "alltoallv"),
        ("allreduce", "allreduce"),
    ],
)
def test_spellings(spelling: str, name: str) -> None:
    assert collective_name(spelling) == name


def test_an_unknown_name_without_a_similar_name_lists_all_names() -> None:
    with pytest.raises(DemandError) as caught:
        collective_name("xyz")
    assert str(caught.value) == f"unknown collective 'xyz'; known collectives are {', '.join(COLLECTIVES)}"


def test_busbw_factors_are_those_of_nccl_tests() -> None:
    one = dict.fromkeys(("broadcast", "reduce", "custom"), 1.0)
    most = dict.fromkeys(("allgather", "alltoall", "alltoallv", "scatter", "gather", "reduce_scatter"), 7 / 8)
    assert {name: busbw_factor(name, 8) for name in COLLECTIVES} == one | most | {"allreduce": 14 / 8}
    assert busbw_factor("all_reduce", 2) == 1.0
    with pytest.raises(DemandError, match="allgather: needs at least 2 gpus, got 1"):
        busbw_factor("allgather", 1)


def test_a_million_chunks_take_at_most_seconds() -> None:
    start = time.process_time()
    assert len(alltoall(1024, 2**30)) == 1024 * 1023
    assert len(allgather(1024, 2**30).destination_rank) == 1024 * 1023
    assert time.process_time() - start < 15  # about 1 s on an idle machine
