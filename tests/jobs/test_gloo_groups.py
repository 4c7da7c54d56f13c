"""The group of a thread of gloo, from the order of threads and the sizes that calls show."""

from flowccl.jobs.calls import Group
from flowccl.jobs.gloo_groups import groups_of_threads

WORLD, PAIR, FOUR = Group(8, tuple(range(8))), Group(2, (1, 5)), Group(4, (0, 1, 2, 3))


def test_one_group_has_all_threads():
    assert groups_of_threads([5, 9], {}, [WORLD]) == {5: WORLD, 9: WORLD}


def test_threads_in_order_of_groups():
    assert groups_of_threads([10, 11, 20], {}, [WORLD, PAIR]) == {10: WORLD, 11: WORLD, 20: PAIR}


def test_threads_of_one_group_may_be_far_apart():
    """As seen with PyTorch 2.9, where eight processes made threads at the same time: 17 is of the group of 10 or not.

    Both serve one group, but which one cannot be told: the reader then takes the first group.
    """
    found = groups_of_threads([10, 17, 30, 31], {30: {4}, 31: {4}}, [WORLD, PAIR, FOUR])
    assert found == {30: FOUR, 31: FOUR}


def test_threads_whose_calls_show_different_sizes_are_of_different_groups():
    found = groups_of_threads([10, 11, 12, 13], {11: {2}, 12: {4}}, [PAIR, FOUR])
    assert found == {10: PAIR, 11: PAIR, 12: FOUR, 13: FOUR}


def test_what_cannot_be_told_is_left_out():
    assert groups_of_threads([10], {10: {3}}, [WORLD, PAIR]) == {}
