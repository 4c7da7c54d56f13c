import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowccl.catalog.ranges import Segment, cover, crossover, probes, segments


def test_probes_double_and_include_both_ends():
    assert probes(1000, 10_000, 1) == (1008, 2000, 4000, 8000, 10_000)
    assert probes(1, 3, 4) == (64,)


def test_a_plan_that_wins_nowhere_is_dropped():
    sizes = (1, 2, 4)
    fast_small, fast_large, slow = {1: 10, 2: 10, 4: 40}, {1: 20, 2: 20, 4: 20}, {1: 15, 2: 15, 4: 30}
    assert cover([slow, fast_small, fast_large], sizes, 0.01, 8) == [1, 2]


def test_one_plan_within_the_tolerance_of_all_others_is_enough():
    assert len(cover([{1: 100, 2: 100}, {1: 101, 2: 99}], (1, 2), 0.02, 8)) == 1


@given(
    st.lists(st.lists(st.integers(1, 1000), min_size=5, max_size=5), min_size=1, max_size=8),
    st.sampled_from([0.0, 0.1, 1.0]),
)
def test_the_chosen_plans_are_within_the_tolerance_everywhere(rows, tolerance):
    plans = [dict(enumerate(row)) for row in rows]
    chosen = cover(plans, range(5), tolerance, len(plans))
    for size in range(5):
        assert min(plans[n][size] for n in chosen) <= min(plan[size] for plan in plans) * (1 + tolerance) + 1e-9


def test_segments_name_the_library_where_it_is_faster():
    plans = {0: {1: 10, 2: 20, 4: 50}, 3: {1: 15, 2: 25, 4: 30}}
    library = {1: 5, 2: 30, 4: None}
    assert segments(plans, library, (1, 2, 4), 0.0) == [Segment(0, 0, None), Segment(1, 1, 0), Segment(2, 2, 3)]


@pytest.mark.parametrize("at", [1_100, 5_000, 9_999])
def test_bisection_finds_the_crossover(at):
    found = crossover(lambda size: 1000 + size, lambda size: 1000 + at, 1024, 16_384, 16)
    assert found % 16 == 0
    assert at <= found <= at * (1 + 1 / 100) + 16
