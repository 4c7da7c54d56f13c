"""Routes as arrays."""

from hypothesis import given
from hypothesis import strategies as st

from flowccl.topology.routes import Routes


@given(st.lists(st.lists(st.integers(-3, 4), max_size=4), max_size=40))
def test_distinct_routes_appear_once_and_in_order(lists):
    routes = [tuple(route) for route in lists]
    once, which = Routes.from_lists(routes).distinct()
    assert [once.links(i) for i in range(len(once))] == list(dict.fromkeys(routes))
    assert [once.links(int(i)) for i in which] == routes


def test_distinct_respects_the_order_of_links_and_the_end_of_each_route():
    routes = [(1, 2), (2, 1), (1,), (2,), (1, 2), (), (1, 1, 2), (1, 2, 1)]
    once, which = Routes.from_lists(routes).distinct()
    assert len(once) == 7
    assert which.tolist() == [0, 1, 2, 3, 0, 4, 5, 6]
