"""Routes as arrays."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flowccl.topology.machines import machine
from flowccl.topology.routes import Routes, route_shape


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


@given(st.sampled_from(["dgx2:2", "dgx_h100:2", "dgx1"]), st.integers(0, 2**32 - 1))
def test_shapes_on_whole_arrays_equal_those_of_single_routes(name: str, seed: int) -> None:
    """A route that stops at a switch has no shape on whole arrays, so beside it all shapes are found one by one."""
    topology, random = machine(name), np.random.default_rng(seed)
    out = [np.flatnonzero(topology.link_src == node) for node in range(len(topology.nodes))]
    lists: list[tuple[int, ...]] = []
    for _ in range(5):
        first = int(random.choice(out[int(random.integers(topology.num_gpus))]))
        switch = topology.links[first].dst
        after = (
            [] if topology.nodes[switch].stores else random.permutation(out[switch])[: random.integers(1, 6)].tolist()
        )
        lists.append((first, *after))
        if after:  # from several nodes through the switch to one
            into = np.flatnonzero(topology.link_dst == switch)
            lists.append((*random.permutation(into)[: random.integers(1, 6)].tolist(), after[0]))
    together = route_shape(topology, Routes.from_lists(lists))
    broken = next((k for k, link in enumerate(topology.links) if not topology.nodes[link.dst].stores), None)
    single = route_shape(topology, Routes.from_lists([*lists, () if broken is None else (broken,)]))
    hops, ends = sum(map(len, lists)), int(single.end_ptr[len(lists)])
    assert together.problem == {r: text for r, text in single.problem.items() if r < len(lists)}
    np.testing.assert_array_equal(together.hop_offset_ps, single.hop_offset_ps[:hops])
    np.testing.assert_array_equal(together.hop_segment, single.hop_segment[:hops])
    np.testing.assert_array_equal(together.segment_GBps, single.segment_GBps[: len(together.segment_GBps)])
    np.testing.assert_array_equal(together.root_ptr, single.root_ptr[:-1])
    np.testing.assert_array_equal(together.root_node, single.root_node[: len(together.root_node)])
    np.testing.assert_array_equal(together.root_hop, single.root_hop[: len(together.root_hop)])
    np.testing.assert_array_equal(together.end_ptr, single.end_ptr[:-1])
    np.testing.assert_array_equal(together.end_node, single.end_node[:ends])
    np.testing.assert_array_equal(together.end_hop, single.end_hop[:ends])
