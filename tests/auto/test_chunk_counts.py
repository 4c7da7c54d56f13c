"""Which chunk counts are allowed, and what more chunks may gain."""

import pytest

from flowccl.auto.chunk_counts import ChunkCounts, limit_ps
from flowccl.demand.collectives import collective
from flowccl.demand.demand import Demand
from flowccl.errors import DemandError, InputError
from flowccl.synthesis import synthesize
from flowccl.topology.machines import machine


def counts(size_bytes: int, min_chunk_bytes: int = 4000) -> ChunkCounts:
    return ChunkCounts(lambda count: collective("allgather", 4, size_bytes, count), min_chunk_bytes, 400_000)


def allowed(some: ChunkCounts, most: int = 40) -> list[int]:
    return [count for count in range(1, most) if some.demand(count) is not None]


def test_no_chunk_is_smaller_than_the_least_one():
    assert allowed(counts(4 * 16_000)) == [1, 2, 4]


def test_a_block_below_the_least_chunk_stays_whole():
    assert allowed(counts(4 * 100)) == [1]


def test_other_counts_than_powers_of_two_must_keep_chunks_aligned():
    """48,000 bytes in 3, 5, 6, 10 or 12 chunks are multiples of 16 bytes; in 7, 9 or 11 they are not."""
    assert allowed(counts(4 * 48_000)) == [1, 2, 3, 4, 5, 6, 8, 10, 12]


def test_alignment_is_not_asked_for_where_chunks_of_single_bytes_are():
    assert allowed(counts(4 * 12, min_chunk_bytes=1)) == list(range(1, 13))


def test_any_count_is_allowed_where_the_blocks_are_not_aligned_themselves():
    assert allowed(counts(4 * 20_004)) == [1, 2, 3, 4, 5]


def test_a_runtime_needs_aligned_chunks_always():
    some = counts(4 * 20_004)
    some.for_runtime = True
    assert allowed(some) == [1]


def test_the_next_count_skips_what_is_not_allowed():
    some = counts(4 * 48_000)
    assert some.above(2, powers=False) == 3
    assert some.above(2, powers=True) == 4
    assert some.above(8, powers=False) == 12
    assert some.above(12, powers=False) is None


def for_runtime(block_units: int) -> ChunkCounts:
    some = counts(4 * 16 * block_units, min_chunk_bytes=512)
    some.for_runtime = True
    return some


def test_counts_of_a_runtime_divide_blocks_that_are_no_powers_of_two():
    """4 MB on 16 GPUs are blocks of 15,625 units of 16 bytes, which is 5 to the sixth; 62,500 are four times that."""
    assert for_runtime(15_625).doublings(100) == [5, 25]
    assert for_runtime(62_500).doublings(100) == [2, 4, 10, 20, 50, 100]
    assert for_runtime(1 << 12).doublings(128) == [2, 4, 8, 16, 32, 64, 128]
    assert for_runtime(15_625).above(5, powers=False) == 25
    assert for_runtime(62_500).above(4, powers=False) == 5
    assert for_runtime(3_907).above(1, powers=False) is None


def test_chunks_are_refined_to_multiples_that_are_allowed():
    assert for_runtime(15_625).multiple(5, 2) == 25
    assert for_runtime(62_500).multiple(4, 2) == 20
    assert counts(4 * 48_000).multiple(4, 2) == 8


def test_the_largest_count_between_powers_of_two_is_known():
    """250 and 12 chunks of 4,000 bytes; 16 is a power of two; blocks that are not aligned have any number up to 5."""
    assert [counts(4 * block).most for block in (1_000_000, 48_000, 64_000, 20_004)] == [250, 12, 1, 5]


def test_the_number_of_deliveries_is_bounded():
    some = ChunkCounts(lambda count: collective("allgather", 4, 10**9, count), 1, 100)
    assert some.demand(8) is not None
    assert some.demand(16) is None


def test_all_counts_must_move_the_same_bytes():
    with pytest.raises(InputError, match=r"it has \d+ bytes, with 1 it has 4000000; both must have the same"):
        synthesize(machine("ring:4"), lambda count: collective("allgather", 4, 4_000_000 * count, 1))


def test_a_given_demand_has_one_count():
    def given(count: int) -> Demand:
        if count > 1:
            raise DemandError("the chunks are given")
        return collective("allgather", 4, 64)

    assert allowed(ChunkCounts(given, 1, 1000)) == [1]


def test_the_law_of_pipelines_is_exact_for_a_chain():
    """A chain of three links, one chunk at a time: c chunks of z / c bytes take z + 2 z / c."""
    finish = {c: 12_000 + 2 * 12_000 / c for c in (1, 2, 4)}
    assert limit_ps(1, finish[1], 2, finish[2]) == pytest.approx(12_000)
    assert limit_ps(2, finish[2], 4, finish[4]) == pytest.approx(12_000)


def test_beside_a_count_is_what_lies_halfway_to_the_next_one_that_was_tried():
    some = ChunkCounts(lambda count: collective("allgather", 4, 4 * 1_000_000, count), 512, 400_000, for_runtime=True)
    assert some.beside(4, [1, 2, 4, 10]) == 5  # blocks of 2^2 x 5^6 units: no chunks of 6 to 9
    assert some.beside(5, [1, 2, 4, 5, 10]) is None
    assert some.beside(10, [1, 2, 4, 10]) == 5
    assert some.beside(1, [1]) is None
