"""The probing plan: every link alone, disjoint hosts at the same time, a bounded number of rounds."""

from itertools import combinations

import pytest

from flowccl.errors import InputError
from flowccl.profile.probes import (
    BUSY,
    PlanOptions,
    all_links,
    alone_rounds,
    check_ranks,
    pairs_left_out,
    probe_sets,
    together_rounds,
)

OPTIONS = PlanOptions()
SHAPES = 2 * len(OPTIONS.sizes)  # sequential and concurrent chunks


def hosts_of(count: int, size: int) -> list[str]:
    return [f"host{rank // size}" for rank in range(count * size)]


def test_every_link_is_probed_alone_in_every_shape():
    rounds = alone_rounds(hosts_of(2, 3), OPTIONS)
    met = [(p.links[0], p.chunk_bytes[0], p.at_once) for turn in rounds for p in turn]
    assert len(met) == OPTIONS.passes * len(set(met)) == OPTIONS.passes * 30 * SHAPES
    assert {link for link, _, _ in met} == set(all_links(6))


@pytest.mark.parametrize(("count", "size"), [(1, 4), (3, 2), (8, 8)])
def test_simultaneous_probes_use_different_hosts(count, size):
    hosts = hosts_of(count, size)
    rounds = alone_rounds(hosts, OPTIONS) + together_rounds(hosts, OPTIONS, dict.fromkeys(all_links(len(hosts)), 10.0))
    for turn in rounds:
        touched = [{hosts[rank] for rank in probe.ranks} for probe in turn]
        assert sum(len(part) for part in touched) == len(set().union(*touched))


def test_rounds_grow_with_the_hosts_not_with_the_square_of_the_ranks():
    """A host of 8 has 2 x 64 links with each other host and 56 of its own; packing may waste some rounds."""
    for count in (2, 4, 8, 16):
        turns = len(alone_rounds(hosts_of(count, 8), OPTIONS)) / SHAPES / OPTIONS.passes
        assert turns <= 2 * (56 + 128 * (count - 1))
    links = 128 * 127
    assert turns < links / 3


def test_all_pairs_up_to_eight_ranks_and_a_bounded_number_beyond():
    assert pairs_left_out(["h"] * 8, OPTIONS) == 0
    assert {frozenset(q.links) for q in probe_sets(["h"] * 4, OPTIONS)} >= {
        frozenset(pair) for pair in combinations(all_links(4), 2)
    }
    for count, size in ((1, 16), (4, 8), (16, 8)):
        hosts = hosts_of(count, size)
        assert pairs_left_out(hosts, OPTIONS) > 0
        rounds = together_rounds(hosts, OPTIONS, dict.fromkeys(all_links(len(hosts)), 10.0))
        inside, ports = size * (size - 1) * (size * (size - 1) - 1) // 2, 2 * len(hosts)
        three = 3 * (size * (size - 1) + ports + 10)  # sets are probed with three numbers of bytes
        assert len(rounds) / OPTIONS.passes <= min(inside, OPTIONS.pairs) + three


def test_sets_cover_ports_hosts_and_the_machine():
    names = {q.name for q in probe_sets(hosts_of(3, 3), OPTIONS)}
    assert {"out of gpu0", "into gpu8", "out of host0", "into host1", "everything"} <= names
    everything = [q for q in probe_sets(["h"] * 4, OPTIONS) if q.name == "everything"]
    assert [len(q.links) for q in everything] == [4, 12]


@pytest.mark.parametrize(("ranks", "sets"), [(2, [2]), (4, [4, 12]), (17, [17])])
def test_small_probes_of_all_ranks_use_one_and_eight_chunks(ranks, sets):
    rounds = together_rounds(["h"] * ranks, OPTIONS, dict.fromkeys(all_links(ranks), 1.024))  # 512,000 bytes each
    busy = [p for turn in rounds for p in turn if p.name == BUSY]
    shapes = [(len(p.links), p.chunk_bytes[0], p.chunks) for p in busy]
    assert shapes[: len(shapes) // 2] == [(k, *few) for k in sets for few in ((32_000, 1), (8_000, 1), (1_000, 8))]
    assert shapes[len(shapes) // 2 :] == shapes[: len(shapes) // 2][::-1]


def test_bytes_of_links_together_are_proportional_to_bandwidth():
    rates = {link: 2.0 if link[0] == 0 else 1.0 for link in all_links(3)}
    probe = next(p for (p, *_) in together_rounds(["h"] * 3, OPTIONS, rates) if p.links == ((0, 1), (1, 0)))
    assert probe.chunk_bytes == (1_000_000, 500_000)


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (0, "a profile needs at least 2 ranks, got 0"),
        (1, "a profile needs at least 2 ranks, got 1"),
        (257, "a profile takes at most 256 ranks, got 257"),
    ],
)
def test_too_few_and_too_many_ranks(ranks, words):
    with pytest.raises(InputError, match=words):
        check_ranks(ranks)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"sizes": (1000,)}, "--sizes: latency and bandwidth need two different sizes, got 1"),
        ({"sizes": (1000, 2**30)}, "--sizes: 4 chunks must stay below 2 GiB, got 1073741824 bytes each"),
        ({"sizes": (0, 10)}, "must be at least 1 byte"),
        ({"repeats": 1}, "repeats must be at least 2, got 1"),
    ],
)
def test_invalid_plan_options(given, words):
    with pytest.raises(InputError, match=words):
        PlanOptions(**given)
